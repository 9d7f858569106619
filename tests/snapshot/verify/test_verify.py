"""A healthy cut has no difference; damage of each kind is found and named."""

import io
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Usage
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import Captured, Snapshot, read_snapshot
from slackwater.snapshot.take.snapshots import pin
from slackwater.snapshot.verify.verify import Report, verify
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, history, keys
from slackwater.store.versions.manifest import Input, Manifest, Output

from tests.support.fan_in import FanIn, bank, records
from tests.support.hostile import as_it_is
from tests.support.manifests import MANIFESTS as MANIFESTS_AT_ALL
from tests.support.manifests import any_value


def report(app: FanIn, ref: str = "bank@good", *, deep: bool = False) -> Report:
    return verify(app.store, ref, now_ms=10**15, deep=deep, reader=app.topics if deep else None)


def only(found: Report) -> str:
    """The one difference."""
    (difference,) = found.differences
    return difference.message


@pytest.fixture
def app() -> FanIn:
    return bank(MemoryStore())


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("ref", ["bank@good", "bank", "bank@~2", "bank/join@v2", "bank/right@v4"])
def test_a_healthy_cut_has_no_difference(app: FanIn, ref: str, deep: bool) -> None:
    found = report(app, ref, deep=deep)
    assert found.consistent
    assert found.differences == found.not_reread == ()
    assert {entry.difference for entry in found.ledger} == {0}


def test_the_books_of_a_snapshot_show_what_it_keeps(app: FanIn) -> None:
    left, right = report(app).ledger
    assert (left.channel, left.sender, left.receiver) == ("by-left", "left", "join")
    assert (left.sent, left.consumed, left.in_flight.rows) == ((5, 3), (5, 3), 0)
    assert (right.sent, right.consumed) == ((4, 6), (1, 4))
    assert (right.in_flight.by_partition, right.in_flight.where) == ((3, 2), "snapshot")
    assert right.partitions == ((4, 1, 0, 3, 0), (6, 4, 0, 2, 0))
    _, reread = report(app, deep=True).ledger
    assert (reread.in_flight.by_partition, reread.in_flight.where) == ((3, 2), "kept records")


def test_records_in_flight_at_any_other_moment_are_counted_in_manifests_or_in_kafka(app: FanIn) -> None:
    now, deeply = report(app, "bank"), report(app, "bank", deep=True)
    assert [(entry.in_flight.rows, entry.in_flight.where) for entry in now.ledger] == [
        (2, "manifests"),
        (10, "manifests"),
    ]
    assert [(entry.in_flight.by_partition, entry.in_flight.where) for entry in deeply.ledger] == [
        ((1, 1), "Kafka"),
        ((5, 5), "Kafka"),
    ]


def test_what_kafka_no_longer_has_is_told_and_is_no_difference(app: FanIn) -> None:
    app.topics.expired = True
    found = report(app, "bank", deep=True)
    assert found.consistent
    assert [entry.in_flight.where for entry in found.ledger] == ["manifests", "manifests"]
    assert found.not_reread[0].startswith("records in flight on by-left to join were not re-read: offsets of by-left")
    marked = report(app, deep=True)
    assert marked.consistent
    assert marked.not_reread[0] == "markers on by-left were not re-read: by-left[0]@4 is gone from Kafka"
    without = verify(app.store, "bank", now_ms=10**15, deep=True)
    assert without.consistent
    assert without.not_reread[0].endswith("nothing says where Kafka is")


def test_kafka_that_is_away_is_waited_for_once(app: FanIn) -> None:
    app.topics.away = True
    found = report(app, "bank", deep=True)
    assert found.consistent
    assert [note.rpartition(": ")[2] for note in found.not_reread] == ["Kafka does not answer"] * 2
    assert len(report(app, deep=True).not_reread) == 2
    assert app.topics.asked == 2


def test_counts_that_nobody_knows_are_not_judged(app: FanIn) -> None:
    join = app.heads["join"]
    inputs = {name: replace(read, consumed=()) for name, read in join.inputs.items()}
    change(app, "join", join.version, lambda manifest: replace(manifest, inputs=inputs))
    found = report(app, "bank")
    assert found.consistent
    assert {entry.difference for entry in found.ledger} == {None}


def test_what_is_not_there_to_be_verified_is_said(app: FanIn) -> None:
    with pytest.raises(NotFound):
        report(app, "bank@goof")
    with pytest.raises(NotFound):
        report(app, "bank/jion@good")
    with pytest.raises(Usage):
        report(app, "bank@")


