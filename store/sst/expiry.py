"""The SST column `_expires_at`: setting it, and finding expired rows."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...common.durations import DAY_MS
from ..versions.manifest import Table, Ttl
from .schema import EXPIRES, OP, PUT


def expired(rows: pa.Table | pa.RecordBatch, clock_ms: int | None) -> npt.NDArray[np.bool_] | None:
    """Return a mask of expired rows of an SST; None if no row can be: the column or the clock is missing."""
    if clock_ms is None or EXPIRES not in rows.schema.names:
        return None
    expires = rows.column(EXPIRES)
    if expires.null_count == len(expires):
        return None
    return np.asarray(pc.fill_null(pc.less_equal(expires, clock_ms), False))


def with_expiry(rows: pa.Table, table: Table, clock_ms: int) -> pa.Table:
    """Return the rows with `_expires_at`, milliseconds since 1970 UTC, if the table has a time to live.

    Null (never) for tombstones, for rows whose event time is null, and while the time to live is turned off. `rows` has
    the value columns and `_op`; `clock_ms` is the batch's clock, for a time to live by write time.
    """
    ttl = table.ttl
    if ttl is None:
        return rows
    if not ttl.ms:
        return rows.append_column(EXPIRES, pa.nulls(rows.num_rows, pa.int64()))
    never = pa.scalar(None, pa.int64())
    written = event_ms(rows.column(ttl.column)) if ttl.column else pa.scalar(clock_ms, pa.int64())
    put = pc.equal(rows.column(OP), PUT)
    return rows.append_column(EXPIRES, pc.if_else(put, pc.add(written, ttl.ms), never))


def latest_event_ms(rows: pa.Table, ttl: Ttl | None) -> int | None:
    """Return the largest event time among put rows; None without such rows, or without a time to live by event time."""
    if ttl is None or not ttl.ms or not ttl.column:
        return None
    times = event_ms(rows.column(ttl.column)).filter(pc.equal(rows.column(OP), PUT))
    latest: int | None = pc.max(times).as_py()
    return latest


def event_ms(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert timestamps (microseconds) or dates to milliseconds since 1970 UTC; a date is its first instant."""
    if pa.types.is_date32(times.type):
        return pc.multiply(times.cast(pa.int32()).cast(pa.int64()), DAY_MS)
    return pc.divide(times.cast(pa.int64()), 1000)
