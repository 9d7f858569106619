"""SSTs in leaves: every change and fold gives the SSTs of a plain set, and reads only the leaves that it needs."""

import operator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, keys
from slackwater.store.versions.entries.ssts import Sst, Ssts, name_of
from slackwater.store.versions.leaves import fold as folding
from slackwater.store.versions.leaves.fold import Fold, apply_fold, plan_fold, write_fold
from slackwater.store.versions.leaves.objects import MAX_LEAVES, bind_reader, bind_ssts
from slackwater.store.versions.manifest import Column, Manifest, Table

from tests.models.profiles import scaled
from tests.support.manifests import manifest

LOWEST, HIGHEST = -(2**63), 2**63 - 1
STEP = 2**64 // 32
SMALL = 165 * 4
"""Limit that allows four inline entries."""

spans = st.tuples(st.integers(0, 31), st.integers(0, 31)).map(sorted)


def sst(number: int, low: int = 0, high: int = 31, seq: int = 1, level: int = 0) -> Sst:
    bounds = LOWEST + low * STEP, LOWEST + (high + 1) * STEP - 1
    key = keys.sst("app", "stage", f"{number:026}")
    return Sst(key, 0, level, 5, 900, "0a" * 16, *bounds, seq, seq, 8, "ff" * 16, 4, tombstones=number % 3)


def stored_and_read(store: MemoryStore, ssts: Ssts, version: int = 1 << 20) -> Ssts:
    """Return the SSTs as another process would read them."""
    data = codec.encode(replace(manifest(version), table=TABLE, ssts=ssts))
    return bind_reader(store, codec.decode(data, Manifest, key="k")).ssts


TABLE = Table((Column("k", "int64"),), (Column("v", "int64"),), 4)


@scaled(60, in_ci=2000)
@given(st.data())
def test_changes_and_folds_in_any_order_give_the_ssts_of_a_plain_set(data: st.DataObject) -> None:
    store, numbers = MemoryStore(), count(1)
    ssts, expected = Ssts(), set[Sst]()
    written: list[Fold] = []
    for version in range(1, data.draw(st.integers(2, 14), "versions")):
        earlier, before = ssts, set(expected)
        change = data.draw(
            st.sampled_from(["batch", "batch", "merge", "forget", "fold", "fold", "late fold", "late fold", "move"]),
            "change",
        )
        some = sorted(expected, key=name_of)
        chosen = data.draw(st.lists(st.sampled_from(some), unique=True, max_size=4), "chosen") if some else []
        if change == "batch":
            new = [sst(next(numbers), *data.draw(spans), version) for _ in range(data.draw(st.integers(1, 6)))]
            ssts, expected = ssts.plus(new), expected | {*new}
        elif change == "merge":
            new = [sst(next(numbers), *data.draw(spans), version, 1) for _ in range(data.draw(st.integers(0, 3)))]
            ssts, expected = ssts.replaced(chosen, new), expected.difference(chosen) | {*new}
        elif change == "move":
            moved = [replace(old, level=old.level + 1) for old in chosen]
            ssts, expected = ssts.replaced(chosen, moved), expected.difference(chosen) | {*moved}
        elif change == "forget":
            now = {old: sst(next(numbers), 0, 3, version) if number % 2 else None for number, old in enumerate(chosen)}
            ssts = ssts.mapped(lambda old, now=now: now.get(old, old))
            expected = expected.difference(chosen) | {new for new in now.values() if new is not None}
        elif change == "fold":
            plan = plan_fold(ssts, SMALL, per_leaf=3)
            written.append(write_fold(store, "app", "stage", plan))
        elif written:
            ssts = apply_fold(ssts, data.draw(st.sampled_from(written), "fold"))
        bind_ssts(store, ssts)
        read = stored_and_read(store, ssts)
        ssts = read if data.draw(st.booleans(), "other process") else ssts
        assert sorted(ssts, key=name_of) == sorted(expected, key=name_of)
        assert len(ssts) == len(expected)
        assert bool(ssts) == bool(expected)
        low, high = (LOWEST + end * STEP for end in data.draw(spans, "within"))
        assert {*ssts.within(low, high)} == {s for s in expected if s.hash_min <= high and s.hash_max >= low}
        assert all(map(operator.contains, [ssts] * len(expected), expected))
        assert [*map(frozenset, ssts.changes_since(earlier))] == [expected - before, before - expected]
        assert len(ssts.leaves) <= MAX_LEAVES


@scaled(30, in_ci=500)
@given(st.lists(spans, min_size=5, max_size=60), st.integers(1, 10))
def test_a_fold_leaves_few_inline_entries_and_each_hash_in_one_slot(ranges: list[list[int]], per_leaf: int) -> None:
    store = MemoryStore()
    ssts = Ssts(sst(number, *span, number, number % 2) for number, span in enumerate(ranges, 1))
    folded = apply_fold(ssts, write_fold(store, "app", "stage", plan_fold(ssts, SMALL, per_leaf)))
    assert folding.inline_bytes(folded) <= SMALL // 2
    ends = [(leaf.slot / leaf.slots, (leaf.slot + 1) / leaf.slots) for leaf in folded.leaves]
    assert all(ends[n][1] <= ends[n + 1][0] for n in range(len(ends) - 1))


