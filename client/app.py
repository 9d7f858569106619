"""An app as it is stored: what was before, and what operators do to it, from a rewind and an edit to compaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Unpack

from ..common import instants
from ..common.argument_types import checked_methods
from ..common.durations import format_ms
from ..errors import Unavailable, Usage
from ..operations.erasure.family import KeysAsked
from ..operations.erasure.forget import forget as forget_keys
from ..operations.erasure.forget import give_up, look
from ..operations.maintenance import protection
from ..operations.maintenance.compact import AppCompactor, Compacted, merged_last, plan
from ..operations.repair.reset import reset
from ..operations.repair.rewind import rewind
from ..operations.repair.rewind_offsets import Scenario, scopes
from ..pipeline.kafka.channels import group_of
from ..pipeline.messages.stored import StoredFormats
from ..snapshot.bisect.endpoints import BEGINNING
from ..snapshot.change import retries
from ..snapshot.change.edit import edit, newest
from ..snapshot.change.stages import rescale, retire
from ..snapshot.cut.moments import heads_of, stages_of
from ..snapshot.cut.refs import parse
from ..snapshot.gc.collect import MARGIN_MS, collect, explain
from ..snapshot.query.row_source import RowSource
from ..snapshot.status.archives import archives_of
from ..snapshot.under_way import runners
from ..store.versions.apps import read_app
from .declared.operations import (
    CompactOptions,
    EditOptions,
    ForgetOptions,
    GuardedOptions,
    KeysOptions,
    LookOptions,
    ResetOptions,
    RetentionOptions,
    RewindOptions,
)
from .declared.questions import When
from .failover import AppFailover
from .show import maintenance, rows
from .show.shown import Result
from .when import in_words

_NO_KEY: object = object()


@checked_methods
class StoredApp(AppFailover):
    """An app of a store, whether it runs or not.

    Whatever changes it raises `Unavailable` when the store or Kafka does not answer; the same call again finishes what
    was begun.
    """

    def retry(self, stage: str = "", *, dry_run: bool = False) -> Result:
        """Have rejected records that wait put through the current program: those of all stages, or of one."""
        client, now_ms = self._client, instants.now_ms()
        waiting = retries.waiting(client.store, self.name, stage)
        running = {name for beat in runners.beats(client.store, self.name, now_ms) for name in beat.stages}
        for name in () if dry_run else waiting:
            retries.ask(client.store, self.name, name, by=client.by, now_ms=now_ms)
        return rows.retries(self.name, waiting, running, dry_run=dry_run)

    def rewind(self, to: When = "", **options: Unpack[RewindOptions]) -> Result:
        """Take the app back.

        Args:
            to: the moment, as `at` takes it.

        Raises:
            Usage: the moment is malformed, there is none, or nothing says where Kafka is.
            NotFound: there is no such app or moment, or no program before this one.
            Refused: a runner has it; or Kafka does not hold what would be read once more; nothing was changed.
        """
        dry_run, keep_offsets = options["dry_run"], options["keep_offsets"]
        if bool(to) == options["before_deploy"]:
            verb = f"slackwater rewind {self.called}"
            raise Usage(
                "a rewind goes to a moment, or to before the newest deploy; expected one of the two",
                hint=f"{verb}@-1h, or another moment of it; or {verb} --before-deploy",
            )
        read_app(self._client.store, self.name)
        self._check_allowed("to rewind it", options)
        client, now_ms = self._client, instants.now_ms()
        channels = (
            None if keep_offsets else client.known_channels("which holds what is to be read once more", self.name)
        )
        done = rewind(
            client.store,
            self.name,
            parse(self._ref(to), now_ms=now_ms) if to else None,
            channels,
            by=client.by,
            now_ms=now_ms,
            cache=client.cache,
            fence=options["fence"],
            dry_run=dry_run,
            reader=channels or client.channels_of(self.name),
        )
        client.note_thinned(done.plan.ref, done.plan.to.thinned)
        return maintenance.rewound(done, dry_run=dry_run)

    def reset(self, *topics: str, **options: Unpack[ResetOptions]) -> Result:
        """Have the app read users' topics on from other offsets, at its next start.

        Args:
            topics: `"flights"`, or `"flights:0,1"` for some of its partitions; by the names that the app declares.

        Raises:
            Usage: there is not just one scenario, or not topics or all of them; or nothing says where Kafka is.
            NotFound: there is no such app, topic or partition.
            Refused: a runner has the app, the topic is one between its stages, or Kafka does not hold the offsets.
        """
        read_app(self._client.store, self.name)
        self._check_allowed("to reset its offsets", options)
        client, now_ms = self._client, instants.now_ms()
        text = in_words(options["to_datetime"])
        scenario = Scenario.of(
            to_earliest=options["to_earliest"],
            to_latest=options["to_latest"],
            to_datetime_ms=instants.parse("--to-datetime", text) if text else None,
            by_duration=options["by_duration"],
            shift_by=options["shift_by"],
            to_offset=options["to_offset"],
            now_ms=now_ms,
        )
        scope = scopes(topics, all_topics=options["all_topics"])
        channels = client.known_channels("which has the topics that are to be read on")
        done = reset(
            client.store,
            self.name,
            scope,
            scenario,
            channels,
            by=client.by,
            now_ms=now_ms,
            fence=options["fence"],
            dry_run=options["dry_run"],
            reader=channels,
        )
        return maintenance.reset(done, dry_run=options["dry_run"])

    def edit(
        self,
        table: str,
        sql: str = "",
        *,
        rows: str | Path = "",
        show_values: bool = True,
        **options: Unpack[EditOptions],
    ) -> Result:
        """Change rows of a table.

        Args:
            table: the stage whose table it is.
            sql: one UPDATE, DELETE, INSERT or MERGE of that table; it may read the app's other tables.
            rows: instead, a file that DuckDB reads, with all columns of the table: rows that are to be there.
            show_values: tell the rows as they were and as they become.

        Raises:
            Usage: the SQL is wrong, or no single statement that changes rows.
            NotFound: there is no such app, stage, table or column.
            Refused: the table cannot be edited, the rows do not fit it, or the runner did not come to it; nothing was
                changed then.
        """
        self._check_allowed(f"to edit {table}", options)
        client, on_wait = self._client, "{} has it, and does it between two batches …"
        before = newest(client.store, self.name, table).stages[table]
        done = edit(
            client.store,
            client.cache,
            self.name,
            table,
            sql.strip() or f"rows of {rows}",
            sql=sql,
            source=RowSource(file=str(rows), only_files=True) if rows else None,
            by=client.by,
            patience_s=options["timeout_s"],
            again=options["again"],
            dry_run=options["dry_run"],
            on_wait=lambda runner: client.note(on_wait.format(runner)),
        )
        return maintenance.edited(done, before, with_values=show_values, dry_run=options["dry_run"])

    def forget(
        self,
        keys: str | Sequence[str] | Mapping[str, Iterable[object]] = (),
        key: object = _NO_KEY,
        *,
        on_progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[ForgetOptions],
    ) -> Result:
        """Take keys out of all that the app has stored, of whatever version, and of its clones.

        Args:
            keys: a table, whose `key` is the second argument, as `get` takes it; or by table, the keys; or `TABLE=KEY`
                each, as on the command line.
            key: the key of that table; a tuple for one of several columns.
            on_progress: told what it is at.

        Raises:
            Usage: there is no key, or one is not of its columns' types; a field is none.
            NotFound: there is no such app or table.
            Refused: only the program knows which field of a topic leads to a key; nothing holds any of the keys; the
                app shares SSTs with one that it was cloned from; other keys are being forgotten; a snapshot, a clone
                or an edit is under way; a clone cannot be reached.
        """
        self._check_allowed("to forget keys of it", options)
        client = self._client
        done = forget_keys(
            client.store,
            client.cache,
            self.name,
            _asked(keys, key, options),
            by=client.by,
            kafka=client.channels(),
            declared=client.settings.declared_fields(options["fields"]),
            formats=StoredFormats(),
            dry_run=options["dry_run"],
            on_progress=on_progress,
        )
        return maintenance.forgot(done, self.called, dry_run=options["dry_run"])

    def verify_forgotten(
        self,
        keys: str | Sequence[str] | Mapping[str, Iterable[object]] = (),
        key: object = _NO_KEY,
        *,
        on_progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[LookOptions],
    ) -> Result:
        """Look whether anything of the app and its clones holds keys, as `forget` takes them. Changes nothing.

        With `deep`, each object is decoded in full, other tables' too. Raises as `forget`.
        """
        client, asked = self._client, _asked(keys, key, options)
        found = look(
            client.store,
            self.name,
            asked,
            kafka=client.channels(),
            declared=client.settings.declared_fields(options["fields"]),
            formats=StoredFormats(),
            deep=options["deep"],
            on_progress=on_progress,
        )
        return maintenance.looked(found, self.called)

    def give_up_forgetting(self) -> Result:
        """End a `forget` that broke off, and whose keys nobody has any more. Raises `Refused` where none did."""
        return maintenance.given_up(self.name, give_up(self._client.store, self.name, by=self._client.by))

    def rescale(self, stage: str, partitions: int, *, dry_run: bool = False) -> Result:
        """Change the number of state partitions of a stage's table. Raises `NotFound` for it, and `Refused`."""
        client, now_ms = self._client, instants.now_ms()
        done = rescale(client.store, self.name, stage, partitions, by=client.by, now_ms=now_ms, dry_run=dry_run)
        return maintenance.rescaled(done, dry_run=dry_run)

    def protect(self) -> Result:
        """Have methods that could lose something of the app want its name.

        These are `rewind`, `reset`, `edit`, `forget`, `retire`, `promote` over it, `remove`, `remove_clone` and
        `refresh`. It is the name that is protected: after a promotion the app that has it, and the one in the folder
        that is called so. Whoever is asked for it is told what `slackwater.because` says here. Raises `NotFound` for
        the app, and `Refused` for one whose own name another has.
        """
        client, now_ms = self._client, instants.now_ms()
        found = protection.protect(client.store, self.name, by=client.by, now_ms=now_ms)
        return maintenance.protected(found, already=found.time_ms != now_ms)

    def unprotect(self, *, yes_really: str = "") -> Result:
        """Take that away again. `yes_really` is the app's name. Raises as `protect`, and `Protected`."""
        client = self._client
        was = protection.lift(client.store, self.name, by=client.by, typed=yes_really, called=self.called)
        return maintenance.unprotected(self.called, was=was)

    def retire(self, stage: str, **options: Unpack[GuardedOptions]) -> Result:
        """Let the app go on without a stage that is gone from its program; its consumer group goes, too.

        Raises `NotFound` where there is none, and `Refused` where another stage reads what it sends.
        """
        client, group, dry_run = self._client, group_of(self.name, stage), options["dry_run"]
        self._check_allowed(f"to retire {stage}", options)
        done = retire(client.store, self.name, stage, by=client.by, now_ms=instants.now_ms(), dry_run=dry_run)
        try:
            if client.settings.brokers and not dry_run:
                client.settings.open_kafka().delete_groups([group])  # its lag would only grow
        except Unavailable as error:
            client.note(f"the consumer group {group} is still there: {error.message}")
        return maintenance.retired(done, dry_run=dry_run)

    def compact(
        self,
        stages: Sequence[str] = (),
        *,
        on_version: Callable[[Compacted], None] = lambda _done: None,
        **options: Unpack[CompactOptions],
    ) -> Result:
        """Merge the SSTs of all tables, or of some stages', as each table's policy calls for, or with `full` all.

        Without `stages`, the objects of its input archives, too. Raises `NotFound` for a stage that there is not, and
        `Refused` for one without a table.
        """
        # Parquet takes long to load.
        from ..operations.maintenance.archive_fill import merge_archives

        client, full, dry_run = self._client, options["full"], options["dry_run"]
        archives = partial(merge_archives, client.store, self.name, full=full, by=client.by, dry_run=dry_run)
        if dry_run:
            due = plan(client.store, self.name, tuple(stages), full=full)
            return maintenance.to_compact(self.name, due, () if stages else archives(), dry_run=True)
        compactor = self.compactor(stages, options["threads"], Event())
        done = compactor.once(full=full, on_version=on_version)
        merged = () if stages else archives()
        earlier = () if done or merged else merged_last(client.store, self.name, compactor.wanted)
        return maintenance.compacted(self.name, done, earlier, merged)

    def archive(
        self,
        since: When | None = None,
        *,
        dry_run: bool = False,
        on_progress: Callable[[str], None] = lambda _doing: None,
    ) -> Result:
        """What the app's input archives hold; first filled with what Kafka still has of what it read.

        Args:
            since: a moment of the app, as `at` takes it, from which on, or `"beginning"` for all that it read; None to
                fill nothing.
            dry_run: only look what would be added.
            on_progress: told in words what goes on.

        Raises:
            Usage: the moment is malformed, or one of another app; or nothing says where Kafka is.
            NotFound: there is no such app or moment.
            Refused: Kafka does not let us read, or loses meanwhile what is to be read; the same call goes on.
        """
        from ..operations.maintenance.archive_fill import TopicFilled, fill

        client = self._client
        filled: tuple[TopicFilled, ...] | None = None
        if since is not None:
            channels = client.known_channels("which has what is to be archived")
            cut = None if since == BEGINNING else self.at(since).cut
            filled = fill(
                client.store, self.name, channels, cut, by=client.by, dry_run=dry_run, on_progress=on_progress
            )
        heads = heads_of(client.store, self.name, stages_of(client.store, self.name))
        found = archives_of(client.store, self.name, heads.values())
        return maintenance.archived(self.called, found, filled, dry_run=dry_run)

    def compactor(self, stages: Sequence[str], threads: int, stop: Event) -> AppCompactor:
        """What merges with so many threads what is due, until `stop`."""
        client, wanted, clock = self._client, tuple(stages), instants.now_ms
        store, cache, by = client.store, client.cache, client.by
        return AppCompactor(store, cache, self.name, wanted, by=by, threads=threads, now_ms=clock, stop=stop)

    def gc(
        self,
        *,
        margin_ms: int = MARGIN_MS,
        explained: str = "",
        dry_run: bool = False,
        **rules: Unpack[RetentionOptions],
    ) -> Result:
        """Collect versions that retention lets go, and objects that nothing has named for `margin_ms`, an hour or more.

        With `explained`, an object, it only says why that is kept, or not. Rules go before those of the settings.
        Raises `Usage` for a shorter margin, and `NotFound` for the app or the object.
        """
        client = self._client
        retention = client.settings.retention_of(self.called, **rules)
        if margin_ms < MARGIN_MS:
            why = "what a merge writes may be half an hour old before a version names it"
            hint = "leave --margin away; what nothing names goes after an hour"
            raise Usage(f"--margin is {format_ms(margin_ms)}; expected 1h or more: {why}", hint=hint)
        if explained:
            return maintenance.explained(explain(client.store, self.name, explained, retention, margin_ms=margin_ms))
        done = collect(client.store, self.name, retention, by=client.by, dry_run=dry_run, margin_ms=margin_ms)
        return maintenance.collected(done)


def _asked(keys: str | Sequence[str] | Mapping[str, Iterable[object]], key: object, options: KeysOptions) -> KeysAsked:
    files, also = options["files"], options["also"]
    if isinstance(keys, str):
        if key is _NO_KEY:
            raise Usage(
                f"{keys!r} is a table without a key",
                hint=f"give the key with it, forget({keys!r}, 'KEY'); a snapshot goes by remove_snapshot({keys!r})",
            )
        keys = {keys: (key,)}
    elif key is not _NO_KEY:
        raise Usage("the second argument is the key of one table, which the first names", hint="forget('TABLE', KEY)")
    if isinstance(keys, Mapping):
        if files:
            raise Usage("keys by table do not go with files", hint="give TABLE=KEY each, or only files")
        return KeysAsked.of_values(keys, also)
    return KeysAsked.of(keys, files, also)
