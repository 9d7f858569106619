"""Snapshots by the names that people gave them; manifests know their ids."""

from __future__ import annotations

from ...errors import Corruption, Unavailable
from ...snapshot.cut.requests import open_requests
from ...snapshot.cut.stored import list_snapshots
from ...store.objects.protocol import ObjectStore


def snapshot_names(store: ObjectStore, app: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Names of snapshots; an id whose snapshot is withdrawn by now, or cannot be looked up, stays an id."""
    names: dict[str, str] = {}
    try:
        for found in (open_requests, list_snapshots):
            if not names.keys() >= set(ids):
                names |= {one.id: one.name for one in found(store, app)}
    except (Unavailable, Corruption):
        # A name is for people; the batch is committed.
        pass
    return tuple(names.get(id_, id_) for id_ in ids)
