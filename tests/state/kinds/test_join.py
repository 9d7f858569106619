"""Joins of two streams, without Spark: results of random schedules equal a computation over the raw input."""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused, Usage
from slackwater.pipeline.batch.task import IS_PROBE, StateTask
from slackwater.state.event_time import EventTimeScan, Lateness, Watermark, due_span_after
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.join import BoundJoin, How, WaitingRows, find_pairs
from slackwater.state.kinds.kind import Groups, with_input_metadata
from slackwater.state.multi_input import INPUT_COLUMN
from slackwater.state.next_version import TaskReport
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst import sorted_runs
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.entries import hash_ranges
from slackwater.store.versions.manifest import Column, Table

from tests.models.profiles import SEARCHES, scaled
from tests.state.event_time.committing import Committing
from tests.state.event_time.falling import InMemory, Noting

MINUTE_MS = 60_000
TIME = pa.timestamp("us", "UTC")
ORDERS = with_input_metadata(pa.schema([("number", pa.string()), ("at", TIME), ("o", pa.int64())]), "orders", "at")
PAYMENTS = with_input_metadata(
    pa.schema([("paid", TIME), pa.field("lines", pa.list_(pa.int64())), ("p", pa.int64()), ("number", pa.string())]),
    "payments",
    "paid",
)
KEY = ("number",)
HOURLY = sw.join("orders", "payments", within="1 hour")
SIDES = "orders", "payments"
DELAYS = {"orders": 10, "payments": 25}
"""Delay of each side's watermark, in minutes."""
WATERMARKS = (
    Watermark(("_0_at",), DELAYS["orders"] * MINUTE_MS, ("orders",)),
    Watermark(("_1_paid",), DELAYS["payments"] * MINUTE_MS, ("payments",)),
)

Row = tuple[str, str | None, int | None]
"""Side, key, minute."""
rows = st.tuples(st.sampled_from(SIDES), st.sampled_from("aab") | st.none(), st.integers(0, 240) | st.none())
schedules = st.lists(st.lists(rows, max_size=6) | st.sampled_from(["restart", "clone"]), min_size=1, max_size=8)


@dataclass
class Stage(Committing):
    """A join whose batches are computed as in Spark's tasks, but without Spark."""

    bound: BoundJoin
    keeps_late: bool = False
    sent: int = 0
    of: dict[int, Row] = field(default_factory=dict)
    """All rows that were sent, by number."""

    def __post_init__(self) -> None:
        values = tuple(Column(one.name, from_arrow(one.type)) for one in self.bound.values)
        self.table = Table((Column("number", "string"),), values, 3)
        self.places = InMemory("a", "s", "", {}, ("", 0, 0), 1.0)
        self.begin(self.places.memory, self.table, *SIDES)

    def batch(self, batch: list[Row]) -> list[tuple[int, int | None]]:
        """Commit a version, and return its emitted pairs by number."""
        falling = due_span_after(self.head.event_time, self.bound.due_by, None)
        fields = [pa.field(INPUT_COLUMN, pa.int32()), pa.field("number", pa.string()), pa.field("_0_at", TIME)]
        more = [("_0_o", pa.int64()), ("_1_paid", TIME), ("_1_lines", pa.list_(pa.int64())), ("_1_p", pa.int64())]
        made = pa.Table.from_pylist([self._row(*one) for one in batch], schema=pa.schema([*fields, *more]))
        made = made.append_column("_hash", pa.array(hash_keys(made, ["number"])))
        if falling.pending:
            places = [hash_ranges.hash_bounds(each, 3)[1] for each in sorted_runs.by_partition(self.head.ssts, 3)]
            marks = pa.Table.from_pylist([{"_hash": each} for each in places], schema=made.schema)
            is_mark = pa.array([False] * made.num_rows + [True] * marks.num_rows)
            made = pa.concat_tables([made, marks]).append_column(IS_PROBE, is_mark)
        lateness = (
            None if self.keeps_late else Lateness(self.bound.lateness_columns(None), self.head.watermark_ms, 1 << 50)
        )
        times = EventTimeScan(WATERMARKS, 1 << 50)
        version = self.head.version + 1
        step = Noting(self.table, self.bound, version, 0, lateness, falling)
        task = StateTask(
            dataclasses.replace(self.places, app=self.head.app),
            "w",
            version,
            (),
            step,
            self.head.ssts,
            times=times,
        )
        results: list[TaskReport] = []
        if made.num_rows:
            results = [replace(task._run(made, "w.1"), seen=times.scan(made))]
        behind_ms = self.bound.behind_ms
        self.batch_done(
            len(batch), results, *WATERMARKS, due_by=self.bound.due_by, due=falling, behind_ms=behind_ms, bound_ms=1
        )
        assert all(one["number"] == self.of[number_of(one)][1] for one in step.noted)
        assert all(one["lines"] in (None, [one["p"]]) for one in step.noted)
        return [(number_of(one), one["p"]) for one in step.noted]  # type: ignore[misc]

    def _row(self, side: str, key: str | None, minute: int | None) -> dict[str, object]:
        self.sent += 1
        self.of[self.sent] = (side, key, minute)
        at = None if minute is None else minute * 60_000_000
        if side == "orders":
            return {INPUT_COLUMN: 0, "number": key, "_0_at": at, "_0_o": self.sent}
        return {INPUT_COLUMN: 1, "number": key, "_1_paid": at, "_1_p": self.sent, "_1_lines": [self.sent]}

    def waiting(self, key: str) -> set[int] | None:
        """Return the numbers of a key's waiting rows, or `None` if the key is missing."""
        asked = pa.table({"number": pa.array([key])})
        values, present = multi_get(self.store, None, self.head.ssts, self.table, hash_keys(asked, ["number"]), asked)
        if not present[0]:
            return None
        (row,) = values.to_pylist()
        return {one["o"] for one in row["orders"]} | {one["p"] for one in row["payments"]}


