"""Snapshots of a stage with several inputs: when they complete, the records they keep, and leftovers."""

from collections.abc import Callable, Iterator
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from slackwater.errors import Corruption, Refused, Unavailable
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.snapshot.cut.kafka_topics import KafkaTopics
from slackwater.snapshot.cut.stored import (
    SNAPSHOTS,
    Snapshot,
    SnapshotRequest,
    find_snapshot,
    open_requests,
    withdraw_request,
)
from slackwater.snapshot.take import capture
from slackwater.snapshot.take.snapshots import delete_snapshot
from slackwater.snapshot.take.taking import read_answers, request_snapshot, try_complete
from slackwater.store.versions import keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import VersionSpan
from ulid import ULID

from tests.support.diamonds import APP, STAGES, Diamond, Logs


def ask(diamond: Diamond, name: str = "good") -> SnapshotRequest:
    return request_snapshot(diamond.store, APP, name, "ada@host")


def complete(diamond: Diamond, asked: SnapshotRequest, reader: KafkaTopics | None = None) -> Snapshot | None:
    return try_complete(diamond.store, APP, asked, reader or diamond.logs)


def objects(diamond: Diamond, name: str = "good") -> set[str]:
    return {info.key for info in diamond.store.list(keys.snapshot_objects(APP, name))}


def lagging() -> tuple[Diamond, SnapshotRequest]:
    """Return a snapshot that is not finished.

    `joined` has recorded a version at the marker of `even`; `odd` sends 13 and 15 before its own marker.
    """
    diamond = Diamond()
    diamond.step_all(records=6)
    diamond.step_all(records=6)
    asked = ask(diamond)
    diamond.step("moves", records=4)
    diamond.step("evens")
    diamond.step("joined")
    diamond.step("odds")
    diamond.step("moves", records=4)
    diamond.step("odds")
    return diamond, asked


@pytest.fixture
def finished() -> tuple[Diamond, SnapshotRequest]:
    """Return the snapshot once `joined` has reached the marker of `odd`."""
    diamond, asked = lagging()
    diamond.step("joined")
    return diamond, asked


def test_a_snapshot_completes_only_once_no_stage_awaits_a_marker() -> None:
    diamond, asked = lagging()
    assert {stage: answer.finished for stage, answer in read_answers(diamond.store, APP, asked).items()} == {
        "moves": True,
        "evens": True,
        "odds": True,
        "joined": False,
    }
    joined = read_answers(diamond.store, APP, asked)["joined"]
    assert (joined.version, joined.awaited) == (4, ("odd",))
    assert complete(diamond, asked) is None
    assert objects(diamond) == set()
    diamond.step("joined")
    snapshot = complete(diamond, asked)
    assert snapshot is not None
    assert snapshot.stages == {"moves": 4, "evens": 4, "odds": 4, "joined": 4}
    assert snapshot.id == asked.id
    assert open_requests(diamond.store, APP) == ()


@pytest.mark.parametrize("last", STAGES[1:])
def test_a_snapshot_completes_only_once_every_stage_has_recorded_a_version(last: str) -> None:
    diamond = Diamond()
    diamond.step_all()
    asked = ask(diamond)
    for _ in range(3):
        for stage in STAGES:
            if stage != last:
                diamond.step(stage)
                assert complete(diamond, asked) is None
    diamond.settle()
    assert complete(diamond, asked) is not None


def test_records_in_flight_are_kept_as_parquet_with_their_partitions_and_offsets(
    finished: tuple[Diamond, SnapshotRequest],
) -> None:
    diamond, asked = finished
    snapshot = complete(diamond, asked)
    assert snapshot is not None
    (kept,) = snapshot.channels
    assert (kept.channel, kept.sender, kept.receiver, kept.after, kept.up_to) == ("odd", "odds", "joined", 3, 4)
    assert (kept.counts, kept.rows, kept.schema) == ((1, 1), 2, "n long")
    (written,) = kept.objects
    data = diamond.store.get(written.key)
    table = pq.read_table(BytesIO(data))
    assert (written.rows, written.bytes) == (table.num_rows, len(data))
    assert sorted(table["n"].to_pylist()) == [13, 15]
    for row in table.to_pylist():
        message = diamond.logs.topics["odd"][row["_partition"]][row["_offset"]]
        with pa.ipc.open_stream(message.value()) as stream:
            assert stream.read_all()["n"][row["_row"]].as_py() == row["n"]
    assert objects(diamond) == {written.key}


