"""Supervises an app's running queries: starts them, reports failures, completes snapshots, stops them.

Requested retries and edits are done between batches.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ...errors import AnotherTopic, Corruption, NotFound, Refused, SlackwaterError, Unavailable
from ...snapshot.change.edit import finish
from ...snapshot.change.stages import RETRIES
from ...snapshot.cut import stored
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.stored import Request, list_snapshots
from ...snapshot.take import audit_log, taking
from ...snapshot.under_way.runners import EDITS, edit_done_by
from ...state import event_time
from ...state.records import ranges
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest
from ...store.versions.side_tables import rejected_of
from ..batch.stage_runner import StageRunner
from ..kafka.channels import Announcer
from ..listener import Listener
from ..publish.publishers import Publishers
from ..source.wake import RequestWatch
from ..spark.session import end_all
from ..spark.user_errors import translate
from .housekeeping import TopicWatch
from .stopping import Stop


@dataclass(frozen=True, slots=True)
class BetweenBatches:
    """Carries out requested edits and retries. Costs one listing, and a second one while rejected records wait."""

    store: ObjectStore
    app: str

    def check(self, runners: Iterable[StageRunner]) -> bool:
        """Carry out all requests; return False if some remain, or if the store is unavailable.

        Raises the errors of a batch, which end the stage.
        """
        own = {runner.stage.name: runner for runner in runners}
        try:
            self._retry(own)
            return self._edit(own)
        except Unavailable:
            # The planners decide when the store has been unavailable for too long.
            return False

    def _retry(self, own: Mapping[str, StageRunner]) -> None:
        able = {name: runner for name, runner in own.items() if rejected_of(runner.head).waiting}
        for request in RETRIES.all(self.store, self.app) if able else ():
            if (runner := able.get(request.stage)) is not None:
                runner.retry()
                RETRIES.remove(self.store, request.id, self.app)

    def _edit(self, own: Mapping[str, StageRunner]) -> bool:
        all_done = True
        for request in EDITS.all(self.store, self.app):
            runner = own.get(request.stage)
            if runner is None or request.error:
                continue
            runner.edit(self.store, request)
            # With unflushed versions, the edit is committed later.
            if (done := edit_done_by(self.store, request, runner.head)) is not None:
                finish(self.store, self.app, request, done)
            else:
                all_done = EDITS.find(self.store, request.id, self.app) is None
        return all_done


_log = logging.getLogger("slackwater")


@dataclass(slots=True)
class Completer:
    """Completes snapshots once every stage of an app has recorded them, one at a time, on a separate thread."""

    store: ObjectStore
    app: str
    reader: Topics
    by: str
    _thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "slackwater-snapshots"))
    _under_way: Future[None] | None = None

    def check(self, heads: Collection[Manifest]) -> frozenset[str]:
        """Complete, in the background, the snapshots that may be complete with these heads.

        Returns the snapshots that are recorded in the heads and whose requests no longer exist.
        """
        recorded = {snapshot for head in heads for snapshot in head.recorded}
        if not recorded:
            return frozenset()
        requests = {request.id: request for request in stored.open_requests(self.store, self.app)}
        if self._under_way is None or self._under_way.done():
            # None of these stages still waits for markers. Stages of other runners may.
            finished = [
                requests[snapshot_id]
                for snapshot_id in recorded & requests.keys()
                if all(snapshot_id in head.recorded and not head.awaited.get(snapshot_id) for head in heads)
            ]
            if finished:
                self._under_way = self._thread.submit(self._complete, finished)
        return frozenset(recorded - requests.keys())

    def close(self) -> None:
        self._thread.shutdown()

    def _complete(self, finished: Collection[Request]) -> None:
        for request in finished:
            try:
                taking.try_complete(self.store, self.app, request, self.reader)
            except Unavailable as error:
                # The next check tries again.
                _log.warning("snapshot %s of %s waits: %s", request.name, self.app, error)
            except (Refused, Corruption) as error:
                _log.warning("snapshot %s of %s was dropped: %s", request.name, self.app, error)
                audit_log.record(self.store, self.app, "snapshot failed", f"{request.name}: {error}", self.by)
                stored.cancel(self.store, self.app, request)


def snapshot_names(store: ObjectStore, app: str, ids: tuple[str, ...], names: dict[str, str]) -> tuple[str, ...]:
    """Return the names of snapshots. A snapshot that is withdrawn or cannot be looked up is named by its id.

    `names` caches names by id and gets the new ones.
    """
    # Names are only for display: the batch is committed already.
    with suppress(Unavailable, Corruption, NotFound):
        for list_requests in (stored.open_requests, list_snapshots):
            if not names.keys() >= set(ids):
                names.update({snapshot.id: snapshot.name for snapshot in list_requests(store, app)})
    return tuple(names.get(id_, id_) for id_ in ids)


@dataclass(slots=True)
class CatchUp:
    """Detects that all stages have read all records present at the start, like Structured Streaming's `availableNow`.

    Later records may be read as well, but are not waited for. A stage is done when three things are true: it has read
    its topics up to their ends at the start; it has read its channels up to the version with which their writers were
    done; and no row is left that falls due at its watermark. A writer that does not run here counts as done with its
    head at the start.
    """

    store: ObjectStore
    app: str
    ends: Mapping[str, Sequence[int]]
    own: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Inputs whose watermark the stage declares itself, by stage: their upstream watermark is not waited for."""
    _done: dict[str, int] = field(default_factory=dict)

    def done(self, heads: Mapping[str, Manifest]) -> bool:
        """Return True if all stages of the run are done, by their newest committed versions, upstream first."""
        writers = {at.upstream for head in heads.values() for at in head.inputs.values() if at.upstream}
        for writer in writers - heads.keys() - self._done.keys():
            newest = history.head(self.store, self.app, writer)
            self._done[writer] = newest.version if newest is not None else 0
        for stage, head in heads.items():
            if (
                stage not in self._done
                and not (head.event_time is not None and head.event_time.owed)
                and all(self._has_read(stage, name, at) for name, at in head.inputs.items())
            ):
                self._done[stage] = head.version
        return heads.keys() <= self._done.keys()

    def _has_read(self, stage: str, name: str, at: Input) -> bool:
        if not at.upstream:
            return not any(ranges(at.offsets, self.ends[at.topic]))
        if at.upstream not in self._done:
            return False
        count = max(0, self._done[at.upstream] - at.version)
        versions = islice(history.after(self.store, self.app, at.upstream, at.version), count)
        sent = ((manifest, manifest.outputs.get(name)) for manifest in versions)
        own = name in self.own.get(stage, ())
        # A version without rows, markers or a new watermark, such as a compaction, brings a reader nothing.
        return not any(
            output.rows
            or output.markers
            or (not own and event_time.later(at.watermark_ms, manifest.handed_on_ms) != at.watermark_ms)
            for manifest, output in sent
            if output is not None
        )


