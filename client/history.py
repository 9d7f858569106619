"""What an app has been: its moments and snapshots, what changed between them, and what made something wrong."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from ..common import instants
from ..common.argument_types import checked_methods
from ..common.durations import format_ms
from ..common.validation import program_file
from ..errors import NotFound, Refused, Unavailable, Usage
from ..operations.maintenance.removal import removal_of
from ..operations.repair.rejected_listing import RejectedRecords, rejected
from ..snapshot.bisect.endpoints import BEGINNING
from ..snapshot.bisect.predicate import Predicate
from ..snapshot.bisect.search import bisect
from ..snapshot.bisect.session import Asked, Function, Python
from ..snapshot.bisect.verdict import Evaluation, Verdict
from ..snapshot.cut.graph import Cut
from ..snapshot.cut.in_flight import in_flight
from ..snapshot.cut.lineage import Lineage, trace
from ..snapshot.cut.refs import AtTime, parse
from ..snapshot.cut.resolve import again_if_forgotten, resolve
from ..snapshot.cut.stored import Snapshot, list_snapshots, of_snapshot, open_requests, read_snapshot
from ..snapshot.diff.key_history import RowHistory, key_history
from ..snapshot.query.log import entries, unreplayable
from ..snapshot.query.timeline import ThinnedLine, timeline
from ..snapshot.take import taking
from ..snapshot.take.audit_log import Operation, check_verb, list_operations
from ..snapshot.take.remove import remove_or_withdraw
from ..snapshot.take.waiting import SnapshotProgress, ask, asks_nobody, take
from ..snapshot.under_way import runners
from ..snapshot.verify.topics import TOPICS_SAY
from ..snapshot.verify.verify import Report, verify
from ..store.read.range_reads import at_once
from ..store.versions import history as history_of
from ..store.versions.apps import in_folder, read_app
from ..store.versions.forgotten import index as forgotten
from ..store.versions.manifest import Manifest
from .backends import Backends
from .declared.questions import (
    CheckOptions,
    OperationsOptions,
    RejectedOptions,
    SearchOptions,
    VerifyOptions,
    When,
)
from .moment import Bisection, Moment
from .replays import cause_behind, check
from .results import KeyHistory, Log
from .show import history, snapshots
from .show.document import Block, Title
from .show.shown import Result
from .status import stages, status, waiting_for
from .when import HasMoments, in_words


@checked_methods
class AppHistory(HasMoments):
    """The history of an app: read, searched, and pinned by snapshots. `StoredApp` has what changes an app.

    Whatever reads it raises `Corruption` when an object is not what a manifest promises, and `Unavailable` when the
    store or Kafka does not answer.
    """

    _inner = frozenset((
        *("all_snapshots", "called", "cloned", "compactor", "newer", "note_input_gone", "of_versions"),
        *("replicator", "search", "take", "whole_ref"),
    ))  # fmt: skip

    def __init__(self, client: Backends, name: str, called: str = "") -> None:
        self.name = name
        """Of its folder: its own name, until another app was promoted over it."""
        self.called = called or name
        """As it was asked for."""
        self._client = client

    def status(self) -> Result:
        """How far each stage is, who runs it, and what its tables take; the lag of topics needs Kafka."""
        return status(self._client, self.called)

    @property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """Its snapshots, oldest first. One listing, and one read for each."""
        return list_snapshots(self._client.store, self.name)

    def all_snapshots(self) -> Result:
        """Its snapshots, and those that it was asked for."""
        taken, requests = self.snapshots, open_requests(self._client.store, self.name)
        return snapshots.snapshots(self.name, taken, requests, waiting_for(self._client, self.name, requests))

    def describe(self, name: str) -> Result:
        """A snapshot: its versions, where its inputs stood, and what was on the way. Raises `NotFound`."""
        store = self._client.store
        found = read_snapshot(store, self.name, name)
        cut = of_snapshot(store, found)
        return snapshots.snapshot(found, cut, in_flight(store, cut))

    def at(self, moment: When = "now", *, stage: str = "") -> Moment:
        """A moment of the app: consistent over all its stages, and always the same once it is here.

        Args:
            moment: what stands behind the `@` of a ref: a snapshot's name, a span back (`-5m`; s, m, h, d), a time in
                ISO form (local, unless it says otherwise) or a datetime, `~3` for commits of data back, `now`. A whole
                ref, as `log` and `bisect` show it, will do.
            stage: a moment of this stage: then also one of its versions, `v42`.

        Raises:
            Usage: that is no moment, or one of another app, or the client is closed.
            NotFound: there is no such snapshot, stage or version, or the history begins later.
        """
        now_ms, ref = instants.now_ms(), self._ref(moment, stage)
        return Moment(self._client, ref, resolve(self._client.store, ref, now_ms=now_ms))

    def of_versions(self, versions: Mapping[str, int], *, seen_ms: int = 0) -> Moment:
        """The moment of these versions, as `Moment.versions` of one of the app gives them. A request each, or none.

        Rows that expire by write time are seen as of `seen_ms`. Raises `NotFound` where a version is gone.
        """
        store = self._client.store
        stages = {stage: history_of.read(store, self.name, stage, version) for stage, version in versions.items()}
        return Moment(self._client, f"{self.name}@now", Cut(self.name, stages, seen_ms=seen_ms))

    def newer(self, moment: Moment) -> Moment | None:
        """The newest moment, where a stage has committed since this one, which was the newest; None where none has.

        A request a stage, and those of `at` where there is a newer one. A stage that has begun since is not seen.
        """
        heads = moment.cut.stages.values()

        def is_over(head: Manifest) -> bool:
            return history_of.find(self._client.store, head.app, head.stage, head.version + 1) is not None

        # Side by side, where there are several: each is a request.
        each = at_once().map if len(heads) > 1 else map
        return self.at() if any(each(is_over, heads)) else None

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
            Unavailable: a stage did not answer in time and is named.
        """
        self.take(name, instant=instant, timeout_s=timeout_s)
        return self.at(name)

    def take(
        self,
        name: str,
        *,
        instant: bool,
        timeout_s: float,
        wait: bool = True,
        on_look: Callable[[SnapshotProgress], None] = lambda _look: None,
    ) -> Result:
        """What `snapshot` does, telling how far it is; without `wait`, it is only asked for."""
        client, store, app, now_ms = self._client, self._client.store, self.name, instants.now_ms()
        by = client.by
        read_app(store, app)
        alone = asks_nobody(store, app)
        instant = instant or alone

        def is_new() -> bool:
            # A call that was interrupted is typed again: it finds what that one took, or its request.
            return taking.taken_already(store, app, name, "markers", by=by, now_ms=now_ms) is None

        if not wait and not instant and is_new():
            asked, already = ask(store, app, name, by=by)
            return snapshots.requested(app, asked, already=already)
        if not instant and not runners.beats(store, app, now_ms) and is_new():
            up_to = format_ms(round(timeout_s * 1_000))
            client.note(
                f"nobody runs {app} now: this waits up to {up_to} for a runner to take the snapshot, and withdraws it "
                "then (--no-wait leaves it to the next runner, --instant needs none)"
            )
        reader = client.channels_of(self.name)
        taken, already = take(
            store, app, name, by=by, reader=reader, instant=instant, timeout_s=timeout_s, on_look=on_look
        )
        if instant and reader is None and not already and not alone:
            client.note("records on the way between stages are not kept with it: nothing says where Kafka is (--kafka)")
        return snapshots.taken(taken, already=already)

    def remove_snapshot(self, name: str, *, force: bool = False, dry_run: bool = False) -> Result:
        """Remove a snapshot, or withdraw the request for one; with `force` also one that a clone lives from.

        Raises `NotFound` where there is none, and `Refused` where a clone lives from it.
        """
        client = self._client
        gone = remove_or_withdraw(client.store, self.name, name, by=client.by, force=force, dry_run=dry_run)
        return snapshots.unpinned(f"{self.name}@{name}", gone, dry_run=dry_run)

    def log(self, limit: int = 20, *, stage: str = "", replayable: bool = False) -> Log:
        """The newest `limit` commits (0 for all), newest first: of the app, or of one stage.

        With `replayable`, Kafka is asked whether it still holds what each version read, where it is known. Raises
        `NotFound` for the stage.
        """
        client = self._client
        topics = client.channels_of(self.name) if replayable else None
        if topics is not None:
            try:
                return Log(entries(client.store, self.name, limit, stage=stage, held_of=topics.held()))
            except (Unavailable, Refused) as error:
                client.note(f"note: nobody knows what can be replayed: {error.message}")
        return Log(entries(client.store, self.name, limit, stage=stage))

    def timeline(self, points: int = 300, *, from_ms: int = 0, to_ms: int = 0) -> ThinnedLine:
        """The commits between two times (0: the first, the newest) as about so many points, and what stands out.

        Where there are more commits than points, they are thinned out: the cost follows the points.
        """
        return timeline(self._client.store, self.name, points=points, from_ms=from_ms, to_ms=to_ms)

    def stages(self, moment: Moment | None = None) -> dict[str, object]:
        """The stages now, with lag, watermarks and snapshots under way, or as they were at a moment; for machines."""
        return stages(self._client, self.name, moment.cut if moment is not None else None)

    def operations(self, limit: int = 20, **options: Unpack[OperationsOptions]) -> Result:
        """The newest `limit` things done to the app (0 for all), by whom and why. Of one that is gone, its end.

        Raises `Usage` for a time, as `at` takes them, or a verb that is none, and `NotFound` where there is, and was,
        no such app.
        """
        store, by, verb = self._client.store, options["by"], options["verb"]
        since_ms, until_ms = self._time_ms(options["since"], 0), self._time_ms(options["until"], sys.maxsize)

        def is_meant(done: Operation) -> bool:
            is_theirs = (not verb or done.is_of(verb)) and (not by or done.is_by(by))
            return is_theirs and since_ms <= done.time_ms <= until_ms

        try:
            read_app(store, self.name)
            found = list_operations(store, self.name, limit, is_meant=is_meant, since_ms=since_ms)
        except NotFound:
            if (removed := removal_of(store, self.name)) is None:
                raise
            found = tuple(filter(is_meant, (removed.operation,)))  # its log is gone with it
        if verb and not found:
            check_verb(verb)
        return history.operations(found, self.name, is_filtered=any(options.values()))

    def _time_ms(self, time: When, default: int) -> int:
        """A time as a ref has it. Raises `Usage` where it is another moment."""
        if not time:
            return default
        moment = parse(self._ref(time), now_ms=instants.now_ms()).moment
        if not isinstance(moment, AtTime):
            raise Usage(f"{time} is no time", hint="for example 2026-11-21T07:12, or -5m")
        return moment.time_ms

    def verify(
        self, ref: str, *, on_progress: Callable[[str], None] = lambda _line: None, **options: Unpack[VerifyOptions]
    ) -> Report:
        """What `Moment.verify` does, for a whole ref, whose manifests may be damaged, too."""
        client, now_ms = self._client, instants.now_ms()
        found = verify(
            client.store,
            in_folder(client.store, ref),
            now_ms=now_ms,
            deep=options["deep"],
            reader=client.channels_of(self.name) if options["deep"] else None,
            topics=client.channels_where_needed(TOPICS_SAY, self.name),
            on_progress=on_progress,
        )
        client.note_thinned(ref, found.thinned_out)
        return found

    def history(self, table: str, key: object, *, limit: int = 20) -> KeyHistory:
        """The newest `limit` changes (0 for all) of the row of one key, newest first, over the versions that are left.

        `key` is what `Moment.get` takes, with the same errors.
        """
        client, values = self._client, key if isinstance(key, tuple) else (key,)
        now_ms = instants.now_ms()

        forgotten.newest(client.store, self.name)  # a client may be open for long

        def found() -> RowHistory:
            return key_history(client.store, client.cache, self.name, table, values, limit=limit, now_ms=now_ms)

        return KeyHistory(again_if_forgotten(client.store, self.name, found))

    def lineage(self, stage: str, version: int = 0, *, after: int = 0) -> Lineage:
        """The input behind versions of a stage: on its own inputs, and on the users' topics.

        Of one version, default the newest; or of those that follow `after`, up to it. Raises `NotFound`.
        """
        store = self._client.store
        high = history_of.read(store, self.name, stage, version or self.at(stage=stage).versions[stage])
        low = history_of.read(store, self.name, stage, after) if after else history_of.before(store, high)
        return trace(store, low, high)

    def rejected(self, *, limit: int = 50, **options: Unpack[RejectedOptions]) -> RejectedRecords:
        """The newest `limit` records (0 for all) that stages rejected and that wait to be retried.

        Raises `NotFound` for the stage.
        """
        client, cut = self._client, Moment.around(self._client, self.name, "read").cut
        return rejected(client.store, client.cache, cut, limit=limit, **options)

    def bisect(
        self,
        *,
        python: Function | None = None,
        run: str = "",
        code: str | Path | Sequence[str | Path] | None = None,
        on_step: Callable[[Evaluation], None] | None = None,
        **options: Unpack[SearchOptions],
    ) -> Bisection:
        """Find the first commit, of any stage, at which something is wrong.

        One of four ways says what that is: `where`, `check`, `python` or `run`. A condition may be over the rows of one
        table, or their aggregates; one of `check` that is NULL holds.

        Args:
            python: a function that gets a DuckDB connection with the tables as views, and returns whether the moment is
                good. It may assert instead, and raise `unittest.SkipTest` where it cannot tell.
            run: a shell command that gets the moment as the DuckDB file `$SLACKWATER_DB`, and its ref as
                `$SLACKWATER_REF`; it exits with 0 for good, 125 to skip, any other below 128 for bad.
            code: the file of the program that ran: with it the commit is replayed, on a Spark of this machine, until
                its cause is found (`Bisection.cause`), and the input record where that is one (`Bisection.record`).
                With the file that ran before a deploy beside it, both are compared.
            on_step: told of each evaluation.

        Raises:
            Usage: a moment or the SQL is malformed, or there is no predicate, or more than one; or nothing says where
                Kafka is, for `code`.
            NotFound: there is no such moment, table or column.
            Refused: nothing is wrong at `bad`, or something is at `good`; or `good` is not before `bad`.
            SlackwaterError: the function raised something, or the command stopped the search.
        """
        client, predicate = self._client, self._predicate(options, python, run)
        codes = [code] if isinstance(code, str | Path) else code
        if codes:
            for each in codes:
                program_file(each)
            _ = client.known_channels("which have the records to replay")
        good, bad = self.whole_ref(options["good"]), self.whole_ref(options["bad"])
        verdict = self.search(predicate, good=good, bad=bad, edge=options["edge"], on_step=on_step)
        good_moment = Moment(client, verdict.good_ref, verdict.good) if verdict.good_ref else None
        behind = cause_behind(client, verdict, codes or None)
        bad_moment = Moment(client, verdict.bad_ref, verdict.bad)
        return Bisection(verdict, good_moment, bad_moment, behind.guilty, behind.cause)

    def search(self, predicate: Predicate, **how: Any) -> Verdict:
        """What `bisect` does, with any predicate; `how` is what `search.bisect` takes: whole refs for the ends."""
        client = self._client
        reader = client.channels_of(self.name) if predicate.sql and predicate.channels else None
        return bisect(client.store, client.cache, self.name, predicate, reader=reader, **how)

    def check(
        self,
        code: str | Path,
        *,
        on_progress: Callable[[str], None] = lambda _doing: None,
        **options: Unpack[CheckOptions],
    ) -> Result:
        """Run past versions with the program of a file again; `failed` says whether anything differs.

        What differs is named with its keys and the most likely reason. Versions whose records Kafka does not have any
        more are passed over. `on_progress` is told in words what goes on.

        Raises:
            Usage: nothing says where Kafka is; or the program declares something that cannot be.
            NotFound: there is no such file, stage or app.
            Refused: the program does not run, or there is nothing to run again.
        """
        return check(self._client, code, self.name, options, on_progress)

    def note_input_gone(self) -> None:
        """Tell of which versions Kafka does not hold the input any more, where it is known where Kafka is."""
        client = self._client
        if (topics := client.channels_of(self.name)) is None:
            return
        try:
            gone = unreplayable(client.store, self.name, topics.held())
        except (Unavailable, Refused) as error:
            client.note(f"note: nobody knows what Kafka still holds: {error.message}")
            return
        if gone:
            versions = ", ".join(f"{stage} up to v{left.version}" for stage, left in gone.items())
            topics_now = {topic: None for left in gone.values() for topic in left.replaced}
            why = f" ({', '.join(map(history.anew, topics_now))})" if topics_now else ""
            told = f"Kafka does not hold all input any more of {versions}{why}: these can be found, not replayed"
            client.note(f"note: {told}")

    def _predicate(self, options: SearchOptions, python: Function | None = None, run: str = "") -> Predicate:
        """What says whether a moment is bad. Raises `Usage` unless just one does, and `NotFound` for the table."""
        asked = Asked(self.name, options["where"], options["check"], options["table"], run=run)
        if python is None:
            if not asked.by_hand:
                return asked.predicate(self._client.store)
        elif asked.by_hand:
            return Python(getattr(python, "__name__", "function"), python)
        raise Usage("say what is wrong by one of where=, check=, python= and run=")

    def whole_ref(self, moment: When | None) -> str | None:
        """A moment, as `at` takes it, as a whole ref, by which a search names its ends; `beginning` is one, too.

        None, where nothing says which. Raises `Usage`.
        """
        return BEGINNING if moment == BEGINNING else self._ref(moment) if moment else None

    def _ref(self, moment: When, stage: str = "") -> str:
        text = in_words(moment)
        if "@" in text or "/" in text:
            of = text.partition("@")[0].partition("/")[0]
            if of not in (self.name, self.called):
                raise Usage(f"{text} is a moment of another app; expected one of {self.called!r}")
            text = self.name + text[len(of) :]
            if stage:
                raise Usage(f"{text} is a whole ref, and stage {stage!r} beside it says something else; leave one out")
            return text
        return f"{self.name}/{stage}@{text}" if stage else f"{self.name}@{text}"

    def _blocks(self) -> tuple[Block, ...]:
        return (Title(f"app {self.name} in {self._client.root}"),)
