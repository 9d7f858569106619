"""Progress of event time by batches: how watermarks advance, and the times that tasks count."""

from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.source.planner import ChannelPlanner, Pace
from slackwater.state import event_time as progress
from slackwater.state.event_time import BatchTimes, EventTimeScan, SeenTimes, TimeRules, Watermark
from slackwater.state.next_version import BatchResult, ProtocolOutcome, next_version
from slackwater.state.records import Position
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions.commit import commit
from slackwater.store.versions.limits import YEAR_1_MS
from slackwater.store.versions.manifest import EventTime, Input, Manifest, Output

from tests.models.profiles import scaled

OWN = (Watermark(("at",), 10, ("t",)), Watermark(("_1_at",), 3, ("u",)))
INPUTS = {"t": Input("t", (0,)), "u": Input("u", (0,)), "c": Input("a-c", (0,), "up")}
times = st.none() | st.integers(-50, 50)


@scaled(50, in_ci=500)
@given(st.lists(st.tuples(times, times, times)))
def test_a_watermark_is_the_smallest_of_its_inputs_and_never_falls(
    batches: list[tuple[int | None, int | None, int | None]],
) -> None:
    inputs, at_ms = dict(INPUTS), None
    for number, (first, second, upstream) in enumerate(batches):
        if upstream is not None:
            at = inputs["c"]
            inputs["c"] = Input("a-c", (0,), "up", watermark_ms=progress.later_time(at.watermark_ms, upstream))
        # Two tasks, which saw the same largest times or none.
        inputs = progress.advance_watermarks(inputs, OWN, [SeenTimes((first, second)), SeenTimes((None, None))])
        before, at_ms = at_ms, progress.stage_watermark_ms(inputs, INPUTS, at_ms)
        seen = batches[: number + 1]
        largest = [max((batch[n] for batch in seen if batch[n] is not None), default=None) for n in range(3)]
        if None in largest:
            assert at_ms is None
        else:
            assert at_ms == min(largest[0] - 10, largest[1] - 3, largest[2])  # type: ignore[operator]
        assert before is None or (at_ms is not None and at_ms >= before)


def test_an_input_without_a_watermark_does_not_delay_others() -> None:
    inputs = progress.advance_watermarks(INPUTS, OWN[:1], [SeenTimes((100,))])
    assert progress.stage_watermark_ms(inputs, {"t"}, None) == 90
    assert progress.stage_watermark_ms(inputs, {"t", "c"}, None) is None


def test_a_watermark_stays_if_a_new_input_has_none_yet_or_the_program_no_longer_declares_one() -> None:
    assert progress.stage_watermark_ms(INPUTS, {"t"}, 70) == 70
    assert progress.stage_watermark_ms(INPUTS, set(), 70) == 70
    assert progress.stage_watermark_ms({"t": Input("t", (0,), watermark_ms=40)}, {"t"}, 70) == 70, "it never falls"


def test_a_watermark_before_year_1_counts_as_the_start_of_year_1() -> None:
    moved = progress.advance_watermarks(INPUTS, OWN[:1], [SeenTimes((YEAR_1_MS + 5,))])
    assert moved["t"].watermark_ms == YEAR_1_MS


def test_times_too_far_ahead_of_the_clock_are_counted_but_do_not_advance_the_watermark() -> None:
    bound = datetime(2026, 1, 1, tzinfo=UTC)
    year_55_840 = 1_700_000_000_000_000_000
    micros = [year_55_840, int(bound.timestamp()) * 1_000_000, 7_000, None]
    rows = pa.table({"at": pa.array(micros, pa.timestamp("us", "UTC")), "k": [1, 2, 3, 4]})
    looked = EventTimeScan((Watermark(("at",), 0, ("t",)),), int(bound.timestamp()) * 1000)
    assert looked.scan(rows) == SeenTimes((int(bound.timestamp()) * 1000,), 1)
    assert looked.scan(rows.slice(0, 1)) == SeenTimes((None,), 1)
    assert looked.scan(rows.slice(3)) == SeenTimes((None,), 0)
    assert EventTimeScan().scan(rows) == SeenTimes()


