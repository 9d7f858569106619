"""Garbage collection of input archives deletes expired records and unindexed objects, and nothing else."""

import pytest
from slackwater.client.show import maintenance
from slackwater.common import instants
from slackwater.snapshot.gc.collect import collect, explain
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.archive import index, merge
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.index import INDEXES, ArchiveIndex
from slackwater.store.versions import keys

from tests.store.archive.small_archives import BY, append
from tests.support.collecting import HOUR_MS, AgingStore, aging_app, store_of
from tests.support.histories import FlightsApp, flights

APP, TOPIC, PREFIX = "flights", "orders", "flights/input/orders/"
DAY = Retention(input_ms=24 * HOUR_MS)


def an_archive(objects: int = 3, topic: str = TOPIC) -> tuple[FlightsApp, AgingStore, ArchiveIndex]:
    """Return an app whose archive got an object every ten hours."""
    app = aging_app()
    app.run(flights(5))
    store = store_of(app)
    for number in range(objects):
        if number:
            store.clock_ms += 10 * HOUR_MS
        head = append(store, APP, Extent(0, 10 * number, 10 * number + 10), topic=topic, read_ms=store.clock_ms)
    return app, store, head


def test_expired_records_are_deleted_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store, head = an_archive()
    store.clock_ms += 20 * HOUR_MS
    monkeypatch.setattr(instants, "now_ms", lambda: store.clock_ms)  # by which a dry run goes
    looked = collect(store, APP, DAY, by=BY, dry_run=True)
    assert index.newest(store, APP, TOPIC) == head
    (each,) = looked.archives
    assert (each.records, each.kept_records) == (20, 10)
    done = collect(store, APP, DAY, by=BY)
    assert done.archives[0].records == 20
    there = {info.key for info in store.list(PREFIX)}
    then = index.newest(store, APP, TOPIC)
    assert then is not None
    assert (then.objects, then.thinned) == (head.objects[2:], (Extent(0, 0, 20),))
    assert {key for key in there if key.endswith(".parquet")} == {head.objects[2].object}
    again = collect(store, APP, DAY, by=BY)
    assert (again.archives[0].records, index.newest(store, APP, TOPIC)) == (0, then)


def test_each_topic_has_its_rule_and_without_a_rule_all_records_stay() -> None:
    _, store, _ = an_archive()
    append(store, APP, Extent(0, 0, 5), topic="others", read_ms=store.clock_ms)
    store.clock_ms += 1_000 * HOUR_MS
    rule = Retention(input_topics={"others": HOUR_MS})
    done = {each.topic: each.records for each in collect(store, APP, rule, by=BY).archives}
    assert done == {TOPIC: 0, "others": 5}
    assert rule.keeps_everything
    assert rule.archives


def test_merged_and_unindexed_objects_are_deleted_after_the_margin() -> None:
    _, store, head = an_archive()
    merged = merge.merge(store, head, head.objects[:2], by=BY, now_ms=1)
    store.put(f"{PREFIX}01LITTER.parquet", b"litter")
    before = {each.object for each in head.objects}
    collect(store, APP, Retention(), by=BY)
    there = {info.key for info in store.list(PREFIX)}
    # Whoever reads by the index of before still can.
    assert before <= there
    assert f"{PREFIX}01LITTER.parquet" in there
    store.clock_ms += 2 * HOUR_MS
    collect(store, APP, Retention(), by=BY)
    append(store, APP, Extent(1, 0, 5), read_ms=store.clock_ms)
    store.clock_ms += 2 * HOUR_MS
    append(store, APP, Extent(1, 5, 6), read_ms=store.clock_ms)
    done = collect(store, APP, Retention(), by=BY)
    assert done.archives[0].records == 0
    then = index.newest(store, APP, TOPIC)
    assert then is not None
    assert {info.key for info in store.list(PREFIX) if info.key.endswith(".parquet")} == {
        each.object for each in then.objects
    }
    assert len(INDEXES.listed(store, PREFIX)) <= 2
    assert merged.objects[0] in then.objects


def test_explain_says_why_an_archived_object_stays_or_is_deleted() -> None:
    _, store, head = an_archive()
    kept = explain(store, APP, head.objects[0].object, DAY)
    assert (kept.kept, kept.reasons) == (
        True,
        ("the input archive of orders holds it, for as long as `input` under [retention] says",),
    )
    store.put(f"{PREFIX}01LITTER.parquet", b"litter")
    assert not explain(store, APP, "input/orders/01LITTER.parquet", DAY).kept
    assert explain(store, APP, f"{keys.archive_indexes(PREFIX)}{1:020}.json", DAY).kept


def test_an_archive_with_a_damaged_index_is_named_and_the_rest_is_collected() -> None:
    app, store, head = an_archive()
    append(store, APP, Extent(0, 0, 5), topic="others", read_ms=store.clock_ms)
    app.run(flights(5))
    store.clock_ms += 1_000 * HOUR_MS
    key = INDEXES.key(head)
    store.put(key, b"{")
    before = {info.key for info in store.list(PREFIX)}
    done = collect(store, APP, Retention(versions=1, input_ms=HOUR_MS), by=BY)
    assert [each.topic for each in done.archives] == ["others"]
    assert done.archives[0].records == 5
    assert any(each.versions for each in done.stages)
    assert {info.key for info in store.list(PREFIX)} == before
    (said,) = done.damaged
    assert said.startswith(
        f"the content of the input archive of {TOPIC} of {APP} is unknown, because its index is damaged"
    )
    assert key in said
    assert f"delete all under {PREFIX}" in said
    assert f"one archive was skipped: {said}" in str(maintenance.gc_result(done))
