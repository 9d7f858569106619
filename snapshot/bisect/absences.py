"""Bad keys that the bad commit did not write: nothing came for them, and what others got made them wrong."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...common.instants import iso
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import LookUps
from ...store.sst.arrow_types import python_rows
from ...store.sst.hashing import hash_keys
from ...store.sst.types import arrow_schema
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ...store.versions.side_tables import table_of, tables_of
from ..cut.lineage import read_up_to
from .causes import Cause
from .verdict import Verdict

MOST_KEYS = 20
"""Keys that a cause names; it counts all."""
_BATCHES_LATER = 64
"""By how many versions the number of a batch may be above that of its rows: compactions that came between."""


@dataclass(frozen=True, slots=True)
class Untouched:
    """The bad keys of a commit that wrote none of them."""

    keys: pa.Table
    """Their key columns."""
    since: Manifest | None
    """The last version that changed one of them; None where it is not known any more."""


def untouched(store: ObjectStore, cache: SstCache, verdict: Verdict) -> Untouched | None:
    """The bad keys, where the predicate names them and the commit wrote none; None elsewhere.

    A look-up of these keys. Raises `Corruption` and `Unavailable`.
    """
    keys, commit = verdict.keys, verdict.bad.stages[verdict.stage]
    if keys is None or not keys.named or not len(keys) or len(keys.changed()):
        return None
    named = (name for name in (commit.stage, *tables_of(commit)) if verdict.predicate.names(name))
    own = table_of(commit, next(named, commit.stage))
    if own.table is None or [column.name for column in own.table.key] != keys.keys.column_names:
        return None
    asked = keys.keys.cast(arrow_schema(own.table.key))
    found = LookUps(store, cache, own.table, own.ssts, own.clock_ms)
    seqs = found.of_keys(hash_keys(asked, asked.column_names), asked)[2]
    if not seqs.any() or (seqs >= commit.row_seq).any():
        # Keys without rows are wrong by what is in other tables; others were written, with the same values.
        return None
    return Untouched(keys.keys, _writer(store, commit, int(np.max(seqs))))


def absence(store: ObjectStore, verdict: Verdict, of: Untouched, *, proved: bool, how: str) -> Cause:
    """The cause that no record of these keys came; `how` goes on with the sentence.

    A manifest for each channel upstream. Raises `Corruption` and `Unavailable`.
    """
    since, count = of.since, of.keys.num_rows
    offsets = read_up_to(store, verdict.bad, [verdict.stage])
    read_to = {
        f"{topic}[{partition}]": end for topic, ends in sorted(offsets.items()) for partition, end in enumerate(ends)
    }
    which = "the bad key" if count == 1 else f"any of the {count:,} bad keys"
    when = f" after {since.stage}@v{since.version}, at {iso(since.time_ms)}" if since is not None else ""
    return Cause(
        "absence",
        proved=proved,
        sentence=f"no record of {which} came{when}; what others got made {'it' if count == 1 else 'them'} bad{how}",
        evidence={
            "keys": python_rows(of.keys.slice(0, MOST_KEYS)),
            "num_keys": count,
            "since": {"stage": since.stage, "version": since.version, "time": iso(since.time_ms)} if since else None,
            "read_to": read_to,
        },
    )


def _writer(store: ObjectStore, commit: Manifest, seq: int) -> Manifest | None:
    """The version that wrote rows of a `_seq`."""
    for version in range(seq, min(commit.version, seq + _BATCHES_LATER)):
        found = history.find(store, commit.app, commit.stage, version)
        if found is not None and found.traits.changes_rows and found.row_seq == seq:
            return found
    return None
