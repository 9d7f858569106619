"""The rows of a table as one version has them: looked up by their keys, or because they fall due."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..objects.protocol import ObjectStore
from ..versions.manifest import Sst, Table
from .cache import SstCache
from .due_rows import DueRows, due_rows
from .multi_get import multi_get
from .read_stats import Reads


@dataclass(frozen=True, slots=True)
class TableRows:
    """What a batch looks up.

    Attributes:
        table: Its columns.
        ssts: Where its rows are: of all state partitions, or of the one that is asked about.
        clock_ms: By which of these are expired.
        reads: Counts the look-ups.
    """

    store: ObjectStore
    cache: SstCache
    table: Table
    ssts: Sequence[Sst]
    clock_ms: int
    reads: Reads = field(default_factory=Reads)

    def of_keys(
        self, hashes: npt.NDArray[np.int64], keys: pa.Table
    ) -> tuple[pa.Table, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """The value columns of each key, whether it has a row, and that row's `_seq`, 0 for none. As `multi_get`."""
        seqs = np.zeros(len(hashes), np.int64)
        values, found = multi_get(
            self.store, self.cache, self.ssts, self.table, hashes, keys, self.reads, clock_ms=self.clock_ms, seqs=seqs
        )
        return values, found, seqs

    def due(self, span: tuple[int, int], hashes: tuple[int, int]) -> DueRows:
        """The rows that fall due between two times, with hashes between two others. As `due_rows`."""
        return due_rows(
            self.store,
            self.cache,
            self.ssts,
            self.table,
            span=span,
            hashes=hashes,
            clock_ms=self.clock_ms,
            reads=self.reads,
        )
