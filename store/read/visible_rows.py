"""Finds hidden rows of SSTs: tombstones, and rows whose key is also in a newer SST.

Hidden rows are computed once for each pair of SSTs and cached, because SSTs are immutable. Iceberg and Delta store such
positions as deletion vectors. The computation searches the hashes of the older SST for the keys of the newer SST. A
query then reads only the selected columns of the older SST.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from ...common import runtime
from ..objects.protocol import ObjectStore
from ..sst.schema import HASH, OP, TOMBSTONE
from ..sst.sorted_runs import newer_than
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from .cache import SstCache
from .decode import BLOCK_ROWS, Block, check_columns
from .fetch import corruption_error, file_name

_MAX_BYTES = 64 << 20
_ENTRY_BYTES = 512
_MAX_CACHED_SSTS = 64

_cached: LRUCache[tuple[str, str], npt.NDArray[np.int64]] = LRUCache(
    _MAX_BYTES, getsizeof=lambda positions: positions.nbytes + _ENTRY_BYTES
)
_lock = runtime.lock()


def find_hidden_rows(
    store: ObjectStore, cache: SstCache, ssts: Sequence[Sst], table: Table
) -> dict[Sst, npt.NDArray[np.int64]]:
    """Return the positions of hidden rows of each SST, unsorted and possibly repeated.

    `ssts` are all SSTs of a version. SSTs without hidden rows are left out. Raises `Corruption` if an SST is missing or
    damaged.
    """
    hiding = HiddenRowFinder(store, cache, table, at_once=len(ssts) + 1)
    hidden = {}
    for sst in ssts:
        positions = [array for array in hiding.find_hidden(sst, newer_than(sst, ssts)).values() if array.size]
        if positions:
            hidden[sst] = np.concatenate(positions)
    return hidden


class HiddenRowFinder:
    """Finds the rows of an SST that newer SSTs of the table hide.

    Reads hashes, keys and operations from mapped SSTs, or from Parquet files. Memory holds the keys of at most
    `at_once` SSTs. Raises `Corruption`.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, table: Table, *, at_once: int = _MAX_CACHED_SSTS) -> None:
        self.key = [column.name for column in table.key]
        self._store, self._cache, self._table, self._at_once = store, cache, table, at_once
        self._block_cache: LRUCache[Sst, list[Block]] = LRUCache(at_once)

    def find_hidden(self, older: Sst, newer: Sequence[Sst]) -> dict[Sst | None, npt.NDArray[np.int64]]:
        """Return the positions of hidden rows of `older`, grouped by the newer SST that hides them.

        Tombstones have the key None. Reads the older SST once for every `at_once` newer SSTs.
        """
        by = [None, *newer] if older.tombstones else list(newer)
        hidden: dict[Sst | None, npt.NDArray[np.int64]] = {}
        for start in range(0, len(by), self._at_once):
            hidden |= self._positions(older, by[start : start + self._at_once])
        return hidden

    def _positions(self, older: Sst, newer: Sequence[Sst | None]) -> dict[Sst | None, npt.NDArray[np.int64]]:
        pairs = {sst: (file_name(older), "" if sst is None else file_name(sst)) for sst in newer}
        with _lock:
            hidden = {sst: _cached[pair] for sst, pair in pairs.items() if pair in _cached}
        parts: dict[Sst | None, list[npt.NDArray[np.int64]]] = {sst: [] for sst in newer if sst not in hidden}
        if parts:
            start = 0
            for block in self._blocks(older):
                for sst, arrays in parts.items():
                    arrays += [start + at for at in _hidden_in_block(self, block, sst)]
                start += len(block.hashes)
            for sst, arrays in parts.items():
                hidden[sst] = np.concatenate([np.empty(0, np.int64), *arrays])
                # A `ValueError` means that the SST is larger than the whole cache.
                with _lock, suppress(ValueError):
                    _cached[pairs[sst]] = hidden[sst]
        return {sst: hidden[sst] for sst in newer}

    def cached_blocks(self, sst: Sst) -> list[Block]:
        if sst not in self._block_cache:
            self._block_cache[sst] = list(self._blocks(sst))
        return self._block_cache[sst]

    def _blocks(self, sst: Sst) -> Iterator[Block]:
        mapped = self._cache.cached_rows(sst, self._table)
        if mapped is not None:
            yield from mapped.blocks
            return
        path = self._cache.parquet_path(self._store, sst)
        try:
            # `parquet_path` has verified the checksum.
            with pq.ParquetFile(path, memory_map=True) as file:
                reading = check_columns(sst, self._table, file.schema_arrow, file.metadata.num_rows)
                names = [HASH, *self.key, OP]
                stored = names if reading is None else reading.stored_names(names)
                for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=stored):
                    yield Block.from_rows(batch, reading)
        except (pa.ArrowException, OSError) as error:
            raise corruption_error(sst, f"it cannot be decoded ({error})") from error


def _hidden_in_block(hiding: HiddenRowFinder, block: Block, newer: Sst | None) -> Iterator[npt.NDArray[np.int64]]:
    if newer is None:
        yield np.flatnonzero(np.asarray(block.stored.column(OP)) == TOMBSTONE)
        return
    for other in hiding.cached_blocks(newer):
        low = np.searchsorted(other.hashes, block.hashes[0], side="left")
        high = np.searchsorted(other.hashes, block.hashes[-1], side="right")
        keys = other.rows(hiding.key)
        for _, at, _, same in block.match(other.hashes, keys, np.arange(low, high), hiding.key):
            yield at[same]
