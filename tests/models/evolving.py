"""A table whose columns change between batches, and a dictionary of the expected rows."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.state.fits import evolve
from slackwater.store.compaction import plan
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.plan import Compaction
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read import duckdb_view
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.schema import sst_schema
from slackwater.store.versions.manifest import Column, Manifest, Table, Ttl

from tests.support.state_rows import AS_ALWAYS, columns, manifest_of, rows_of_open, write_version

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
"""Wider types of each type."""
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
    """Return the value that a column of a wider type shows for a stored value."""
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
    """A table whose columns change between batches, and a dictionary of the expected rows."""

    store: ObjectStore
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

    def step(self, draw: Any) -> None:
        """Draw a change of the table."""
        what = draw(st.sampled_from(["batch", "batch", "migrate", "merge"]))
        if what == "batch":
            self.batch(draw(st.dictionaries(st.sampled_from(KEYS), st.booleans(), min_size=1)))
        elif what == "migrate":
            self.migrate(draw)
        else:
            self.merge(draw)

    def commit(self, ssts: Any) -> None:
        self.seq += 1
        kept = {key: dict(row) for key, row in self.rows.items()}
        self.manifests.append((manifest_of(self.table, ssts, self.seq), kept))

    def batch(self, changes: dict[int, bool]) -> None:
        made = {column.name: VALUES[column.type] for column in self.table.values}
        put = {(key,): tuple(made.values()) if there else None for key, there in changes.items()}
        # The versions have the clock 0, at which nothing is expired.
        clock_ms = self.seq * 1_000
        added = write_version(self.store, self.cache, self.table, put, self.seq + 1, clock_ms=clock_ms)
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
            # The name of a removed column may return as the name of a new column.
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
                self.commit(
                    plan.apply_results(
                        self.ssts, [run_compaction(self.store, self.cache, "app", "stage", self.table, one)]
                    )
                )

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
        assert rows_of_open(self.store, self.cache, manifest.ssts, table, hashes, keys, 0) == expected
        duckdb_view.register_table(con, "t", self.store, self.cache, manifest)
        found = con.sql("FROM t ORDER BY k").to_arrow_table()
        assert found.schema.names == ["k", *names]
        declared = con.from_arrow(sst_schema(table).empty_table().select(["k", *names])).types
        assert con.sql("FROM t").types == declared
        assert found.to_pylist() == [{"k": k, **{name: rows[k][name] for name in names}} for k in sorted(rows)]

    def as_found(self, values: pa.Table, there: np.ndarray[Any, np.dtype[np.bool_]]) -> list[dict[str, Any] | None]:
        # An Arrow table without columns has no rows.
        rows = values.to_pylist() if values.column_names else [{} for _ in there]
        return [row if is_there else None for row, is_there in zip(rows, there.tolist(), strict=True)]

    def check_several(self) -> None:
        """Check that a query over several versions has the newest columns."""
        manifests = [manifest for manifest, _ in self.manifests]
        if not any(manifest.ssts for manifest in manifests) or (last := manifests[-1].table) is None:
            return
        with duckdb.connect() as con:
            duckdb_view.register_versions(con, "t", self.store, self.cache, manifests)
            for manifest, rows in self.manifests:
                assert manifest.table is not None
                found = con.sql(f"FROM t WHERE _version = {manifest.version} ORDER BY k").to_arrow_table()
                assert found.column("k").to_pylist() == sorted(rows)
                by_id = dict(zip(manifest.table.column_ids, manifest.table.columns, strict=True))
                for number, column in zip(last.column_ids, last.columns, strict=True):
                    was = by_id.get(number)
                    if was is not None and was.type == column.type and column.name != "k":
                        assert found.column(column.name).to_pylist() == [rows[k][was.name] for k in sorted(rows)]