def test_several_columns_advance_the_same_watermark() -> None:
    rows = pa.table({"_0_at": pa.array([5_000], pa.timestamp("us")), "_1_at": pa.array([9_000], pa.timestamp("us"))})
    assert EventTimeScan((Watermark(("_0_at", "_1_at"), 0, ("t", "u")),), 100).scan(rows) == SeenTimes((9,), 0)


def test_rows_advance_only_the_watermark_of_their_input_if_inputs_share_the_time_column() -> None:
    rows = pa.table({"_input": [0, 0, 1, 1], "at": pa.array([1_000, 2_000, 7_000, 200_000], pa.timestamp("us", "UTC"))})
    slow, fast = (Watermark(("at",), 0, (name,), part) for part, name in enumerate(("slow", "fast")))
    assert EventTimeScan((slow, fast), 100).scan(rows) == SeenTimes((2, 7), 1)
    assert EventTimeScan((slow,), 100).scan(rows) == SeenTimes((2,), 0), "what fast brings is no business of slow"
    assert set(EventTimeScan((slow, fast)).names) == {"_input", "at"}


def test_counts_are_summed_and_a_stage_without_event_time_has_none() -> None:
    assert progress.next_event_time(None, None, [SeenTimes()]) is None
    first = progress.next_event_time(None, None, [SeenTimes((None,), 2)])
    assert first == EventTime(None, 2, 2)
    assert progress.next_event_time(first, 5, [SeenTimes((9,), 1), SeenTimes((3,), 1)]) == EventTime(5, 2, 4)


upstream_versions = st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 40), st.booleans()), max_size=12)


@given(upstream_versions, st.none() | st.integers(1, 4))
def test_a_reader_has_the_watermark_of_the_version_it_read_for_any_batches(
    versions: list[tuple[int, int | None, bool]], max_records: int | None
) -> None:
    store, at_ms, sent = MemoryStore(), None, 0
    reader = Manifest("a", "down", 1, 1, "w", 1, "claim", {"c": Input("a-c", (0,), "up", consumed=(0,))})
    known: list[int | None] = [None]
    for rows, moved_ms, read in versions:
        # A version of rows, of a watermark, of both, or of neither, as a compaction.
        sent, at_ms = sent + rows, progress.later_time(at_ms, moved_ms)
        known.append(at_ms)
        output = Output("a-c", (sent,), (sent,), (), rows, "n long")
        event_time = EventTime(at_ms) if at_ms is not None else None
        commit(
            store, Manifest("a", "up", len(known) - 1, 1, "w", 1, "batch", outputs={"c": output}, event_time=event_time)
        )
        if read:
            reader = batch(store, reader, max_records)
            assert reader.watermark_ms == known[reader.inputs["c"].version]
    while (after := batch(store, reader, max_records)) is not reader:
        reader = after
    assert (reader.watermark_ms, reader.inputs["c"].consumed) == (at_ms, (sent,)), "all is read in the end"


def batch(store: MemoryStore, head: Manifest, max_records: int | None) -> Manifest:
    """Return the version after a batch of a newly started reader, or the head if there is nothing to read."""
    at = head.inputs["c"]
    start = Position("c", at.offsets, at.version, at.rows_passed, (), at.watermark_ms)
    end = ChannelPlanner(store, "a", "up", "c", Pace(0), max_records).plan_end(start)
    if end == start:
        return head
    assert end.version > start.version
    return next_version(
        head,
        {"c": end},
        ProtocolOutcome((), {}, {}, {}, changed=False),
        BatchResult(),
        (),
        TimeRules(timed={"c"}),
        BatchTimes(0, 0),
        with_rows=False,
        now_ms=head.time_ms + 1,
        duration_ms=1,
    )


def test_partial_aggregates_carry_the_count_of_times_too_far_ahead() -> None:
    rows = pa.table({"_slackwater_at": pa.array([5_000, None], pa.timestamp("us")), "_slackwater_ahead": [2, 1]})
    assert EventTimeScan((Watermark(("_slackwater_at",), 0, ("t",)),), 100).scan(rows) == SeenTimes((5,), 3)
    assert EventTimeScan((), 100).scan(rows.slice(0, 0)) == SeenTimes((), 0)
