"""Sessions, without Spark: results of random schedules equal a computation over the raw input."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import BadRecord, Refused, Usage
from slackwater.state.fits import evolve
from slackwater.state.kinds.due import FinalKind
from slackwater.state.kinds.kind import Groups, Kind, key_of_table
from slackwater.state.kinds.session import BoundSessions, Sessions
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.manifest import Column, Table

from tests.models.profiles import scaled
from tests.state.event_time.falling import DELAY, MINUTE_MS, Stage

TIME = pa.timestamp("us", "UTC")
SESSION = pa.struct([pa.field("start", TIME, nullable=False), pa.field("end", TIME)])
ROWS = pa.schema([("user", pa.string()), ("session", SESSION), ("at", TIME), ("n", pa.int64()), ("mm", pa.int64())])
EVERY = sw.aggregate(
    clicks=sw.count(),
    mm=sw.sum("mm"),
    low=sw.min("mm"),
    high=sw.max("at"),
    average=sw.mean("mm"),
    opened=sw.first("mm", by="n"),
    closed=sw.last("mm", by="n"),
)
USERS = "abc"

Step = list[tuple[str, int, int, int]]
"""User, minute, gap and value of each event."""
steps = st.lists(
    st.tuples(st.sampled_from(USERS), st.integers(0, 300), st.sampled_from([1, 20, 60]), st.integers(1, 9)), max_size=8
)

schedules = st.lists(steps | st.sampled_from(["restart", "clone"]), min_size=1, max_size=8)


def bound(state: Kind = EVERY, key: tuple[str, ...] = ("session", "user")) -> BoundSessions:
    return Sessions(FinalKind(state), "session").bind([ROWS], key)


@dataclass
class Brute:
    """Computes sessions: keeps the events that belong to no ended session, in the order of arrival."""

    events: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    late: int = 0

    def sessions(self) -> Iterator[tuple[dict[str, object], list[tuple[str, int, int, int, int]]]]:
        """Yield each session as a row, with its chain of overlapping or adjacent events."""
        left = list(self.events)
        while left:
            mine = [left.pop()]
            while more := [one for one in left if any(self._touch(one, other) for other in mine)]:
                mine += more
                left = [one for one in left if one not in more]
            values = [mm for *_, mm in mine]
            yield (
                {
                    "user": mine[0][0],
                    "start": min(at for _, at, *_ in mine),
                    "end": max(end for _, _, end, *_ in mine),
                    "clicks": len(mine),
                    "mm": sum(values),
                    "low": min(values),
                    "high": max(at for _, at, *_ in mine),
                    "average": sum(values) / len(mine),
                    "opened": min((n, mm) for *_, n, mm in mine)[1],
                    "closed": max((n, mm) for *_, n, mm in mine)[1],
                },
                mine,
            )

    def _touch(self, one: tuple[str, int, int, int, int], other: tuple[str, int, int, int, int]) -> bool:
        return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]

    def end(self, watermark: int | None) -> list[dict[str, object]]:
        """Remove and return the sessions that a watermark closes; the watermark is in minutes."""
        found = [each for each in self.sessions() if watermark is not None and int(str(each[0]["end"])) <= watermark]
        gone = [event for _, mine in found for event in mine]
        self.events = [event for event in self.events if event not in gone]
        return in_order(row for row, _ in found)


def in_order(rows: Iterator[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: (str(row["user"]), int(str(row["start"]))))


def in_minutes(row: dict[str, object]) -> dict[str, object]:
    """Return a row with times in minutes, and with the session's times in two columns."""
    session = row.pop("session", None)
    flat = row | (session if isinstance(session, dict) else {})
    return {name: round(it.timestamp()) // 60 if isinstance(it, datetime) else it for name, it in flat.items()}


def stored(stage: Stage) -> list[dict[str, object]]:
    """Return the sessions in the table, as a query unnests them."""
    asked = pa.table({"user": list(USERS)})
    values, present = multi_get(stage.store, None, stage.head.ssts, stage.table, hash_keys(asked, ["user"]), asked)
    rows = [
        in_minutes(session | {"user": user})
        for user, there, sessions in zip(USERS, present, values["session"].to_pylist(), strict=True)
        for session in (sessions if there else [])
    ]
    assert rows == in_order(iter(rows)), "a list is sorted"
    return rows


def check(schedule: list[Step | str]) -> None:
    stage, brute = Stage(bound(), ("user",), ROWS), Brute()
    emitted: list[tuple[object, object, object]] = []
    number = 0
    for step in [*schedule, [], []]:
        if isinstance(step, str):
            getattr(stage, step)()
            continue
        watermark_ms, handed_on = stage.head.watermark_ms, stage.head.downstream_watermark_ms
        watermark = None if watermark_ms is None else watermark_ms // MINUTE_MS
        expected = brute.end(watermark)
        batch: list[dict[str, object]] = []
        for user, minute, gap, mm in step:
            # In no order, and each once.
            number += 7_919
            times = {"start": minute * 60_000_000, "end": (minute + gap) * 60_000_000}
            n = number % 10_007
            batch.append({"user": user, "session": times, "at": minute * 60_000_000, "n": n, "mm": mm})
            if watermark is not None and minute + gap <= watermark:
                brute.late += 1
            else:
                brute.events.append((user, minute, minute + gap, n, mm))
        found = in_order(map(in_minutes, stage.batch(batch)))
        assert found == expected, "each session that has ended is emitted, with all that it got"
        emitted += [(row["user"], row["start"], row["end"]) for row in found]
        assert len(set(emitted)) == len(emitted), "and once"
        assert handed_on is None or all(int(str(row["end"])) * MINUTE_MS > handed_on for row in found), (
            "nor comes it late to who reads it"
        )
        assert stored(stage) == in_order(row for row, _ in brute.sessions()), "the table has those that are open"
        assert (stage.head.event_time.late_total if stage.head.event_time else 0) == brute.late
    assert not stage.owed
    assert stage.head.downstream_watermark_ms == stage.head.watermark_ms


@scaled(20, in_ci=200)
@given(schedules)
def test_sessions_equal_a_computation_over_the_raw_input(schedule: list[Step | str]) -> None:
    check(schedule)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@scaled(1_000)
@given(schedules)
def test_sessions_equal_a_computation_over_the_raw_input_a_thousand_times(schedule: list[Step | str]) -> None:
    check(schedule)


def test_a_late_event_joins_several_sessions() -> None:
    stage = Stage(bound(), ("user",), ROWS)
    # By this watermark, none of them is over.
    stage.batch([{**event("a", minute, 1), "at": 0} for minute in range(0, 40, 4)])
    assert len(stored(stage)) == 10
    stage.batch([{**event("a", 2, 40), "at": 0}])
    assert [(row["start"], row["end"], row["clicks"]) for row in stored(stage)] == [(0, 1, 1), (2, 42, 10)]
    stage.batch([{**event("a", 1, 1), "at": 0}])
    (row,) = stored(stage)
    assert (row["start"], row["end"], row["clicks"], row["mm"]) == (0, 42, 12, 12), "also where they only touch"


@pytest.mark.parametrize(
    "batches",
    [
        [[("b", 0, 5), ("b", 3, 5)]],
        [[("b", 0, 5)], [("b", 3, 5)]],
        [[("b", 0, 5), ("b", 20, 5)], [("b", 4, 17)]],
    ],
    ids=["in one batch", "with what is stored", "of two sessions that become one"],
)
def test_the_error_for_an_overflowing_sum_of_a_session_names_its_key(batches: list[list[tuple[str, int, int]]]) -> None:
    stage = Stage(bound(), ("user",), ROWS)
    others = [event(user, 100, 1) | {"at": 0} for user in "ac"]
    *before, last = [[*others, *(large(event(*each)) for each in one)] for one in batches]
    for batch in before:
        stage.batch(batch)
    expected = stored(stage)
    with pytest.raises(
        BadRecord, match=rf"^mm of key user='b' would be (?:{2**63}|{3 * 2**62}), which does not fit a long"
    ):
        stage.batch(last)
    assert stored(stage) == expected


def large(row: dict[str, object]) -> dict[str, object]:
    return row | {"at": 0, "mm": 2**62}


def event(user: str, minute: int, gap: int) -> dict[str, object]:
    times = {"start": minute * 60_000_000, "end": (minute + gap) * 60_000_000}
    return {"user": user, "session": times, "at": minute * 60_000_000, "n": minute, "mm": 1}


def test_a_session_stays_open_until_the_watermark_reaches_its_end() -> None:
    stage = Stage(bound(), ("user",), ROWS)
    micros = event("a", 0, 5)
    micros["session"] = {"start": 0, "end": 5 * 60_000_000 + 1}
    stage.batch([micros])
    assert stage.batch([event("b", 5 + DELAY, 60)]) == []
    assert stage.batch([{**event("b", 5 + DELAY, 60), "at": (5 + DELAY) * 60_000_000 + 1_000}]) == []
    (row,) = stage.batch([])
    assert row["user"] == "a"


def test_the_tables_key_does_not_include_the_session() -> None:
    made = bound()
    assert key_of_table(("session", "user"), made.values.names) == ("user",)
    assert made.values.names == ["session", "_partials", "_due_at"]
    assert made.emitted_schemas[0].names[:2] == ["session", "user"]
    assert bound(sw.aggregate(n=sw.count())).values.names == ["session", "_due_at"]


def test_a_migration_may_rename_the_session_column_but_not_change_its_aggregates() -> None:
    values = [Column(one.name, from_arrow(one.type)) for one in bound().values]
    said = Sessions(FinalKind(EVERY), "session").stored
    stored = Table((Column("user", "string"),), tuple(values), 3, said)
    renamed = replace(stored, values=(replace(values[0], name="visit"), *values[1:]))
    after, _ = evolve("visits", stored, renamed, {"session": "visit"})
    assert [(column.name, number) for column, number in zip(after.columns, after.column_ids, strict=True)] == [
        ("user", 1),
        ("visit", 2),
        ("_partials", 3),
        ("_due_at", 4),
    ]
    with pytest.raises(Refused, match=r"its sessions are now 'visit', but open ones .* 'session'") as refused:
        evolve("visits", stored, renamed, {})
    assert "--rename session=visit" in refused.value.hint
    more = Sessions(FinalKind(sw.aggregate(clicks=sw.count())), "session").stored
    with pytest.raises(Refused, match="its state is now sessions"):
        evolve("visits", stored, replace(stored, state=more), {})


def test_impossible_sessions_are_refused_with_the_reason() -> None:
    with pytest.raises(Usage, match=r"need state=aggregate\(...\), not final\(upsert"):
        bound(sw.upsert(by="at"))
    with pytest.raises(Usage, match="'end' is a field of each session"):
        bound(sw.aggregate(end=sw.max("at")))
    nothing = pa.Table.from_pylist([{"user": "a"}], schema=ROWS)
    old = bound().values.empty_table().take(pa.array([None], pa.int64()))
    with pytest.raises(Refused, match="a row has no session in 'session'"):
        bound().merge(nothing, Groups(np.zeros(1, np.int32), np.zeros(1, np.int64)), nothing, old)
