"""The snapshot protocol on a real broker under random schedules: snapshots agree with the sent records."""

from collections.abc import Iterator

from hypothesis import event, given, settings
from hypothesis import strategies as st
from slackwater.snapshot.cut.stored import Snapshot, SnapshotRequest, find_snapshot, open_requests, withdraw_request
from slackwater.snapshot.take import capture
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.snapshot.verify.verify import verify

from tests.chandy_lamport.test_laws import TIMES
from tests.models.profiles import PROFILE
from tests.support.diamonds import APP, STAGES, Diamond

batches = st.tuples(
    st.sampled_from(STAGES),
    st.integers(0, 6),
    st.sampled_from([None, None, 1, 4]),
    st.sampled_from([False] * 7 + [True]),
)
"""A stage, its number of new records (for the first stage), its limit, and a flag that is true for a crash."""
others = st.sampled_from(["take", "take", "complete", "complete", "cancel", "zombie"])
operations = st.integers(0, 5).flatmap(lambda kind: batches if kind else others)


def numbers(diamond: Diamond, snapshot: Snapshot, channel: str) -> Iterator[int]:
    """Check the positions of a snapshot's in-flight records of a channel, and yield the records."""
    for kept in snapshot.channels:
        if kept.channel != channel:
            continue
        rows = [row for table in capture.read_captured(diamond.store, kept) for row in table.to_pylist()]
        assert len(rows) == kept.rows == sum(kept.counts)
        assert len({(row["_partition"], row["_offset"], row["_row"]) for row in rows}) == len(rows)
        for row in rows:
            assert row["_partition"] == row["n"] // 2 % 2
            assert kept.starts[row["_partition"]] <= row["_offset"] < kept.ends[row["_partition"]]
            yield row["n"]


def check(diamond: Diamond, snapshot: Snapshot) -> None:
    seen = diamond.place(**snapshot.stages)
    for stage in ("evens", "odds"):
        assert sorted(seen[stage]) == sorted(seen["moves"]), "one input: nothing is in flight"
    joined = [*seen["joined"], *numbers(diamond, snapshot, "even"), *numbers(diamond, snapshot, "odd")]
    assert sorted(joined) == sorted(seen["moves"]), snapshot
    proved = verify(diamond.store, f"{APP}@{snapshot.name}", now_ms=0, deep=True, reader=diamond.logs)
    assert (proved.differences, proved.not_reread) == ((), ())


@settings(max_examples=max(25 if PROFILE == "default" else 50, round(50 * TIMES)))
@given(st.lists(operations, min_size=30, max_size=100))
def test_every_snapshot_holds_every_record_once(schedule: list[object]) -> None:
    diamond = Diamond()
    asked: list[SnapshotRequest] = []
    cancelled: list[str] = []

    def complete() -> None:
        for one in asked:
            try_complete(diamond.store, APP, one, diamond.logs)

    for operation in schedule:
        match operation:
            case (str(stage), int(records), limit, bool(crash)):
                diamond.step(stage, records=records, max_records=limit, crash=crash)
            case "take" if len(asked) < 3:
                asked.append(request_snapshot(diamond.store, APP, f"s{len(asked)}", "ada@host"))
            case "complete":
                complete()
            case "cancel" if asked and asked[0] in open_requests(diamond.store, APP):
                withdraw_request(diamond.store, APP, asked[0])
                cancelled.append(asked[0].id)
            case "zombie":
                for stage in STAGES:
                    diamond.zombie(stage, asked[-1].id if asked else "s")
    if not asked:
        asked.append(request_snapshot(diamond.store, APP, "last", "ada@host"))
    diamond.settle()
    complete()
    for one in asked:
        snapshot = find_snapshot(diamond.store, APP, one.name)
        assert (snapshot is None) == (one.id in cancelled)
        if snapshot is not None:
            event("records in flight" if snapshot.channels else "nothing in flight")
            check(diamond, snapshot)
    # Snapshots that are withdrawn are dropped with the next commit.
    for _ in range(3):
        diamond.step_all(records=1)
    assert not any(head.recorded or head.awaited or head.captured for head in diamond.heads.values())
    proved = verify(diamond.store, APP, now_ms=0, deep=True, reader=diamond.logs)
    assert (proved.differences, proved.not_reread) == ((), ())
    diamond.settle()
    assert sorted(diamond.seen["joined", diamond.heads["joined"].version]) == list(
        range(diamond.heads["moves"].inputs["numbers"].offsets[0])
    )
