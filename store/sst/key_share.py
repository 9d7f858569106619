"""A fixed sample of keys, chosen by hash: the same keys in a table, in its input, and in Spark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .hashing import hash_keys

SHARES = 10_000
"""Granularity of shares: the smallest is 1 / `SHARES`."""


@dataclass(frozen=True, slots=True)
class KeyShare:
    """The rows whose `xxhash64(columns)`, modulo `SHARES`, is below `parts`."""

    columns: tuple[str, ...]
    parts: int

    def of_hashes(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the hashes of the columns that are in the share."""
        return np.mod(hashes, SHARES) < self.parts

    def of_rows(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows that are in the share; the rows have the columns."""
        return self.of_hashes(hash_keys(rows, self.columns))