def number_of(row: dict[str, Any]) -> int:
    return int(row["o"])


def bound(within: int, how: How) -> BoundJoin:
    found = sw.join("orders", "payments", within=f"{within} minutes", how=how).bind([ORDERS, PAYMENTS], ("number",))
    assert isinstance(found, BoundJoin)
    return found


def check(schedule: list[list[Row] | str], within: int, how: How) -> None:
    stage = Stage(bound(within, how))
    taken: dict[str, dict[int, tuple[str | None, int | None]]] = {side: {} for side in SIDES}
    """Rows of each side that were not late."""
    reached: dict[str, int] = {}
    watermark: int | None = None
    alone_until_now: set[int] = set()
    matched: set[int] = set()

    def meet(left: int, right: int) -> bool:
        (key, at), (other, paid) = taken["orders"][left], taken["payments"][right]
        return None not in (key, at, paid) and key == other and abs(at - paid) <= within  # type: ignore[operator]

    for step in [*schedule, [], []]:
        if isinstance(step, str):
            getattr(stage, step)()
            continue
        handed_on = stage.head.downstream_watermark_ms
        first = stage.sent + 1
        emitted = stage.batch(step)
        for number, (side, key, minute) in enumerate(step, first):
            if watermark is None or minute is None or minute > watermark:
                taken[side][number] = (key, minute)
        expected = Counter(pair for pair in product(*taken.values()) if max(pair) >= first and meet(*pair))
        matched |= {left for left, _ in expected}
        if how == "left":
            for left, (key, at) in taken["orders"].items():
                never = key is None or at is None
                over = watermark is not None and at is not None and at + within < watermark
                if left not in matched | alone_until_now and (never or over):
                    alone_until_now.add(left)
                    expected[left, None] += 1  # type: ignore[index]
        assert Counter(emitted) == expected
        for pair in emitted:
            for at in (stage.of[one][2] for one in pair if one is not None):
                assert handed_on is None or at is None or at * MINUTE_MS > handed_on, "nothing is late to who reads it"
        for side, _, minute in step:
            if minute is not None:
                reached[side] = max(reached.get(side, minute), minute)
        if len(reached) == 2:
            now = min(reached[side] - DELAYS[side] for side in SIDES)
            watermark = now if watermark is None else max(now, watermark)
        assert stage.head.watermark_ms == (None if watermark is None else watermark * MINUTE_MS)
    assert stage.head.event_time is None or not stage.head.event_time.has_unemitted_due_rows
    for key in "ab":
        rows = {n: at for side in SIDES for n, (one, at) in taken[side].items() if one == key and at is not None}
        open_ = {n for n, at in rows.items() if watermark is None or at + within >= watermark}
        found = stage.waiting(key)
        assert (found is None) == (not open_), "a key of which nothing waits is gone"
        assert open_ <= (found or set()) <= set(rows)


@scaled(30, in_ci=300)
@given(schedules, st.sampled_from([0, 20, 60]), st.sampled_from(["inner", "left"]))
def test_a_join_equals_a_computation_over_the_raw_input(schedule: list[list[Row] | str], within: int, how: How) -> None:
    check(schedule, within, how)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@scaled(1_000)
@given(schedules, st.sampled_from([0, 20, 60]), st.sampled_from(["inner", "left"]))
def test_a_join_equals_a_computation_over_the_raw_input_a_thousand_times(
    schedule: list[list[Row] | str], within: int, how: How
) -> None:
    check(schedule, within, how)


def test_late_rows_that_are_kept_are_joined_with_waiting_rows() -> None:
    stage = Stage(bound(20, "left"), keeps_late=True)
    assert stage.batch([("orders", "a", 170), ("payments", "b", 200)]) == []
    assert stage.batch([("orders", "b", 300)]) == []
    assert stage.head.watermark_ms == 175 * MINUTE_MS
    late: list[Row] = [("payments", "a", 160), ("payments", "a", 60), ("orders", "a", 60), ("orders", "a", 100)]
    assert stage.batch(late) == [(6, 5), (1, 4), (7, None)]
    assert stage.waiting("a") == {1, 4}


