"""`AppHistory`: an app's moments, snapshots, log, key histories, and the search for a bad commit."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from ..common import instants
from ..common.arguments import check_method_arguments
from ..common.durations import format_ms
from ..common.validation import find_program_file
from ..errors import NotFound, Refused, Unavailable, Usage
from ..operations.maintenance.removal import removal_of
from ..operations.repair.rejected_listing import RejectedRecords, list_rejected
from ..snapshot.bisect.endpoints import BEGINNING
from ..snapshot.bisect.predicate import Predicate
from ..snapshot.bisect.search import bisect
from ..snapshot.bisect.session import PredicateFunction, PythonPredicate, SearchRequest
from ..snapshot.bisect.verdict import Evaluation, Verdict
from ..snapshot.cut.graph import Cut
from ..snapshot.cut.in_flight import in_flight
from ..snapshot.cut.lineage import Lineage, trace
from ..snapshot.cut.moments import existing_stage_of_table
from ..snapshot.cut.refs import AtTime, parse_ref
from ..snapshot.cut.resolve import resolve, retry_if_forgotten
from ..snapshot.cut.stored import Snapshot, cut_of_snapshot, list_snapshots, open_requests, read_snapshot
from ..snapshot.diff.asof import Clock, LabelledRows, read_as_of
from ..snapshot.diff.key_history import RowHistory, key_history
from ..snapshot.query.log import find_unreplayable
from ..snapshot.query.row_source import RowSource, open_rows
from ..snapshot.query.timeline import ThinnedLine, timeline
from ..snapshot.take import taking
from ..snapshot.take.audit_log import Operation, check_verb, list_operations
from ..snapshot.take.snapshots import remove_or_withdraw
from ..snapshot.take.taking import SnapshotProgress, has_only_attached_stages, request_without_waiting, take_snapshot
from ..snapshot.under_way import runners
from ..snapshot.verify.captured import TOPIC_CHECK_PURPOSE
from ..snapshot.verify.verify import Report, verify
from ..store.read.fetch import request_pool
from ..store.versions import forgotten
from ..store.versions import history as history_of
from ..store.versions.apps import read_app, replace_name_by_folder
from ..store.versions.manifest import Manifest
from .backends import Backends, OtherTable
from .declared.questions import (
    CheckOptions,
    ImpactOptions,
    OperationsOptions,
    ReconcileOptions,
    RejectedOptions,
    SearchOptions,
    VerifyOptions,
    When,
    WhyNotOptions,
    WhyOptions,
)
from .moment import Bisection, Moment
from .replays import check_determinism, explain_row, explain_verdict, trace_impact
from .results import KeyHistory, Log, RecordImpact, RowAnswer
from .show import history, snapshots
from .show.document import Block, Title
from .show.shown import Result
from .status import commits, stages, status, waiting_sentences
from .when import NewestMomentMethods, moment_text

if TYPE_CHECKING:
    from ..snapshot.query.sql import Bounds
    from .reconcile.calls import Reconciled, WhyNot


@check_method_arguments
class AppHistory(NewestMomentMethods):
    """An app's history and snapshots. `StoredApp` adds operations that change the app.

    Methods raise `Corruption` if an object does not match its manifest, and `Unavailable` if the store or Kafka does
    not answer.
    """

    _internal_names = frozenset((
        *("at_versions", "called", "clone_ref", "compactor", "newer_moment", "note_deleted_input", "replicator"),
        *("search", "search_endpoint", "snapshot_listing", "take_snapshot"),
    ))  # fmt: skip

    def __init__(self, client: Backends, name: str, opened_name: str = "") -> None:
        self.name = name
        """Name of the app's folder: the app's original name, which a promotion does not change."""
        self.called = opened_name or name
        self._client = client

    def status(self) -> Result:
        """Show each stage's state, runner, table sizes and lag. The lag behind users' topics needs Kafka."""
        return status(self._client, self.called)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Snapshots of the app, oldest first. Costs one listing, and one request per snapshot."""
        return list_snapshots(self._client.store, self.name)

    def snapshot_listing(self) -> Result:
        """List the app's snapshots and its open requests for snapshots."""
        complete, requests = self.snapshots, open_requests(self._client.store, self.name)
        return snapshots.snapshot_list_result(
            self.name, complete, requests, waiting_sentences(self._client, self.name, requests)
        )

    def describe(self, name: str) -> Result:
        """Show a snapshot's versions, input offsets and in-flight records. Raises `NotFound`."""
        store = self._client.store
        snapshot = read_snapshot(store, self.name, name)
        cut = cut_of_snapshot(store, snapshot)
        return snapshots.snapshot_result(snapshot, cut, in_flight(store, cut))

    def at(self, moment: When = "now", *, stage: str = "") -> Moment:
        """Return a moment of the app: consistent over all stages, and fixed once returned.

        Args:
            moment: text after the `@` of a ref: a snapshot's name, a span back (`-5m`; s, m, h, d), a time in ISO form
                (local without a zone), `~3` for three data commits back, or `now`. A datetime, and a whole ref as
                printed by `log` and `bisect`, are accepted, too.
            stage: the stage whose commits `moment` refers to; with a stage, `moment` may also be a version, `v42`.

        Raises:
            Usage: the moment is malformed or of another app, or the client is closed.
            NotFound: the snapshot, stage or version does not exist, or the history begins later.
        """
        now_ms, ref = instants.now_ms(), self._ref(moment, stage)
        return Moment(self._client, ref, resolve(self._client.store, ref, now_ms=now_ms))

    def at_versions(self, versions: Mapping[str, int], *, seen_ms: int = 0) -> Moment:
        """Return the moment that has the given version of each stage. Costs at most one request per stage.

        If rows expire by write time, rows that have expired by `seen_ms` (in milliseconds) are hidden. Raises
        `NotFound` if a version was deleted.
        """
        store = self._client.store
        stages = {stage: history_of.read(store, self.name, stage, version) for stage, version in versions.items()}
        return Moment(self._client, f"{self.name}@now", Cut(self.name, stages, seen_ms=seen_ms))

    def newer_moment(self, moment: Moment) -> Moment | None:
        """Return the newest moment if a stage has committed since `moment`; otherwise None.

        Makes one request per stage, and also the requests of `at` if there is a newer moment. Misses a stage that began
        after `moment`.
        """
        heads = moment.cut.stages.values()

        def is_over(head: Manifest) -> bool:
            return history_of.find(self._client.store, head.app, head.stage, head.version + 1) is not None

        # Each check is a request, so the checks run in parallel.
        run_all = request_pool().map if len(heads) > 1 else map
        return self.at() if any(run_all(is_over, heads)) else None

    def snapshot(self, name: str, *, instant: bool = False, timeout_s: float = 60) -> Moment:
        """Take a snapshot of the running app, with its in-flight records, and return its moment.

        Args:
            name: the snapshot's name.
            instant: keep the newest consistent moment without asking the stages, for a stopped app. In-flight records
                are kept if Kafka is configured.
            timeout_s: how long to wait for the stages before the request is withdrawn.

        Raises:
            Usage: the name is malformed.
            Refused: the name is taken, in-flight records are lost, or the app has no stage left.
            Unavailable: a stage, which is named, did not answer in time.
        """
        self.take_snapshot(name, instant=instant, timeout_s=timeout_s)
        return self.at(name)

    def take_snapshot(
        self,
        name: str,
        *,
        instant: bool,
        timeout_s: float,
        wait: bool = True,
        on_poll: Callable[[SnapshotProgress], None] = lambda _look: None,
    ) -> Result:
        """Take a snapshot (see `snapshot`), and return the result to print; without `wait`, only request it.

        `on_poll` is called with the answers of the stages after each poll of the store.
        """
        client, store, app, now_ms = self._client, self._client.store, self.name, instants.now_ms()
        by = client.by
        read_app(store, app)
        is_unattended = has_only_attached_stages(store, app)
        instant = instant or is_unattended

        def is_new() -> bool:
            # After an interruption, the same call finds the snapshot or the request of the first call.
            return taking.find_earlier_snapshot(store, app, name, "markers", by=by, now_ms=now_ms) is None

        if not wait and not instant and is_new():
            request, already = request_without_waiting(store, app, name, by=by)
            return snapshots.snapshot_request_result(app, request, already=already)
        if not instant and not runners.live_heartbeats(store, app, now_ms) and is_new():
            up_to = format_ms(round(timeout_s * 1_000))
            client.note(
                f"{app} is not running: waiting up to {up_to} for its next run to take the snapshot, then withdrawing "
                "the request (--no-wait keeps the request; --instant pins the newest committed moment now)"
            )
        reader = client.channels_of(self.name)
        snapshot, already = take_snapshot(
            store, app, name, by=by, reader=reader, instant=instant, timeout_s=timeout_s, on_progress=on_poll
        )
        if instant and reader is None and not already and not is_unattended:
            client.note("in-flight records are not kept with the snapshot: no Kafka configured (--kafka)")
        return snapshots.snapshot_taken_result(snapshot, already=already)

    def remove_snapshot(self, name: str, *, force: bool = False, dry_run: bool = False) -> Result:
        """Remove a snapshot, or withdraw the request for one.

        `force` also removes a snapshot that a clone uses. Raises `NotFound` for an unknown snapshot, and `Refused` if a
        clone uses the snapshot and `force` is not set.
        """
        client = self._client
        gone = remove_or_withdraw(client.store, self.name, name, by=client.by, force=force, dry_run=dry_run)
        return snapshots.snapshot_removal_result(f"{self.name}@{name}", gone, dry_run=dry_run)

    def log(self, limit: int = 20, *, stage: str = "", replayable: bool = False) -> Log:
        """Return the newest `limit` commits (0 for all) of the app or of one stage, newest first.

        With `replayable`, shows if the input of each version still exists, by requests to Kafka if it is configured.
        Raises `NotFound` for an unknown stage.
        """
        return Log(commits(self._client, self.name, limit, stage=stage, replayable=replayable))

    def timeline(self, points: int = 300, *, from_ms: int = 0, to_ms: int = 0) -> ThinnedLine:
        """Return the commits from `from_ms` to `to_ms`, thinned out to about `points`, with annotations.

        A `from_ms` of 0 is the first commit, a `to_ms` of 0 the newest. Annotations are snapshots, deploys and
        operations. The cost is proportional to `points`, not to the number of commits.
        """
        return timeline(self._client.store, self.name, points=points, from_ms=from_ms, to_ms=to_ms)

    def stages(self, moment: Moment | None = None) -> dict[str, object]:
        """Return the status of the stages at a moment, as data for JSON.

        Without `moment`, returns the current status, with lag and open snapshot requests.
        """
        return stages(self._client, self.name, moment.cut if moment is not None else None)

    def operations(self, limit: int = 20, **options: Unpack[OperationsOptions]) -> Result:
        """Return the newest `limit` operations on the app (0 for all), with user and reason.

        For a removed app, returns only the removal. Raises `Usage` for an unknown verb or a malformed time, and
        `NotFound` for an app that never existed.
        """
        store, by, verb = self._client.store, options["by"], options["verb"]
        since_ms, until_ms = self._time_ms(options["since"], 0), self._time_ms(options["until"], sys.maxsize)

        def is_meant(done: Operation) -> bool:
            is_theirs = (not verb or done.has_verb(verb)) and (not by or done.is_by(by))
            return is_theirs and since_ms <= done.time_ms <= until_ms

        try:
            read_app(store, self.name)
            matches = list_operations(store, self.name, limit, is_match=is_meant, since_ms=since_ms)
        except NotFound:
            if (removed := removal_of(store, self.name)) is None:
                raise
            matches = tuple(filter(is_meant, (removed.operation,)))  # its log was removed as well
        if verb and not matches:
            check_verb(verb)
        return history.operations_result(matches, self.name, is_filtered=any(options.values()))

    def _time_ms(self, time: When, default: int) -> int:
        if not time:
            return default
        moment = parse_ref(self._ref(time), now_ms=instants.now_ms()).moment
        if not isinstance(moment, AtTime):
            raise Usage(f"{time} is not a time", hint="for example 2026-11-21T07:12, or -5m")
        return moment.time_ms

    def verify(
        self, ref: str, *, on_progress: Callable[[str], None] = lambda _line: None, **options: Unpack[VerifyOptions]
    ) -> Report:
        """Verify the moment of a ref, which must include the app's name. Works even if manifests are damaged."""
        client, now_ms = self._client, instants.now_ms()
        report = verify(
            client.store,
            replace_name_by_folder(client.store, ref),
            now_ms=now_ms,
            deep=options["deep"],
            reader=client.channels_of(self.name) if options["deep"] else None,
            topics=client.channels_or_stub(TOPIC_CHECK_PURPOSE, self.name),
            on_progress=on_progress,
        )
        client.note_thinned(ref, report.thinned_out)
        return report

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """Return the newest `limit` changes (0 for all) of one key's row, newest first, over the kept versions.

        `key` has the forms that `Moment.get` takes. Raises the errors of `Moment.get`.
        """
        client, values = self._client, key if isinstance(key, tuple) else (key,)
        now_ms = instants.now_ms()

        forgotten.newest(client.store, self.name)  # a client may have been open for long

        def found() -> RowHistory:
            return key_history(client.store, client.cache, self.name, table, values, limit=limit, now_ms=now_ms)

        return KeyHistory(retry_if_forgotten(client.store, self.name, found))

    def why(
        self,
        table: str,
        key: object,
        at: When = "now",
        *,
        code: str | Path | None = None,
        on_progress: Callable[[str], None] = lambda _doing: None,
        **options: Unpack[WhyOptions],
    ) -> RowAnswer:
        """Return the records that made a key's row at a moment, from all stages and versions.

        Replays the batches that wrote the row, and the upstream batches whose rows went into the row, on a local Spark.
        Compares each replay with the commit. If records are unknown (deleted input, a nondeterministic program, a row
        older than the history), `unknown` gives the reason.

        Args:
            table: a table of a stage.
            key: the key, in the forms that `Moment.get` takes.
            at: the moment, in the forms that the method `at` takes; `v42` is a version of the table's stage.
            code: the file of the program that ran; default: the file in the settings.
            on_progress: called with a line about the current step.

        Raises:
            Usage: no Kafka is configured, there is no program, or the key does not fit the table.
            NotFound: the table or the moment does not exist.
            Refused: the table is a side table, or the program does not run.
        """
        client, values = self._client, key if isinstance(key, tuple) else (key,)
        stage = existing_stage_of_table(client.store, self.name, table)
        return RowAnswer(explain_row(client, self.at(at, stage=stage), table, values, code, options, on_progress))

    def impact(
        self,
        record: str,
        *,
        code: str | Path | None = None,
        on_progress: Callable[[str], None] = lambda _doing: None,
        **options: Unpack[ImpactOptions],
    ) -> RecordImpact:
        """Return everything that a record reached: rows, rows sent downstream and to sinks, snapshots and clones.

        `record` is a location as printed by `bisect` and `why`: `topic[partition]@offset`. `code` and `on_progress` are
        the same as for `why`. If the answer may be incomplete, `unknown` gives the reasons.

        Raises:
            Usage: `record` is malformed, no Kafka is configured, or there is no program.
            NotFound: the app reads no such topic.
            Refused: the program does not run.
        """
        return RecordImpact(trace_impact(self._client, self.name, record, code, options, on_progress))

    def lineage(self, stage: str, version: int = 0, *, after: int = 0) -> Lineage:
        """Return the offsets that versions of a stage read, traced back to offsets of users' topics.

        The versions are those after `after`, up to and including `version`; without `after`, only `version`, by
        default the newest. Raises `NotFound`.
        """
        store = self._client.store
        high = history_of.read(store, self.name, stage, version or self.at(stage=stage).versions[stage])
        low = history_of.read(store, self.name, stage, after) if after else history_of.previous_version(store, high)
        return trace(store, low, high)

    def asof(
        self,
        labels: pa.Table | str | Path,
        table: str,
        *,
        time: str,
        on: Mapping[str, str] | None = None,
        by: Clock = "commit",
    ) -> LabelledRows:
        """Join each label with the row that a table had for the label's key at the label's time.

        Args:
            labels: an Arrow table, or the name of a file that DuckDB reads (Parquet, CSV, JSON).
            table: a table of the app; the result has its present columns.
            time: the label column with the time: a timestamp, in UTC without a zone, or a date.
            on: name of the label column, by key column of the table. Default: the same name.
            by: `commit` reads the newest version committed at or before the time; `watermark` reads the newest version
                whose watermark is at or before the time.

        Returns:
            The labels' columns; `asof_version` (the version read; 0 before the first, null if it is not stored);
            `asof_present`; and the table's value columns, null without a row. The order of a file is not kept.

        Raises:
            NotFound: the app or the table does not exist.
            Usage: a column is missing or of another type, or the stage has no watermark.
            Refused: the file cannot be read.
        """
        client = self._client
        if not isinstance(labels, pa.Table):
            with open_rows(RowSource(str(labels))) as reader:
                labels = reader.read_all()
        return read_as_of(client.store, client.cache, self.name, table, labels, time=time, key=on, by=by)

    def reconcile(
        self,
        table: str,
        theirs: pa.Table | str | Path | OtherTable,
        *,
        at: When = "now",
        limit: int = 50,
        code: str | Path | None = None,
        on_progress: Callable[[str], None] = lambda _doing: None,
        **options: Unpack[ReconcileOptions],
    ) -> "Reconciled":
        """Compare a table with external rows, and explain the keys that differ.

        Args:
            table: a table of the app.
            theirs: external rows, one per key: an Arrow table; a file or URL that DuckDB reads; a DuckDB query, also
                after statements that attach databases with READ_ONLY; or `"app/table@moment"` or an `OtherTable`.
            at: the moment of `table`, in the forms that the method `at` takes.
            limit: number of differing keys to explain; 0 for all.
            code: the file of the program that ran, to replay batches where stored data does not prove a reason.
            on_progress: called with a line about the current step of a replay.

        Raises:
            NotFound: the app, the table or the moment does not exist.
            Usage: columns do not fit, or the query does more than read.
            Refused: the rows cannot be read, or a key has several rows.
        """
        from .reconcile.calls import Replays, open_theirs, reconcile_table

        client, moment, replays = self._client, self._moment_of_table(table, at), Replays(code, on_progress)
        rows = open_theirs(client, theirs)
        return reconcile_table(client, moment, table, rows, options, max_keys=limit or None, replays=replays)

    def why_not(
        self,
        table: str,
        key: object,
        *,
        at: When = "now",
        code: str | Path | None = None,
        on_progress: Callable[[str], None] = lambda _doing: None,
        bounds: "Bounds | None" = None,
        **options: Unpack[WhyNotOptions],
    ) -> "WhyNot":
        """Explain why a record, or every record of a key, is not in a table's row.

        Args:
            table: a table of the app.
            key: the key, in the forms that `Moment.get` takes.
            at: the moment of `table`, in the forms that the method `at` takes.
            code: as for `reconcile`.
            on_progress: as for `reconcile`.
            bounds: limits of the condition `where`, for an untrusted user; None for no limits.

        Raises:
            NotFound: the app, the table, the moment or the record's topic does not exist.
            Usage: the key, the record or the condition is malformed.
        """
        from .reconcile.calls import Replays, explain_absence

        moment, replays = self._moment_of_table(table, at), Replays(code, on_progress)
        return explain_absence(self._client, moment, table, key, options, replays=replays, bounds=bounds)

    def _moment_of_table(self, table: str, at: When) -> Moment:
        text, stage = moment_text(at), existing_stage_of_table(self._client.store, self.name, table)
        return Moment.from_ref(self._client, f"{self.name}/{stage}{'' if text == 'now' else f'@{text}'}", "compared")

    def rejected(self, *, limit: int = 50, **options: Unpack[RejectedOptions]) -> RejectedRecords:
        """Return the newest `limit` rejected records (0 for all); without `every`, only those not yet retried.

        Raises `NotFound` for an unknown stage.
        """
        client, cut = self._client, Moment.from_ref(self._client, self.name, "read").cut
        return list_rejected(client.store, client.cache, cut, limit=limit, **options)

    def bisect(
        self,
        *,
        python: PredicateFunction | None = None,
        run: str = "",
        code: str | Path | Sequence[str | Path] | None = None,
        on_step: Callable[[Evaluation], None] | None = None,
        **options: Unpack[SearchOptions],
    ) -> Bisection:
        """Find the first commit, of any stage, at which the state is wrong.

        Exactly one of `where`, `check`, `python` and `run` distinguishes bad from good moments. A condition applies to
        the rows of one table or to their aggregates; a `check` that is NULL holds.

        Args:
            python: a function that gets a DuckDB connection with the tables as views, and returns True for a good
                moment. It may use `assert` instead, and raise `unittest.SkipTest` to skip the moment.
            run: a shell command that gets the moment as the DuckDB file `$SLACKWATER_DB`, and its ref as
                `$SLACKWATER_REF`; exit code 0 is good, 125 skips, any other code below 128 is bad.
            code: the file of the program that ran, to replay the bad commit on a local Spark: this finds the cause
                (`Bisection.cause`) and, if there is one, the input record (`Bisection.record`). If the list also has
                the file of the program before a deploy, the two programs are compared.
            on_step: called with each evaluation.

        Raises:
            Usage: a moment or the SQL is malformed, not exactly one predicate is given, or `code` is given and no Kafka
                is configured.
            NotFound: a moment, table or column does not exist.
            Refused: the moment `bad` is good, the moment `good` is bad, or `good` is not before `bad`.
            SlackwaterError: the function raised an error, or the command stopped the search.
        """
        client, predicate = self._client, self._predicate(options, python, run)
        codes = [code] if isinstance(code, str | Path) else code
        if codes:
            for file in codes:
                find_program_file(file)
            _ = client.require_channels("to read the records to replay")
        good, bad = self.search_endpoint(options["good"]), self.search_endpoint(options["bad"])
        verdict = self.search(predicate, good=good, bad=bad, edge=options["edge"], on_step=on_step)
        good_moment = Moment(client, verdict.good_ref, verdict.good) if verdict.good_ref else None
        explanation = explain_verdict(client, verdict, codes or None)
        bad_moment = Moment(client, verdict.bad_ref, verdict.bad)
        return Bisection(verdict, good_moment, bad_moment, explanation.named_record_path, explanation.cause)

    def search(self, predicate: Predicate, **how: Any) -> Verdict:
        """Search for the first bad commit with any predicate. `how` has the remaining arguments of `search.bisect`.

        Refs in `how` must include the app's name.
        """
        client = self._client
        reader = client.channels_of(self.name) if predicate.sql and predicate.reads_channels else None
        return bisect(client.store, client.cache, self.name, predicate, reader=reader, **how)

    def check(
        self,
        code: str | Path,
        *,
        on_progress: Callable[[str], None] = lambda _doing: None,
        **options: Unpack[CheckOptions],
    ) -> Result:
        """Check that a program is deterministic, by replaying past versions; `failed` is True if anything differs.

        Differences are listed with their keys and the likely cause. Versions whose input was deleted from Kafka are
        skipped. `on_progress` is called with a line about the current step.

        Raises:
            Usage: no Kafka is configured, or the program's declarations are invalid.
            NotFound: the file, a stage or the app does not exist.
            Refused: the program does not run, or there is no version to replay.
        """
        return check_determinism(self._client, code, self.name, options, on_progress)

    def note_deleted_input(self) -> None:
        """Print a note that names the versions whose input was deleted from Kafka, if Kafka is configured."""
        client = self._client
        if (topics := client.channels_of(self.name)) is None:
            return
        try:
            gone = find_unreplayable(client.store, self.name, topics.held())
        except (Unavailable, Refused) as error:
            client.note(f"note: cannot tell which input Kafka still has: {error.message}")
            return
        if gone:
            versions = ", ".join(f"{stage} up to v{lost_input.version}" for stage, lost_input in gone.items())
            topics_now = {topic: None for lost_input in gone.values() for topic in lost_input.replaced}
            why = f" ({', '.join(map(history.recreated_topic_phrase, topics_now))})" if topics_now else ""
            note = f"Kafka has deleted input of {versions}{why}: a search can find these versions, but not replay them"
            client.note(f"note: {note}")

    def _predicate(self, options: SearchOptions, python: PredicateFunction | None = None, run: str = "") -> Predicate:
        question = SearchRequest(self.name, options["where"], options["check"], options["table"], run=run)
        if python is None:
            if not question.is_manual:
                return question.make_predicate(self._client.store)
        elif question.is_manual:
            return PythonPredicate(getattr(python, "__name__", "function"), python)
        raise Usage("give exactly one of where=, check=, python= and run=")

    def search_endpoint(self, moment: When | None) -> str | None:
        """Return an end of a search range as a ref with the app's name.

        `beginning` and None are returned unchanged. Raises `Usage` for a moment of a different app.
        """
        return BEGINNING if moment == BEGINNING else self._ref(moment) if moment else None

    def _ref(self, moment: When, stage: str = "") -> str:
        text = moment_text(moment)
        if "@" in text or "/" in text:
            app = text.partition("@")[0].partition("/")[0]
            if app not in (self.name, self.called):
                raise Usage(f"{text} is a moment of another app; expected a moment of {self.called!r}")
            text = self.name + text[len(app) :]
            if stage:
                raise Usage(f"{text} is a whole ref, which cannot be combined with stage {stage!r}; omit one of them")
            return text
        return f"{self.name}/{stage}@{text}" if stage else f"{self.name}@{text}"

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"app {self.name} in {self._client.root}"),)
