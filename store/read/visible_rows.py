"""Which rows of an SST are not visible: a newer SST has their key, or they are tombstones.

Found once for each pair of SSTs and kept, since neither ever changes; what Iceberg and Delta call a deletion vector,
but computed instead of stored. It takes the hashes of the older SST and the keys of the newer one: a vectorised search,
as in a look-up. A query then reads of the older SST nothing but the columns that it asks for.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from ..objects.protocol import ObjectStore
from ..sst.sorted_runs import newer_than
from ..sst.types import HASH, OP, TOMBSTONE
from ..versions.manifest import Sst, Table
from .cache import SstCache
from .decode import BLOCK_ROWS, Block, check_shape
from .fetch import corrupt, file_name

_MAX_BYTES = 64 << 20
"""What positions that this process keeps may take."""
_ENTRY_BYTES = 512
"""What an entry takes besides its positions: mostly its two names. Most pairs of small SSTs share no key."""
_AT_ONCE = 64

_found: LRUCache[tuple[str, str], npt.NDArray[np.int64]] = LRUCache(
    _MAX_BYTES, getsizeof=lambda positions: positions.nbytes + _ENTRY_BYTES
)
_lock = Lock()


def hidden_rows(
    store: ObjectStore, cache: SstCache, ssts: Sequence[Sst], table: Table
) -> dict[Sst, npt.NDArray[np.int64]]:
    """Positions of the rows that do not count, of each SST of a version that has any; in no order, perhaps repeated."""
    hiding = Hiding(store, cache, table, at_once=len(ssts) + 1)
    found = {}
    for sst in ssts:
        positions = [one for one in hiding.by(sst, newer_than(sst, ssts)).values() if one.size]
        if positions:
            found[sst] = np.concatenate(positions)
    return found


class Hiding:
    """Which rows of one SST another hides, for many SSTs of one table. Raises as `hidden_rows`.

    Hashes, keys and operations of SSTs are read where they are mapped on this machine, else from the Parquet file.
    `at_once` is of how many SSTs the keys are in memory, to be looked for in another one.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, table: Table, *, at_once: int = _AT_ONCE) -> None:
        self.key = [column.name for column in table.key]
        self._store, self._cache, self._table, self._at_once = store, cache, table, at_once
        self._kept: LRUCache[Sst, list[Block]] = LRUCache(at_once)

    def by(self, older: Sst, newer: Sequence[Sst]) -> dict[Sst | None, npt.NDArray[np.int64]]:
        """The positions of the rows in `older` that each of the others hides, each once; of its tombstones for None.

        Reads the older SST once for every so many others, whose keys are in memory meanwhile.
        """
        by = [None, *newer] if older.tombstones else list(newer)
        found: dict[Sst | None, npt.NDArray[np.int64]] = {}
        for start in range(0, len(by), self._at_once):
            found |= self._positions(older, by[start : start + self._at_once])
        return found

    def _positions(self, older: Sst, newer: Sequence[Sst | None]) -> dict[Sst | None, npt.NDArray[np.int64]]:
        pairs = {one: (file_name(older), "" if one is None else file_name(one)) for one in newer}
        with _lock:
            known = {one: _found[pair] for one, pair in pairs.items() if pair in _found}
        parts: dict[Sst | None, list[npt.NDArray[np.int64]]] = {one: [] for one in newer if one not in known}
        if parts:
            start = 0
            for block in self._blocks(older):
                for one, some in parts.items():
                    some += [start + at for at in _in_block(self, block, one)]
                start += len(block.hashes)
            for one, some in parts.items():
                known[one] = np.concatenate([np.empty(0, np.int64), *some])
                # Unless it is larger than all that may be kept.
                with _lock, suppress(ValueError):
                    _found[pairs[one]] = known[one]
        return {one: known[one] for one in newer}

    def blocks_of(self, sst: Sst) -> list[Block]:
        """The blocks of an SST that is compared with several."""
        if sst not in self._kept:
            self._kept[sst] = list(self._blocks(sst))
        return self._kept[sst]

    def _blocks(self, sst: Sst) -> Iterator[Block]:
        mapped = self._cache.peek(sst, self._table)
        if mapped is not None:
            yield from mapped.blocks
            return
        path = self._cache.parquet_path(self._store, sst)
        try:
            # Its checksum was looked at when the path was asked for.
            with pq.ParquetFile(path, memory_map=True) as file:
                how = check_shape(sst, self._table, file.schema_arrow, file.metadata.num_rows)
                names = [HASH, *self.key, OP]
                stored = names if how is None else how.stored_names(names)
                for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=stored):
                    yield Block.of(batch, how)
        except (pa.ArrowException, OSError) as error:
            raise corrupt(sst, f"it cannot be decoded ({error})") from error


def _in_block(hiding: Hiding, block: Block, newer: Sst | None) -> Iterator[npt.NDArray[np.int64]]:
    """The positions within a block of the keys of another SST; of its tombstones for None."""
    if newer is None:
        yield np.flatnonzero(np.asarray(block.stored.column(OP)) == TOMBSTONE)
        return
    for other in hiding.blocks_of(newer):
        low = np.searchsorted(other.hashes, block.hashes[0], side="left")
        high = np.searchsorted(other.hashes, block.hashes[-1], side="right")
        keys = other.rows(hiding.key)
        for _, at, _, same in block.match(other.hashes, keys, np.arange(low, high), hiding.key):
            yield at[same]
