"""Supervises an app's running queries: starts them, reports failures, completes snapshots, stops them.

Requested retries and edits are done between batches.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from ...common import runtime
from ...common.runtime import Executor, Future
from ...errors import AnotherTopic, Corruption, NotFound, Refused, SlackwaterError, Unavailable
from ...snapshot.change.edit import finish_edit
from ...snapshot.change.stages import RETRIES
from ...snapshot.cut import stored
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.stored import SnapshotRequest, list_snapshots
from ...snapshot.take import audit_log, taking
from ...snapshot.under_way.runners import EDITS, find_edit_version
from ...state import event_time
from ...state.records import ranges
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest
from ...store.versions.side_tables import rejected_counts
from ..batch.job import Query
from ..batch.stage_runner import StageRunner
from ..batch.turns import Turns
from ..kafka.channels import GroupOffsetCommitter
from ..listener import Listener
from ..publish.publishers import Publishers
from ..source.wake import RequestWatch
from ..spark.session import call_all
from ..spark.user_errors import parse_query_error
from .housekeeping import TopicWatch
from .stopping import StopEvent


@dataclass(frozen=True, slots=True)
class RequestExecutor:
    """Carries out requested edits and retries. Makes one listing, or two while rejected records wait."""

    store: ObjectStore
    app: str

    def carry_out(self, runners: Iterable[StageRunner]) -> bool:
        """Carry out all requests. Returns False if requests remain, or if the store is unavailable.

        Raises the errors of a batch, which end the stage.
        """
        own = {runner.stage.name: runner for runner in runners}
        try:
            self._retry_rejected(own)
            return self._apply_edits(own)
        except Unavailable:
            # The planners decide when the store has been unavailable for too long, so the error is ignored here.
            return False

    def _retry_rejected(self, own: Mapping[str, StageRunner]) -> None:
        able = {name: runner for name, runner in own.items() if rejected_counts(runner.head).waiting}
        for request in RETRIES.all(self.store, self.app) if able else ():
            if (runner := able.get(request.stage)) is not None:
                runner.retry_rejected()
                RETRIES.remove(self.store, request.id, self.app)

    def _apply_edits(self, own: Mapping[str, StageRunner]) -> bool:
        all_done = True
        for request in EDITS.all(self.store, self.app):
            runner = own.get(request.stage)
            if runner is None or request.error:
                continue
            runner.apply_edit(self.store, request)
            # If versions are unflushed, the edit is committed later.
            if (done := find_edit_version(self.store, request, runner.head)) is not None:
                finish_edit(self.store, self.app, request, done)
            else:
                all_done = EDITS.find(self.store, request.id, self.app) is None
        return all_done


_log = logging.getLogger("slackwater")


@dataclass(slots=True)
class SnapshotCompleter:
    """Completes snapshots once every stage of an app has recorded them, one at a time, on a separate thread."""

    store: ObjectStore
    app: str
    topics: KafkaTopics
    by: str
    _executor: Executor = field(default_factory=partial(runtime.executor, 1, "slackwater-snapshots"))
    _completion: Future[None] | None = None

    def check(self, heads: Collection[Manifest]) -> frozenset[str]:
        """Begin to complete, in the background, the snapshots that all stages in `heads` have recorded.

        Returns the snapshots that are recorded in the heads and whose requests no longer exist.
        """
        recorded = {snapshot for head in heads for snapshot in head.recorded}
        if not recorded:
            return frozenset()
        requests = {request.id: request for request in stored.open_requests(self.store, self.app)}
        if self._completion is None or self._completion.done():
            # None of these stages still waits for markers. Stages of other runners may still wait.
            finished = [
                requests[snapshot_id]
                for snapshot_id in recorded & requests.keys()
                if all(snapshot_id in head.recorded and not head.awaited.get(snapshot_id) for head in heads)
            ]
            if finished:
                self._completion = self._executor.submit(self._complete, finished)
        return frozenset(recorded - requests.keys())

    def close(self) -> None:
        self._executor.shutdown()

    def _complete(self, finished: Collection[SnapshotRequest]) -> None:
        for request in finished:
            try:
                taking.try_complete(self.store, self.app, request, self.topics)
            except Unavailable as error:
                # The next check tries again.
                _log.warning("snapshot %s of %s waits: %s", request.name, self.app, error)
            except (Refused, Corruption) as error:
                _log.warning("snapshot %s of %s was dropped: %s", request.name, self.app, error)
                audit_log.record_operation(self.store, self.app, "snapshot failed", f"{request.name}: {error}", self.by)
                stored.withdraw_request(self.store, self.app, request)


def snapshot_names(store: ObjectStore, app: str, ids: tuple[str, ...], names: dict[str, str]) -> tuple[str, ...]:
    """Return the names of snapshots by id. A withdrawn or unknown snapshot is named by its id.

    `names` caches names by id and gets the new names.
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

    Later records may be read as well, but the run does not wait for them. A stage is done when three things are true:
    it has read its topics up to their ends at the start; it has read its channels up to the version at which the
    writing stage was done; and no unhandled row falls due at its watermark. A writer that does not run in this process
    counts as done at its newest version at the start.
    """

    store: ObjectStore
    app: str
    ends: Mapping[str, Sequence[int]]
    own_watermarks: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Inputs whose watermark the stage itself declares, by stage. No upstream watermark is awaited for these inputs."""
    _done_versions: dict[str, int] = field(default_factory=dict)

    def is_done(self, heads: Mapping[str, Manifest]) -> bool:
        """Return True if all stages of the run are done. `heads` has their newest commits, upstream first."""
        writers = {at.upstream for head in heads.values() for at in head.inputs.values() if at.upstream}
        for writer in writers - heads.keys() - self._done_versions.keys():
            newest = history.head(self.store, self.app, writer)
            self._done_versions[writer] = newest.version if newest is not None else 0
        for stage, head in heads.items():
            if (
                stage not in self._done_versions
                and not (head.event_time is not None and head.event_time.has_unemitted_due_rows)
                and all(self._has_read(stage, name, at) for name, at in head.inputs.items())
            ):
                self._done_versions[stage] = head.version
        return heads.keys() <= self._done_versions.keys()

    def _has_read(self, stage: str, name: str, at: Input) -> bool:
        if not at.upstream:
            return not any(ranges(at.offsets, self.ends[at.topic]))
        if at.upstream not in self._done_versions:
            return False
        count = max(0, self._done_versions[at.upstream] - at.version)
        versions = islice(history.iter_after(self.store, self.app, at.upstream, at.version), count)
        sent = ((manifest, manifest.outputs.get(name)) for manifest in versions)
        own = name in self.own_watermarks.get(stage, ())
        # A version without rows, markers or a new watermark, such as a compaction, has nothing to read.
        return not any(
            output.rows
            or output.markers
            or (not own and event_time.later_time(at.watermark_ms, manifest.downstream_watermark_ms) != at.watermark_ms)
            for manifest, output in sent
            if output is not None
        )