Change = Callable[[Manifest], Manifest]


def change(app: FanIn, stage: str, version: int, how: Change) -> None:
    key = keys.manifest("bank", stage, version)
    manifest = codec.decode(app.store.get(key), Manifest, key=key)
    app.store.put(key, as_it_is(how(manifest)))


def of_input(name: str, **fields: Any) -> Change:
    def how(manifest: Manifest) -> Manifest:
        return replace(manifest, inputs=manifest.inputs | {name: replace(manifest.inputs[name], **fields)})

    return how


def of_output(name: str, **fields: Any) -> Change:
    def how(manifest: Manifest) -> Manifest:
        return replace(manifest, outputs=manifest.outputs | {name: replace(manifest.outputs[name], **fields)})

    return how


def unmarked(manifest: Manifest) -> Manifest:
    return of_output("by-right", markers={})(manifest)


MANIFESTS: dict[str, tuple[str, int, Change, str]] = {
    "a count off by one in sent": (
        "right",
        5,
        of_output("by-right", sent=(5, 6)),
        r"by-right\[0\]: right at version 5 sent 5 records, but join at version 3 consumed 1 and 3 are in flight",
    ),
    "a count off by one in consumed": (
        "join",
        3,
        of_input("by-left", consumed=(4, 3), rows=2),
        r"by-left: left at version 3 sent 8 records, but join at version 3 consumed 7 and 0 are in flight",
    ),
    "counts that hide each other in the sum": (
        "join",
        3,
        of_input("by-left", consumed=(6, 2)),
        r"by-left\[0\]: join at version 3 consumed 6 records, but left at version 3 had sent only 5",
    ),
    "a receiver ahead of the sender": (
        "join",
        3,
        of_input("by-left", version=4),
        "join@v3 consumed left@v4, but the cut holds left@v3",
    ),
    "offsets gone back": (
        "join",
        3,
        of_input("by-left", offsets=(0, 4)),
        "bank/join v3, input 'by-left': offset of partition 0 went back from 2 to 0",
    ),
    "consumed counts gone back": (
        "join",
        3,
        of_input("by-right", consumed=(0, 4), rows=0),
        "number of records consumed of partition 0 went back from 1 to 0",
    ),
    "ends gone back": (
        "left",
        3,
        of_output("by-left", ends=(5, 1), markers={}),
        "bank/left v3, channel 'by-left': end of partition 1 went back from 2 to 1",
    ),
    "sent counts gone back": (
        "left",
        3,
        of_output("by-left", sent=(2, 3), rows=0),
        "number of records sent of partition 0 went back from 3 to 2",
    ),
    "rows that are not what was consumed": (
        "join",
        3,
        of_input("by-left", rows=4),
        "bank/join v3, input 'by-left': 4 records read; expected 3",
    ),
    "rows of a user's topic that are not its offsets": (
        "left",
        3,
        of_input("events", rows=4),
        "bank/left v3, input 'events': 4 records read; expected 3",
    ),
    "rows that are not what was sent": (
        "left",
        3,
        of_output("by-left", rows=4),
        "bank/left v3, channel 'by-left': 4 records written; expected 3",
    ),
    "an upstream version gone back": (
        "join",
        3,
        of_input("by-right", version=1),
        "bank/join v3, input 'by-right': version 1 of 'right' is consumed; before it was 2",
    ),
    "a clock gone back": (
        "join",
        3,
        lambda manifest: replace(manifest, time_ms=1_010),
        "bank/join v3 was committed at 1010 ms; expected more than 1010",
    ),
    "an epoch gone back": (
        "right",
        5,
        lambda manifest: replace(manifest, epoch=1),
        "bank/right v5 has epoch 1; expected 2",
    ),
    "an input gone": (
        "join",
        3,
        lambda manifest: replace(manifest, inputs={"by-left": manifest.inputs["by-left"]}),
        "bank/join v3 has no input 'by-right'; the one before had",
    ),
    "partitions gone": (
        "join",
        3,
        of_input("by-left", consumed=(5,)),
        r"inputs\['by-left'\].consumed is \(5,\); expected as many numbers as offsets, 2, or none",
    ),
    "a marker that no manifest names": (
        "right",
        5,
        unmarked,
        "right@v5 names no marker of snapshot 'good' on channel 'by-right'",
    ),
    "a marker in one partition only": (
        "right",
        5,
        lambda manifest: of_output(
            "by-right", markers={id_: at[:1] for id_, at in manifest.outputs["by-right"].markers.items()}
        )(manifest),
        r"outputs\['by-right'\]\.markers\[.*\] is \(\d+,\); expected an offset for each partition",
    ),
    "a marker of an earlier version": (
        "right",
        5,
        lambda manifest: of_output("by-right", markers=dict.fromkeys(manifest.outputs["by-right"].markers, (1, 1)))(
            manifest
        ),
        "bank/right v5, channel 'by-right': marker of",
    ),
    "a reader past the marker": (
        "join",
        3,
        of_input("by-left", offsets=(6, 5)),
        r"join@v3 consumed by-left\[0\] up to 6, past the marker of snapshot 'good': expected 5 at most",
    ),
    "another schema": (
        "right",
        5,
        of_output("by-right", schema="amount long"),
        "snapshot 'good', by-right to join: it keeps records with schema amount int; the cut has amount long",
    ),
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_damage_to_a_manifest_is_found_without_reading_any_record(app: FanIn, damage: str) -> None:
    stage, version, how, expected = MANIFESTS[damage]
    change(app, stage, version, how)
    messages = [difference.message for difference in report(app).differences]
    assert any(re.search(expected, message) for message in messages), messages


def test_a_manifest_that_is_gone_or_no_manifest_is_named(app: FanIn) -> None:
    for damage in (app.store.delete, lambda key: app.store.put(key, b"{"), lambda key: app.store.put(key, b"\xff")):
        key = keys.manifest("bank", "join", 3)
        whole = app.store.get(key)
        damage(key)
        first = report(app).differences[0]
        assert (first.check, first.subject) == ("versions", key)
        assert key in first.message
        app.store.put(key, whole)
    assert report(app).consistent


def test_the_head_of_a_stage_that_cannot_be_read_is_named(app: FanIn) -> None:
    key = keys.manifest("bank", "join", app.heads["join"].version)
    app.store.put(key, b"{}")
    assert key in only(report(app, "bank"))


def test_another_stages_manifest_in_its_place_is_named(app: FanIn) -> None:
    key = keys.manifest("bank", "left", 3)
    app.store.put(key, app.store.get(keys.manifest("bank", "right", 3)))
    assert "holds the manifest of bank/right v3; expected bank/left v3" in report(app).differences[0].message


def test_a_gap_in_the_history_is_found_deeply(app: FanIn) -> None:
    app.store.delete(keys.manifest("bank", "join", 3))
    found = report(app, "bank", deep=True)
    assert f"{keys.manifest('bank', 'join', 3)} is missing: join has v2, and next v4" in only(found)


def test_damage_to_an_old_version_is_found_deeply(app: FanIn) -> None:
    change(app, "left", 2, of_output("by-left", sent=(4, 2), rows=6))
    assert report(app, "bank").consistent
    assert "bank/left v3, channel 'by-left': 3 records written; expected 2" in only(report(app, "bank", deep=True))


def test_a_version_between_reader_and_sender_that_is_gone_is_found(app: FanIn) -> None:
    app.store.delete(keys.manifest("bank", "right", 6))
    app.send("right", 1, 1)
    messages = [difference.message for difference in report(app, "bank").differences]
    assert any("by-right from right to join: no version of bank/right named 'v6'" in message for message in messages)


Records = Callable[[pa.Table], pa.Table]


def rewrite(app: FanIn, how: Records, *, counts: tuple[int, ...] = (3, 2)) -> str:
    """Give the kept object other records, with a checksum that fits. Returns its key."""
    snapshot = read_snapshot(app.store, "bank", "good")
    (kept,) = snapshot.channels
    (one,) = kept.objects
    rows = how(pq.read_table(io.BytesIO(app.store.get(one.key))))
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    data = sink.getvalue()
    app.store.put(one.key, data)
    one = replace(one, rows=rows.num_rows, bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data))
    put_snapshot(app, replace(snapshot, channels=(replace(kept, objects=(one,), counts=counts),)))
    return one.key