def test_the_output_of_a_batch_does_not_depend_on_the_order_of_its_rows() -> None:
    join = bound(20, "left")
    rows = pa.table(
        {
            INPUT_COLUMN: pa.array([0, 0, 0, 1, 1, 1], pa.int32()),
            "number": ["a"] * 6,
            "_0_at": pa.array([5, 5, 1, None, None, None], TIME),
            "_0_o": [1, 2, 3, None, None, None],
            "_1_paid": pa.array([None, None, None, 2, 2, 2], TIME),
            "_1_lines": pa.array([None, None, None, [1], [2, None], None], pa.list_(pa.int64())),
            "_1_p": [None, None, None, 4, 4, 4],
        }
    )
    groups = Groups(np.zeros(6, np.int32), np.zeros(1, np.int64))
    keys, old = pa.table({"number": ["a"]}), pa.table([pa.nulls(1, one.type) for one in join.values], join.values)
    # Of 720 orders, about a hundred are enough to see one that matters.
    orders = [*permutations(range(6))][:: 1 if SEARCHES else 7]
    first, *others = (join.merge(rows.take(order), groups, keys, old) for order in orders)
    assert [row["o"] for row in first.emitted[0].to_pylist()[:3]] == [3, 3, 3], "by time"
    for other in others:
        assert other.values.equals(first.values)
        assert other.emitted[0].equals(first.emitted[0])


def on(rows: pa.Schema, name: str, time: str | None) -> pa.Schema:
    return with_input_metadata(rows, name, time)


@pytest.mark.parametrize(
    ("declared", "error", "said"),
    [
        (lambda: sw.join("a", "a", within="1 hour"), Usage, "both sides are 'a'"),
        (lambda: sw.join("a", "b", within="soon"), Usage, "within 'soon' is not a span"),
        (lambda: sw.join("a", "b", within="1000000 days"), Usage, "less than 1,000,000 days"),
        (lambda: sw.join("a", "b", within="1 h", how="outer"), Usage, "'inner' or 'left'"),  # type: ignore[arg-type]
        (lambda: HOURLY.bind([ORDERS], KEY), Usage, "returns 1 DataFrame, and join"),
        (lambda: HOURLY.bind([ORDERS, PAYMENTS, ORDERS], KEY), Usage, "returns 3 DataFrames, and join"),
        (lambda: HOURLY.bind([on(ORDERS, "bills", "at"), PAYMENTS], KEY), NotFound, "there are: bills, payments"),
        (lambda: HOURLY.bind([ORDERS, on(PAYMENTS, "payments", None)], KEY), Refused, "'payments' have no watermark"),
        (lambda: HOURLY.bind([ORDERS, PAYMENTS], ("number", "at")), Refused, "'at', which is part of the key"),
        (
            lambda: HOURLY.bind([ORDERS, on(PAYMENTS.append(pa.field("O", pa.int8())), "payments", "paid")], KEY),
            Refused,
            "both have a column 'O'",
        ),
        (lambda: FinalKind(HOURLY).bind([ORDERS, PAYMENTS], KEY), Usage, "emits each pair only once"),
        (
            lambda: sw.App("a").stage(
                reads=sw.topic("t"), key="k", state=HOURLY, event_time=sw.event_time(late="table"), name="s"
            )(lambda rows: rows),
            Usage,
            "a join of one stream",
        ),
    ],
)
def test_an_impossible_join_is_refused_with_the_reason(declared: object, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        declared()  # type: ignore[operator]


def test_the_names_of_the_sides_do_not_depend_on_the_order_of_the_inputs() -> None:
    join = sw.join("payments", "orders", within="1 hour", how="left").bind([ORDERS, PAYMENTS], KEY)
    assert isinstance(join, BoundJoin)
    assert join.values.names == ["payments", "orders", "_matched", "_due_at"]
    assert join.emitted_schemas[0].names == ["number", "paid", "lines", "p", "at", "o"]
    assert join.lateness_columns(None) == ("_1_paid", "_0_at")
    assert str(HOURLY) == "join(orders, payments, within=1h, how=inner)"


@pytest.mark.parametrize(("apart", "number"), [(60, 1), (61, 0), (-60, 1), (-61, 0)])
def test_rows_match_up_to_exactly_the_span_and_wait_until_the_next_millisecond(apart: int, number: int) -> None:
    def side(at_us: int) -> WaitingRows:
        one = np.zeros(1, np.int64)
        return WaitingRows(pa.table({"n": [0]}), one, one, np.array([at_us]), np.ones(1, bool), np.zeros(1, bool))

    lefts, rights = find_pairs(side(1_000), side(1_000 + apart), 60)
    assert (len(lefts), len(rights)) == (number, number)
    # A watermark has whole milliseconds: what happened within one is passed by the next.
    assert [side(at_us).due_ms(5).tolist() for at_us in (1_000, 1_001, 1_999, -1)] == [[7], [8], [8], [6]]
