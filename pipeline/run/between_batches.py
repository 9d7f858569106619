"""What is asked of the stages that run here, done between two batches: retries of rejected records, and edits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...errors import Unavailable
from ...keep.edit.request import EDITS, done_by, finish
from ...keep.rejected.retries import RETRIES
from ...store.objects.protocol import ObjectStore
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
