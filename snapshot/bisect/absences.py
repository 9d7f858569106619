"""Bad keys that the bad commit did not write: rows of other keys made them wrong."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...common.instants import iso
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import LookUps
from ...store.sst.arrow_types import python_rows
from ...store.sst.hashing import hash_keys
from ...store.sst.schema import arrow_schema
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import table_of, tables_of
from ..cut.lineage import read_up_to
from .causes import Cause
from .verdict import Verdict

MOST_KEYS = 20
"""Maximum number of keys listed in a cause; `num_keys` counts all of them."""
_BATCHES_LATER = 64
"""Maximum number of versions by which a batch's version may exceed its `_seq`, due to compactions in between."""


@dataclass(frozen=True, slots=True)
class Untouched:
    """Bad keys of a commit that wrote none of them."""

    keys: pa.Table
    since: Manifest | None
    """Last version that changed one of the keys; None if unknown."""


def untouched(store: ObjectStore, cache: SstCache, verdict: Verdict) -> Untouched | None:
    """Return the bad keys if the commit wrote none of them; None if it wrote some, or if the keys are unknown.

    Costs one look-up of these keys. Raises `Corruption` and `Unavailable`.
    """
    keys, commit = verdict.keys, verdict.bad.stages[verdict.stage]
    if keys is None or not keys.named or not len(keys) or len(keys.changed()):
        return None
    table_names = (name for name in (commit.stage, *tables_of(commit)) if verdict.predicate.names(name))
    side = table_of(commit, next(table_names, commit.stage))
    if side.table is None or [column.name for column in side.table.key] != keys.keys.column_names:
        return None
    keys_as_stored = keys.keys.cast(arrow_schema(side.table.key))
    look_ups = LookUps(store, cache, side.table, side.ssts, side.clock_ms)
    seqs = look_ups.of_keys(hash_keys(keys_as_stored, keys_as_stored.column_names), keys_as_stored)[2]
    if not seqs.any() or (seqs >= commit.row_seq).any():
        # No key has a row, so another table makes them wrong; or the commit rewrote some keys with the same values.
        return None
    return Untouched(keys.keys, _version_with_seq(store, commit, int(np.max(seqs))))


def absence(store: ObjectStore, verdict: Verdict, of: Untouched, *, proved: bool, how: str) -> Cause:
    """Return the cause "no record of these keys came"; `how` is appended to its sentence.

    Reads one manifest for each channel upstream. Raises `Corruption` and `Unavailable`.
    """
    since, count = of.since, of.keys.num_rows
    offsets = read_up_to(store, verdict.bad, [verdict.stage])
    read_to = {
        f"{topic}[{partition}]": end for topic, ends in sorted(offsets.items()) for partition, end in enumerate(ends)
    }
    subject = "the bad key" if count == 1 else f"any of the {count:,} bad keys"
    when = f" after {since.stage}@v{since.version}, at {iso(since.time_ms)}" if since is not None else ""
    return Cause(
        "absence",
        proved=proved,
        sentence=f"no record of {subject} arrived{when}; rows of other keys made "
        f"{'it' if count == 1 else 'them'} bad{how}",
        evidence={
            "keys": python_rows(of.keys.slice(0, MOST_KEYS)),
            "num_keys": count,
            "since": {"stage": since.stage, "version": since.version, "time": iso(since.time_ms)} if since else None,
            "read_to": read_to,
        },
    )


def _version_with_seq(store: ObjectStore, commit: Manifest, seq: int) -> Manifest | None:
    """Return the version that wrote rows with this `_seq`; None if it was collected."""
    for version in range(seq, min(commit.version, seq + _BATCHES_LATER)):
        manifest = history.find(store, commit.app, commit.stage, version)
        if manifest is not None and manifest.traits.changes_rows and manifest.row_seq == seq:
            return manifest
    return None
