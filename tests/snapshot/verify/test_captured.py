"""Damage to the in-flight records that a snapshot keeps."""

import io
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from msgspec.structs import replace
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import Captured, read_snapshot
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.versions import codec, keys

from tests.snapshot.verify.damaging import only, put_snapshot, report
from tests.support.fan_in import FanIn, records
from tests.support.hostile import sealed

Records = Callable[[pa.Table], pa.Table]


def rewrite(app: FanIn, how: Records, *, counts: tuple[int, ...] = (3, 2)) -> str:
    """Replace the records of the kept object, and adapt its checksum. Returns the object's key."""
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


def moved(rows: pa.Table, number: int, offset: int) -> pa.Table:
    """Return the rows with one record at another offset."""
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
        "it counts 5 records, but its objects have 4",
    ),
    "a record of another partition": (
        lambda rows: rows.set_column(1, "_partition", pa.array([1] * rows.num_rows, pa.int32())),
        (3, 2),
        r"by-right\[0\]: right at version 5 sent 4 records, but join at version 3 consumed 1 and 0 are in flight",
    ),
    "a record behind the marker": (
        lambda rows: moved(rows, 2, 7),
        (3, 2),
        r"has record by-right\[0\]@7\+0, which is after the marker at 6",
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
    "no addresses": (lambda rows: rows.drop_columns(["_row"]), (3, 2), "does not hold records with addresses"),
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
def test_a_missing_or_truncated_object_of_records_is_named(app: FanIn, deep: bool) -> None:
    key = kept_key(app)
    whole = app.store.get(key)
    app.store.put(key, whole[:-1])
    assert key in only(report(app, deep=deep))
    assert f"has {len(whole) - 1} bytes; expected {len(whole)}" in only(report(app, deep=deep))
    app.store.delete(key)
    assert f"{key} is missing" in only(report(app, deep=deep))


SPANS: dict[str, tuple[Callable[[Captured], tuple[Captured, ...]], str]] = {
    "none of it": (lambda kept: (), "by-right to join: 5 records of versions 4 to 5 are in flight, but it keeps none"),
    "fewer versions": (lambda kept: (replace(kept, after=4),), "it keeps records with after 4; expected 3"),
    "more offsets": (
        lambda kept: (replace(kept, ends=(8, 8)),),
        re.escape("it keeps records with ends (8, 8); expected (7, "),
    ),
    "another topic": (lambda kept: (replace(kept, topic="x"),), "it keeps records with topic x; expected by-right"),
    "another channel's too": (
        lambda kept: (kept, replace(kept, channel="by-left", sender="left")),
        "by-left to join: it keeps 5 records, but none are in flight",
    ),
}


@pytest.mark.parametrize("damage", SPANS)
def test_a_snapshot_keeps_exactly_what_is_in_flight(app: FanIn, damage: str) -> None:
    how, expected = SPANS[damage]
    snapshot = read_snapshot(app.store, "bank", "good")
    put_snapshot(app, replace(snapshot, channels=how(snapshot.channels[0])))
    messages = [difference.message for difference in report(app).differences]
    assert any(re.search(expected, message) for message in messages), messages


def test_a_pinned_moment_keeps_the_records_of_all_channels_or_of_none(app: FanIn) -> None:
    cut = resolve(app.store, "bank", now_ms=10**15)
    pin_cut(app.store, cut, "bare")
    pin_cut(app.store, cut, "kept", reader=app.topics)
    assert report(app, "bank@bare").consistent
    assert report(app, "bank@kept", deep=True).consistent
    half = read_snapshot(app.store, "bank", "kept")
    app.store.put(
        keys.json_object(keys.snapshots("bank"), "kept"), codec.encode(replace(half, channels=half.channels[:1]))
    )
    assert "by-right to join: 10 records of versions 6 to 6 are in flight, but it keeps none" in only(
        report(app, "bank@kept")
    )


def test_an_unreadable_snapshot_is_named(app: FanIn) -> None:
    app.store.put(keys.json_object(keys.snapshots("bank"), "good"), sealed({}))
    assert keys.json_object(keys.snapshots("bank"), "good") in only(report(app))
