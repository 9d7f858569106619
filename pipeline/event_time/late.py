"""Rows that come too late for the window in their key, or too far ahead of the clock. Pure.

As Spark has it for `groupBy(window)`: a row is late when its window had ended by the watermark that the version before
left. What a window holds then is final once the watermark has passed its end.
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
        window: The key column that is a window of time: a struct of `start` and `end`.
        watermark_ms: Windows that end by then are over; None where no watermark is known yet.
        bound_ms: Windows that begin later are too far ahead of the clock.
    """

    window: str
    watermark_ms: int | None
    bound_ms: int

    def mask(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """bool[rows]: whether each is left out. Rows without a window are not."""
        windows = rows[self.window]
        start, end = (pc.struct_field(windows, name).cast(pa.int64()) for name in ("start", "end"))
        out = pc.greater(start, self.bound_ms * 1000)
        if self.watermark_ms is not None:
            out = pc.or_(out, pc.less_equal(end, self.watermark_ms * 1000))
        return np.asarray(pc.fill_null(out, False))
