"""`ttl=` and `ttl_by=` of a stage: from a user's words to the table's time to live."""

from __future__ import annotations

import pyarrow as pa

from ...durations import parse_ms
from ...errors import NotFound, Usage
from ...store.versions.limits import MAX_TTL_MS
from ...store.versions.manifest import Ttl


def lifetime_ms(text: str) -> int:
    """Milliseconds of a time to live. Raises `Usage` unless it is between a millisecond and a million days."""
    total_ms = parse_ms("ttl", text)
    if not 0 < total_ms <= MAX_TTL_MS:
        raise Usage(f"ttl {text!r} is {total_ms} ms; expected 1 ms to 1,000,000 days")
    return total_ms


def check_column(stage: str, declared: Ttl | None, values: pa.Schema) -> None:
    """See that rows can expire by the declared column of a table with these value columns.

    Raises:
        NotFound: the table has no such value column.
        Usage: the column is no time.
    """
    if declared is not None and (column := declared.column):
        visible = [name for name in values.names if not name.startswith("_")]
        if column not in visible:
            raise NotFound("value column", column, visible, hint=f"ttl_by of stage {stage!r} is one of them")
        kind = values.field(column).type
        if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
            raise Usage(f"stage {stage!r}: ttl_by column {column!r} is {kind}; expected a timestamp or a date")
