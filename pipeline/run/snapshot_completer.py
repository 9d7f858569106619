"""Completes snapshots while the queries go on; between two batches, retries rejected records and makes edits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ...errors import Corruption, NotFound, Refused, Unavailable
from ...snapshot.change.edit import finish
from ...snapshot.change.retries import RETRIES
from ...snapshot.cut import stored
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.stored import Request, list_snapshots
from ...snapshot.take import audit_log, taking
from ...snapshot.under_way.edit_request import EDITS, done_by
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import rejected_of
from ..batch.stage_runner import StageRunner


@dataclass(frozen=True, slots=True)
class BetweenBatches:
    """Looks for requests when it is asked to: a listing for edits, and one for retries while records wait."""

    store: ObjectStore
    app: str

    def check(self, runners: Iterable[StageRunner]) -> bool:
        """Do what is asked for; False where something is left to do, or the store is silent.

        Raises what a batch raises, which ended the stage.
        """
        ours = {runner.stage.name: runner for runner in runners}
        try:
            self._retry(ours)
            return self._edit(ours)
        except Unavailable:
            # Whether the store has been away for too long is the planners' to say.
            return False

    def _retry(self, ours: Mapping[str, StageRunner]) -> None:
        able = {name: runner for name, runner in ours.items() if rejected_of(runner.head).waiting}
        for request in RETRIES.all(self.store, self.app) if able else ():
            if (runner := able.get(request.stage)) is not None:
                runner.retry()
                RETRIES.remove(self.store, request.id, self.app)

    def _edit(self, ours: Mapping[str, StageRunner]) -> bool:
        all_done = True
        for request in EDITS.all(self.store, self.app):
            runner = ours.get(request.stage)
            if runner is None or request.error:
                continue
            runner.edit(self.store, request)
            # With versions that are not flushed it is committed later.
            if (done := done_by(self.store, request, runner.head)) is not None:
                finish(self.store, self.app, request, done)
            else:
                all_done = EDITS.find(self.store, request.id, self.app) is None
        return all_done


_log = logging.getLogger("slackwater")


@dataclass(slots=True)
class Completer:
    """Completes what every stage of one app has answered, one snapshot after the other, on a thread of its own."""

    store: ObjectStore
    app: str
    reader: Topics
    by: str
    """host:pid, for the log of operations."""
    _thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "slackwater-snapshots"))
    _under_way: Future[None] | None = None

    def check(self, heads: Collection[Manifest]) -> frozenset[str]:
        """Complete, in the background, what these heads may be the last to answer.

        Returns the snapshots that they carry and nobody asks for any more.
        """
        recorded = {snapshot for head in heads for snapshot in head.recorded}
        if not recorded:
            return frozenset()
        requests = {request.id: request for request in stored.open_requests(self.store, self.app)}
        if self._under_way is None or self._under_way.done():
            # None of these stages is still at it. Others may be, in other runners.
            finished = [
                requests[each]
                for each in recorded & requests.keys()
                if all(each in head.recorded and not head.awaited.get(each) for head in heads)
            ]
            if finished:
                self._under_way = self._thread.submit(self._complete, finished)
        return frozenset(recorded - requests.keys())

    def close(self) -> None:
        """Let what is under way end."""
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


def snapshot_names(store: ObjectStore, app: str, ids: tuple[str, ...], known: dict[str, str]) -> tuple[str, ...]:
    """Names of snapshots; an id whose snapshot is withdrawn by now, or cannot be looked up, stays an id.

    `known` has the names that were looked up before, by id, and gets the new ones.
    """
    # A name is for people; the batch is committed.
    with suppress(Unavailable, Corruption, NotFound):
        for found in (stored.open_requests, list_snapshots):
            if not known.keys() >= set(ids):
                known.update({one.id: one.name for one in found(store, app)})
    return tuple(known.get(id_, id_) for id_ in ids)
