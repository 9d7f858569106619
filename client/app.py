"""`StoredApp`: an app in a store, with all operations on the app, such as rewind, edit, forget, compaction and gc."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ..common import instants, runtime
from ..common.arguments import check_method_arguments
from ..common.durations import format_ms
from ..common.runtime import Event
from ..errors import Unavailable, Usage
from ..operations.erasure.family import RequestedKeys
from ..operations.erasure.forget import abandon_erasure, search_keys
from ..operations.erasure.forget import forget as forget_keys
from ..operations.maintenance import removal
from ..operations.maintenance.compact import AppCompactor, Compacted, heads_of_compactions, plan
from ..operations.repair.reset import Scenario, parse_scopes, reset
from ..operations.repair.rewind import rewind
from ..pipeline.kafka.channels import consumer_group
from ..snapshot.bisect.endpoints import BEGINNING
from ..snapshot.change import stages
from ..snapshot.change.edit import edit, newest_active_cut
from ..snapshot.change.stages import rescale, retire
from ..snapshot.cut.moments import heads_of, stages_of
from ..snapshot.cut.refs import parse_ref
from ..snapshot.gc.collect import MARGIN_MS, collect, explain
from ..snapshot.query.row_source import RowSource
from ..snapshot.status.overview import archive_statuses
from ..snapshot.under_way import runners
from ..store.versions.apps import read_app
from .declared.operations import (
    CompactOptions,
    EditOptions,
    ForgetOptions,
    GuardedOptions,
    KeysOptions,
    LookOptions,
    RepairOptions,
    ResetOptions,
    RetentionOptions,
    RewindOptions,
)
from .declared.questions import When
from .failover import AppFailover
from .repair.calls import repair_records
from .show import maintenance, rows
from .show.shown import Result
from .when import moment_text

if TYPE_CHECKING:
    from ..pipeline.messages.decode import RegistryDecoder

_NO_KEY: object = object()


@check_method_arguments
class StoredApp(AppFailover):
    """An app in a store, running or not.

    If the store or Kafka does not answer, methods that change the app raise `Unavailable`. A repeated call finishes the
    operation.
    """

    def retry(self, stage: str = "", *, dry_run: bool = False) -> Result:
        """Request that runners retry the rejected records of one stage, or of all stages if `stage` is empty."""
        client, now_ms = self._client, instants.now_ms()
        waiting = stages.count_retriable_records(client.store, self.name, stage)
        running = {name for beat in runners.live_heartbeats(client.store, self.name, now_ms) for name in beat.stages}
        for name in () if dry_run else waiting:
            stages.request_retry(client.store, self.name, name, by=client.by, now_ms=now_ms)
        return rows.retry_result(self.name, waiting, running, dry_run=dry_run)

    def rewind(self, to: When = "", **options: Unpack[RewindOptions]) -> Result:
        """Roll the app back to an earlier moment.

        Args:
            to: the moment, in the forms that `at` takes.

        Raises:
            Usage: the moment is malformed or missing, or no Kafka is configured.
            NotFound: the app or the moment does not exist, or `before_deploy` is set and no earlier program is known.
            Refused: a runner holds the app, or Kafka no longer has the records that would be read again; nothing
            changed.
        """
        dry_run, keep_offsets = options["dry_run"], options["keep_offsets"]
        if bool(to) == options["before_deploy"]:
            verb = f"slackwater rewind {self.called}"
            raise Usage(
                "rewind takes either a moment or --before-deploy",
                hint=f"for example {verb}@-1h, or {verb} --before-deploy",
            )
        read_app(self._client.store, self.name)
        self._check_allowed("to rewind it", options)
        client, now_ms = self._client, instants.now_ms()
        channels = (
            None
            if keep_offsets
            else client.require_channels("to check that it still has the input to re-read", self.name)
        )
        done = rewind(
            client.store,
            self.name,
            parse_ref(self._ref(to), now_ms=now_ms) if to else None,
            channels,
            by=client.by,
            now_ms=now_ms,
            cache=client.cache,
            fence=options["fence"],
            dry_run=dry_run,
            reader=channels or client.channels_of(self.name),
        )
        client.note_thinned(done.plan.ref, done.plan.to.thinned)
        return maintenance.rewind_result(done, dry_run=dry_run)

    def reset(self, *topics: str, **options: Unpack[ResetOptions]) -> Result:
        """Set the offsets in users' topics at which the app's next run continues.

        Args:
            topics: `"flights"`, or `"flights:0,1"` for partitions 0 and 1; topics have the names that the app
                declares.

        Raises:
            Usage: no option or several options give the new offsets, `topics` and `all_topics` are both given or both
                missing, or no Kafka is configured.
            NotFound: the app, a topic or a partition does not exist.
            Refused: a runner holds the app, the topic is a repartition topic, or Kafka does not have the offsets.
        """
        read_app(self._client.store, self.name)
        self._check_allowed("to reset its offsets", options)
        client, now_ms = self._client, instants.now_ms()
        text = moment_text(options["to_datetime"])
        scenario = Scenario.from_options(
            to_earliest=options["to_earliest"],
            to_latest=options["to_latest"],
            to_datetime_ms=instants.parse_instant("--to-datetime", text) if text else None,
            by_duration=options["by_duration"],
            shift_by=options["shift_by"],
            to_offset=options["to_offset"],
            now_ms=now_ms,
        )
        scope = parse_scopes(topics, all_topics=options["all_topics"])
        channels = client.require_channels("to look up offsets")
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
        return maintenance.reset_result(done, dry_run=options["dry_run"])

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
            table: the table, which has the name of its stage.
            sql: one UPDATE, DELETE, INSERT or MERGE on that table; it may read the app's other tables.
            rows: a file that DuckDB can read, given instead of `sql`; its rows must have all columns of the table, and
                are upserted.
            show_values: include the old and the new rows in the result.

        Raises:
            Usage: the SQL is wrong, or is not a single statement that changes rows.
            NotFound: the app, stage, table or column does not exist.
            Refused: the table cannot be edited, the rows do not fit it, or the runner did not apply the edit in time;
                nothing changed.
        """
        self._check_allowed(f"to edit {table}", options)
        client, on_wait = self._client, "waiting for {} to apply the edit between two batches …"
        previous = newest_active_cut(client.store, self.name, table).stages[table]
        done = edit(
            client.store,
            client.cache,
            self.name,
            table,
            sql.strip() or f"rows of {rows}",
            sql=sql,
            source=RowSource(file=str(rows), only_files=True) if rows else None,
            by=client.by,
            timeout_s=options["timeout_s"],
            again=options["again"],
            dry_run=options["dry_run"],
            on_wait=lambda runner: client.note(on_wait.format(runner)),
        )
        return maintenance.edit_result(done, previous, with_values=show_values, dry_run=options["dry_run"])

    def repair(
        self,
        *,
        drop: Sequence[str] = (),
        replace: Mapping[str, str | Path | bytes] | None = None,
        code: str | Path | None = None,
        on_progress: Callable[[str], None] = lambda _doing: None,
        **options: Unpack[RepairOptions],
    ) -> Result:
        """Remove or replace records in the past of their keys, as if the app had never read them.

        Args:
            drop: locations of records to remove, as printed by `bisect` and `why`: `topic[partition]@offset`.
            replace: new values of records, by location: a value, or a file with the value.
            code: the file of the program that ran; default: the program in the settings.
            on_progress: called with a line about the current step.

        Raises:
            Usage: neither records nor `undo` are given, or both; a location is malformed, or no Kafka is configured.
            NotFound: no stage has read a record since `since`, the versions that read it were collected, there is no
                repair to undo, or a file with a value cannot be read.
            Refused: a key's row depends on more than its records, the program is nondeterministic, sinks have
                published rows that cannot be corrected, a sink would refuse corrected rows, too many keys are affected,
                or the stages did not finish their batches in time.
        """
        self._check_allowed("to repair it", options)
        since = self.at(options["since"]).versions if options["since"] else {}
        return repair_records(self._client, self.name, drop, replace or {}, code, options, since, on_progress)

    def forget(
        self,
        keys: str | Sequence[str] | Mapping[str, Iterable[object]] = (),
        key: object = _NO_KEY,
        *,
        on_progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[ForgetOptions],
    ) -> Result:
        """Delete keys from everything that the app and its clones have stored, in every version.

        Args:
            keys: a table's name, if `key` is given; or a mapping from tables to their keys; or a list of `TABLE=KEY`,
                as on the command line.
            key: the key in that table, in a form that `get` takes; a tuple for several key columns.
            on_progress: called with a line about the current step.

        Raises:
            Usage: a key is missing or does not have the types of the key columns, or a field is malformed.
            NotFound: the app or the table does not exist.
            Refused: no object holds any of the keys; it is unknown which field of the stored records becomes the key;
                the app is a clone and shares SSTs with its source; a clone cannot be reached; or a snapshot, a clone,
                an edit or a `forget` for other keys is in progress.
        """
        self._check_allowed("to forget keys of it", options)
        client = self._client
        done = forget_keys(
            client.store,
            client.cache,
            self.name,
            _requested_keys(keys, key, options),
            by=client.by,
            kafka=client.channels(),
            declared=client.settings.declared_fields(options["fields"]),
            formats=_stored_formats(),
            dry_run=options["dry_run"],
            on_progress=on_progress,
        )
        return maintenance.forget_result(done, self.called, dry_run=options["dry_run"])

    def verify_forgotten(
        self,
        keys: str | Sequence[str] | Mapping[str, Iterable[object]] = (),
        key: object = _NO_KEY,
        *,
        on_progress: Callable[[str], None] = lambda _line: None,
        **options: Unpack[LookOptions],
    ) -> Result:
        """Search all stored objects of the app and its clones for keys that `forget` deleted. Read-only.

        With the option `deep`, decodes every object in full, including objects of tables without requested keys. `keys`
        and `key` have the forms that `forget` takes. Raises the errors of `forget`.
        """
        client, requested = self._client, _requested_keys(keys, key, options)
        findings = search_keys(
            client.store,
            self.name,
            requested,
            kafka=client.channels(),
            declared=client.settings.declared_fields(options["fields"]),
            formats=_stored_formats(),
            deep=options["deep"],
            on_progress=on_progress,
        )
        return maintenance.forgotten_search_result(findings, self.called)

    def give_up_forgetting(self) -> Result:
        """Abandon an interrupted `forget` whose keys are lost. Raises `Refused` if no `forget` was interrupted."""
        return maintenance.abandoned_forget_result(
            self.name, abandon_erasure(self._client.store, self.name, by=self._client.by)
        )

    def rescale(self, stage: str, partitions: int, *, dry_run: bool = False) -> Result:
        """Change the number of state partitions of a stage's table.

        Raises `NotFound` for an unknown stage, and `Refused` for a stage that cannot be rescaled.
        """
        client, now_ms = self._client, instants.now_ms()
        done = rescale(client.store, self.name, stage, partitions, by=client.by, now_ms=now_ms, dry_run=dry_run)
        return maintenance.rescale_result(done, dry_run=dry_run)

    def protect(self) -> Result:
        """Require the app's name as `yes_really` in methods that could lose data.

        The methods are `rewind`, `reset`, `edit`, `repair`, `forget`, `retire`, `promote` over this app, `remove`,
        `remove_clone` and `refresh`. The protection belongs to the name: after a promotion, it covers both the app that
        now has the name, and the app stored in the folder of that name. The reason for the protection, set by
        `slackwater.because`, appears in `Protected` errors. Raises `NotFound` if the app does not exist, and `Refused`
        if its name now belongs to a promoted app.
        """
        client, now_ms = self._client, instants.now_ms()
        protected = removal.protect(client.store, self.name, by=client.by, now_ms=now_ms)
        return maintenance.protection_result(protected, already=protected.time_ms != now_ms)

    def unprotect(self, *, yes_really: str = "") -> Result:
        """Remove the protection. `yes_really` must be the app's name.

        Raises `Protected` without the name, `NotFound` if the app does not exist, and `Refused` if its name now belongs
        to a promoted app.
        """
        client = self._client
        was = removal.lift_protection(client.store, self.name, by=client.by, typed=yes_really, called=self.called)
        return maintenance.unprotection_result(self.called, was_protected=was)

    def retire(self, stage: str, **options: Unpack[GuardedOptions]) -> Result:
        """Drop a stage and its consumer group, after the stage was removed from the program.

        Raises `NotFound` for an unknown stage, and `Refused` if a stage of the app reads its output.
        """
        client, group, dry_run = self._client, consumer_group(self.name, stage), options["dry_run"]
        self._check_allowed(f"to retire {stage}", options)
        done = retire(client.store, self.name, stage, by=client.by, now_ms=instants.now_ms(), dry_run=dry_run)
        try:
            if client.settings.brokers and not dry_run:
                client.settings.open_kafka().delete_groups([group])  # its lag would only grow
        except Unavailable as error:
            client.note(f"consumer group {group} was not deleted: {error.message}")
        return maintenance.retirement_result(done, dry_run=dry_run)

    def compact(
        self,
        stages: Sequence[str] = (),
        *,
        on_version: Callable[[Compacted], None] = lambda _done: None,
        **options: Unpack[CompactOptions],
    ) -> Result:
        """Merge SSTs by each table's compaction policy, in all tables, or only in those of `stages`.

        With the option `full`, merges all SSTs. Without `stages`, also merges input archives. Raises `NotFound` for an
        unknown stage, and `Refused` for a stage without a table.
        """
        # Imported here because Parquet loads slowly.
        from ..operations.maintenance.archive_fill import merge_archives

        client, full, dry_run = self._client, options["full"], options["dry_run"]
        archives = partial(merge_archives, client.store, self.name, full=full, by=client.by, dry_run=dry_run)
        if dry_run:
            due = plan(client.store, self.name, tuple(stages), full=full)
            return maintenance.compaction_plan_result(self.name, due, () if stages else archives(), dry_run=True)
        compactor = self.compactor(stages, options["threads"], runtime.event())
        done = compactor.merge_once(full=full, on_version=on_version)
        merged = () if stages else archives()
        earlier = () if done or merged else heads_of_compactions(client.store, self.name, compactor.wanted)
        return maintenance.compaction_result(self.name, done, earlier, merged)

    def archive(
        self,
        since: When | None = None,
        *,
        dry_run: bool = False,
        on_progress: Callable[[str], None] = lambda _doing: None,
    ) -> Result:
        """Show the contents of the app's input archives; with `since`, first fill the archives from Kafka.

        Args:
            since: archive the records read since this moment, in a form that `at` takes, or since `"beginning"`; None
                archives nothing.
            dry_run: only show what would be added.
            on_progress: called with a line about the current step.

        Raises:
            Usage: the moment is malformed or of another app, or no Kafka is configured.
            NotFound: the app or the moment does not exist.
            Refused: Kafka denies reading, or deletes records before they are read; a repeated call resumes.
        """
        from ..operations.maintenance.archive_fill import TopicFilled, fill

        client = self._client
        filled: tuple[TopicFilled, ...] | None = None
        if since is not None:
            channels = client.require_channels("to read the records to archive")
            cut = None if since == BEGINNING else self.at(since).cut
            filled = fill(
                client.store, self.name, channels, cut, by=client.by, dry_run=dry_run, on_progress=on_progress
            )
        heads = heads_of(client.store, self.name, stages_of(client.store, self.name))
        archives = archive_statuses(client.store, self.name, heads.values())
        return maintenance.archive_result(self.called, archives, filled, dry_run=dry_run)

    def compactor(self, stages: Sequence[str], threads: int, stop: Event) -> AppCompactor:
        """Return a compactor that merges SSTs on `threads` threads whenever a merge is due, until `stop` is set."""
        client, stage_names, clock = self._client, tuple(stages), instants.now_ms
        store, cache, by = client.store, client.cache, client.by
        return AppCompactor(store, cache, self.name, stage_names, by=by, threads=threads, now_ms=clock, stop=stop)

    def gc(
        self,
        *,
        margin_ms: int = MARGIN_MS,
        explained: str = "",
        dry_run: bool = False,
        **rules: Unpack[RetentionOptions],
    ) -> Result:
        """Delete versions that no retention rule keeps, and objects that have been unreferenced for `margin_ms`.

        `margin_ms` is at least an hour. If `explained` is the key of an object, nothing is deleted, and the result
        gives the reason why gc would keep or delete that object. `rules` override the rules of the settings. Raises
        `Usage` for a shorter margin, and `NotFound` for an unknown app or object.
        """
        client = self._client
        retention = client.settings.retention_of(self.called, **rules)
        if margin_ms < MARGIN_MS:
            why = "a merge may write an object half an hour before a version refers to it"
            hint = "omit --margin: unreferenced objects are deleted after an hour"
            raise Usage(f"--margin is {format_ms(margin_ms)}; expected 1h or more: {why}", hint=hint)
        if explained:
            return maintenance.explanation_result(
                explain(client.store, self.name, explained, retention, margin_ms=margin_ms)
            )
        done = collect(client.store, self.name, retention, by=client.by, dry_run=dry_run, margin_ms=margin_ms)
        return maintenance.gc_result(done)


def _stored_formats() -> "RegistryDecoder":
    # Imported late: it loads Spark.
    from ..pipeline.messages.decode import RegistryDecoder

    return RegistryDecoder()


def _requested_keys(
    keys: str | Sequence[str] | Mapping[str, Iterable[object]], key: object, options: KeysOptions
) -> RequestedKeys:
    files, also = options["files"], options["also"]
    if isinstance(keys, str):
        if key is _NO_KEY:
            raise Usage(
                f"{keys!r} is a table without a key",
                hint=f"pass the key, forget({keys!r}, 'KEY'); to remove a snapshot: remove_snapshot({keys!r})",
            )
        keys = {keys: (key,)}
    elif key is not _NO_KEY:
        raise Usage(
            "with a key as the second argument, the first must be the name of its table", hint="forget('TABLE', KEY)"
        )
    if isinstance(keys, Mapping):
        if files:
            raise Usage("keys by table cannot be combined with files", hint="give each key as TABLE=KEY, or only files")
        return RequestedKeys.from_values(keys, also)
    return RequestedKeys.parse(keys, files, also)
