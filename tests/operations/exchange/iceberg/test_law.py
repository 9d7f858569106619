"""For any history of a table, pyiceberg reads the rows that a query returns."""

from contextlib import closing

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.operations.exchange.iceberg.export import IcebergExport
from slackwater.operations.exchange.iceberg.hidden import DeleteFile, Deletes, decode, encode, plan_deletes
from slackwater.snapshot.cut.graph import Cut
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read import duckdb_view
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.manifest import Manifest

from tests.models.evolving import KEYS, Evolving
from tests.models.profiles import scaled
from tests.operations.exchange.iceberg.reading import opened, rows

CHANGES = st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=1)


@scaled(12, in_ci=500)
@given(st.data(), st.sampled_from([1, 2]), st.booleans())
def test_pyiceberg_reads_the_rows_of_a_query_at_any_version(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, partitions: int, expires: bool
) -> None:
    store, target = MemoryStore(), MemoryStore()
    with closing(SstCache(tmp_path_factory.mktemp("cache"), 1 << 30)) as cache, duckdb.connect() as con:
        table = Evolving(store, cache, partitions, expires)
        export = IcebergExport(store, cache, target, "test")
        known: dict[int, list[dict[str, object]]] = {}
        table.batch(data.draw(CHANGES))
        for now_ms in range(1, data.draw(st.integers(2, 7))):
            table.step(data.draw)
            # Usually the newest version, sometimes an earlier one, as after a rewind.
            manifest = data.draw(st.sampled_from([*table.manifests, *table.manifests[-1:] * 3]))[0]
            clock_ms = data.draw(st.integers(0, 8)) * 1_000
            cut = At("app", {"stage": manifest}, clock_ms)
            (done,) = export.write(cut, now_ms)
            expected = queried(con, table, manifest, clock_ms)
            if done.moved:
                known[done.snapshot] = expected
            found = opened(store, target, "stage")
            assert rows(found) == expected == known[done.snapshot]
            assert done.rows == len(expected)
            assert [each.name for each in found.schema().columns] == [
                column.name for column in (manifest.table or table.table).columns
            ]
        for snapshot, expected in known.items():
            assert rows(found, snapshot) == expected


class At(Cut):
    """A cut with a given clock."""

    def __init__(self, app: str, stages: dict[str, Manifest], clock_ms: int) -> None:
        super().__init__(app, stages)
        object.__setattr__(self, "_clock_ms", clock_ms)

    def clock_ms(self, stage: str) -> int:
        return int(self._clock_ms)  # type: ignore[attr-defined]


def queried(
    con: duckdb.DuckDBPyConnection, table: Evolving, manifest: Manifest, clock_ms: int
) -> list[dict[str, object]]:
    duckdb_view.register_table(con, "t", table.store, table.cache, manifest, clock_ms=clock_ms)
    return list(con.sql("FROM t ORDER BY k::VARCHAR").to_arrow_table().to_pylist())


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.frozensets(st.integers(0, 40), min_size=1)), min_size=1, max_size=12
    )
)
def test_delete_files_mark_exactly_the_wanted_positions(steps: list[dict[str, frozenset[int]]]) -> None:
    files: dict[str, DeleteFile] = {}
    for number, step in enumerate(steps):
        wanted: Deletes = {path: np.array(sorted(each)) for path, each in step.items()}
        plan = plan_deletes(wanted, files.values())
        files = {path: files[path] for path in plan.remaining}
        if plan.added:
            data = decode(encode(plan.added))
            files[str(number)] = DeleteFile(str(number), sum(map(len, data.values())), data)
        said: dict[str, set[int]] = {}
        for file in files.values():
            for path in file.deletes.keys() & step.keys():
                said.setdefault(path, set()).update(file.deletes[path].tolist())
        assert said == {path: set(each) for path, each in step.items()}


def test_hundreds_of_increments_need_few_delete_files_and_rewrite_each_position_rarely() -> None:
    files: dict[str, DeleteFile] = {}
    written = 0
    for number in range(500):
        wanted = {"a": np.arange(10 * (number + 1))}
        plan = plan_deletes(wanted, files.values())
        files = {path: files[path] for path in plan.remaining}
        rows = sum(map(len, plan.added.values()))
        files[str(number)] = DeleteFile(str(number), rows, plan.added)
        written += rows
        assert len(files) <= 10
    assert written <= 6 * 5_000
