"""An app as it is stored: its moments, its history, and what can be done to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from .. import instants
from ..errors import Usage
from ..settings import load
from ..snapshot.bisect.flips import Flips, scan
from ..snapshot.bisect.predicate import Predicate
from ..snapshot.bisect.programs import Function, Python
from ..snapshot.bisect.record import Guilty
from ..snapshot.bisect.search import Edge
from ..snapshot.bisect.search import bisect as search
from ..snapshot.bisect.session import Asked
from ..snapshot.bisect.verdict import Step, Verdict
from ..snapshot.clone.clone import clone as make_clone
from ..snapshot.cut.resolve import resolve
from ..snapshot.cut.stored import Snapshot, list_snapshots
from ..snapshot.diff.history import key_history
from ..snapshot.migrate.migrate import Migrated
from ..snapshot.query.log import entries
from ..snapshot.rejected.listing import RejectedRecords
from ..snapshot.rejected.listing import rejected as list_rejected
from ..snapshot.take.audit_log import whoami
from ..snapshot.take.waiting import take
from .changes import Difference, KeyHistory
from .moment import Moment
from .results import Bisection, Log
from .shown import Shown, View

if TYPE_CHECKING:
    from ..pipeline.api.app import App
    from ..pipeline.migrate.backfilled import Backfilled
    from ..pipeline.run.options import Options
    from .client import Client


class StoredApp(Shown):
    """An app of a store, whether it runs or not."""

    def __init__(self, client: "Client", name: str) -> None:
        self._client = client
        self._name = name

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Its snapshots, oldest first. One listing, and one read for each.

        Raises:
            Unavailable: the store did not answer.
        """
        return list_snapshots(self._client.store, self._name)

    def at(self, moment: str | datetime = "now", *, stage: str = "") -> Moment:
        """A moment of the app: consistent over all its stages, and always the same once it is here.

        Args:
            moment: what stands behind the `@` of a ref: a snapshot's name, a span back (`-5m`; s, m, h, d), a time in
                ISO form (local, unless it says otherwise) or a datetime, `~3` for commits of data back, `now`. A whole
                ref, as `log` and `bisect` show it, will do.
            stage: a moment of this stage: then also one of its versions, `v42`.

        Raises:
            Usage: that is no moment, or one of another app, or the client is closed.
            NotFound: there is no such snapshot, stage or version, or the history begins later.
            Corruption: a manifest is damaged.
            Unavailable: the store did not answer.
        """
        now_ms = instants.now_ms()
        ref = self._ref(moment, stage)
        return Moment(self._client, ref, resolve(self._client.store, ref, now_ms=now_ms))

    def log(self, limit: int = 20, *, stage: str = "") -> Log:
        """The newest `limit` commits (0 for all), newest first: of the app, or of one stage.

        Raises:
            NotFound: there is no such stage.
            Unavailable: the store did not answer.
        """
        return Log(entries(self._client.store, self._name, limit, stage=stage))

    def diff(self, before: str | datetime, after: "str | datetime | Moment" = "now", *, table: str = "") -> Difference:
        """The rows that differ between two moments, as `Moment.diff` finds them.

        Args:
            before: the first moment, as `at` takes it.
            after: the second; one of another app, such as a clone's, is given as a `Moment`.
            table: only this table; empty for all.

        Raises:
            Usage: a moment is malformed.
            NotFound: there is no such moment or table.
            Corruption: an SST or manifest is not what it should be.
            Unavailable: a store did not answer.
        """
        return self.at(before).diff(after if isinstance(after, Moment) else self.at(after), table=table)

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """The newest `limit` changes (0 for all) of the row of one key, newest first, over the versions that are left.

        Args:
            table: the table's name.
            key: as `Moment.get` takes it.
            limit: how many at most.

        Raises:
            NotFound: there is no such table, or a version was collected meanwhile.
            Usage: there are not as many values as key columns, or one is not of its column's type.
            Corruption: an SST or manifest is not what it should be.
            Unavailable: the store did not answer.
        """
        client, values = self._client, key if isinstance(key, tuple) else (key,)
        now_ms = instants.now_ms()
        found = key_history(client.store, client.cache, self._name, table, values, limit=limit, now_ms=now_ms)
        return KeyHistory(found)

    def rejected(self, *, stage: str = "", limit: int = 50, every: bool = False) -> RejectedRecords:
        """The newest `limit` records (0 for all) that stages rejected and that wait to be retried; or `every` one.

        Args:
            stage: only those of this stage; empty for all.
            limit: how many at most.
            every: also those that were retried.

        Raises:
            NotFound: there is no such stage.
            Corruption: an SST or manifest is not what it should be.
            Unavailable: the store did not answer.
        """
        client, cut = self._client, resolve(self._client.store, self._name, now_ms=instants.now_ms())
        return list_rejected(client.store, client.cache, cut, stage=stage, limit=limit, every=every)

    def snapshot(self, name: str, *, instant: bool = False, timeout_s: float = 60) -> Moment:
        """Take a snapshot of the app while it runs, and give its moment. Records in flight are kept with it.

        Args:
            name: what to call it.
            instant: pin the newest consistent moment instead, which asks no stage: for an app that does not run.
                Records in flight are kept then if it is known where Kafka is.
            timeout_s: how long to wait for the stages; after that the request is withdrawn.

        Raises:
            Usage: no snapshot can have this name.
            Refused: the name is taken, or records in flight are gone, or no stage of the app is left.
            Unavailable: a stage did not answer in time and is named; or the store, or Kafka, did not.
        """
        client = self._client
        reader = client.channels()
        taken = take(
            client.store, self._name, name, by=whoami(), reader=reader, instant=instant, timeout_s=timeout_s
        ).snapshot
        return self.at(taken.name)

    def bisect(
        self,
        *,
        where: str = "",
        check: str = "",
        table: str = "",
        python: Function | None = None,
        run: str = "",
        good: str | datetime | None = None,
        bad: str | datetime | None = None,
        edge: Edge = "",
        code: str | Path | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> Bisection:
        """Find the first commit, of any stage, at which something is wrong. One of four ways says what that is.

        Args:
            where: SQL over the app's tables that returns rows when something is wrong.
            check: a condition in SQL that must hold: over the rows of one table or their aggregates, or as a SELECT.
                One that is NULL holds.
            table: the table that `check` is over, where its columns do not say.
            python: a function that gets a DuckDB connection with the tables as views, and returns whether the moment is
                good. It may assert instead, and raise `unittest.SkipTest` where it cannot tell.
            run: a shell command that gets the moment as the DuckDB file `$SLACKWATER_DB`, and its ref as
                `$SLACKWATER_REF`; it exits with 0 for good, 125 to skip, any other below 128 for bad.
            good: a moment at which nothing is wrong, as `at` takes it; default the beginning of the history.
            bad: a moment at which something is; default now.
            edge: `first` or `last`: which change is meant, should the search meet several.
            code: the file of the program that ran: with it the commit is replayed, on a Spark of this machine, until
                the input record is found (`Bisection.record`).
            on_step: told of each evaluation.

        Raises:
            Usage: a moment or the SQL is malformed, or there is no predicate, or more than one; or nothing says where
                Kafka is, for `code`.
            NotFound: there is no such moment, table or column.
            Refused: nothing is wrong at `bad`, or something is at `good`; or `good` is not before `bad`.
            Corruption: an SST is not what its manifest promises.
            Unavailable: the store or Kafka did not answer.
            SlackwaterError: the function raised something, or the command stopped the search.
        """
        client, predicate = self._client, self._predicate(where, check, table, python, run)
        verdict = search(
            client.store,
            client.cache,
            self._name,
            predicate,
            good=self._ref(good) if good is not None else None,
            bad=self._ref(bad) if bad is not None else None,
            edge=edge,
            on_step=on_step,
            reader=client.channels() if predicate.channels else None,
        )
        good_moment = Moment(client, verdict.good_ref, verdict.good) if verdict.good_ref else None
        record = self._record(verdict, code) if code is not None and not verdict.candidates else None
        return Bisection(verdict, good_moment, Moment(client, verdict.bad_ref, verdict.bad), record)

    def _record(self, verdict: Verdict, code: str | Path) -> Guilty:
        """The input record behind a verdict."""
        # Spark's Python side takes a second or two.
        from ..pipeline.replay.program import open_program
        from ..pipeline.replay.record import find_record
        from ..pipeline.run.program import load_app

        client, channels = self._client, self._client.known_channels("which have the records to replay")
        declared = load_app(str(code), name=self._name)
        with open_program(declared, client.store, client.cache, channels.kafka) as program:
            return find_record(program, verdict, verdict.predicate)

    def scan(
        self,
        *,
        where: str = "",
        check: str = "",
        table: str = "",
        good: str | datetime | None = None,
        bad: str | datetime | None = None,
    ) -> Flips:
        """All versions at which a condition on single rows of one table went from good to bad or back.

        Reads what versions wrote, once, and no version's whole state.

        Args:
            where: SQL that returns the wrong rows of one table, of which each is wrong or not by itself.
            check: a condition that must hold for each row.
            table: as of `bisect`.
            good: where to begin, as `at` takes it; default the beginning of the history.
            bad: where to end; default now.

        Raises:
            Refused: the condition is not one on single rows, or versions in between were thinned out. Others as
                `bisect`.
        """
        return scan(
            self._client.store,
            self._client.cache,
            self._name,
            self._predicate(where, check, table, None, ""),
            good=self._ref(good) if good is not None else None,
            bad=self._ref(bad) if bad is not None else None,
        )

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
    ) -> Migrated:
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
            Unavailable: the store or Kafka did not answer; the same call again finishes what was begun.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.program import migrate_app

        options = self._run_options(master, spark_conf, py_files)
        return migrate_app(
            self._program(code, options),
            self._client.store,
            options,
            renames=rename or {},
            stages=rename_stage or {},
            dry_run=dry_run,
        )

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

        Migrates the app first, if it is not. A call that was broken off is finished by the same call. Starts Spark,
        unless a session runs here already.

        Args:
            code: the file of the changed program.
            since: a moment of the app, as `at` takes it: from there on; empty for all that its stages read and Kafka
                has.
            rename: as of `migrate`.
            rename_stage: likewise.
            dry_run: only look: what would be read, and what cannot be computed.
            master: Spark's master URL; default all cores of this machine.
            spark_conf: further settings of Spark.
            py_files: Python files and zips that the program imports.
            on_progress: told in words what goes on.

        Returns:
            The columns that got their past, with the offsets from which on they are complete (`filled`), those that
            stay as they are and why (`left`), and what the program changed before (`migrated`).

        Raises:
            Usage: an argument is not one that could work, or nothing says where Kafka is.
            NotFound: there is no such moment, or a rename names what is not there.
            Refused: nothing that was added can be computed, or the app cannot be migrated.
            Unavailable: the store or Kafka did not answer; the same call goes on.
        """
        # Spark's Python side takes a second or two.
        from ..pipeline.migrate.backfill import backfill_app
        from ..pipeline.run.news import Told

        self._client.known_channels("from which the past is read")
        options = self._run_options(master or "local[*]", spark_conf, py_files)
        return backfill_app(
            self._program(code, options),
            self._client.store,
            options,
            renames=rename or {},
            stages=rename_stage or {},
            since=self._ref(since) if since else "",
            dry_run=dry_run,
            news=Told(on_progress),
        )

    def clone(
        self,
        to: str,
        *,
        at: str | datetime = "now",
        topics: Mapping[str, str] | None = None,
        sinks: Mapping[str, str] | None = None,
        store: str | None = None,
    ) -> "StoredApp":
        """Make a new app from a moment of this one: same state, same offsets, topics between stages of its own.

        No state is copied. A call that was interrupted is finished by the same call.

        Args:
            to: the new app's name.
            at: the moment, as `at` takes it.
            topics: topics that it reads instead, by the names that the app declares.
            sinks: what it publishes: a topic of its own for each sink, by the name that the app declares; default
                nothing.
            store: the store root of the new app; default the same.

        Returns:
            The new app, which has not begun to run.

        Raises:
            Usage: the name or the moment is malformed, or nothing says where Kafka is.
            NotFound: there is no such moment, topic or sink.
            Refused: the name is taken, a topic does not hold the offsets, or records in flight are gone.
            Unavailable: the store or Kafka did not answer.
        """
        client, source = self._client, self._ref(at)
        channels = client.known_channels("in which a clone has topics of its own")
        target = client.beside(client.store.at(store)) if store else client
        make_clone(
            client.store,
            source,
            to,
            topics=topics or {},
            sinks=sinks,
            channels=channels,
            target_store=target.store,
            by=whoami(),
        )
        return target.app(to)

    def _run_options(
        self, master: str | None, spark_conf: Mapping[str, str] | None, py_files: Sequence[str]
    ) -> "Options":
        """How Spark is started for this app; Kafka where the client knows it. Raises `Usage`."""
        from ..pipeline.spark.conf import check_py_files, check_settings

        channels = self._client.channels()
        settings = load(store=self._client.root)
        return replace(
            settings.run_options(channels.kafka if channels is not None else {}),
            master=master,
            spark_conf=check_settings(spark_conf or {}, "spark_conf"),
            py_files=check_py_files(py_files, "py_files"),
        )

    def _program(self, code: str | Path, options: "Options") -> "App":
        """The program of a file, as this app. Raises as `load_app`."""
        from ..pipeline.run.program import load_app
        from ..pipeline.spark.shipping import on_path

        on_path(options.py_files)
        return load_app(str(code), name=self._name)

    def _predicate(self, where: str, check: str, table: str, python: Function | None, run: str) -> Predicate:
        if python is None:
            asked = Asked(self._name, where=where, check=check, table=table, run=run)
            if not asked.by_hand:
                return asked.predicate(self._client.store)
        elif not (where or check or run):
            return Python(getattr(python, "__name__", "function"), python)
        raise Usage("say what is wrong by one of where=, check=, python= and run=")

    def _ref(self, moment: str | datetime, stage: str = "") -> str:
        text = moment.isoformat() if isinstance(moment, datetime) else moment
        if "@" in text or "/" in text:
            if text.partition("@")[0].partition("/")[0] != self._name:
                raise Usage(f"{text} is a moment of another app; expected one of {self._name!r}")
            if stage:
                raise Usage(f"{text} is a whole ref, and stage {stage!r} beside it says something else; leave one out")
            return text
        return f"{self._name}/{stage}@{text}" if stage else f"{self._name}@{text}"

    def _view(self) -> View:
        return View(f"app {self._name} in {self._client.root}")
