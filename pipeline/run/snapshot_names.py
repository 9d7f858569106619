"""Snapshots by the names that people gave them; manifests know their ids."""

from __future__ import annotations

from contextlib import suppress

from ...errors import Corruption, NotFound, Unavailable
from ...snapshot.cut.requests import open_requests
from ...snapshot.cut.stored import list_snapshots
from ...store.objects.protocol import ObjectStore


def snapshot_names(store: ObjectStore, app: str, ids: tuple[str, ...], known: dict[str, str]) -> tuple[str, ...]:
    """Names of snapshots; an id whose snapshot is withdrawn by now, or cannot be looked up, stays an id.

    `known` has the names that were looked up before, by id, and gets the new ones.
    """
    # A name is for people; the batch is committed.
    with suppress(Unavailable, Corruption, NotFound):
        for found in (open_requests, list_snapshots):
            if not known.keys() >= set(ids):
                known.update({one.id: one.name for one in found(store, app)})
    return tuple(known.get(id_, id_) for id_ in ids)