def put_snapshot(app: FanIn, snapshot: Snapshot) -> None:
    app.store.put(keys.snapshot("bank", "good"), as_it_is(snapshot))


def moved(rows: pa.Table, number: int, offset: int) -> pa.Table:
    """One record at another offset."""
    offsets = rows["_offset"].to_pylist()
    offsets[number] = offset
    return rows.set_column(2, "_offset", pa.array(offsets, pa.int64()))


def plus(rows: pa.Table, more: pa.Table) -> pa.Table:
    together = pa.concat_tables([rows, more])
    return together.sort_by([("_partition", "ascending"), ("_offset", "ascending"), ("_row", "ascending")])


RECORDS: dict[str, tuple[Records, tuple[int, ...], str]] = {
    "a record too many": (
        lambda rows: plus(rows, records(0, rows["_offset"][0].as_py(), 1, first=9)),
        (4, 2),
        r"by-right\[0\]: right at version 5 sent 4 records, but join at version 3 consumed 1 and 4 are in flight",
    ),
    "a record too few": (
        lambda rows: rows.slice(1),
        (2, 2),
        r"by-right\[0\]: right at version 5 sent 4 records, but join at version 3 consumed 1 and 2 are in flight",
    ),
    "a record too few that the snapshot still counts": (
        lambda rows: rows.slice(1),
        (3, 2),
        "it counts 5 records, and names objects with 4",
    ),
    "a record of another partition": (
        lambda rows: rows.set_column(1, "_partition", pa.array([1] * rows.num_rows, pa.int32())),
        (3, 2),
        r"by-right\[0\]: right at version 5 sent 4 records, but join at version 3 consumed 1 and 0 are in flight",
    ),
    "a record behind the marker": (
        lambda rows: moved(rows, 2, 7),
        (3, 2),
        r"has record by-right\[0\]@7\+0, which lies behind the marker at 6",
    ),
    "a record from before": (
        lambda rows: moved(rows, 0, 1),
        (3, 2),
        r"has record by-right\[0\]@1\+0; expected offsets 2 to 6",
    ),
    "a record twice": (
        lambda rows: rows.take([0, 0, 2, 3, 4]),
        (3, 2),
        r"has record by-right\[0\]@3\+0 twice or out of order",
    ),
    "no addresses": (
        lambda rows: rows.drop_columns(["_row"]),
        (3, 2),
        "does not hold records with addresses",
    ),
    "a partition that the channel has not": (
        lambda rows: rows.set_column(1, "_partition", pa.array([0, 0, 0, 1, 2], pa.int32())),
        (3, 2),
        "has records of partitions beyond 2",
    ),
}


