"""Elements of lists and maps are rows with the hashed columns of their key; they are read together or one by one."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.plan import Compaction, newest_first
from slackwater.store.objects.counting import CountingStore, ReadCounters
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.read.parts import find_parts
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

from tests.models.profiles import scaled

TABLE = Table((Column("k", "string"), Column("_position", "int64")), (Column("v", "int64"),), partitions=1)
Changes = dict[tuple[str, int], int | None]

versions = st.lists(
    st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), st.integers(0, 9) | st.none(), min_size=1, max_size=40
    ),
    min_size=1,
    max_size=5,
)


def write_version(store: CountingStore, cache: SstCache, changes: Changes, seq: int) -> Sst:
    keys = [*changes]
    rows = pa.table(
        {
            "k": pa.array([name for name, _ in keys], pa.string()),
            "_position": pa.array([position for _, position in keys], pa.int64()),
            "v": pa.array([*changes.values()], pa.int64()),
            "_seq": pa.array([seq] * len(keys), pa.int64()),
            "_op": pa.array([int(value is None) for value in changes.values()], pa.int8()),
        }
    )
    rows = rows.append_column("_hash", pa.array(hash_keys(rows, ["k", "_position"])))
    return writer.write_sst(store, cache, app="a", stage="s", table=TABLE, partition=0, rows=rows)


def test_internal_key_columns_are_not_hashed() -> None:
    rows = pa.table({"k": ["a", "a", "b"], "_position": [0, 1, 0]})
    assert hash_keys(rows, ["k", "_position"]).tolist() == hash_keys(rows, ["k"]).tolist()


@scaled(40)
@given(
    versions,
    st.sampled_from(["in the cache", "in the store"]),
    st.booleans(),
    st.sets(st.sampled_from("abcdx"), min_size=1),
)
def test_all_elements_of_a_key_are_found_as_in_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, history: list[Changes], where: str, merged: bool, asked: set[str]
) -> None:
    store = CountingStore(MemoryStore())
    cache = SstCache(tmp_path_factory.mktemp("cache"), 1 << 30 if where == "in the cache" else 0)
    expected: dict[tuple[str, int], int | None] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slackwater.store.sst.writer.PAGE_ROWS", 3)
        patch.setattr("slackwater.store.sst.writer.ROW_GROUP_ROWS", 8)
        patch.setattr("slackwater.store.read.parts.SMALL_BYTES", 0)
        ssts = []
        for seq, changes in enumerate(history, start=1):
            ssts.append(write_version(store, cache, changes, seq))
            expected |= changes
        if merged:
            done = run_compaction(store, cache, "a", "s", TABLE, Compaction(0, 1, newest_first(ssts), True))
            ssts = [*done.outputs]
        keys = pa.table({"k": pa.array([*asked], pa.string())})
        hashes = hash_keys(keys, ["k"])
        owners, rows = find_parts(store, cache, TABLE, ssts, hashes, keys, ReadCounters())
    alive = {key: value for key, value in expected.items() if value is not None}
    assert [[*asked][owner] for owner in owners] == rows["k"].to_pylist()
    found = zip(rows["k"].to_pylist(), rows["_position"].to_pylist(), rows["v"].to_pylist(), strict=True)
    assert [*found] == [(k, at, alive[k, at]) for k in asked for at in sorted(p for name, p in alive if name == k)]
    # One part by its whole key, although all parts of a list share a hash.
    each = [(k, position) for k in "abcd" for position in range(31)]
    wanted = pa.table({"k": [k for k, _ in each], "_position": pa.array([at for _, at in each], pa.int64())})
    values, present = multi_get(store, cache, ssts, TABLE, hash_keys(wanted, ["k", "_position"]), wanted)
    assert values["v"].to_pylist() == [alive.get(key) for key in each]
    assert present.tolist() == [key in alive for key in each]


def test_a_look_up_among_many_elements_of_a_key_takes_few_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, cache = CountingStore(MemoryStore()), SstCache(tmp_path, 1 << 30)
    sst = write_version(store, cache, {("a", position): position for position in range(50_000)}, 1)
    steps = 0
    from slackwater.store.read import decode

    same_keys = decode.same_keys

    def counted(*arguments: object) -> np.ndarray:
        nonlocal steps
        steps += 1
        return same_keys(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(decode, "same_keys", counted)
    wanted = pa.table({"k": ["a", "a"], "_position": pa.array([49_999, 12], pa.int64())})
    values, _ = multi_get(store, cache, [sst], TABLE, hash_keys(wanted, ["k", "_position"]), wanted)
    assert values["v"].to_pylist() == [49_999, 12]
    assert steps <= 8
