"""Tables for the store's model: difficult keys, values, times to live, and policies."""

import math
from datetime import UTC, date, datetime
from decimal import Context, Decimal

from hypothesis import strategies as st
from slackwater.store.versions.manifest import Column, Policy, Table

from tests.support.state_rows import Key, Values

NAN = float("nan")
STRINGS = (None, "", " ", "\0", "a", "A", "\u00c5", "A\u030a", "null", "x" * 40)
DOUBLES = (None, 0.0, -0.0, NAN, -NAN, float("inf"), 5e-324, 1.0)
DECIMALS = (None, Decimal(0), Decimal("0.01"), Decimal("-0.01"), Decimal("9" * 36 + ".99"), Decimal("-" + "9" * 36))
MOMENTS = (
    None,
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(2013, 1, 31, 1, 2, 3, 4, UTC),
)
BYTES = (None, b"", b"\0", b"\0\0", b"\xff", b"a")
NUMBERS = (None, 0, 1, -1, 127, -128)

TABLES: dict[str, tuple[tuple[Column, ...], st.SearchStrategy[Key]]] = {
    "string, double": (
        (Column("s", "string"), Column("x", "double")),
        st.tuples(st.sampled_from(STRINGS), st.sampled_from(DOUBLES)),
    ),
    "decimal, timestamp": (
        (Column("d", "decimal128(38, 2)"), Column("t", "timestamp[us, tz=UTC]")),
        st.tuples(st.sampled_from(DECIMALS), st.sampled_from(MOMENTS)),
    ),
    "binary, byte, boolean, float": (
        (Column("b", "binary"), Column("i", "int8"), Column("f", "bool"), Column("y", "float")),
        st.tuples(
            st.sampled_from(BYTES),
            st.sampled_from(NUMBERS),
            st.sampled_from((None, True, False)),
            st.sampled_from((None, 0.0, -0.0, NAN)),
        ),
    ),
    "long": ((Column("n", "int64"),), st.tuples(st.integers(0, 20))),
    "long text, date": (
        (Column("t", "string"), Column("day", "date32[day]")),
        st.tuples(
            st.sampled_from(("m" * (1 << 20), "m" * ((1 << 20) - 1) + "n")),
            st.sampled_from((None, date(1, 1, 1))),
        ),
    ),
    "timestamp without zone": (
        (Column("t", "timestamp[us]"),),
        st.tuples(st.sampled_from((None, *(datetime(1969, 12, 31, 23, 59, 59, us) for us in range(6))))),  # noqa: DTZ001
    ),
}
"""Key columns and a few keys of each table. The keys are few so that they are written repeatedly."""
VALUES = (Column("v", "int64"), Column("w", "string"), Column("at", "timestamp[us, tz=UTC]"))
"""Value columns. The last one may set the expiry."""
values = st.none() | st.tuples(
    st.none() | st.integers(-5, 5), st.sampled_from(STRINGS), st.sampled_from((None, -300, -20, -2, 0, 0, 5))
)
"""Values, or None to delete. The event time is in minutes relative to now: late, very late, on time or early."""

Form = tuple[object, ...]
"""A key in its normal form."""
LARGER = {"int8": "int16", "int16": "int32", "int32": "int64"}
"""Wider types of the columns that migrations add between the second and the last value."""


def in_columns(row: Values | None, table: Table) -> Values | None:
    """Return a row of `values` in the table's columns. Columns that were added have 1."""
    return row and (*row[:2], *(1 for _ in table.values[2:-1]), row[-1])


def same_form(key: Key) -> Form:
    """Return the normal form of a key. Keys that are equal in the store have equal normal forms."""
    return tuple(map(_one_form, key))


def _one_form(part: object) -> object:
    match part:
        case float():
            return "NaN" if math.isnan(part) else part + 0.0
        case datetime():
            return part.astimezone(UTC) if part.tzinfo else part
        case Decimal():
            return part.quantize(Decimal("0.01"), context=Context(prec=38))
        case _:
            return part


LIFETIMES_MS = tuple(minutes * 60_000 for minutes in (0, 3, 30, 180))
"""Times to live; 0 means none. A batch takes a minute."""

# Sizes of files and levels for a few rows: an SST with one row has 2 to 3 kB.
POLICIES = st.builds(
    Policy,
    kind=st.sampled_from(["universal", "leveled"]),
    l0_trigger=st.integers(2, 4),
    max_merge_width=st.sampled_from([2, 64]),
    max_space_amplification=st.sampled_from([0.5, 100.0]),
    level_base_bytes=st.sampled_from([256, 4000, 16_000]),
    fanout=st.sampled_from([2.0, 3.0]),
    target_file_bytes=st.sampled_from([500, 4000, 64 << 20]),
)