@pytest.mark.parametrize("damage", RECORDS)
def test_damage_to_kept_records_is_found_by_reading_them(app: FanIn, damage: str) -> None:
    how, counts, expected = RECORDS[damage]
    key = rewrite(app, how, counts=counts)
    found = report(app, deep=True)
    messages = [difference.message for difference in found.differences]
    assert any(re.search(expected, message) for message in messages), messages
    assert any(key in message or "by-right" in message for message in messages)


@pytest.mark.parametrize("damage", ["a record too many", "a record too few"])
def test_wrong_counts_of_kept_records_are_found_without_reading_them(app: FanIn, damage: str) -> None:
    how, counts, expected = RECORDS[damage]
    rewrite(app, how, counts=counts)
    assert re.search(expected, only(report(app)))


def kept_key(app: FanIn) -> str:
    ((one,),) = (kept.objects for kept in read_snapshot(app.store, "bank", "good").channels)
    return one.key


@pytest.mark.parametrize("deep", [False, True])
def test_a_kept_object_that_is_gone_or_cut_short_is_named(app: FanIn, deep: bool) -> None:
    key = kept_key(app)
    whole = app.store.get(key)
    app.store.put(key, whole[:-1])
    assert key in only(report(app, deep=deep))
    assert f"has {len(whole) - 1} bytes; expected {len(whole)}" in only(report(app, deep=deep))
    app.store.delete(key)
    assert f"{key} is missing" in only(report(app, deep=deep))


SPANS: dict[str, tuple[Callable[[Captured], tuple[Captured, ...]], str]] = {
    "none of it": (lambda kept: (), "by-right to join: 5 records of versions 4 to 5 are in flight, and it keeps none"),
    "fewer versions": (lambda kept: (replace(kept, after=4),), "it keeps records with after 4; the cut has 3"),
    "more offsets": (
        lambda kept: (replace(kept, ends=(8, 8)),),
        re.escape("it keeps records with ends (8, 8); the cut has (7, "),
    ),
    "another topic": (lambda kept: (replace(kept, topic="x"),), "it keeps records with topic x; the cut has by-right"),
    "another channel's too": (
        lambda kept: (kept, replace(kept, channel="by-left", sender="left")),
        "by-left to join: it keeps 5 records, and nothing is in flight",
    ),
}


