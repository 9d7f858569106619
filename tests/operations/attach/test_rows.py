"""Comparison of a whole state with the stored rows: exactly the differences are written, for any hash ranges."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.operations.attach import rows as comparing
from slackwater.operations.attach.rows import RowWriter, declare_tables
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.schema import arrow_schema
from slackwater.store.versions.manifest import Manifest, Table

from tests.models.profiles import scaled
from tests.operations.attach.following import TOTALS, rows_at

STATES = st.dictionaries(
    st.none() | st.text(max_size=3), st.tuples(st.none() | st.integers(0, 2), st.none() | st.floats(0, 1)), max_size=30
)
State = Mapping[str | None, tuple[int | None, float | None]]


def batches(table: Table, state: State) -> list[pa.RecordBatch]:
    rows = [{"country": key, "orders": orders, "cents": cents} for key, (orders, cents) in state.items()]
    return pa.Table.from_pylist(rows, schema=arrow_schema(table.columns)).to_batches(max_chunksize=7)


@given(was=STATES, now=STATES, partitions=st.integers(1, 4), slots=st.integers(0, 3))
@scaled(15)
def test_the_stored_rows_become_the_rows_of_the_state(
    was: State, now: State, partitions: int, slots: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path_factory.mktemp("cache"), 1 << 30)
    table = declare_tables([TOTALS], partitions)[""]
    at = Manifest("shop", "totals", 1, 1, "w", 1, "claim", table=table)
    writer = RowWriter(store, cache, "shop", "totals")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "count_slots", lambda _table, _bytes: partitions << slots)
        for version, state in enumerate((was, now), 2):
            ssts = writer.write_differences(at, batches(table, state), version)
            at = replace(at, version=version, ssts=(*at.ssts, *ssts))
            assert rows_at(store, cache, at)["totals"] == {(key,): row for key, row in state.items()}
            assert {sst.level for sst in ssts} <= ({1} if version == 2 or not was else {0})
    differing = {key for key in {*was, *now} if (key in was, was.get(key)) != (key in now, now.get(key))}
    assert sum(sst.rows for sst in at.ssts if sst.seq_max == 3) == len(differing)


def test_an_unchanged_state_writes_nothing(tmp_path: Path) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path / "cache", 1 << 30)
    table = declare_tables([TOTALS], 2)[""]
    writer = RowWriter(store, cache, "shop", "totals")
    at = Manifest("shop", "totals", 1, 1, "w", 1, "claim", table=table)
    state = {"DE": (1, 2.0), None: (3, float("nan"))}
    ssts = writer.write_differences(at, batches(table, state), 2)
    assert ssts
    assert writer.write_differences(replace(at, version=2, ssts=ssts), batches(table, state), 3) == ()


LISTS = st.lists(st.tuples(*(st.none() | st.lists(st.integers(0, 9), max_size=3) for _ in range(2))), max_size=9)


@given(LISTS)
def test_lists_are_concatenated_row_by_row(rows: list[tuple[list[int] | None, list[int] | None]]) -> None:
    before, after = (pa.array([row[side] for row in rows], pa.list_(pa.int64())) for side in (0, 1))
    expected = [None if was is new is None else (was or []) + (new or []) for was, new in rows]
    assert comparing.concat_lists(before, after).to_pylist() == expected
