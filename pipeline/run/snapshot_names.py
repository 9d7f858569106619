"""Snapshots by the names that people gave them; manifests know their ids."""

from __future__ import annotations

from ...errors import Corruption, Unavailable
from ...snapshot.cut.requests import open_requests
from ...snapshot.cut.stored import list_snapshots
from ...store.objects.protocol import ObjectStore

__all__ = ["SnapshotNames"]


class SnapshotNames:
    """Names of one app's snapshots, each looked up once. Safe to ask from many threads."""

    def __init__(self, store: ObjectStore, app: str) -> None:
        self._store = store
        self._app = app
        self._names: dict[str, str] = {}

    def of(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        """Their names; an id whose snapshot is withdrawn by now, or cannot be looked up, stays an id."""
        try:
            if any(id_ not in self._names for id_ in ids):
                self._names |= {one.id: one.name for one in open_requests(self._store, self._app)}
            if any(id_ not in self._names for id_ in ids):
                self._names |= {one.id: one.name for one in list_snapshots(self._store, self._app)}
        except (Unavailable, Corruption):
            # A name is for people; the batch is committed.
            pass
        return tuple(self._names.get(id_, id_) for id_ in ids)
