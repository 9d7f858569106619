"""One key in the SSTs of any version: its newest stored row, tombstone or expired though it may be.

An SST never changes, so each is looked into once, however many versions name it. One that cannot hold the key costs no
request where its range of hashes says so, those for its footer, page index and filter where the filter does; one that
holds it also those for pages. SSTs that are small or on this machine are read whole.

A row says which one it replaced (`_prev_seq`). Who comes from there asks for that one: of the SSTs of a version that
may have the key one at most has rows of that time.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...store.objects.protocol import ObjectStore
from ...store.objects.stats import Reads
from ...store.read.cache import SstCache
from ...store.read.decode import Block
from ...store.read.remote_sst import SMALL_BYTES, RangedSst
from ...store.sst.arrow_types import python_rows
from ...store.sst.hashing import same_keys
from ...store.sst.sorted_runs import overlapping
from ...store.sst.types import EXPIRES, OP, PREV, SEQ, TOMBSTONE
from ...store.versions.manifest import Manifest, Sst, Table
from ..query.columns import visible_schema
from .side import identity


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of the key, as it was written."""

    seq: int
    """`_seq`: which version wrote it."""
    values: dict[str, object] | None
    """The visible value columns; None for a tombstone."""
    expires_ms: int | None
    """When it expires, milliseconds since 1970 UTC; None for never."""
    replaced: int | None
    """`_seq` of the row of the key that was stored when this one was made; 0 for none, None where nobody knows."""


class StoredKey:
    """Looks for one key.

    Args:
        store: the store of the app.
        cache: this machine's.
        key: the key columns, normalised: one row.
        hashed: its `_hash`.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, key: pa.Table, hashed: int) -> None:
        self.key = key
        self.reads = Reads()
        """What looking took, manifests aside."""
        self._store = store
        self._cache = cache
        self._hashes = np.array([hashed], np.int64)
        # By the columns that the table had, too.
        self._found: dict[tuple[str, str, int], StoredRow | None] = {}

    def ssts(self, manifest: Manifest) -> tuple[Sst, ...]:
        """The SSTs of a version whose range of hashes has the key's."""
        hashed = int(self._hashes[0])
        return overlapping(manifest.ssts, hashed, hashed)

    def newest(self, manifest: Manifest) -> StoredRow | None:
        """The row that decides what a version shows of the key; None when it stores none.

        Raises:
            Corruption: an SST is missing or damaged.
            Unavailable: the store did not answer.
        """
        if manifest.table is None:
            return None
        return self._first(sorted(self.ssts(manifest), key=lambda sst: -sst.seq_max), manifest.table)

    def of_seq(self, manifest: Manifest, seq: int, table: Table) -> StoredRow | None:
        """The row with this `_seq`, read as one of the table, where it is the newest one in its SST at that version.

        Raises as `newest`.
        """
        of_its_time = (sst for sst in self.ssts(manifest) if sst.seq_min <= seq <= sst.seq_max)
        row = self._first(of_its_time, table, is_there=True)
        return row if row is not None and row.seq == seq else None

    def _first(self, ssts: Iterable[Sst], table: Table, *, is_there: bool = False) -> StoredRow | None:
        for sst in ssts:
            place = (*identity(sst), table.schema)
            if place not in self._found:
                self._found[place] = self._look_in(sst, table, is_there=is_there)
            if (row := self._found[place]) is not None:
                return row
        return None

    def _look_in(self, sst: Sst, table: Table, *, is_there: bool) -> StoredRow | None:
        mapped = self._cache.peek(sst, table)
        if mapped is None and sst.bytes <= SMALL_BYTES:
            mapped = self._cache.bring(self._store, sst, table, self.reads)
        blocks: Iterable[Block]
        if mapped is not None:
            blocks = mapped.blocks
        else:
            ranged = RangedSst(self._store, sst, table, self.reads)
            # A filter would only say that it may be there.
            _, parts = ranged.find(self._hashes, filtered=not is_there)
            blocks = ranged.read(parts)
        return next((row for block in blocks if (row := self._in_block(block, table)) is not None), None)

    def _in_block(self, block: Block, table: Table) -> StoredRow | None:
        low, high = (int(np.searchsorted(block.hashes, self._hashes[0], side)) for side in ("left", "right"))
        key = [column.name for column in table.key]
        shown = [name for name in visible_schema(table).names if name not in key]
        expiry = [EXPIRES] if EXPIRES in block.stored.schema.names else []
        # Different keys may share a hash.
        rows = pa.Table.from_batches([block.rows([*key, *shown, SEQ, OP, PREV, *expiry], low, high - low)])
        keys = self.key.take(pa.array(np.zeros(rows.num_rows, np.int64)))
        # Its columns may have been called otherwise.
        theirs = rows.select(key).rename_columns(self.key.column_names)
        for place in np.flatnonzero(same_keys(keys, theirs, self.key.column_names)).tolist():
            row = rows.slice(place, 1)
            values = row.select(shown)
            seq, deleted = row.column(SEQ)[0].as_py(), row.column(OP)[0].as_py() == TOMBSTONE
            expires_ms = row.column(EXPIRES)[0].as_py() if expiry else None
            # A table may have no columns beside its key; then these have no rows either.
            (visible,) = python_rows(values) or ({},)
            return StoredRow(seq, None if deleted else visible, expires_ms, row.column(PREV)[0].as_py())
        return None