def test_damaged_or_missing_records_are_corruption(finished: tuple[Diamond, SnapshotRequest]) -> None:
    diamond, asked = finished
    snapshot = complete(diamond, asked)
    assert snapshot is not None
    (kept,) = snapshot.channels
    key = kept.objects[0].key
    sound = diamond.store.get(key)
    for damaged in (sound[:-9], sound[:40] + bytes([sound[40] ^ 1]) + sound[41:], b""):
        diamond.store.put(key, damaged)
        with pytest.raises(Corruption, match="is damaged"):
            list(capture.read_captured(diamond.store, kept))
    diamond.store.delete(key)
    with pytest.raises(Corruption, match="is missing: its in-flight records are lost"):
        list(capture.read_captured(diamond.store, kept))


def test_many_records_are_kept_in_many_objects(
    finished: tuple[Diamond, SnapshotRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_OBJECT_BYTES", 1)
    diamond, asked = finished
    snapshot = complete(diamond, asked)
    assert snapshot is not None
    (kept,) = snapshot.channels
    assert [one.rows for one in kept.objects] == [1, 1]
    assert sorted(n for table in capture.read_captured(diamond.store, kept) for n in table["n"].to_pylist()) == [13, 15]


def test_a_completer_without_a_reader_leaves_the_snapshot_to_others(finished: tuple[Diamond, SnapshotRequest]) -> None:
    diamond, asked = finished
    assert try_complete(diamond.store, APP, asked) is None
    assert open_requests(diamond.store, APP) == (asked,)
    assert complete(diamond, asked) is not None


def test_if_all_markers_are_in_one_commit_nothing_is_kept_and_no_reader_is_needed() -> None:
    diamond = Diamond()
    asked = ask(diamond)
    diamond.step_all(records=8)
    snapshot = try_complete(diamond.store, APP, asked)
    assert snapshot is not None
    assert snapshot.channels == ()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (None, "nothing"),
        (VersionSpan(2, 4), "versions 3 to 4"),
        (VersionSpan(3, 5), "versions 4 to 5"),
        (VersionSpan(3, 3), "versions 4 to 3"),
    ],
)
def test_captured_records_that_differ_from_those_in_flight_are_corruption(
    finished: tuple[Diamond, SnapshotRequest], said: VersionSpan | None, shown: str
) -> None:
    diamond, asked = finished
    head = diamond.heads["joined"]
    assert head.captured == {asked.id: {"odd": VersionSpan(3, 4)}}
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test:1", now_ms=10**6)
    commit(diamond.store, replace(draft, captured={asked.id: {"odd": said}} if said else {}))
    with pytest.raises(Corruption, match=f"'joined' captured {shown} of channel 'odd'; the cut has versions 4 to 4"):
        complete(diamond, asked)
    assert find_snapshot(diamond.store, APP, "good") is None
    assert objects(diamond) == set()


