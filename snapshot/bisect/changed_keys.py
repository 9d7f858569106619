"""The keys that a commit turned bad, with their values before and after it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.multi_get import multi_get
from ...store.sst import expiry, ttl
from ...store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ...store.sst.python_values import python_rows
from ...store.sst.types import SEQ, arrow_schema, sst_schema
from ...store.versions.manifest import Manifest, Table
from ..query.columns import visible_schema

_PIECE = 10_000
"""Keys that are Python values at a time."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key, and its visible values around a commit, by column; None where it had no row."""

    key: Mapping[str, object]
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Keys of one table, and their rows around a commit."""

    keys: pa.Table
    before: pa.Table
    """The visible values before it, nulls where there was no row."""
    after: pa.Table
    was: npt.NDArray[np.bool_]
    """Whether there was a row before it."""
    is_there: npt.NDArray[np.bool_]
    """Whether there is one after it."""
    named: bool
    """Whether the predicate named these keys, in this order; else they are those that the commit changed, by key."""

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def __iter__(self) -> Iterator[KeyChange]:
        for start in range(0, len(self), _PIECE):
            keys = python_rows(self.keys.slice(start, _PIECE))
            # A table may have no columns beside its key; then these have no rows either.
            sides = (python_rows(side.slice(start, _PIECE)) or [{}] * len(keys) for side in (self.before, self.after))
            for number, (key, earlier, later) in enumerate(zip(keys, *sides, strict=True), start):
                yield KeyChange(key, earlier if self.was[number] else None, later if self.is_there[number] else None)

    def changed(self) -> "ChangedKeys":
        """Those whose row the commit changed, brought or took."""
        places = np.flatnonzero(self._differs())
        keys, before, after = (side.take(pa.array(places)) for side in (self.keys, self.before, self.after))
        return ChangedKeys(keys, before, after, self.was[places], self.is_there[places], self.named)

    def flat(self) -> pa.Table:
        """One row a key: its columns, what became of it, and each value as `before_…` and `after_…`.

        `change` is `new`, `gone`, `changed` or `same`.
        """
        words = np.where(self._differs(), "changed", "same")
        words = np.where(self.was & ~self.is_there, "gone", np.where(~self.was & self.is_there, "new", words))
        table = self.keys.append_column("change", pa.array(words, pa.string()))
        for name in self.before.column_names:
            for side, values in (("before", self.before), ("after", self.after)):
                table = table.append_column(f"{side}_{name}", values.column(name))
        return table

    def _differs(self) -> npt.NDArray[np.bool_]:
        """Of each key, whether its rows before and after are different. DuckDB compares values of every type."""
        sides = pa.table({"was": pa.array(self.was), "is_there": pa.array(self.is_there)})
        tests = ["was <> is_there"]
        for number, name in enumerate(self.before.column_names):
            sides = sides.append_column(f"b{number}", self.before.column(name))
            sides = sides.append_column(f"a{number}", self.after.column(name))
            tests.append(f"b{number} IS DISTINCT FROM a{number}")
        with duckdb.connect() as con:
            con.register("sides", sides)
            differs = con.sql(f"SELECT {' OR '.join(tests)} AS differs FROM sides").to_arrow_table()
        return np.asarray(differs.column("differs").to_numpy(), np.bool_)


def changed_keys(
    store: ObjectStore, cache: SstCache, before: Manifest | None, after: Manifest, rows: pa.Table
) -> ChangedKeys | None:
    """The keys that a commit turned bad, None for a stage without a table.

    It made the version `after` of `before`, None when the stage had none. If the rows that the predicate returned have
    all key columns, their keys are meant, in their order; else all whose row the commit changed, those that expired
    with it included.
    """
    table = after.table
    if table is None:
        return None
    keys = _named_keys(rows, table)
    named = keys is not None
    if keys is None:
        expired = _expired_keys(store, cache, before, after, table)
        written = written_rows(store, cache, after, table).select(expired.schema.names)
        keys = _in_order(pa.concat_tables([written, expired]))
    order, repeats = sort_keys(hash_keys(keys, keys.schema.names), keys)
    keys = keys.take(pa.array(np.sort(order[~repeats])))  # each once, in the order in which they come first
    earlier, was = _values(store, cache, before, table, keys)
    later, is_there = _values(store, cache, after, table, keys)
    found = ChangedKeys(keys, earlier, later, was, is_there, named)
    return found if named else found.changed()


def _named_keys(rows: pa.Table, table: Table) -> pa.Table | None:
    """The keys in a predicate's result, or None if it has not all key columns, in types that fit."""
    schema = arrow_schema(table.key)
    if not set(schema.names) <= set(rows.schema.names):
        return None
    try:
        return normalise_keys(rows.select(schema.names).cast(schema), schema.names)
    except pa.ArrowException:
        # Another shape (a list, a struct), or a text that is no number: the query gave the name to something else.
        return None


def written_rows(store: ObjectStore, cache: SstCache, manifest: Manifest, table: Table) -> pa.Table:
    """The rows that this version wrote, as SSTs hold them: internal columns and tombstones included.

    Raises:
        Corruption: an SST is not what its manifest promises.
        Unavailable: storage did not answer.
    """
    written = [
        rows.filter(pc.equal(rows.column(SEQ), manifest.row_seq))
        for sst in manifest.ssts
        if sst.seq_min <= manifest.row_seq <= sst.seq_max
        for rows in [cache.open(store, sst, table).table]
    ]
    return pa.concat_tables(written) if written else sst_schema(table).empty_table()


def _expired_keys(
    store: ObjectStore, cache: SstCache, before: Manifest | None, after: Manifest, table: Table
) -> pa.Table:
    """The keys with rows that expired from one version to the next."""
    schema = arrow_schema(table.key)
    found = []
    if before is None:
        return schema.empty_table()
    for sst in before.ssts:
        if ttl.shown_rows(sst, before.clock_ms) != ttl.shown_rows(sst, after.clock_ms):
            rows = cache.open(store, sst, table).table
            was, now = (expiry.expired(rows, manifest.clock_ms) for manifest in (before, after))
            if was is not None and now is not None:
                found.append(rows.select(schema.names).take(pa.array(np.flatnonzero(now & ~was))))
    return pa.concat_tables(found) if found else schema.empty_table()


def _in_order(keys: pa.Table) -> pa.Table:
    """Sorted by key; keys that have no order, such as structs, stay as they come."""
    with suppress(pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return keys.sort_by([(name, "ascending") for name in keys.column_names])
    return keys


def _values(
    store: ObjectStore, cache: SstCache, manifest: Manifest | None, table: Table, keys: pa.Table
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """The visible values of each key at a version, nulls where it has no row, and whether it has one."""
    shown = pa.schema([field for field in visible_schema(table) if field.name not in keys.schema.names])
    if manifest is None:
        empty = pa.table([pa.nulls(keys.num_rows, field.type) for field in shown], schema=shown)
        return empty, np.zeros(keys.num_rows, np.bool_)
    hashes = hash_keys(keys, keys.schema.names)
    values, present = multi_get(store, cache, manifest.ssts, table, hashes, keys, clock_ms=manifest.clock_ms)
    return values.select(shown.names), present
