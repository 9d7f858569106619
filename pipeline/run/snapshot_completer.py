"""Completes snapshots while queries run, and does requested retries and edits between batches."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ...errors import Corruption, NotFound, Refused, Unavailable
from ...snapshot.change.edit import finish
from ...snapshot.change.stages import RETRIES
from ...snapshot.cut import stored
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.stored import Request, list_snapshots
from ...snapshot.take import audit_log, taking
from ...snapshot.under_way.runners import EDITS, edit_done_by
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import rejected_of
from ..batch.stage_runner import StageRunner


@dataclass(frozen=True, slots=True)
class BetweenBatches:
    """Does requested edits and retries. Costs one listing, and a second one while rejected records wait."""

    store: ObjectStore
    app: str

    def check(self, runners: Iterable[StageRunner]) -> bool:
        """Do what is requested; return False if requests remain, or the store is unavailable.

        Raises what a batch raises, which ends the stage.
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
    """Completes the snapshots that every stage of an app has recorded, one at a time, on a thread of its own."""

    store: ObjectStore
    app: str
    reader: Topics
    by: str
    """host:pid, for the audit log."""
    _thread: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "slackwater-snapshots"))
    _under_way: Future[None] | None = None

    def check(self, heads: Collection[Manifest]) -> frozenset[str]:
        """Complete, in the background, the snapshots for which these heads may have been the last missing part.

        Returns the recorded snapshots of these heads whose requests are gone.
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
        """Wait until the completion under way has ended."""
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
    """Return the names of snapshots; an id that is withdrawn or cannot be looked up stays an id.

    `names` caches names by id and gets the new ones.
    """
    # Names are only for display: the batch is committed already.
    with suppress(Unavailable, Corruption, NotFound):
        for list_requests in (stored.open_requests, list_snapshots):
            if not names.keys() >= set(ids):
                names.update({snapshot.id: snapshot.name for snapshot in list_requests(store, app)})
    return tuple(names.get(id_, id_) for id_ in ids)
