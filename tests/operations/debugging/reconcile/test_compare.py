"""Comparison of a table with external rows by key, checked against a comparison of dictionaries."""

import math
import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slackwater.errors import Refused, Usage
from slackwater.operations.debugging.reconcile.compare import Matching, TableComparison, compare
from slackwater.snapshot.cut.graph import Cut
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps
from slackwater.store.versions.manifest import AppInfo, Column, Table

from tests.models.profiles import scaled
from tests.support.state_rows import columns, manifest_of, write_version

TABLE = Table(
    (Column("k", "string"), Column("day", "date32[day]")),
    (
        Column("amount", "double"),
        Column("n", "int64"),
        Column("price", "decimal128(10, 2)"),
        Column("at", "timestamp[us, tz=UTC]"),
        Column("tags", "list<string>"),
    ),
    2,
)
DAYS = st.sampled_from([None, date(2025, 1, 1), date(2025, 1, 2)])
KEYS = st.tuples(st.sampled_from([None, "", "a", "b", "ä", "\\N"]), DAYS)
AMOUNTS = st.sampled_from([None, 0.0, -0.0, 1.0, -7.25, 1e6, math.nan, math.inf, -math.inf])
AT = st.sampled_from([None, datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, 0, 0, 0, 1, tzinfo=UTC)])
PRICES = st.sampled_from([None, Decimal("0.00"), Decimal("9.99")])
TAGS = st.sampled_from([None, [], [None], ["x"], ["x", "y"]])
VALUES = st.tuples(AMOUNTS, st.sampled_from([None, 0, 1, 1 << 60]), PRICES, AT, TAGS)
SIDES = st.dictionaries(KEYS, VALUES, max_size=8)
Rows = dict[tuple[object, ...], tuple[object, ...]]
ROUNDING = 1 + 2.0**-50


def same(ours: object, theirs: object) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    return ours == theirs


def compared(ours: Rows, theirs: pa.Table, matching: Matching, max_keys: int | None = None) -> TableComparison:
    with tempfile.TemporaryDirectory() as folder:
        store, cache = MemoryStore(), SstCache(Path(folder), 1 << 30)
        apps.create_app(store, AppInfo("app", 1))
        ssts = write_version(store, cache, TABLE, ours, 1) if ours else ()
        cut = Cut("app", {"stage": manifest_of(TABLE, ssts)})
        return compare(store, cache, cut, "stage", theirs, matching, max_keys=max_keys)


def rows_of(rows: Rows) -> pa.Table:
    return columns((*TABLE.key, *TABLE.values), [(*key, *values) for key, values in rows.items()])


@settings(scaled(40, in_ci=400), deadline=None)
@given(SIDES, SIDES, st.data())
def test_each_key_is_judged_as_by_dictionaries(ours: Rows, theirs: Rows, data: st.DataObject) -> None:
    for key in data.draw(st.sets(st.sampled_from(sorted(ours, key=repr)))) if ours else ():
        amount, *others = ours[key]
        # The sum of the same numbers in another order.
        theirs[key] = (amount * ROUNDING if isinstance(amount, float) else amount, *others)
    limit = data.draw(st.none() | st.integers(0, 3), "kept keys")
    found = compared(ours, rows_of(theirs), Matching(), limit)
    names = [column.name for column in TABLE.values]
    rounded = {
        key: (value[0] / ROUNDING if isinstance(value[0], float) else value[0], *value[1:])
        for key, value in theirs.items()
    }
    differing = {
        key: [
            name
            for name, *sides in zip(names, ours[key], theirs[key], rounded[key], strict=True)
            if not (same(sides[0], sides[1]) or same(sides[0], sides[2]))
        ]
        for key in ours.keys() & theirs.keys()
    }
    differ = {key for key, some in differing.items() if some}
    assert found.differ == len(differ)
    assert found.agree == len(differing) - len(differ)
    assert found.here_only == len(ours.keys() - theirs.keys())
    assert found.there_only == len(theirs.keys() - ours.keys())
    assert {column.column: column.differing for column in found.columns} == {
        name: sum(name in some for some in differing.values()) for name in names
    }
    kept = [tuple(change.key.values()) for change in found.changes]
    expected = differ | (ours.keys() ^ theirs.keys())
    assert len(kept) == len({*kept}) == min(len(expected), len(expected) if limit is None else limit)
    assert {*kept} <= expected


def test_a_tolerance_of_numbers_is_inclusive_and_leaves_other_types_alone() -> None:
    at = datetime(2025, 1, 1, tzinfo=UTC)
    ours: Rows = {(str(n), None): (float(n), 10 * n, Decimal(n), at, None) for n in range(4)}
    theirs = rows_of({(str(n), None): (n + 0.5, 10 * n + n, Decimal(n) + Decimal("0.5"), at, None) for n in range(4)})
    found = compared(ours, theirs, Matching(tolerance=1.0))
    assert {column.column: column.differing for column in found.columns} == {
        "amount": 0, "n": 2, "price": 0, "at": 0, "tags": 0,
    }  # fmt: skip
    assert found.near == {"amount": 4, "n": 1, "price": 4}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda rows: pa.concat_tables([rows, rows]), Refused, r"several rows for one key \(1 times\)"),
        (lambda rows: rows.drop_columns(["day"]), Usage, "no column 'day'"),
        (lambda rows: rows.select(["k", "day"]), Usage, "none of the value columns"),
        (lambda rows: rows.set_column(3, "n", pa.array([1.5])), Usage, "column 'n' of their rows is no int64"),
        (lambda rows: rows.set_column(5, "at", pa.array([1], pa.timestamp("us"))), Usage, "column 'at'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    change: Callable[[pa.Table], pa.Table], error: type[Exception], words: str
) -> None:
    ours: Rows = {("a", None): (1.0, 1, None, None, None)}
    with pytest.raises(error, match=words):
        compared(ours, change(rows_of(ours)), Matching())


def test_a_column_that_the_table_does_not_have_is_named() -> None:
    with pytest.raises(Usage, match="no value column 'amonut'; the nearest is 'amount'"):
        compared({}, rows_of({}), Matching(columns={"amonut": "amount"}))
    with pytest.raises(Usage, match="no column 'when' for the time"):
        compared({}, rows_of({}), Matching(time="when"))