@pytest.mark.parametrize("damage", SPANS)
def test_a_snapshot_keeps_exactly_what_is_in_flight(app: FanIn, damage: str) -> None:
    how, expected = SPANS[damage]
    snapshot = read_snapshot(app.store, "bank", "good")
    put_snapshot(app, replace(snapshot, channels=how(snapshot.channels[0])))
    messages = [difference.message for difference in report(app).differences]
    assert any(re.search(expected, message) for message in messages), messages


def test_a_pinned_moment_keeps_all_records_or_none(app: FanIn) -> None:
    cut = resolve(app.store, "bank", now_ms=10**15)
    pin(app.store, cut, "bare")
    pin(app.store, cut, "kept", reader=app.topics)
    assert report(app, "bank@bare").consistent
    assert report(app, "bank@kept", deep=True).consistent
    half = read_snapshot(app.store, "bank", "kept")
    app.store.put(keys.snapshot("bank", "kept"), codec.encode(replace(half, channels=half.channels[:1])))
    assert "by-right to join: 10 records of versions 6 to 6 are in flight, and it keeps none" in only(
        report(app, "bank@kept")
    )


def test_a_snapshot_that_is_no_snapshot_is_named(app: FanIn) -> None:
    app.store.put(keys.snapshot("bank", "good"), b'{"format": 1}')
    assert keys.snapshot("bank", "good") in only(report(app))


@pytest.mark.parametrize(
    ("header", "expected"),
    [("attempt-9", "holds no marker; expected that of"), ("marker other", "holds the marker of other; expected")],
)
def test_what_lies_in_kafka_at_a_markers_offset_is_that_marker(app: FanIn, header: str, expected: str) -> None:
    app.topics.messages["by-left"][0][4] = (header, 0)
    message = only(report(app, deep=True))
    assert message.startswith("by-left[0]@4 ")
    assert expected in message


def test_records_that_kafka_lost_or_has_twice_are_missing_in_the_books(app: FanIn) -> None:
    messages = app.topics.messages["by-right"][1]
    header, rows = messages[-1]
    messages[-1] = (header, rows - 1)
    found = report(app, "bank", deep=True)
    assert only(found) == (
        "by-right[1]: right at version 6 sent 11 records, but join at version 4 consumed 6 and 4 are in flight"
    )
    assert found.ledger[1].partitions == ((9, 4, 0, 5, 0), (11, 6, 0, 4, 1))


def test_a_marker_on_a_channel_nobody_reads_yet_is_looked_at_too() -> None:
    app = bank(MemoryStore())
    for version in (1, 2, 3, 4):
        change(app, "join", version, lambda manifest: replace(manifest, inputs={}))
    snapshot = read_snapshot(app.store, "bank", "good")
    put_snapshot(app, replace(snapshot, channels=()))
    found = report(app, deep=True)
    assert found.consistent
    assert found.ledger == ()
    assert next(each.checked for each in found.checks if each.check == "markers") == 4


class Bank:
    """A bank that was made once: what Hypothesis damages is a copy of it."""

    def __init__(self) -> None:
        self.app = bank(MemoryStore())
        self.objects = {info.key: self.app.store.get(info.key) for info in self.app.store.list("")}

    def fresh(self) -> FanIn:
        self.app.store = MemoryStore()
        for key, data in self.objects.items():
            self.app.store.put(key, data)
        return self.app


@pytest.fixture(scope="module")
def made() -> Bank:
    return Bank()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["left", "right"]), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("join"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.integers(0, 2), st.just(0)),
    ),
    max_size=8,
)