def many(store: CountingStore | MemoryStore, entries: int = 4096) -> Ssts:
    """Return a table of many SSTs. Each has its own range of hashes, and all are in leaves."""
    width = 2**64 // entries
    ssts = Ssts(
        replace(sst(n, seq=n + 1, level=1), hash_min=LOWEST + n * width, hash_max=LOWEST + (n + 1) * width - 1)
        for n in range(entries)
    )
    return apply_fold(ssts, write_fold(store, "app", "stage", plan_fold(ssts, SMALL, 256)))


def test_a_look_up_reads_one_leaf_and_a_whole_table_each_leaf_once() -> None:
    memory = MemoryStore()
    ssts = many(memory)
    assert len(ssts.leaves) == 16
    assert len(ssts.inline) < 4

    def gets(read: Ssts) -> int:
        return counting.take_stats().gets

    counting = CountingStore(memory)
    fresh = stored_and_read(counting, ssts)
    assert fresh.within(12345, 12345)
    assert gets(fresh) == 1
    assert fresh.within(12345, 12345)
    assert gets(fresh) == 0
    assert len(fresh) == 4096
    assert gets(fresh) == 0
    assert len({*fresh}) == 4096
    assert gets(fresh) == 15
    again = stored_and_read(counting, ssts)
    assert len({*again}) == 4096
    assert gets(again) == 0


def test_a_manifest_of_130_000_ssts_is_small() -> None:
    """The table has 2,048 state partitions with 64 SSTs each."""
    memory = MemoryStore()
    ssts = many(memory, 2048 * 64)
    assert len(ssts.leaves) == MAX_LEAVES
    assert len(codec.encode(replace(manifest(1 << 20), table=TABLE, ssts=ssts))) < 12_000


def test_a_missing_or_damaged_leaf_is_named_with_what_it_affects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ssts = stored_and_read(store, many(LocalStore(tmp_path)))
    first, second, *_ = ssts.leaves
    store.delete(first.object)
    (tmp_path / second.object).write_bytes((tmp_path / second.object).read_bytes().replace(b",900,", b",901,", 1))
    with pytest.raises(
        Corruption, match=r"leaves/\w+\.json' is missing: app/stage@v1048576 needs it for 256 SSTs.* not aff"
    ):
        ssts.within(LOWEST, LOWEST)
    with pytest.raises(Corruption, match="was changed: it does not match its checksum"):
        ssts.within(second.hash_min, second.hash_min)
    assert ssts.within(12345, 12345)


def test_a_leaf_replaced_by_another_object_is_refused(tmp_path: Path) -> None:
    ssts = stored_and_read(LocalStore(tmp_path), many(LocalStore(tmp_path)))
    first, second, *_ = ssts.leaves
    (tmp_path / first.object).write_bytes((tmp_path / second.object).read_bytes())
    with pytest.raises(Corruption, match="has the content of another object"):
        ssts.within(LOWEST, LOWEST)


def test_of_two_folds_of_a_leaf_only_the_first_is_applied() -> None:
    store = MemoryStore()
    ssts = many(store)
    changed = ssts.replaced(ssts.within(0, 0), [sst(5000 + n, level=1) for n in range(20)])
    one, other = (write_fold(store, "app", "stage", plan_fold(changed, SMALL, 256)) for _ in range(2))
    taken = apply_fold(changed, one)
    assert taken != changed
    assert apply_fold(taken, other) is taken
    assert {*taken} == {*changed}


def test_of_two_first_folds_of_a_slot_only_the_first_is_applied() -> None:
    """A runner and a separate compactor both planned a fold while the table had no leaves."""
    store = MemoryStore()
    ssts = Ssts(sst(number, seq=number, level=1) for number in range(1, 20))
    one = write_fold(store, "app", "stage", plan_fold(ssts, SMALL, 256))
    later = ssts.plus(sst(number, seq=number, level=1) for number in range(20, 40))
    other = write_fold(store, "app", "stage", plan_fold(later, SMALL, 256))
    taken = apply_fold(later, one)
    assert taken.leaves
    assert apply_fold(taken, other) is taken
    assert {*stored_and_read(store, taken)} == {*later}


def test_ssts_of_a_leaf_under_another_root_have_the_right_roots(tmp_path: Path) -> None:
    """The test uses a clone under another root, and a clone of that clone under the first root."""
    here, there = LocalStore(tmp_path / "here", LocalStore), LocalStore(tmp_path / "there", LocalStore)
    own, first = sst(1, seq=1, level=1), replace(sst(2, seq=2, level=1), root=here.url)
    ssts = Ssts([own, first, *(sst(number, seq=number, level=1) for number in range(3, 9))])
    folded = apply_fold(ssts, write_fold(there, "app", "stage", plan_fold(ssts, SMALL, 256)))
    cloned = folded.at_roots(lambda root: "" if root == here.url else root or there.url)
    bind_ssts(here, cloned := Ssts(cloned.inline, cloned.leaves))
    assert {name_of(each): each.root for each in cloned} == {
        name_of(each): "" if each == first else there.url for each in ssts
    }
