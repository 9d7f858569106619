"""Rows that a merge keeps: the newest of each key, and tombstones while an older run may have the key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.store.compaction import cursors, merge
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.plan import Compaction, apply_results
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.writer import prepare_rows
from slackwater.store.versions.entries.ssts import Sst

from tests.models.profiles import scaled
from tests.store.compaction.runs import compaction_of
from tests.support.state_rows import ROUTES, Hashes, Key, Values, write_version

LARGE = 1 << 40


def whole(inputs: tuple[Sst, ...], *, drops_tombstones: bool) -> Compaction:
    """Return a compaction of the only state partition."""
    return compaction_of(inputs, drops_tombstones=drops_tombstones, partitions=1)


def test_the_newest_row_of_each_key_is_kept(store: CountingStore, cache: SstCache) -> None:
    old = write_version(store, None, ROUTES, {("a", "x"): (1, None, None), ("b", "x"): (1, None, None)}, 1)
    new = write_version(store, cache, ROUTES, {("a", "x"): (2, None, None), ("c", "x"): (2, None, None)}, 2)
    before = store.counts["put"]
    done = run_compaction(store, cache, "app", "stage", ROUTES, whole((*new, *old), drops_tombstones=True))
    (output,) = done.outputs
    assert store.counts["put"] == before + 1
    kept = cache.cached_rows(output, ROUTES)
    assert kept is not None
    found = {row["origin"]: (row["flights"], row["_seq"]) for row in kept.stored.to_pylist()}
    assert found == {"a": (2, 2), "b": (1, 1), "c": (2, 2)}
    assert (output.seq_min, output.seq_max, output.level, output.rows) == (1, 2, 1, 3)
    assert output.object not in (old[0].object, new[0].object)


def test_tombstones_stay_while_an_older_run_may_have_the_key(store: CountingStore, cache: SstCache) -> None:
    mid = write_version(store, cache, ROUTES, {("a", "x"): (1, None, None), ("b", "x"): None}, 2)
    new = write_version(store, cache, ROUTES, {("a", "x"): None}, 3)
    done = run_compaction(store, cache, "app", "stage", ROUTES, whole((*new, *mid), drops_tombstones=False))
    (output,) = done.outputs
    assert (output.rows, output.tombstones) == (2, 2)
    gone = run_compaction(store, cache, "app", "stage", ROUTES, whole((output,), drops_tombstones=True))
    assert gone.outputs == ()
    assert apply_results((output,), [gone]) == ()


def test_the_level_is_one_more_than_the_highest_input(store: CountingStore, cache: SstCache) -> None:
    old = write_version(store, cache, ROUTES, {("a", "x"): (1, None, None)}, 1)[0]
    new = write_version(store, cache, ROUTES, {("b", "x"): (1, None, None)}, 2)[0]
    done = run_compaction(
        store, cache, "app", "stage", ROUTES, whole((new, replace(old, level=4)), drops_tombstones=True)
    )
    (output,) = done.outputs
    assert output.level == 5


def test_a_damaged_input_is_reported_and_nothing_is_written(store: CountingStore, cache: SstCache) -> None:
    old = write_version(store, None, ROUTES, {("a", "x"): (1, None, None)}, 1)[0]
    store.put(old.object, b"")
    before = store.counts["put"]
    with pytest.raises(Corruption):
        run_compaction(store, cache, "app", "stage", ROUTES, whole((old,), drops_tombstones=True))
    assert store.counts["put"] == before


histories = st.lists(
    st.dictionaries(st.integers(0, 40), st.integers(0, 9) | st.none(), min_size=1), min_size=1, max_size=6
)


@scaled(40)
@given(
    histories,
    st.sampled_from([0, 1, 5]),
    st.booleans(),
    st.sampled_from([4, 1 << 18]),
    st.sampled_from([1, 200, 1 << 20]),
    st.sampled_from(["in the cache", "in the store", "large, in the store"]),
)
def test_merging_changes_nothing_but_the_number_of_rows(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[dict[int, int | None]],
    modulus: int,
    drop: bool,
    slice_rows: int,
    chunk_bytes: int,
    inputs: str,
) -> None:
    store = CountingStore(MemoryStore())
    cache = SstCache(tmp_path_factory.mktemp("cache"), LARGE if inputs == "in the cache" else 0)
    expected: dict[Key, tuple[Values | None, int]] = {}
    ssts: tuple[Sst, ...] = ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slackwater.store.sst.writer.PAGE_ROWS", 3)
        patch.setattr("slackwater.store.sst.writer.ROW_GROUP_ROWS", 8)
        for seq, changes in enumerate(history, start=1):
            rows: dict[Key, Values | None] = {
                (None if k == 0 else str(k), "x"): None if v is None else (v, None, None) for k, v in changes.items()
            }
            ssts = (*write_version(store, cache, ROUTES, rows, seq, Hashes(modulus)), *ssts)
            expected |= {key: (values, seq) for key, values in rows.items()}
        if drop:
            expected = {key: found for key, found in expected.items() if found[0] is not None}
        patch.setattr(merge, "_SLICE_ROWS", slice_rows)
        patch.setattr(cursors, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(cursors, "_LARGE_ROW_BYTES", 0 if inputs.startswith("large") else LARGE)
        patch.setattr("slackwater.store.read.decode.BLOCK_ROWS", 7)
        done = run_compaction(store, cache, "app", "stage", ROUTES, whole(ssts, drops_tombstones=drop))
    if not done.outputs:
        assert not expected
        return
    (output,) = done.outputs
    table = cache.open(store, output, ROUTES).stored
    found = {
        (row["origin"], row["dest"]): (
            None if row["_op"] else (row["flights"], row["delay"], row["_sum"]),
            row["_seq"],
        )
        for row in table.to_pylist()
    }
    assert found == expected
    assert output.rows == len(expected)
    # In the order of an SST, which preparing it again would not change.
    assert prepare_rows(table, ROUTES) == table
