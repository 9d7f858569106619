"""A fixed share of keys, told by their hash: the same ones in a table, in what a source reads, and in Spark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .hashing import hash_keys

SHARES = 10_000
"""The smallest share is one of so many."""


@dataclass(frozen=True, slots=True)
class KeyShare:
    """The rows for which `xxhash64(columns)`, modulo `SHARES`, is below `parts`."""

    columns: tuple[str, ...]
    parts: int

    def of_hashes(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these hashes of the columns are among them."""
        return np.mod(hashes, SHARES) < self.parts

    def of_rows(self, rows: pa.Table | pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which of these rows, which have the columns, are."""
        return self.of_hashes(hash_keys(rows, self.columns))
