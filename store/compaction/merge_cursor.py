"""An SST read from its lowest hash to its highest, of which only what is being looked at is in memory."""

from collections import deque
from typing import Literal

import numpy as np
import pyarrow as pa

from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..read.cache import SstCache
from ..read.remote_sst import Part, RangedSst
from ..sst.evolution import Reading
from ..sst.types import HASH
from ..versions.manifest import Sst, Table


class Cursor:
    """Reads the rows of an SST within a window of hashes, one range of hashes after the other, ascending.

    What this machine has in its cache is memory-mapped. Else a few row groups at a time come from the store, and are
    not put into the cache: what is merged is about to be replaced.
    """

    def __init__(
        self, store: ObjectStore, cache: SstCache, sst: Sst, table: Table, window: tuple[int, int], read_bytes: int
    ) -> None:
        """Reads nothing yet. `window` is the lowest and the highest hash that will be asked for.

        `read_bytes` is how many bytes of row groups are read at once; a larger group comes by itself.
        """
        self._store, self._cache, self._sst, self._table = store, cache, sst, table
        self._window = window
        self._read_bytes = read_bytes
        self._ranged: RangedSst | None = None
        self._reading: Reading | None = None
        self._parts: deque[Part] = deque()
        self._ahead: pa.Table | None = None
        self._is_open = False

    def read(self, low: int, high: int) -> list[pa.Table]:
        """The rows with hashes from `low` to `high`, both included, in the order of the SST; forgets those before.

        They have the table's columns as they are now.

        Raises:
            Corruption: the object is missing or damaged.
            Unavailable: the store did not answer.
        """
        if low > self._sst.hash_max or high < self._sst.hash_min:
            return []
        if not self._is_open:
            self._open()
        rows = self._take(low, high)
        if high >= self._sst.hash_max:
            self._ahead = None
            self._parts.clear()
        found = [part for part in rows if part.num_rows]
        how = self._reading
        return found if how is None else [how.read(part, how.schema.names) for part in found]

    def _open(self) -> None:
        self._is_open = True
        mapped = self._cache.peek(self._sst, self._table)
        if mapped is not None:
            self._ahead, self._reading = mapped.stored, mapped.reading
        else:
            self._ranged = RangedSst(self._store, self._sst, self._table, Reads())
            self._reading = self._ranged.reading
            self._parts.extend(self._ranged.having(HASH, *self._window))

    def _take(self, low: int, high: int) -> list[pa.Table]:
        found = []
        while True:
            if self._ahead is not None:
                rows, end = _between(self._ahead, low, high)
                found.append(rows)
                if end < self._ahead.num_rows:
                    self._ahead = self._ahead.slice(end)
                    return found
                self._ahead = None
            if not self._parts:
                return found
            self._ahead = self._next_parts()

    def _next_parts(self) -> pa.Table:
        assert self._ranged is not None  # noqa: S101  there are parts only of an open SST
        parts = [self._parts.popleft()]
        while self._parts and self._ranged.bytes_of([*parts, self._parts[0]]) <= self._read_bytes:
            parts.append(self._parts.popleft())
        return pa.Table.from_batches([block.stored for block in self._ranged.read(parts)])


def _between(rows: pa.Table, low: int, high: int) -> tuple[pa.Table, int]:
    """The rows with hashes from `low` to `high`, and how many rows there are up to these."""
    start, end = _position(rows, low, "left"), _position(rows, high, "right")
    return rows.slice(start, end - start), end


def _position(rows: pa.Table, hashed: int, side: Literal["left", "right"]) -> int:
    """How many rows come before this hash; with side="right" also those of the hash itself."""
    return sum(int(np.searchsorted(np.asarray(chunk), hashed, side=side)) for chunk in rows.column(HASH).chunks)
