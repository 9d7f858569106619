"""The keys that a commit turned bad, with their values before and after it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..store import stamps, ttl
from ..store.cache import SstCache
from ..store.hashing import hash_keys, normalise_keys, sort_keys
from ..store.index import multi_get
from ..store.manifest import Manifest, Table
from ..store.objects import ObjectStore
from ..store.python_values import python_rows
from ..store.types import SEQ, arrow_schema
from .columns import visible_schema

__all__ = ["MAX_KEYS", "KeyChange", "turned_keys"]

MAX_KEYS = 10
"""Keys that are told."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key, and its visible values around a commit, by column; None where it had no row."""

    key: Mapping[str, object]
    before: Mapping[str, object] | None
    after: Mapping[str, object] | None


def turned_keys(
    store: ObjectStore, cache: SstCache, before: Manifest | None, after: Manifest, rows: pa.Table
) -> tuple[KeyChange, ...]:
    """Up to ten keys that a commit turned bad, those whose values it changed first.

    Args:
        store: the store of the app.
        cache: where SSTs of a remote store come to lie.
        before: the version before the commit, None when the stage had none.
        after: the version that the commit made.
        rows: what the predicate returned. If it has all key columns, its keys are meant, else all that were
            written, and some of those that expired.
    """
    table = after.table
    if table is None:
        return ()
    keys = _named_keys(rows, table)
    if keys is None:
        keys = pa.concat_tables(
            [_written_keys(store, cache, after, table), _expired_keys(store, cache, before, after, table)]
        )
    keys = _once(keys)
    changes = [
        KeyChange(key, earlier, later)
        for key, earlier, later in zip(
            python_rows(keys),
            _values(store, cache, before, table, keys),
            _values(store, cache, after, table, keys),
            strict=True,
        )
    ]
    changes.sort(key=lambda change: change.before == change.after)
    return tuple(changes[:MAX_KEYS])


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


def _written_keys(store: ObjectStore, cache: SstCache, manifest: Manifest, table: Table) -> pa.Table:
    """The keys of the rows that this version wrote, tombstones included."""
    schema = arrow_schema(table.key)
    written = [
        rows.filter(pc.equal(rows.column(SEQ), manifest.row_seq)).select(schema.names)
        for sst in manifest.ssts
        if sst.seq_min <= manifest.row_seq <= sst.seq_max
        for rows in [cache.open(store, sst, table).table]
    ]
    return pa.concat_tables(written) if written else schema.empty_table()


def _expired_keys(
    store: ObjectStore, cache: SstCache, before: Manifest | None, after: Manifest, table: Table
) -> pa.Table:
    """Some keys with rows that expired from one version to the next; of each SST no more than are told."""
    schema = arrow_schema(table.key)
    found = []
    for sst in before.ssts if before is not None else ():
        if before is not None and ttl.shown_rows(sst, before.clock_ms) != ttl.shown_rows(sst, after.clock_ms):
            rows = cache.open(store, sst, table).table
            was, now = (stamps.expired(rows, manifest.clock_ms) for manifest in (before, after))
            if was is not None and now is not None:
                turned = np.flatnonzero(now & ~was)[:MAX_KEYS]
                found.append(rows.select(schema.names).take(pa.array(turned)))
    return pa.concat_tables(found) if found else schema.empty_table()


def _once(keys: pa.Table) -> pa.Table:
    """Each key once, in the order in which they come first."""
    order, repeats = sort_keys(hash_keys(keys, keys.schema.names), keys)
    return keys.take(pa.array(np.sort(order[~repeats])))


def _values(
    store: ObjectStore, cache: SstCache, manifest: Manifest | None, table: Table, keys: pa.Table
) -> list[dict[str, object] | None]:
    """The visible values of each key at a version, None where it has no row."""
    if manifest is None:
        return [None] * keys.num_rows
    hashes = hash_keys(keys, keys.schema.names)
    values, present = multi_get(store, cache, manifest.ssts, table, hashes, keys, clock_ms=manifest.clock_ms)
    shown = [name for name in visible_schema(table).names if name not in keys.schema.names]
    return [
        row if there else None for row, there in zip(python_rows(values.select(shown)), present.tolist(), strict=True)
    ]
