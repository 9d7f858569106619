"""Which rows of an SST are not visible: a newer SST has their key, or they are tombstones.

Found once for each pair of SSTs and kept, since neither ever changes; what Iceberg and Delta call a deletion vector,
but computed instead of stored. It takes the hashes of the older SST and the keys of the newer one: a vectorised search,
as in a look-up. A query then reads of the older SST nothing but the columns that it asks for.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from ..objects.protocol import ObjectStore
from ..sst.sorted_runs import overlapping
from ..sst.types import HASH, OP, TOMBSTONE
from ..versions.manifest import Sst, Table
from .cache import SstCache
from .decode import BLOCK_ROWS, Block, check_shape, corrupt, file_name

_MAX_BYTES = 64 << 20
"""What positions that this process keeps may take."""

_AT_ONCE = 64
"""SSTs whose keys are in memory to be looked for in another one."""

_ENTRY_BYTES = 512
"""What an entry takes besides its positions: mostly its two names. Most pairs of small SSTs share no key."""


_found: LRUCache[tuple[str, str], npt.NDArray[np.int64]] = LRUCache(
    _MAX_BYTES, getsizeof=lambda positions: positions.nbytes + _ENTRY_BYTES
)
_lock = Lock()


def hidden_rows(
    store: ObjectStore, cache: SstCache, ssts: Sequence[Sst], table: Table
) -> dict[Sst, npt.NDArray[np.int64]]:
    """Positions of the rows that do not count, of each SST of a version that has any; in no order, perhaps repeated.

    Raises:
        Corruption: an SST is missing or damaged.
        Unavailable: the store did not answer.
    """
    source = _Source(store, cache, table)
    found = {}
    for sst in ssts:
        newer = [other for other in overlapping(ssts, sst.hash_min, sst.hash_max) if other.seq_max > sst.seq_max]
        by = [None, *newer] if sst.tombstones else newer
        positions = [one for one in _positions(source, sst, by) if one.size]
        if positions:
            found[sst] = np.concatenate(positions)
    return found


class Hiding:
    """Which rows of one SST another hides, for many SSTs of one table. Errors as of `hidden_rows`.

    Args:
        store: the store of the app.
        cache: has the SSTs, or copies of the objects.
        table: the declared columns.
    """

    def __init__(self, store: ObjectStore, cache: SstCache, table: Table) -> None:
        self._source = _Source(store, cache, table, LRUCache(_AT_ONCE))

    def by(self, older: Sst, newer: Sequence[Sst]) -> dict[Sst | None, npt.NDArray[np.int64]]:
        """The positions of the rows in `older` that each of the others hides, each once; of its tombstones for None.

        Reads the older SST once for every so many others, whose keys are in memory meanwhile.
        """
        by = [None, *newer] if older.tombstones else list(newer)
        chunks = (by[start : start + _AT_ONCE] for start in range(0, len(by), _AT_ONCE))
        return {one: at for some in chunks for one, at in zip(some, _positions(self._source, older, some), strict=True)}


def _positions(source: "_Source", older: Sst, newer: Sequence[Sst | None]) -> list[npt.NDArray[np.int64]]:
    """The positions in `older` of the keys of each of the others; of its tombstones for None."""
    pairs = [(file_name(older), "" if one is None else file_name(one)) for one in newer]
    with _lock:
        known = {pair: _found[pair] for pair in pairs if pair in _found}
    absent = [(pair, one) for pair, one in zip(pairs, newer, strict=True) if pair not in known]
    if absent:
        parts: dict[tuple[str, str], list[npt.NDArray[np.int64]]] = {pair: [] for pair, _ in absent}
        start = 0
        for block in source.blocks(older):
            for pair, one in absent:
                parts[pair] += [start + at for at in _in_block(source, block, one)]
            start += len(block.hashes)
        known |= {pair: np.concatenate([np.empty(0, np.int64), *some]) for pair, some in parts.items()}
        with _lock:
            for pair, _ in absent:
                with suppress(ValueError):  # larger than all that may be kept
                    _found[pair] = known[pair]
    return [known[pair] for pair in pairs]


def _in_block(source: "_Source", block: Block, newer: Sst | None) -> Iterator[npt.NDArray[np.int64]]:
    """The positions within a block."""
    if newer is None:
        yield np.flatnonzero(np.asarray(block.stored.column(OP)) == TOMBSTONE)
        return
    for other in source.blocks_of(newer):
        low = np.searchsorted(other.hashes, block.hashes[0], side="left")
        high = np.searchsorted(other.hashes, block.hashes[-1], side="right")
        keys = other.rows(source.key)
        for _, at, _, same in block.match(other.hashes, keys, np.arange(low, high), source.key):
            yield at[same]


class _Source:
    """Hashes, keys and operations of SSTs: mapped where this machine has them so, else from the Parquet file."""

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        table: Table,
        blocks: MutableMapping[Sst, list[Block]] | None = None,
    ) -> None:
        self.key = [column.name for column in table.key]
        self._store = store
        self._cache = cache
        self._table = table
        self._blocks: MutableMapping[Sst, list[Block]] = {} if blocks is None else blocks

    def blocks(self, sst: Sst) -> Iterator[Block]:
        """The SST's rows, a block at a time."""
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
                for batch in file.iter_batches(
                    batch_size=BLOCK_ROWS, columns=names if how is None else how.stored_names(names)
                ):
                    yield Block.of(batch, how)
        except (pa.ArrowException, OSError) as error:
            raise corrupt(sst, f"it cannot be decoded ({error})") from error

    def blocks_of(self, sst: Sst) -> list[Block]:
        """The blocks of an SST that is compared with several."""
        found = self._blocks.get(sst)
        if found is None:
            found = self._blocks[sst] = list(self.blocks(sst))
        return found
