from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import Corruption
from slackwater.fold.fits import evolve
from slackwater.store.compaction import plan
from slackwater.store.compaction.merge import run
from slackwater.store.compaction.plan import Compaction
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read import duckdb_versions, duckdb_view
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst import evolution
from slackwater.store.sst.evolution import reading, widens
from slackwater.store.sst.types import HASH, OP, OWN_IDS, PREV, SEQ, sst_schema
from slackwater.store.versions.manifest import Column, Manifest, Table, Ttl

from tests.models.profiles import scaled
from tests.support.state_rows import AS_ALWAYS, columns, manifest_of, write_version

KEYS = range(12)
STEPS = {
    "int8": ["int16", "int64"],
    "int16": ["int32"],
    "int32": ["int64"],
    "float": ["double"],
    "decimal128(5, 2)": ["decimal128(9, 2)", "decimal128(12, 4)"],
    "struct<x: int32>": ["struct<x: int64, `new one`: string>", "struct<y: double, x: int32>"],
    "list<struct<x: int16>>": ["list<struct<x: int32, y: string>>"],
}
"""Types that become others, and which."""
VALUES: dict[str, Any] = {
    "int8": 7,
    "int16": 300,
    "int32": 70_000,
    "int64": 1 << 40,
    "float": 0.5,
    "double": 0.1,
    "decimal128(5, 2)": Decimal("1.25"),
    "decimal128(9, 2)": Decimal("12345.25"),
    "decimal128(12, 4)": Decimal("1.2345"),
    "string": "a 'word'",
    "timestamp[us, tz=UTC]": None,
    "struct<x: int32>": {"x": 5},
    "struct<x: int64, `new one`: string>": {"x": 1 << 40, "new one": "b"},
    "struct<y: double, x: int32>": {"y": 0.25, "x": 9},
    "list<struct<x: int16>>": [{"x": 1}, {"x": 2}],
    "list<struct<x: int32, y: string>>": [{"x": 70_000, "y": "c"}],
}
DEFAULTS = {
    "int64": ("-3", -3),
    "string": ("it's", "it's"),
    "int8": ("5", 5),
    "decimal128(5, 2)": ("2.50", Decimal("2.50")),
}


def wider(value: Any, kind: str) -> Any:
    """A value as a column of a larger type has it."""
    if isinstance(value, dict) and kind.startswith("struct"):
        names = {"struct<x: int32>": ("x",), "struct<x: int64, `new one`: string>": ("x", "new one")}.get(
            kind, ("y", "x")
        )
        return {name: value.get(name) for name in names}
    if isinstance(value, list) and "y: string" in kind:
        return [{"x": each["x"], "y": each.get("y")} for each in value]
    return value


