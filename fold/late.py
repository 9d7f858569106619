"""Rows that come too late for the window in their key or for their join, or too far ahead of the clock. Pure.

As Spark has it for `groupBy(window)` and for joins: a row is late when its window had ended, or its own time had
passed, by the watermark that the version before left. What a window holds then is final once the watermark has passed
its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Lateness:
    """Which rows have no place in a table any more, or not yet.

    Attributes:
        columns: Those of the rows by which they are late: windows of time (structs of `start` and `end`), or times.
        watermark_ms: What ends by then is over; None where no watermark is known yet.
        bound_ms: What begins later is too far ahead of the clock.
    """

    columns: tuple[str, ...]
    watermark_ms: int | None
    bound_ms: int

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """bool[rows]: whether each is left out. Rows without a window or time are not."""
        return np.asarray(np.logical_or.reduce([self._mask(rows[name]) for name in self.columns]))

    def _mask(self, column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        spans = pa.types.is_struct(column.type)
        start, end = (
            (pc.struct_field(column, name) if spans else column).cast(pa.int64()) for name in ("start", "end")
        )
        out = pc.greater(start, self.bound_ms * 1000)
        if self.watermark_ms is not None:
            out = pc.or_(out, pc.less_equal(end, self.watermark_ms * 1000))
        return np.asarray(pc.fill_null(out, False))
