"""An app as it is stored: its history, and what operators do to it, from a rewind and compaction to a migration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from .. import instants
from ..durations import format_ms
from ..errors import Unavailable, Usage
from ..keep.edit.edit import edit, newest
from ..keep.gc.collect import MARGIN_MS, collect, explain
from ..keep.init.source import RowSource
from ..keep.maintain import protection
from ..keep.maintain.compact import AppCompactor, Compacted, merged_last, plan
from ..keep.maintain.stages import rescale, retire
from ..keep.promote.promote import promote
from ..keep.rejected import retries
from ..keep.rewind.rewind import rewind
from ..moments.cut.refs import parse
from ..moments.status import lag
from ..pipeline.kafka.channels import group_of
from ..results import maintenance, promotion, rows
from ..results.shown import Result
from .clones import AppClones

if TYPE_CHECKING:
    from ..keep.migrate.migrate import Migrated
    from ..pipeline.migrate.backfill import Backfilled
    from ..pipeline.run.options import Options
    from .searches import Reports


class StoredApp(AppClones):
    """An app of a store, whether it runs or not.

    Whatever changes it raises `Unavailable` when the store or Kafka does not answer; the same call again finishes what
    was begun.
    """

    def retry(self, stage: str = "", *, dry_run: bool = False) -> Result:
        """Have rejected records that wait put through the current program: those of all stages, or of one."""
        client, now_ms = self._client, instants.now_ms()
        waiting = retries.waiting(client.store, self.name, stage)
        running = {name for beat in lag.beats(client.store, self.name, now_ms) for name in beat.stages}
        for name in () if dry_run else waiting:
            retries.ask(client.store, self.name, name, by=client.by, now_ms=now_ms)
        return rows.retries(self.name, waiting, running, dry_run=dry_run)

    def rewind(
        self,
        to: str | datetime = "",
        *,
        before_deploy: bool = False,
        keep_offsets: bool = False,
        fence: bool = False,
        yes_really: str = "",
        dry_run: bool = False,
    ) -> Result:
        """Take the app back to an earlier moment of its own: tables, offsets, and what was on the way, of all stages.

        As new versions: the history stays, and what is undone is a snapshot's, which one more rewind goes back to. What
        sinks were given since cannot be unsent, and comes once more.

        Args:
            to: the moment, as `at` takes it.
            before_deploy: instead, the moment before the program that the app has now.
            keep_offsets: only the tables; the app goes on reading where it is.
            fence: also while a runner has the app, which stops.
            yes_really: the app's name once more, where it is protected.
            dry_run: only look: what is undone in rows, offsets, and rows that sinks were given.

        Raises:
            Usage: the moment is malformed, there is none, or nothing says where Kafka is.
            NotFound: there is no such app or moment, or no program before this one.
            Refused: a runner has it; or Kafka does not hold what would be read once more; nothing was changed.
        """
        if bool(to) == before_deploy:
            raise Usage("a rewind goes to a moment, or to before the newest deploy; expected one of the two")
        self._check_protected("to rewind it", yes_really, dry_run=dry_run)
        client, now_ms = self._client, instants.now_ms()
        channels = None if keep_offsets else client.known_channels("which holds what is to be read once more")
        done = rewind(
            client.store,
            self.name,
            parse(self._ref(to), now_ms=now_ms) if to else None,
            channels,
            by=client.by,
            now_ms=now_ms,
            cache=client.cache,
            fence=fence,
            dry_run=dry_run,
            reader=channels or client.channels(),
        )
        client.note_thinned(done.plan.ref, done.plan.to.thinned)
        return maintenance.rewound(done, client.flags, dry_run=dry_run)

    def promote(
        self,
        staging: str = "",
        *,
        back: bool = False,
        timeout_s: float = 600,
        show_values: bool = False,
        yes_really: str = "",
        dry_run: bool = False,
        on_wait: Callable[[str], None] = lambda _what: None,
    ) -> Result:
        """Give another app this one's name, its sinks, and the right to write to them: blue and green.

        Waits until both stand at the same offsets of their topics, and holds both there for the moment that it takes.
        A `read_committed` reader of a sink sees each row once. This app is `NAME~1` from then on. A call that was
        interrupted is finished by the same call.

        Args:
            staging: the app that gets the name: a clone of this one, or what this one was cloned from.
            back: instead, the app that had the name before.
            timeout_s: how long to wait until both stand at the same offsets.
            show_values: tell the rows that differ between the two with their values.
            yes_really: the app's name once more, where it is protected.
            dry_run: only look: how far they are apart, how their tables differ, which sinks go over.
            on_wait: told how far they are.

        Raises:
            Usage: there is not just one app that is to get the name, or nothing says where Kafka is.
            NotFound: there is no such app.
            Refused: the other app is no clone, or a sink has no counterpart in it; another promotion is under way; or
                they did not come to stand at the same offsets in time. Nothing has gone over then.
        """
        from ..pipeline.publish.prepare import InternalTopics

        if bool(staging) == back:
            raise Usage("the name goes to an app, or back to the one that had it; expected one of the two")
        client, name = self._client, self.called
        if "~" in name:
            raise Usage(f"{name} is an app that a name went over from", hint="promote over the name alone")
        self._check_protected(f"to promote {staging or 'another app'} over it", yes_really, dry_run=dry_run)
        channels = client.known_channels("which has the topics that both apps read")
        done = promote(
            client.store,
            InternalTopics(channels.kafka),
            name,
            staging,
            by=client.by,
            cache=client.cache,
            timeout_s=timeout_s,
            dry_run=dry_run,
            on_wait=on_wait,
        )
        return promotion.promoted(done, client.flags, with_values=show_values, dry_run=dry_run)

    def edit(
        self,
        table: str,
        sql: str = "",
        *,
        rows: str | Path = "",
        show_values: bool = True,
        timeout_s: float = 60,
        again: bool = False,
        yes_really: str = "",
        dry_run: bool = False,
    ) -> Result:
        """Change rows of a table by hand, as a version of its own; a runner that has the stage does it meanwhile.

        Nothing is sent on for it: stages and sinks behind the table have what they were sent before.

        Args:
            table: the stage whose table it is.
            sql: one UPDATE, DELETE, INSERT or MERGE of that table; it may read the app's other tables.
            rows: instead, a file that DuckDB reads, with all columns of the table: rows that are to be there.
            show_values: tell the rows as they were and as they become.
            timeout_s: how long a runner that has the stage has for it.
            again: also where the same statement was done in the last ten minutes, which else is not done twice.
            yes_really: the app's name once more, where it is protected.
            dry_run: only look.

        Raises:
            Usage: the SQL is wrong, or no single statement that changes rows.
            NotFound: there is no such app, stage, table or column.
            Refused: the table cannot be edited, the rows do not fit it, or the runner did not come to it; nothing was
                changed then.
        """
        self._check_protected(f"to edit {table}", yes_really, dry_run=dry_run)
        client, on_wait = self._client, "{} has it, and does it between two batches …"
        before = newest(client.store, self.name, table).stages[table]
        done = edit(
            client.store,
            client.cache,
            self.name,
            table,
            sql.strip() or f"rows of {rows}",
            sql=sql,
            source=RowSource(file=str(rows)) if rows else None,
            by=client.by,
            patience_s=timeout_s,
            again=again,
            dry_run=dry_run,
            on_wait=lambda runner: client.note(on_wait.format(runner)),
        )
        return maintenance.edited(done, before, client.flags, with_values=show_values, dry_run=dry_run)

    def rescale(self, stage: str, partitions: int, *, dry_run: bool = False) -> Result:
        """Change the number of state partitions of a stage's table. Raises `NotFound` for it, and `Refused`."""
        client, now_ms = self._client, instants.now_ms()
        done = rescale(client.store, self.name, stage, partitions, by=client.by, now_ms=now_ms, dry_run=dry_run)
        return maintenance.rescaled(done, dry_run=dry_run)

    def protect(self) -> Result:
        """Have methods that could lose something of the app want its name: `rewind`, `edit`, `retire` and `remove`.

        Whoever is asked for it is told what `slackwater.because` says here. Raises `NotFound` for the app.
        """
        client, now_ms = self._client, instants.now_ms()
        found = protection.protect(client.store, self.name, by=client.by, now_ms=now_ms)
        return maintenance.protected(found, already=found.time_ms != now_ms)

    def unprotect(self, *, yes_really: str = "") -> Result:
        """Take that away again. `yes_really` is the app's name. Raises `Protected` where it is not."""
        client = self._client
        was = protection.lift(client.store, self.name, by=client.by, typed=yes_really)
        return maintenance.unprotected(self.name, was=was)

    def retire(self, stage: str, *, yes_really: str = "", dry_run: bool = False) -> Result:
        """Let the app go on without a stage that is gone from its program; its consumer group goes, too.

        Raises `NotFound` where there is none, and `Refused` where another stage reads what it sends.
        """
        client, group = self._client, group_of(self.name, stage)
        self._check_protected(f"to retire {stage}", yes_really, dry_run=dry_run)
        done = retire(client.store, self.name, stage, by=client.by, now_ms=instants.now_ms(), dry_run=dry_run)
        try:
            if client.settings.brokers and not dry_run:
                client.settings.open_kafka().delete_groups([group])  # its lag would only grow
        except Unavailable as error:
            client.note(f"the consumer group {group} is still there: {error.message}")
        return maintenance.retired(done, client.flags, dry_run=dry_run)

    def compact(
        self,
        stages: Sequence[str] = (),
        *,
        threads: int = 1,
        full: bool = False,
        dry_run: bool = False,
        on_version: Callable[[Compacted], None] = lambda _done: None,
    ) -> Result:
        """Merge the SSTs of all tables, or of some stages', as each table's policy calls for, or with `full` all.

        Raises `NotFound` for a stage that there is not, and `Refused` for one without a table.
        """
        if dry_run:
            return maintenance.to_compact(self.name, plan(self._client.store, self.name, tuple(stages), full=full))
        compactor = self.compactor(stages, threads, Event())
        done = compactor.once(full=full, on_version=on_version)
        earlier = () if done else merged_last(self._client.store, self.name, compactor.wanted)
        return maintenance.compacted(self.name, done, earlier)

    def compactor(self, stages: Sequence[str], threads: int, stop: Event) -> AppCompactor:
        """What merges with so many threads what is due, until `stop`."""
        client, wanted, clock = self._client, tuple(stages), instants.now_ms
        store, cache, by = client.store, client.cache, client.by
        return AppCompactor(store, cache, self.name, wanted, by=by, threads=threads, now_ms=clock, stop=stop)

    def gc(
        self, *, margin_ms: int = MARGIN_MS, explained: str = "", dry_run: bool = False, **rules: int | None
    ) -> Result:
        """Collect versions that retention lets go, and objects that nothing has named for `margin_ms`, an hour or more.

        With `explained`, an object, it only says why that is kept, or not. `rules` are `all_ms`, `hourly_ms`,
        `daily_ms` and `versions`, before those of the settings. Raises `Usage` for a shorter margin, and `NotFound`
        for the app or the object.
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

    def migrate(
        self,
        code: str | Path,
        *,
        rename: Mapping[str, str] | None = None,
        rename_stage: Mapping[str, str] | None = None,
        dry_run: bool = False,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
    ) -> "Migrated":
        """Have the app go on with a changed program: all of its stages, or none. No data is rewritten.

        Starts Spark, unless a session runs here already, to see which columns the program declares.

        Args:
            code: the file of the changed program.
            rename: stored columns that have another name in it, old to new; `table.old` for one table.
            rename_stage: stored stages that do.
            dry_run: only look: `plan` says what would change.
            master: Spark's master URL; default one thread of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the program imports.

        Returns:
            What was changed (`plan.changes`), by which versions, and the snapshot of the moment before.

        Raises:
            Usage: an argument is not one that could work, or the program declares something that cannot be.
            NotFound: a rename names a column or stage that is not there, or a new input needs Kafka and nothing says
                where that is.
            Refused: what is stored cannot be kept under the program, or somebody else migrates the app. Nothing was
                changed.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.program import migrate_file

        options, renames, stages = self._run_options(master, spark_conf, py_files), rename or {}, rename_stage or {}
        return migrate_file(str(code), app=self.name, options=options, renames=renames, stages=stages, dry_run=dry_run)

    def backfill(
        self,
        code: str | Path,
        *,
        since: str | datetime = "",
        rename: Mapping[str, str] | None = None,
        rename_stage: Mapping[str, str] | None = None,
        dry_run: bool = False,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        on_progress: Callable[[str], None] = lambda _doing: None,
    ) -> "Backfilled":
        """Compute columns that a migration added over the past too, from Kafka, beside the app, which may run.

        Migrates the app first, if it is not, with the same arguments; Spark has all cores of this machine by default.
        A call that was broken off is finished by the same call. `since` is a moment of the app, as `at` takes it: from
        there on; empty for all that its stages read and Kafka has. `on_progress` is told in words what goes on.

        Returns:
            The columns that got their past, with the offsets from which on they are complete (`filled`), those that
            stay as they are and why (`left`), and what the program changed before (`migrated`).

        Raises:
            Usage: an argument is not one that could work, or nothing says where Kafka is.
            NotFound: there is no such moment, or a rename names what is not there.
            Refused: nothing that was added can be computed, or the app cannot be migrated.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.backfill import backfill_file
        from ..pipeline.run.news import News

        self._client.known_channels("from which the past is read")
        return backfill_file(
            str(code),
            app=self.name,
            options=self._run_options(master or "local[*]", spark_conf, py_files),
            renames=rename or {},
            stages=rename_stage or {},
            since=self._ref(since) if since else "",
            dry_run=dry_run,
            news=News(on_progress),
        )

    def trial(
        self,
        code: str | Path,
        *,
        start: str | datetime,
        end: str | datetime = "",
        before: str | Path | None = None,
        rename: Mapping[str, str] | None = None,
        rename_stage: Mapping[str, str] | None = None,
        allow: Sequence[str] = (),
        stages: Sequence[str] = (),
        keys: str = "",
        keep: str = "",
        reports: "Reports | None" = None,
        show_values: bool = True,
        master: str | None = None,
        spark_conf: Mapping[str, str] | None = None,
        py_files: Sequence[str] = (),
        dry_run: bool = False,
        on_progress: Callable[[str], None] = lambda _doing: None,
    ) -> Result:
        """Run a changed program over the input that the app read between two moments, and tell what is different.

        In a clone, which goes again; it publishes nothing, and the app is only read. Starts Spark, with all cores of
        this machine by default.

        Args:
            code: the file of the changed program.
            start: the moment from which on its input is taken, as `at` takes it.
            end: the one up to which; default now.
            before: the file of the program that ran. It works off the same input, and is compared with, where rows were
                on the way at `end` or the app has sinks; without it, what sinks are given is not compared.
            rename: stored columns that have another name in the changed program, old to new.
            rename_stage: stored stages that do.
            allow: queries that name the keys whose differences are meant: each sees the differences of a table under
                its name, with its key, `change`, `before_…` and `after_…`, and returns keys.
            stages: try these, and what they read from; default all.
            keys: try a fixed share of the keys, such as `"1%"`: exact for these, and refused where a stage mixes keys.
            keep: the name under which the clone stays.
            reports: files to write it to.
            show_values: tell the rows that differ.
            master: Spark's master URL; default all cores of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the programs import.
            dry_run: only look whether the program fits.
            on_progress: told in words what goes on.

        Raises:
            Usage: a moment is malformed, the second one is not after the first, or nothing says where Kafka is.
            NotFound: there is no such moment.
            Refused: the program does not fit, Kafka does not have the records any more, or rows are on the way at `end`
                and `before` is not given.
        """
        from ..pipeline.run.news import News
        from ..pipeline.trial.sample import Sample
        from ..pipeline.trial.trial import Release, trial
        from ..results import programs, trials
        from ..results.report import Mask

        client, by_stage = self._client, rename_stage or {}
        client.known_channels("which has the input to be read")
        options = self._run_options(master, spark_conf, py_files)
        if dry_run:
            looked = self.migrate(code, rename=rename, rename_stage=by_stage, dry_run=True)
            return programs.migrated(looked, None, str(code), client.flags, dry_run=True)
        refs = self._ref(start), self._ref(end or "now")
        old = str(before) if before is not None else ""
        release = Release(
            self.name,
            str(code),
            *refs,
            before=old,
            keep=keep,
            allow=tuple(allow),
            only=tuple(stages),
            sample=Sample.of(keys) if keys else None,
            renames=rename or {},
            stages=by_stage,
        )
        found = trial(release, options, client.cache, by=client.by, news=News(on_progress))
        if reports is not None:
            reports.put(client, trials.page(found, str(code), Mask(show_values)))
        return trials.trial(found, str(code), show_values=show_values)

    def _run_options(
        self, master: str | None, spark_conf: Mapping[str, str] | None, py_files: Sequence[str]
    ) -> "Options":
        """How Spark is started; with Kafka where the client knows it. Raises `Usage`."""
        from ..pipeline.spark.conf import check_py_files, check_settings

        channels = self._client.channels()
        return replace(
            self._client.settings.run_options(channels.kafka.properties if channels is not None else {}),
            store=self._client.root,
            master=master,
            spark_conf=check_settings(spark_conf or {}, "spark_conf"),
            py_files=check_py_files(py_files, "py_files"),
        )