_POLL_S = 0.1
_HOUSEKEEPING_S = 0.5
_EPOCH_S = 5.0
_STOP_S = 6.0
_SPARK_STOP_S = 10.0
_NOW_S = 1.0
_START_S = 15.0
_STARTING = ("Initializing", "Getting offsets", "Starting")


@dataclass(slots=True)
class Supervisor:
    """Supervises the queries of one runner until `stop` is set or they have caught up."""

    spark: SparkSession
    runners: tuple[StageRunner, ...]
    watch: RequestWatch
    completer: Completer
    requests: BetweenBatches
    announcer: Announcer
    catch_up: CatchUp | None
    stop: Stop
    listener: Listener
    publishers: Publishers
    topics: TopicWatch
    _queries: list[StreamingQuery] = field(default_factory=list)
    _to_do: bool = False

    def until_done(self) -> None:
        """Start the queries and return after an orderly end. Raises the error of a query that failed."""
        with closing(self.completer):
            try:
                # Planners need to know the open requests when they start.
                self._to_do = self.watch.look(busy=True)
                self._start()
                self._look_after()
            finally:
                self.listener.ending()
                self._halt()
                self.announcer.announce_moved(self._positions())
                self.listener.doing("waiting for the current snapshot to be written")
            if not self.stop.is_set():
                self._raise_failures(halted=True)
            self._complete_snapshots()

    def _start(self) -> None:
        """Start the queries, at most as many at the same time as there are cores.

        Spark runs each source in its own process, and gives it ten seconds to start. If all sources of a large app
        started at once, they would take longer on a small machine.
        """
        at_once = os.cpu_count() or 1
        self.listener.doing(f"starting {_stages([runner.stage.name for runner in self.runners])}")
        for number, runner in enumerate(self.runners):
            self.listener.looped()
            if number >= at_once:
                # Wait until the sources of an earlier query have answered for the first time.
                query, deadline = self._queries[number - at_once], time.monotonic() + _START_S
                while query.isActive and str(query.status["message"]).startswith(_STARTING):
                    if time.monotonic() > deadline or self.stop.wait(_POLL_S / 2):
                        break
            if self.stop.is_set():
                return
            self._queries.append(runner.start(self.spark))

    def _look_after(self) -> None:
        housekeeping = epochs = 0.0
        versions = [runner.head.version for runner in self.runners]
        self.listener.doing("")
        while not self.stop.wait(_POLL_S):
            self._raise_failures()
            self.listener.looped()
            for runner in self.runners:
                self.listener.looked(runner.stage.name, busy=runner.busy, version=runner.head.version)
            now, previous = time.monotonic(), versions
            versions = [runner.head.version for runner in self.runners]
            requested = self.watch.look(busy=versions != previous)
            self.publishers.hurry(hurried=self.watch.held)
            for runner in self.runners:
                runner.keep_in_order(self.watch.forgetting)
            if requested or self._to_do:
                try:
                    self._to_do = not self.requests.check(self.runners)
                except Exception:
                    # A failure here is a failure of the stage.
                    self._raise_failures()
                    raise
            if now >= housekeeping:
                self._complete_snapshots()
                self.announcer.announce_moved(self._positions())
                if self._caught_up():
                    break
                housekeeping = now + _HOUSEKEEPING_S
            if requested or now >= epochs:
                for runner in self.runners:
                    runner.check_epoch()
                self.listener.checked()
                epochs = now + _EPOCH_S
            self._follow_promotion()

    def _follow_promotion(self) -> None:
        if self.publishers.follow({runner.stage.name: runner.head for runner in self.runners}):
            self.publishers.start()
            # Catch up with versions committed since the threads were created.
            for runner in self.runners:
                self.publishers.move(runner.head)

    def _positions(self) -> dict[str, dict[str, tuple[int, ...]]]:
        heads = ((runner.stage.name, runner.head.inputs.values()) for runner in self.runners)
        return {stage: {read.topic: read.offsets for read in inputs} for stage, inputs in heads}

    def _halt(self) -> None:
        """Wait a while until running batches have ended and are committed, then drop the rest."""
        for runner in self.runners:
            runner.stop()
        deadline = time.monotonic() + _STOP_S
        while busy := [runner.stage.name for runner in self.runners if runner.busy]:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self.stop.now.wait(_POLL_S / 2):
                break
            self.listener.doing(f"waiting for {_stages(busy)} to end {'a batch' if len(busy) == 1 else 'batches'}")
        for runner in self.runners:
            runner.settle(0.0 if self.stop.now.is_set() else max(0.0, deadline - time.monotonic()))
        self.listener.doing("waiting for Spark to stop the queries")
        # In parallel, because each may take seconds. Without a wait, Spark's end stops the queries.
        ends = [query.stop for query in self._queries]
        end_all(ends, lambda: _NOW_S if self.stop.now.is_set() else _SPARK_STOP_S)

    def _raise_failures(self, *, halted: bool = False) -> None:
        """Raise the failure of a stage or a sink. With `halted`, ignore that the queries have ended.

        If a topic was created again, raise that as the cause of any other failure.
        """
        if self.topics.error is not None:
            raise self.topics.error
        try:
            self._raise_first(halted=halted)
        except SlackwaterError as error:
            another = self.topics.look()
            if another is not None and isinstance(error, AnotherTopic):
                raise AnotherTopic(error.message, hint=another.hint) from error
            if another is not None:
                raise another from error
            raise

    def _raise_first(self, *, halted: bool) -> None:
        self.publishers.check()
        for runner, query in zip(self.runners, self._queries, strict=False):
            # After a halt everything to read is committed, and a batch on later records may fail because of the halt.
            failed = None if halted or query.isActive else query.exception()
            if runner.error is None and failed is None:
                continue
            if isinstance(runner.error, SlackwaterError):
                raise runner.error
            causes = [error for error in (failed, runner.error) if error is not None]
            text = "\n".join(f"{type(error).__name__}: {error}" for error in causes)
            raise translate(runner.stage.name, text) from (runner.error or failed)

    def _complete_snapshots(self) -> None:
        closed = self.completer.check([runner.head for runner in self.runners])
        for runner in self.runners:
            runner.forget(closed)

    def _caught_up(self) -> bool:
        try:
            heads = {runner.stage.name: runner.head for runner in self.runners}
            return self.catch_up is not None and self.catch_up.done(heads) and self.publishers.done
        except Unavailable:
            # The planners decide when the store has been unavailable for too long.
            return False


def _stages(names: Sequence[str]) -> str:
    return f"stage{'' if len(names) == 1 else 's'} {', '.join(names)}"
