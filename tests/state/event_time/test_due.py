"""Rows that become due, and windows emitted once at their end: random schedules equal a computation over raw input."""

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Usage
from slackwater.state.kinds.due import BoundDue, FinalKind
from slackwater.store.versions.manifest import EventTime

from tests.models.profiles import scaled
from tests.state.event_time.falling import DELAY, MINUTE_MS, Stage

HOUR, WAIT = 60, 25
"""Times in minutes."""
TIME = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", TIME), ("end", TIME)])
HOURLY = pa.schema([("hour", WINDOW), ("station", pa.string()), ("at", TIME), ("mm", pa.int64())])
ROWS = pa.schema([("key", pa.string()), ("at", TIME)])

Event = tuple[str, int, int]
"""Key, minute, and a value."""
steps = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 300), st.integers(1, 5)), max_size=5)
schedules = st.lists(steps | st.just("restart"), min_size=1, max_size=8)


def waits(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """An update that counts rows and sets the due time to 25 minutes after the last row.

    When due, `a` is deleted, `b` gets a later due time, and `c` and `d` stay.
    """
    counts, last = (
        rows.group_by("_key").aggregate([("_key", "count"), ("at", "max")]).sort_by("_key")[name].combine_chunks()
        for name in ("_key_count", "at_max")
    )
    n = pc.fill_null(state["n"], 0)
    if rows.num_rows:
        wait = pa.scalar(WAIT * MINUTE_MS * 1000, pa.duration("us"))
        return pa.table({"n": pc.add(n, counts), "until": pc.add(last, wait)}), EMITS.empty_table()
    later = pc.add(state["until"], pa.scalar(WAIT * MINUTE_MS * 1000, pa.duration("us")))
    until = pc.if_else(pc.equal(state["key"], "b"), later, state["until"])
    return pa.table({"n": n, "until": until, "_deleted": pc.equal(state["key"], "a")}), state.select(EMITS.names)


EMITS = pa.schema([("key", pa.string()), ("n", pa.int64())])
VALUES = pa.schema([("n", pa.int64()), ("until", TIME)])


def reminders(by: str = "watermark") -> Stage:
    state = sw.update(waits, state=VALUES, emits=EMITS, due="until", due_by=by)  # type: ignore[arg-type]
    bound = state.bind([ROWS], ("key",))
    assert isinstance(bound, BoundDue)
    return Stage(bound, ("key",), ROWS)


def check_reminders(schedule: list[list[Event] | str]) -> None:
    stage = reminders()
    known: dict[str, tuple[int, int, int | None]] = {}
    """By key: number of rows, end of the wait in minutes, and due time in milliseconds."""
    watermark: int | None = None
    for step in [*schedule, [], [], []]:
        if isinstance(step, str):
            stage.restart()
            continue
        fallen = sorted(
            key
            for key, (_, _, at) in known.items()
            if watermark is not None and at is not None and at <= watermark and key not in {one for one, _, _ in step}
        )
        expected = [{"key": key, "n": known[key][0]} for key in fallen]
        for key in fallen:
            n, until, _ = known.pop(key)
            until += WAIT if key == "b" else 0
            if key != "a":
                at = until * MINUTE_MS
                known[key] = (n, until, at if watermark is not None and at > watermark else None)
        for key in {one for one, _, _ in step}:
            mine = [minute for one, minute, _ in step if one == key]
            until = max(mine) + WAIT
            at = until * MINUTE_MS if watermark is None else max(until * MINUTE_MS, watermark + 1)
            known[key] = (known.get(key, (0,))[0] + len(mine), until, at)
        emitted = stage.batch([{"key": key, "at": minute * 60_000_000} for key, minute, _ in step])
        assert sorted(emitted, key=lambda row: str(row["key"])) == expected
        reached = [(minute - DELAY) * MINUTE_MS for _, minute, _ in step]
        watermark = max([*reached, *([] if watermark is None else [watermark])], default=None)
        assert stage.head.watermark_ms == watermark
        pending = [at for _, _, at in known.values() if at is not None and watermark is not None and at <= watermark]
        assert stage.owed or not pending, "a version follows while a row falls due"
    assert not stage.owed, "and none when none does any more"


@scaled(25, in_ci=250)
@given(schedules)
def test_rows_become_due_as_computed_over_the_raw_input(schedule: list[list[Event] | str]) -> None:
    check_reminders(schedule)


def check_final(schedule: list[list[Event] | str]) -> None:
    bound = FinalKind(sw.aggregate(n=sw.count(), mm=sw.sum("mm"))).bind([HOURLY], ("hour", "station"))
    assert isinstance(bound, BoundDue)
    stage = Stage(bound, ("hour", "station"), HOURLY)
    rows: Counter[tuple[int, str]] = Counter()
    sums: Counter[tuple[int, str]] = Counter()
    found: dict[tuple[int, str], tuple[object, object]] = {}
    for step in [*schedule, [], []]:
        if isinstance(step, str):
            stage.restart()
            continue
        watermark, handed_on = stage.head.watermark_ms, stage.head.downstream_watermark_ms
        batch: list[dict[str, object]] = []
        for station, minute, mm in step:
            start = minute // HOUR * HOUR
            hour = {"start": start * 60_000_000, "end": (start + HOUR) * 60_000_000}
            batch.append({"hour": hour, "station": station, "at": minute * 60_000_000, "mm": mm})
            if watermark is None or (start + HOUR) * MINUTE_MS > watermark:
                rows[start, station] += 1
                sums[start, station] += mm
        for row in stage.batch(batch):
            hour = row["hour"]  # type: ignore[assignment]
            key = round(hour["start"].timestamp()) // 60, str(row["station"])  # type: ignore[attr-defined]
            assert key not in found, "no window is emitted twice"
            found[key] = row["n"], row["mm"]
            ends_ms = (key[0] + HOUR) * MINUTE_MS
            assert handed_on is None or ends_ms > handed_on, "nor comes it late to who reads it"
        closed_ms = watermark if watermark is not None else -1
        assert found == {key: (n, sums[key]) for key, n in rows.items() if (key[0] + HOUR) * MINUTE_MS <= closed_ms}, (
            "each that has ended is emitted, with all that it got"
        )
    assert not stage.owed
    assert stage.head.downstream_watermark_ms == stage.head.watermark_ms


@scaled(25, in_ci=250)
@given(schedules)
def test_windows_are_emitted_once_as_computed_over_the_raw_input(
    schedule: list[list[Event] | str],
) -> None:
    check_final(schedule)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@scaled(1_000)
@given(schedules)
def test_due_rows_equal_a_computation_over_the_raw_input_a_thousand_times(
    schedule: list[list[Event] | str],
) -> None:
    check_reminders(schedule)
    check_final(schedule)


def test_by_the_clock_a_row_becomes_due_without_events() -> None:
    stage = reminders("clock")
    assert stage.batch([{"key": "c", "at": 60 * 60_000_000}], clock_ms=60 * MINUTE_MS) == []
    times = stage.head.event_time
    assert times is not None
    assert (times.next_due_ms, times.has_unemitted_due_rows, stage.head.downstream_watermark_ms) == (
        (60 + WAIT) * MINUTE_MS,
        False,
        50 * MINUTE_MS,
    )
    assert stage.batch([], clock_ms=(59 + WAIT) * MINUTE_MS) == []
    assert stage.jobs == 1, "nothing is due yet, so no job runs"
    assert stage.batch([], clock_ms=(60 + WAIT) * MINUTE_MS) == [{"key": "c", "n": 1}]
    assert stage.batch([], clock_ms=(90 + WAIT) * MINUTE_MS) == []
    assert stage.jobs == 2, "and none when it has fallen due"


def at(key: str, minute: int) -> dict[str, object]:
    return {"key": key, "at": minute * 60_000_000}


def test_due_can_be_added_removed_and_added_again_by_migration() -> None:
    plain, waiting = (sw.update(waits, state=VALUES, emits=EMITS, due=each) for each in (None, "until"))
    stage = Stage(plain.bind([ROWS], ("key",)), ("key",), ROWS, plain.stored)
    stage.batch([at("b", 0), at("c", 0), at("d", 0)])
    assert stage.migrate(waiting) == ("+ due=until: new rows fall due; existing ones once they are rewritten",)
    stage.restart()
    assert stage.batch([at("c", 10), at("z", 200)]) == []
    assert stage.owed
    assert stage.batch([]) == [{"key": "c", "n": 2}], "b and d wait for a record"
    stage.batch([at("d", 210)])
    assert stage.head.event_time is not None
    assert stage.head.event_time.next_due_ms == (200 + WAIT) * MINUTE_MS
    assert stage.migrate(plain) == ("- due=until: rows no longer fall due",)
    assert stage.head.event_time == EventTime((210 - DELAY) * MINUTE_MS, due_ms=(210 - DELAY) * MINUTE_MS)
    assert stage.batch([at("b", 900)]) == []
    assert not stage.owed
    assert stage.head.downstream_watermark_ms == stage.head.watermark_ms == (900 - DELAY) * MINUTE_MS, (
        "nothing holds it back"
    )
    stage.migrate(waiting)
    assert stage.batch([at("d", 901)]) == []
    assert stage.batch([at("z", 1000)]) == []
    assert stage.batch([]) == [{"key": "d", "n": 3}], "and no row that was to fall due before"


def test_due_by_may_change_and_rows_keep_their_times() -> None:
    by_event, by_clock = (
        sw.update(waits, state=VALUES, emits=EMITS, due="until", due_by=by)  # type: ignore[arg-type]
        for by in ("watermark", "clock")
    )
    stage = Stage(by_event.bind([ROWS], ("key",)), ("key",), ROWS, by_event.stored)
    stage.batch([at("c", 60)])
    assert stage.migrate(by_clock) == ("~ due=until, due_by=clock, was due=until; existing rows keep their due times",)
    assert stage.head.event_time is not None
    assert stage.head.event_time.by_clock, "a runner wakes though no event comes"
    assert stage.batch([], clock_ms=(60 + WAIT) * MINUTE_MS) == [{"key": "c", "n": 1}]


@pytest.mark.parametrize(
    ("declared", "error", "said"),
    [
        (lambda: sw.update(waits, state=EMITS.remove(0), due="until").bind([ROWS], ("key",)), NotFound, "until"),
        (
            lambda: sw.update(waits, state=EMITS.remove(0), due="n").bind([ROWS], ("key",)),
            Usage,
            "int64; expected a timestamp",
        ),
        (lambda: sw.update(waits, state=EMITS.remove(0), due="n", due_by="sun"), Usage, "due_by is 'sun'"),  # type: ignore[arg-type]
        (lambda: FinalKind(sw.aggregate(n=sw.count())).bind([ROWS], ("key",)), Usage, "needs a window"),
        (
            lambda: FinalKind(sw.update(waits, state=EMITS.remove(0))).bind([HOURLY], ("hour",)),
            Usage,
            "function decides what to emit",
        ),
        (lambda: sw.event_time(emits="last"), Usage, "'changes' or 'final'"),  # type: ignore[arg-type]
        (lambda: sw.event_time(emits="final", late="keep"), Usage, "would change windows that emits="),
    ],
)
def test_an_impossible_due_column_is_refused_with_the_reason(
    declared: object, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        declared()  # type: ignore[operator]
