"""Bytes read by differences and histories are proportional to the changes, not to the table."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick_for_manifest
from slackwater.store.compaction.plan import apply_results
from slackwater.store.objects.counting import CountingStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import commit
from slackwater.store.versions.manifest import Column, Policy, Ttl

from tests.snapshot.wide import repeat_version
from tests.support.stages import TABLE, Stage
from tests.support.state_rows import Key, Values, write_version

NUM_ROWS = 130_000
"""Number of rows, enough for eight row groups."""
CHANGED = (7, 40_000)


def rows(*numbers: int, plus: int = 0) -> dict[Key, Values | None]:
    return {(number,): (number + plus, f"row {number}") for number in numbers}


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)


@pytest.fixture
def cold(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cold", 0)


def test_a_diff_reads_the_changed_row_groups(cache: SstCache, tmp_path: Path) -> None:
    stage = Stage()
    before = stage.put(rows(*range(NUM_ROWS)))
    stage.put(rows(*CHANGED, plus=1))
    after = stage.put({(NUM_ROWS - 1,): None})
    for number, version in enumerate((after, stage.compact(cache))):
        store = CountingStore(stage.store)
        cold = SstCache(tmp_path / f"cold-{number}", 0)
        (found,) = diff(cold, *(StoredCut(store, Cut("app", {"stage": each})) for each in (before, version)))
        assert (found.changed, found.removed, found.added) == (2, 1, 0)
        # Each key has a row group before and one after, of eight each; the latter are asked for what changed, first.
        stored = sum(sst.bytes for each in (before, version) for sst in each.ssts)
        assert store.bytes_read < 0.7 * stored


def test_a_diff_of_shared_ssts_reads_nothing(cache: SstCache, cold: SstCache) -> None:
    stage = Stage()
    before = stage.put(rows(*range(1000)))
    store = CountingStore(stage.store)
    moved = replace(before, version=9, ssts=tuple(replace(sst, level=5) for sst in before.ssts))
    (found,) = diff(cold, *(StoredCut(store, Cut("app", {"stage": each})) for each in (before, moved)))
    assert found.is_equal
    assert store.requests == 0


def test_columns_of_only_one_side_are_noted_and_the_others_compared(cold: SstCache) -> None:
    values = (Column("v", "double"), Column("w", "string"), Column("x", "int64"))
    stage, other = Stage(), Stage(replace(TABLE, values=values))
    before = stage.put(rows(1, 2))
    after = other.put({(1,): (1.0, "row 1", 1), (2,): (2.0, "row two", 1)})
    sides = StoredCut(stage.store, Cut("app", {"stage": before})), StoredCut(other.store, Cut("b", {"stage": after}))
    (found,) = diff(cold, *sides)
    assert found.unlike == ("column v is int64 before and double after: not compared", "column x exists only after")
    assert [(each.column, each.differing, each.rate) for each in found.columns] == [("w", 1, 0.5)]
    assert not found.is_equal


def test_a_column_added_by_a_migration_is_compared_unless_excluded(cold: SstCache) -> None:
    more = (Column("v", "int64", id=2), Column("called", "string", id=3), Column("x", "int64", id=4, since=2))
    stage = Stage()
    before = stage.put(rows(1, 2, 3))
    stage.table = replace(TABLE, key=(Column("k", "int64", id=1),), values=more, schema=2, next_id=5)
    after = stage.put({(1,): (1, "row 1", 7), (2,): (2, "row two", 7)})
    sides = [StoredCut(stage.store, Cut("app", {"stage": each})) for each in (before, after)]
    (found,) = diff(cold, *sides)
    assert found.unlike == ("column w was renamed to called", "column x exists only after")
    assert [(each.column, each.differing) for each in found.columns] == [("v", 0), ("called", 1), ("x", 2)]
    (found,) = diff(cold, *sides, ignore_new=True)
    assert found.unlike == ("column w was renamed to called",)
    assert [(each.column, each.differing) for each in found.columns] == [("v", 0), ("called", 1)]
    assert [(each.key, each.kind) for each in found.changes] == [({"k": 2}, "changed")]
    # The other way round a column has gone, which is told.
    assert "column x exists only before" in diff(cold, *reversed(sides), ignore_new=True)[0].unlike


def test_tables_with_other_keys_are_not_compared(cold: SstCache) -> None:
    stage, other = Stage(), Stage(replace(TABLE, key=(Column("k", "string"),)))
    before, after = stage.put(rows(1)), other.put({("1",): (1, "row 1")})
    sides = StoredCut(stage.store, Cut("app", {"stage": before})), StoredCut(other.store, Cut("b", {"stage": after}))
    (found,) = diff(cold, *sides)
    assert found.unlike == ("the key is k int64 before and k string after: rows cannot be compared",)
    assert not found.is_equal


def test_a_table_missing_on_one_side_counts_as_empty(cold: SstCache) -> None:
    stage = Stage()
    after = stage.put(rows(1, 2))
    sides = StoredCut(stage.store, Cut("app", {})), StoredCut(stage.store, Cut("app", {"stage": after}))
    (found,) = diff(cold, *sides)
    assert (found.added, found.removed, found.changed) == (2, 0, 0)
    assert diff(cold, *sides, ignore_new=True) == ()
    # One that has gone is no news that could be passed over.
    (found,) = diff(cold, *reversed(sides), ignore_new=True)
    assert (found.added, found.removed, found.changed) == (0, 2, 0)
    assert diff(cold, *sides, tables={"other": None}) == ()


def test_a_history_takes_three_requests_per_change(cache: SstCache, tmp_path: Path) -> None:
    stage = Stage(replace(TABLE, compaction=Policy(l0_trigger=4)))
    stage.put(rows(*range(100)))
    for number in range(60):
        stage.put(rows(*range(number % 50, 100, 50), *((7,) if number % 2 else ()), plus=number + 1))
        stage.compact(cache, full=False)
    found = key_history(stage.store, SstCache(tmp_path / "new", 1 << 20), "app", "stage", ["7"], now_ms=0)
    assert len(found.changes) >= 30
    assert found.reads.requests <= 3 * len(found.changes)


def test_a_history_of_a_rarely_changed_key_takes_as_few_requests(cache: SstCache, tmp_path: Path) -> None:
    """Each row names the version of the row before it, so the versions between them are not read."""
    stage = Stage(replace(TABLE, compaction=Policy(l0_trigger=8)))
    stage.put(rows(*range(20_000)))
    for number in range(120):
        stage.put(rows(*range(number % 50, 20_000, 50), *((20_001,) if number % 30 == 0 else ()), plus=number + 1))
        stage.compact(cache, full=False)
    found = key_history(stage.store, SstCache(tmp_path / "new", 1 << 20), "app", "stage", ["20001"], now_ms=0)
    assert [change.kind for change in found.changes] == ["changed"] * 3 + ["added"]
    runs = len(stage.versions[-1].ssts)
    assert found.reads.requests <= 3 * len(found.changes) + 2 * runs


def test_a_history_does_not_list_versions(cold: SstCache) -> None:
    stage = Stage()
    for number in range(5):
        stage.put(rows(1, plus=number))
    repeat_version(stage.store, stage.versions[-1], 5_000)
    store = CountingStore(stage.store)
    found = key_history(store, cold, "app", "stage", [1], now_ms=0)
    assert [change.version for change in found.changes] == [5, 4, 3, 2, 1]
    # The stages, and the search for the newest version; each change reads its version and an SST.
    assert store.counts["list"] + store.counts["list_folders"] <= 6
    assert store.counts["get"] + store.counts["get_range"] <= 3 * 5 + 15


def test_the_change_that_added_a_row_takes_no_search_of_older_versions(cold: SstCache) -> None:
    stage = Stage()
    before = repeat_version(stage.store, stage.put(rows(1)), 2_000)
    ssts = write_version(stage.store, None, TABLE, rows(2), 2_001, base=before.ssts)
    commit.commit(stage.store, replace(before, version=2_001, time_ms=before.time_ms + 1, ssts=(*ssts, *before.ssts)))
    store = CountingStore(stage.store)
    found = key_history(store, cold, "app", "stage", [2], limit=1, now_ms=0)
    assert [(each.version, each.kind) for each in found.changes] == [(2_001, "added")]
    assert store.counts["get"] + store.counts["get_range"] <= 20


def test_a_deletion_that_a_merge_dropped_is_in_the_history(cache: SstCache) -> None:
    """The next batch looks up the key in the SSTs after the merge, so its row does not name the deletion."""
    stage = Stage()
    stage.put(rows(1))
    head = stage.put({(1,): None})
    merged = apply_results(
        head.ssts,
        [run_compaction(stage.store, cache, "app", "stage", TABLE, one) for one in pick_for_manifest(head, full=True)],
    )
    assert not merged
    ssts = write_version(stage.store, None, TABLE, rows(1, plus=1), 3, base=merged)
    commit.commit(stage.store, replace(head, version=3, time_ms=3, ssts=ssts))
    found = key_history(stage.store, cache, "app", "stage", ["1"], now_ms=0)
    assert [(each.version, each.kind) for each in found.changes] == [(3, "added"), (2, "removed"), (1, "added")]


def test_a_row_that_expired_after_the_newest_version_is_removed_in_its_history(cache: SstCache) -> None:
    stage = Stage(replace(TABLE, ttl=Ttl(1000)))
    stage.put(rows(1), clock_ms=10)
    found = key_history(stage.store, cache, "app", "stage", [1], now_ms=1009)
    assert [(each.kind, each.version) for each in found.changes] == [("added", 1)]
    found = key_history(stage.store, cache, "app", "stage", [1], now_ms=1010)
    gone = found.changes[0]
    assert (gone.kind, gone.expired, gone.version, gone.after_version, gone.time_ms) == ("removed", True, 1, 1, 1010)
    assert [each.is_by_batch for each in found.changes] == [False, True]


def test_two_apps_are_compared_with_a_noted_tolerance_for_floats(cold: SstCache) -> None:
    values = (Column("total", "double"), Column("w", "string"))
    table = replace(TABLE, values=values)
    stage, other = Stage(table), Stage(table)
    before = stage.put({(1,): (0.1 + 0.2 + 0.3, "a"), (2,): (5.0, "b"), (3,): (1.0, "c")})
    after = other.put({(1,): (0.3 + 0.2 + 0.1, "a"), (2,): (5.01, "b"), (3,): (1.0, "c")})
    sides = StoredCut(stage.store, Cut("app", {"stage": before})), StoredCut(other.store, Cut("b", {"stage": after}))
    (found,) = diff(cold, *sides)
    assert [(change.key, change.kind) for change in found.changes] == [({"k": 2}, "changed")]
    assert dict(found.near) == {"total": 1}
    assert [column.differing for column in found.columns] == [1, 0]


def test_two_moments_of_one_app_are_compared_exactly(cold: SstCache) -> None:
    stage = Stage(replace(TABLE, values=(Column("total", "double"), Column("w", "string"))))
    before = stage.put({(1,): (0.1 + 0.2 + 0.3, "a")})
    after = stage.put({(1,): (0.3 + 0.2 + 0.1, "a")})
    (found,) = diff(cold, *(StoredCut(stage.store, Cut("app", {"stage": each})) for each in (before, after)))
    assert found.changed == 1
    assert not found.near