_POLL_S = 0.1
_HOUSEKEEPING_S = 0.5
_EPOCH_CHECK_S = 5.0
_BATCH_END_TIMEOUT_S = 6.0
_SPARK_STOP_S = 10.0
_IMMEDIATE_STOP_S = 1.0
_SOURCE_START_S = 15.0
_STARTING_STATUSES = ("Initializing", "Getting offsets", "Starting")


@dataclass(slots=True)
class Supervisor:
    """Supervises the queries of one runner until `stop` is set or they have caught up."""

    runners: tuple[StageRunner, ...]
    turns: Turns
    watch: RequestWatch
    completer: SnapshotCompleter
    request_executor: RequestExecutor
    offset_committer: GroupOffsetCommitter
    catch_up: CatchUp | None
    stop: StopEvent
    listener: Listener
    publishers: Publishers
    topic_watch: TopicWatch
    _queries: list[Query] = field(default_factory=list)
    _has_open_requests: bool = False

    def run(self) -> None:
        """Start the queries and return after an orderly end. Raises the error of a query that failed."""
        with closing(self.completer):
            try:
                # Planners need to know the open requests when they start.
                self._has_open_requests = self.watch.poll(busy=True)
                self._start()
                self._watch_queries()
            finally:
                self.listener.on_ending()
                self._stop_queries()
                self.offset_committer.commit_changed(self._positions())
                self.listener.on_activity("waiting for the current snapshot to be written")
            if not self.stop.is_set():
                self._raise_failures(halted=True)
            self._complete_snapshots()

    def _start(self) -> None:
        """Start the queries, at most as many at a time as there are cores.

        Spark starts a process for each source, and waits ten seconds for its answer. On a small machine, the sources of
        a large app would take longer if all started at once.
        """
        at_once = os.cpu_count() or 1
        self.listener.on_activity(f"starting {_stages_text([runner.stage.name for runner in self.runners])}")
        for number, runner in enumerate(self.runners):
            self.listener.on_loop()
            if number >= at_once:
                # Wait until the sources of an earlier query have answered for the first time.
                query, deadline = self._queries[number - at_once], runtime.monotonic() + _SOURCE_START_S
                while query.isActive and str(query.status["message"]).startswith(_STARTING_STATUSES):
                    if runtime.monotonic() > deadline or self.stop.wait(_POLL_S / 2):
                        break
            if self.stop.is_set():
                return
            self._queries.append(runner.start())
        self.turns.open()

    def _watch_queries(self) -> None:
        housekeeping = epochs = 0.0
        versions = [runner.head.version for runner in self.runners]
        self.listener.on_activity("")
        while not self.stop.wait(_POLL_S):
            self._raise_failures()
            self.listener.on_loop()
            waiting = self.turns.waiting
            for runner in self.runners:
                name, is_busy = runner.stage.name, runner.is_busy and runner.stage.name not in waiting
                self.listener.on_stage_polled(name, busy=is_busy, version=runner.head.version)
            now, previous = runtime.monotonic(), versions
            versions = [runner.head.version for runner in self.runners]
            requested = self.watch.poll(busy=versions != previous)
            self.publishers.set_prompt_storing(enabled=self.watch.is_held)
            for runner in self.runners:
                runner.commit_synchronously(self.watch.forgetting)
            if requested or self._has_open_requests:
                try:
                    self._has_open_requests = not self.request_executor.carry_out(self.runners)
                except Exception:
                    # Any failure here is a failure of the stage.
                    self._raise_failures()
                    raise
            if now >= housekeeping:
                self._complete_snapshots()
                self.offset_committer.commit_changed(self._positions())
                if self._has_caught_up():
                    break
                housekeeping = now + _HOUSEKEEPING_S
            if requested or now >= epochs:
                for runner in self.runners:
                    runner.check_epoch()
                self.listener.on_ownership_checked()
                epochs = now + _EPOCH_CHECK_S
            self._follow_promotion()

    def _follow_promotion(self) -> None:
        if self.publishers.replace_threads({runner.stage.name: runner.head for runner in self.runners}):
            self.publishers.start()
            # Take in versions that were committed since the threads were created.
            for runner in self.runners:
                self.publishers.on_version(runner.head)

    def _positions(self) -> dict[str, dict[str, tuple[int, ...]]]:
        heads = ((runner.stage.name, runner.head.inputs.values()) for runner in self.runners)
        return {stage: {read.topic: read.offsets for read in inputs} for stage, inputs in heads}

    def _stop_queries(self) -> None:
        """Wait a while until running batches are committed, then drop uncommitted versions and stop the queries."""
        for runner in self.runners:
            runner.stop()
        self.turns.end()
        deadline = runtime.monotonic() + _BATCH_END_TIMEOUT_S
        while busy := [runner.stage.name for runner in self.runners if runner.is_busy]:
            left_s = deadline - runtime.monotonic()
            if left_s <= 0 or self.stop.immediate.wait(_POLL_S / 2):
                break
            self.listener.on_activity(
                f"waiting for {_stages_text(busy)} to end {'a batch' if len(busy) == 1 else 'batches'}"
            )
        for runner in self.runners:
            runner.drain(0.0 if self.stop.immediate.is_set() else max(0.0, deadline - runtime.monotonic()))
        self.listener.on_activity("waiting for Spark to stop the queries")
        # In parallel, because each may take seconds. Without a wait, Spark's end stops the queries.
        ends = [query.stop for query in self._queries]
        call_all(ends, lambda: _IMMEDIATE_STOP_S if self.stop.immediate.is_set() else _SPARK_STOP_S)

    def _raise_failures(self, *, halted: bool = False) -> None:
        """Raise the failure of a stage or a sink. With `halted`, a query that ended without an error is not a failure.

        If a topic was created again, raises `AnotherTopic` instead, because that causes other failures.
        """
        if self.topic_watch.error is not None:
            raise self.topic_watch.error
        try:
            self._raise_first_failure(halted=halted)
        except SlackwaterError as error:
            another = self.topic_watch.check()
            if another is not None and isinstance(error, AnotherTopic):
                raise AnotherTopic(error.message, hint=another.hint) from error
            if another is not None:
                raise another from error
            raise

    def _raise_first_failure(self, *, halted: bool) -> None:
        self.publishers.check()
        for runner, query in zip(self.runners, self._queries, strict=False):
            # After a halt, everything to be read is committed. A batch on later records may fail because of the halt.
            failed = None if halted or query.isActive else query.exception()
            if runner.error is None and failed is None:
                continue
            if isinstance(runner.error, SlackwaterError):
                raise runner.error
            causes = [error for error in (failed, runner.error) if error is not None]
            text = "\n".join(f"{type(error).__name__}: {error}" for error in causes)
            raise parse_query_error(runner.stage.name, text) from (runner.error or failed)

    def _complete_snapshots(self) -> None:
        closed = self.completer.check([runner.head for runner in self.runners])
        for runner in self.runners:
            runner.drop_snapshots(closed)

    def _has_caught_up(self) -> bool:
        try:
            heads = {runner.stage.name: runner.head for runner in self.runners}
            return self.catch_up is not None and self.catch_up.is_done(heads) and self.publishers.is_done
        except Unavailable:
            # The planners decide when the store has been unavailable for too long.
            return False


def _stages_text(names: Sequence[str]) -> str:
    return f"stage{'' if len(names) == 1 else 's'} {', '.join(names)}"
