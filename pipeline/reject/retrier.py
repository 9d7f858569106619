"""Rejected records of the stages that run here, put through the program when somebody has asked for that."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import Unavailable
from ...snapshot.rejected.retries import RETRIES
from ...store.objects.protocol import ObjectStore
from ...store.versions.aside import rejected_of
from ..batch.stage_runner import StageRunner


class Retrier:
    """Looks for requests while records wait: a listing each time that it is asked to, and none otherwise."""

    def __init__(self, store: ObjectStore, app: str) -> None:
        self._store = store
        self._app = app

    def check(self, runners: Iterable[StageRunner]) -> bool:
        """Do what is asked for; False if the store is silent. Raises what a batch raises, which ended the stage."""
        able = {runner.stage.name: runner for runner in runners if rejected_of(runner.head).waiting}
        if not able:
            return True
        try:
            for asked in RETRIES.all(self._store, self._app):
                if (runner := able.get(asked.stage)) is not None:
                    runner.retry()
                    RETRIES.remove(self._store, asked.id, self._app)
        except Unavailable:
            # Whether the store has been away for too long is the planners' to say.
            return False
        return True