@dataclass
class Evolving:
    """A table whose columns change between batches, beside a dictionary of what it holds."""

    store: MemoryStore
    cache: SstCache
    partitions: int
    expires: bool
    table: Table = field(init=False)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    manifests: list[tuple[Manifest, dict[int, dict[str, Any]]]] = field(default_factory=list)
    seq: int = 0
    names: int = 0

    def __post_init__(self) -> None:
        values = tuple(Column(f"c{n}", kind) for n, kind in enumerate(("int32", "float", "string", "struct<x: int32>")))
        self.table = Table((Column("k", "int64"),), values, self.partitions)

    @property
    def ssts(self) -> Any:
        return self.manifests[-1][0].ssts if self.manifests else ()

    def commit(self, ssts: Any) -> None:
        self.seq += 1
        kept = {key: dict(row) for key, row in self.rows.items()}
        self.manifests.append((manifest_of(self.table, ssts, self.seq), kept))

    def batch(self, changes: dict[int, bool]) -> None:
        made = {column.name: VALUES[column.type] for column in self.table.values}
        put = {(key,): tuple(made.values()) if there else None for key, there in changes.items()}
        added = write_version(self.store, self.cache, self.table, put, self.seq + 1)
        for key, there in changes.items():
            self.rows.pop(key, None)
            if there:
                self.rows[key] = dict(made)
        self.commit((*self.ssts, *added))

    def migrate(self, draw: Any) -> None:
        values, renames, kept = [], {}, []
        for column in self.table.values:
            what = draw(st.sampled_from(["keep", "keep", "rename", "remove", "widen", "both"]))
            if what == "remove":
                continue
            name, kind = column.name, column.type
            if what in ("rename", "both"):
                self.names += 1
                name = f"r{self.names}"
                renames[column.name] = name
            if what in ("widen", "both") and kind in STEPS:
                kind = draw(st.sampled_from(STEPS[kind]))
            values.append(Column(name, kind))
            kept.append((column.name, name, kind))
        added = {}
        for _ in range(draw(st.integers(0, 2))):
            kind = draw(st.sampled_from(sorted(VALUES)))
            text, value = DEFAULTS.get(kind, (None, None)) if draw(st.booleans()) else (None, None)
            # The name of one that went may come back: it is another column.
            name = draw(st.sampled_from([f"c{n}" for n in range(6)]))
            if name not in {each.name for each in (*values, *self.table.values)} or name not in {
                e.name for e in values
            }:
                if name in {each.name for each in self.table.values} and name not in renames:
                    continue
                values.append(Column(name, kind, default=text))
                added[name] = value
        values = draw(st.permutations(values))
        declared = replace(self.table, values=tuple(values))
        if self.expires:
            declared = replace(declared, ttl=draw(st.sampled_from([self.table.ttl, Ttl(1_000)])))
        self.table, _ = evolve("t", self.table, declared, renames)
        self.rows = {
            key: {new: wider(row[old], kind) for old, new, kind in kept} | added for key, row in self.rows.items()
        }
        self.commit(self.ssts)

    def merge(self, draw: Any) -> None:
        if len(self.ssts) < 2:
            return
        for partition in range(self.partitions):
            inputs = tuple(sorted((s for s in self.ssts if s.partition == partition), key=lambda s: -s.seq_max))
            if len(inputs) > 1:
                taken = inputs if draw(st.booleans()) else inputs[:2]
                one = Compaction(partition, self.partitions, taken, len(taken) == len(inputs), clock_ms=0)
                self.commit(plan.apply(self.ssts, [run(self.store, self.cache, "app", "stage", self.table, one)]))

    def check(self) -> None:
        with duckdb.connect() as con:
            for manifest, rows in self.manifests:
                self.check_one(con, manifest, rows)
        self.check_several()

    def check_one(self, con: duckdb.DuckDBPyConnection, manifest: Manifest, rows: dict[int, dict[str, Any]]) -> None:
        table = manifest.table
        assert table is not None
        names = [column.name for column in table.values]
        keys = columns(table.key, ((k,) for k in KEYS))
        hashes = AS_ALWAYS.of(table, keys)
        expected = [{name: rows[k][name] for name in names} if k in rows else None for k in KEYS]
        values, there = multi_get(self.store, self.cache, manifest.ssts, table, hashes, keys, clock_ms=0)
        assert self.as_found(values, there) == expected
        cold, present = multi_get(self.store, None, manifest.ssts, table, hashes, keys, clock_ms=0)
        assert self.as_found(cold, present) == expected
        assert values.schema == cold.schema
        duckdb_view.register(con, "t", self.store, self.cache, manifest)
        found = con.sql("FROM t ORDER BY k").to_arrow_table()
        assert found.schema.names == ["k", *names]
        declared = con.from_arrow(sst_schema(table).empty_table().select(["k", *names])).types
        assert con.sql("FROM t").types == declared
        assert found.to_pylist() == [{"k": k, **{name: rows[k][name] for name in names}} for k in sorted(rows)]

    def as_found(self, values: pa.Table, there: np.ndarray[Any, np.dtype[np.bool_]]) -> list[dict[str, Any] | None]:
        # An Arrow table of no columns has no rows.
        rows = values.to_pylist() if values.column_names else [{} for _ in there]
        return [row if is_there else None for row, is_there in zip(rows, there.tolist(), strict=True)]

    def check_several(self) -> None:
        """Versions side by side have the columns of the newest."""
        manifests = [manifest for manifest, _ in self.manifests]
        if not any(manifest.ssts for manifest in manifests) or (last := manifests[-1].table) is None:
            return
        with duckdb.connect() as con:
            duckdb_versions.register(con, "t", self.store, self.cache, manifests)
            for manifest, rows in self.manifests:
                assert manifest.table is not None
                found = con.sql(f"FROM t WHERE _version = {manifest.version} ORDER BY k").to_arrow_table()
                assert found.column("k").to_pylist() == sorted(rows)
                by_id = dict(zip(manifest.table.ids, manifest.table.columns, strict=True))
                for number, column in zip(last.ids, last.columns, strict=True):
                    was = by_id.get(number)
                    if was is not None and was.type == column.type and column.name != "k":
                        assert found.column(column.name).to_pylist() == [rows[k][was.name] for k in sorted(rows)]