@settings(max_examples=60)
@given(before=STEPS, after=STEPS, back=st.integers(0, 9))
def test_whatever_an_app_did_no_moment_of_it_has_a_difference(before: list[Any], after: list[Any], back: int) -> None:
    app = FanIn(MemoryStore())
    for steps in (before, None, after):
        if steps is None:
            app.snapshot()
        for what, first, second in steps or ():
            if what == "join":
                stands = app.heads["join"].inputs
                app.join(
                    min(stands["by-left"].version + first, app.heads["left"].version) or 1,
                    min(stands["by-right"].version + second, app.heads["right"].version) or 1,
                )
            elif what == "restart":
                app.restart(("left", "right", "join")[first])
            else:
                app.send(what, first, second)
    moments = [f"join@v{app.heads['join'].version}", f"left@v{app.heads['left'].version}"]
    for ref in ("bank", "bank@good", *(f"bank/{moment}" for moment in moments), f"bank@~{back}"):
        for deep in (False, True):
            try:
                found = report(app, ref, deep=deep)
            except NotFound:
                continue  # before its first batch
            assert found.differences == found.not_reread == (), ref


COUNTS = st.sampled_from([("left", 3), ("right", 5), ("join", 3)])


@settings(max_examples=100)
@given(where=COUNTS, partition=st.integers(0, 1), delta=st.integers(-3, 3).filter(bool), pick=st.integers(0, 5))
def test_any_count_or_offset_that_is_off_is_found_without_reading_a_record(
    made: Bank, where: tuple[str, int], partition: int, delta: int, pick: int
) -> None:
    app = made.fresh()
    stage, version = where
    manifest = history.read(app.store, "bank", stage, version)
    sides: list[tuple[str, Input | Output, str]] = [
        *((name, read, field) for name, read in manifest.inputs.items() if read.upstream for field in READ),
        *((name, sent, field) for name, sent in manifest.outputs.items() for field in SENT),
    ]
    name, side, field = sides[pick % len(sides)]
    numbers = list(getattr(side, field))
    numbers[partition] += delta
    damaged = of_input if isinstance(side, Input) else of_output
    change(app, stage, version, damaged(name, **{field: tuple(numbers)}))
    assert not report(app).consistent


READ, SENT = ("offsets", "consumed"), ("ends", "sent")


@settings(max_examples=150)
@given(data=st.data(), deep=st.booleans())
def test_no_byte_of_any_object_makes_it_fail_otherwise_than_by_a_difference(
    made: Bank, data: st.DataObject, deep: bool
) -> None:
    app = made.fresh()
    key = data.draw(st.sampled_from(sorted(made.objects)))
    old = made.objects[key]
    at = data.draw(st.integers(0, len(old) - 1))
    new = old[:at] + data.draw(st.binary(max_size=3)) + old[at + data.draw(st.integers(0, 3)) :]
    app.store.put(key, new)
    found = report(app, deep=deep)
    # JSON may say the same in other bytes; Parquet is what its checksum says.
    if deep and new != old and key.endswith(".parquet"):
        assert key in found.differences[0].message


@settings(max_examples=150)
@given(data=st.data(), deep=st.booleans())
def test_no_manifest_that_the_types_allow_makes_it_fail_otherwise_than_by_a_difference(
    made: Bank, data: st.DataObject, deep: bool
) -> None:
    app = made.fresh()
    stage, version = data.draw(st.sampled_from([("left", 3), ("right", 4), ("right", 5), ("join", 3), ("join", 2)]))
    other = data.draw(MANIFESTS_AT_ALL)
    fields = data.draw(st.sets(st.sampled_from(["inputs", "outputs", "table", "ssts", "time_ms", "epoch", "kind"])))
    values = {name: getattr(other, name) for name in fields}
    if "inputs" in values and values["inputs"] and data.draw(st.booleans()):
        values["inputs"] = dict(zip(("by-left", "by-right", "events"), values["inputs"].values(), strict=False))
    if "outputs" in values and values["outputs"] and data.draw(st.booleans()):
        values["outputs"] = dict(zip(("by-left", "by-right"), values["outputs"].values(), strict=False))
    change(app, stage, version, lambda manifest: replace(manifest, **values))
    report(app, deep=deep)


@settings(max_examples=100)
@given(data=st.data(), deep=st.booleans())
def test_no_snapshot_that_the_types_allow_makes_it_fail_otherwise_than_by_a_difference(
    made: Bank, data: st.DataObject, deep: bool
) -> None:
    app = made.fresh()
    snapshot = read_snapshot(app.store, "bank", "good")
    (kept,) = snapshot.channels
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(Captured, include_extras=True).items():
        if name != "objects" and data.draw(st.booleans()):
            values[name] = data.draw(any_value(hint))
    put_snapshot(app, replace(snapshot, channels=(replace(kept, **values),)))
    found = report(app, deep=deep)
    assert found.consistent == (replace(kept, **values) == kept)