def test_fewer_records_than_the_manifests_count_are_corruption_and_leave_nothing(
    finished: tuple[Diamond, SnapshotRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_OBJECT_BYTES", 1)  # so that objects are written before it shows
    diamond, asked = finished
    diamond.logs.lost = 1
    with pytest.raises(
        Corruption,
        match=r"holds \(1, 0\) records in flight by partition; the manifests of odds and joined count \(1, 1\)",
    ):
        complete(diamond, asked)
    assert objects(diamond) == set()


class Misplaced(Logs):
    """A reader that returns every in-flight record as one of partition 0."""

    def __init__(self, logs: Logs) -> None:
        self.topics, self.lost, self.earliest = logs.topics, 0, logs.earliest

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        for table in super().read(in_flight):
            zeros = pa.array([0] * table.num_rows, pa.int32())
            yield table.set_column(table.schema.get_field_index("_partition"), "_partition", zeros)


def test_surplus_records_of_one_partition_do_not_hide_missing_ones_of_another(
    finished: tuple[Diamond, SnapshotRequest],
) -> None:
    diamond, asked = finished
    with pytest.raises(Corruption, match=r"holds \(2, 0\) records in flight by partition"):
        complete(diamond, asked, Misplaced(diamond.logs))
    assert objects(diamond) == set()


class Interrupted:
    """A reader that calls a function after it has read the first records."""

    def __init__(self, logs: Logs, happens: Callable[[], object]) -> None:
        self._logs = logs
        self._happens = happens

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        tables = self._logs.read(in_flight)
        yield next(tables)
        self._happens()
        yield from tables


def test_a_failed_capture_leaves_nothing_and_can_be_repeated(
    finished: tuple[Diamond, SnapshotRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_OBJECT_BYTES", 1)
    diamond, asked = finished
    found: list[int] = []

    def away() -> None:
        found.append(len(objects(diamond)))
        raise Unavailable("Kafka is away")

    for _ in range(2):
        with pytest.raises(Unavailable):
            complete(diamond, asked, Interrupted(diamond.logs, away))
        assert objects(diamond) == set()
    assert found == [1, 1], "there was something to leave behind"
    assert complete(diamond, asked) is not None


def test_a_request_withdrawn_during_a_capture_leaves_no_object(
    finished: tuple[Diamond, SnapshotRequest],
) -> None:
    diamond, asked = finished
    assert (
        complete(diamond, asked, Interrupted(diamond.logs, lambda: withdraw_request(diamond.store, APP, asked))) is None
    )
    assert find_snapshot(diamond.store, APP, "good") is None
    assert objects(diamond) == set()


def test_a_request_withdrawn_before_a_capture_leaves_no_object(finished: tuple[Diamond, SnapshotRequest]) -> None:
    diamond, asked = finished
    withdraw_request(diamond.store, APP, asked)
    assert complete(diamond, asked) is None
    assert objects(diamond) == set()


def test_two_completers_give_the_same_snapshot_and_keep_its_records_once(
    finished: tuple[Diamond, SnapshotRequest],
) -> None:
    diamond, asked = finished
    first: list[Snapshot | None] = []
    second = complete(diamond, asked, Interrupted(diamond.logs, lambda: first.append(complete(diamond, asked))))
    assert first == [second]
    assert second is not None
    assert objects(diamond) == {one.key for kept in second.channels for one in kept.objects}
    assert complete(diamond, asked) == second


def test_a_completer_that_loses_the_race_at_the_last_moment_discards_its_records(
    finished: tuple[Diamond, SnapshotRequest],
) -> None:
    diamond, asked = finished
    first: list[Snapshot | None] = []

    def overtake() -> None:
        first.append(complete(diamond, asked))
        # The other has written the snapshot, and its withdrawal of the request is still on its way.
        diamond.store.put(keys.json_object(keys.requests(APP), asked.id), requested)

    requested = diamond.store.get(keys.json_object(keys.requests(APP), asked.id))
    second = complete(diamond, asked, Interrupted(diamond.logs, overtake))
    assert first == [second]
    assert second is not None
    assert objects(diamond) == {one.key for kept in second.channels for one in kept.objects}
    assert open_requests(diamond.store, APP) == ()


def test_a_name_taken_meanwhile_refuses_the_request_and_discards_the_records(
    finished: tuple[Diamond, SnapshotRequest],
) -> None:
    diamond, asked = finished
    other = Snapshot("good", str(ULID()), APP, 0, 0, "instant", {"moves": 1}, "bob@host")

    taken = Interrupted(diamond.logs, lambda: SNAPSHOTS.add(diamond.store, other))
    with pytest.raises(Refused, match="taken by bob@host while this one was under way"):
        complete(diamond, asked, taken)
    assert objects(diamond) == set()
    assert open_requests(diamond.store, APP) == ()


def test_a_completed_snapshot_is_never_recorded_again(finished: tuple[Diamond, SnapshotRequest]) -> None:
    diamond, asked = finished
    complete(diamond, asked)
    for _ in range(4):
        diamond.step_all(records=0)
        diamond.step_all(records=2)
        assert not any(asked.id in head.recorded for head in diamond.heads.values())


def test_removing_a_snapshot_deletes_its_records(finished: tuple[Diamond, SnapshotRequest]) -> None:
    diamond, asked = finished
    complete(diamond, asked)
    assert objects(diamond)
    delete_snapshot(diamond.store, APP, "good")
    assert objects(diamond) == set()