@scaled(8, in_ci=500)
@given(st.data(), st.sampled_from([1, 2]), st.booleans(), st.booleans())
def test_every_version_reads_as_the_dictionary_in_its_own_columns(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, partitions: int, cached: bool, expires: bool
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    table = Evolving(MemoryStore(), SstCache(folder, 1 << 40), partitions, expires)
    for _ in range(data.draw(st.integers(2, 6))):
        what = data.draw(st.sampled_from(["batch", "batch", "migrate", "merge"]))
        if what == "batch":
            table.batch(data.draw(st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=1)))
        elif what == "migrate":
            table.migrate(data.draw)
        else:
            table.merge(data.draw)
        if not cached:
            table.cache.close()
            table.cache = SstCache(tmp_path_factory.mktemp("other"), 1 << 40)
    table.check()


def test_ssts_carry_the_ids_of_their_columns_also_in_the_cache(tmp_path: Path) -> None:
    store, cache = MemoryStore(), SstCache(tmp_path / "cache", 1 << 40)
    before = Table((Column("k", "int64"),), (Column("a", "int32"), Column("b", "string")), 1)
    after, _ = evolve("t", before, replace(before, values=(Column("b", "string"), Column("a", "string"))[:1]), {})
    again, _ = evolve("t", after, replace(after, values=(Column("b", "string"), Column("a", "string"))), {})
    assert again.ids == (1, 3, 4)
    (sst,) = write_version(store, cache, again, {(1,): ("b", "a")}, 2)
    numbers = [evolution.field_id(each) for each in pq.read_schema(pa.BufferReader(store.get(sst.object)))]
    assert numbers == [OWN_IDS[HASH], 1, 3, 4, OWN_IDS[SEQ], OWN_IDS[OP], OWN_IDS[PREV]]
    mapped = cache.open(store, sst, again)
    assert [evolution.field_id(each) for each in mapped.stored.schema] == numbers
    # Under the columns of before, the first `a` is not there: it is another one than the last.
    with pytest.raises(Corruption, match="expected columns"):
        cache.open(store, sst, before)


def test_a_table_that_was_never_migrated_is_read_as_it_is() -> None:
    table = Table((Column("k", "int64"),), (Column("a", "int32"),), 1)
    assert reading(sst_schema(table), table) is None
    migrated, _ = evolve("t", table, replace(table, values=(Column("a", "int64"),)), {})
    assert reading(sst_schema(migrated), migrated) is None
    how = reading(sst_schema(table), migrated)
    assert how is not None
    assert how is reading(sst_schema(table), migrated)


@pytest.mark.parametrize(
    ("was", "kind", "does"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int64(), pa.float64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.decimal128(5, 2), pa.decimal128(7, 4), True),
        (pa.decimal128(5, 2), pa.decimal128(7, 5), False),
        (pa.decimal128(5, 2), pa.decimal128(5, 1), False),
        (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.string()), ("x", pa.int16())]), True),
        (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.string())]), False),
        (pa.map_(pa.int32(), pa.int8()), pa.map_(pa.int64(), pa.int8()), False),
        (pa.map_(pa.int32(), pa.int8()), pa.map_(pa.int32(), pa.int16()), True),
        (pa.string(), pa.binary(), False),
    ],
)
def test_a_type_becomes_one_that_holds_all_its_values(was: pa.DataType, kind: pa.DataType, does: bool) -> None:
    assert widens(was, kind) is does
