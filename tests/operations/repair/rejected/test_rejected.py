"""The table of rejected records behaves like any table in queries, diffs, clones and garbage collection."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused
from slackwater.operations.repair.rejected_listing import list_rejected
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.bisect.predicate import SqlPredicate
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.change import stages
from slackwater.snapshot.change.stages import rescale
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.answers import run_statement
from slackwater.snapshot.query.columns import get
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import keys
from slackwater.store.versions.manifest import Manifest, SideTable
from slackwater.store.versions.side_tables import REJECTED, REJECTED_RECORDS, all_ssts, find_owner, rejected_counts

from tests.operations.repair.rejected.rejecting import mark_retried, reject
from tests.support.collecting import aging_app, gc, keys_of, store_of, wait
from tests.support.histories import FlightsApp, Kafka, flights

TABLE = "aircraft_rejected"


@pytest.fixture
def app(tmp_path: Path) -> FlightsApp:
    """Return an app with twenty flights.

    `aircraft` has rejected five records in two batches; one of them was retried.
    """
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))
    reject(app, "aircraft", [3, 4], tmp_path)
    reject(app, "aircraft", [7, 8, 9], tmp_path)
    app.run(flights(10))
    mark_retried(app, "aircraft", [4], tmp_path)
    return app


def asked(app: FlightsApp, cache: SstCache, sql: str, ref: str = "flights") -> list[tuple[object, ...]]:
    cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
    found = run_statement(app.store, cache, cut, sql, later={}, now_ms=app.clock.now_ms)
    return [tuple(row.values()) for row in found.to_pylist()]


def test_queries_can_read_the_rejected_table_at_any_moment(app: FlightsApp, cache: SstCache) -> None:
    assert asked(app, cache, f'SELECT "offset", retried IS NULL FROM {TABLE} ORDER BY 1') == [
        (3, True),
        (4, False),
        (7, True),
        (8, True),
        (9, True),
    ]
    assert asked(app, cache, "SELECT count(*) FROM aircraft")[0][0] == 7
    first = app.version("aircraft", 4)
    assert asked(app, cache, f"SELECT count(*) FROM {TABLE}", f"flights/aircraft@v{first.version}") == [(2,)]
    assert asked(app, cache, f"SELECT count(*) FROM {TABLE} AT 'v5'") == [(5,)]
    versions = f"SELECT _version, count(*) FROM versions('{TABLE}', 'v4', 'v5') GROUP BY 1 ORDER BY 1"
    assert asked(app, cache, versions) == [(4, 2), (5, 5)]
    row = get(app.store, resolve(app.store, "flights", now_ms=0), TABLE, ["flights", 0, 8, 0])
    assert row["error"].to_pylist() == ["ValueError"]


def test_diff_history_and_bisect_work_on_the_rejected_table(app: FlightsApp, cache: SstCache) -> None:
    before, after = (resolve(app.store, f"flights/aircraft@v{number}", now_ms=0) for number in (4, 7))
    (found,) = diff(cache, StoredCut(app.store, before), StoredCut(app.store, after), table=TABLE)
    assert (found.added, found.removed, found.changed) == (3, 0, 1 if app.heads["aircraft"].version == 7 else 0)
    history = key_history(app.store, cache, "flights", TABLE, ["flights", 0, 4, 0], now_ms=app.clock.now_ms)
    assert [(each.stage, each.kind) for each in history.changes] == [("aircraft", "changed"), ("aircraft", "added")]
    where = SqlPredicate(f'SELECT * FROM {TABLE} WHERE "offset" = 8')
    verdict = bisect(app.store, cache, "flights", where, good="flights/aircraft@v4", now_ms=app.clock.now_ms)
    assert (verdict.stage, verdict.bad_version) == ("aircraft", 5)
    assert verdict.flips is not None
    assert [flip.ref for flip in verdict.flips.flips] == ["flights/aircraft@v5"]


def test_verify_checks_every_byte_of_the_rejected_table(app: FlightsApp) -> None:
    assert verify(app.store, "flights", now_ms=app.clock.now_ms, deep=True).differences == ()
    sst = app.heads["aircraft"].side_tables["rejected"].ssts[0]
    app.store.put(sst.object, app.store.get(sst.object)[:-1])
    for deep in (False, True):
        found = verify(app.store, "flights", now_ms=app.clock.now_ms, deep=deep).differences
        assert any(sst.object in str(each) for each in found)


def test_a_clone_has_the_rejected_table_and_its_source_keeps_it(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="ada", now_ms=app.clock.now_ms)
    staging = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    assert rejected_counts(staging.heads["aircraft"]) == (0, 5, 4)
    reject(staging, "aircraft", [11], tmp_path)
    assert asked(staging, cache, f"SELECT count(*) FROM {TABLE}", "staging") == [(6,)]
    assert asked(app, cache, f"SELECT count(*) FROM {TABLE}") == [(5,)]
    assert verify(app.store, "staging", now_ms=app.clock.now_ms, deep=True).differences == ()


def test_compactions_rescales_and_claims_keep_the_rejected_table(app: FlightsApp, cache: SstCache) -> None:
    app.compact("aircraft")
    rescale(app.store, "flights", "aircraft", 5, by="ada", now_ms=app.clock.tick("aircraft"))
    app.claim("aircraft")
    app.send(*flights(5))
    app.step_all()
    assert rejected_counts(app.heads["aircraft"]) == (0, 5, 4)
    assert asked(app, cache, f"SELECT count(*) FROM {TABLE}") == [(5,)]
    assert verify(app.store, "flights", now_ms=app.clock.now_ms, deep=True).differences == ()


def test_gc_deletes_only_unreferenced_rejected_records(tmp_path: Path, cache: SstCache) -> None:
    app = aging_app()
    app.run(flights(20))
    for offset in range(16):
        reject(app, "aircraft", [offset], tmp_path)
    wait(app)
    app.run(flights(40))
    wait(app)
    before = keys_of(store_of(app), keys.ssts("flights", "aircraft"))
    gc(app, Retention(versions=2))
    after = keys_of(store_of(app), keys.ssts("flights", "aircraft"))
    named = {sst.object for sst in all_ssts(app.heads["aircraft"])}
    assert named <= after < before
    assert len(app.heads["aircraft"].side_tables["rejected"].ssts) < 8, "runs are merged as they come"
    assert asked(app, cache, f'SELECT count(*), count(DISTINCT "offset") FROM {TABLE}') == [(16, 16)]
    assert verify(app.store, "flights", now_ms=app.clock.now_ms, deep=True).differences == ()


def test_waiting_records_are_listed_newest_first_with_all_details(app: FlightsApp, cache: SstCache) -> None:
    cut = resolve(app.store, "flights", now_ms=0)
    found = list_rejected(app.store, cache, cut)
    assert (dict(found.total), dict(found.waiting)) == ({"aircraft": 5}, {"aircraft": 4})
    assert [each.address.partition("@")[2] for each in found.records] == ["7+0", "8+0", "9+0", "3+0"]
    assert found.records[0].value == b"no json"
    assert len(list_rejected(app.store, cache, cut, every=True).records) == 5
    assert len(list_rejected(app.store, cache, cut, limit=2).records) == 2
    assert list_rejected(app.store, cache, cut, stage="legs").records == ()
    with pytest.raises(NotFound, match="'no-such'"):
        list_rejected(app.store, cache, cut, stage="no-such")


def test_a_retry_is_requested_once_and_only_if_records_wait(app: FlightsApp) -> None:
    assert stages.count_retriable_records(app.store, "flights") == {"aircraft": 4}
    first = stages.request_retry(app.store, "flights", "aircraft", by="ada", now_ms=1)
    assert stages.request_retry(app.store, "flights", "aircraft", by="bob", now_ms=2) == first
    assert stages.RETRIES.all(app.store, "flights") == (first,)
    stages.RETRIES.remove(app.store, first.id, "flights")
    assert stages.RETRIES.all(app.store, "flights") == ()
    with pytest.raises(Refused, match="flights/legs has no rejected records to retry"):
        stages.request_retry(app.store, "flights", "legs", by="ada", now_ms=3)
    with pytest.raises(NotFound):
        stages.count_retriable_records(app.store, "flights", "no-such")


def test_a_stage_named_like_a_rejected_table_owns_the_name() -> None:
    plain = Manifest("shop", "legs", 1, 1, "w", 1, "claim")
    with_rejects = replace(plain, side_tables={REJECTED: SideTable(REJECTED_RECORDS)})
    assert find_owner("legs_rejected", {"legs": with_rejects}) == "legs"
    assert find_owner("legs_rejected", {"legs": with_rejects, "legs_rejected": plain}) == "legs_rejected"
    assert find_owner("legs_rejected", {"legs": plain}) == "legs_rejected"
