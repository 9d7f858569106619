"""The keys that a commit turned bad, with their values before and after it."""

from dataclasses import dataclass, fields

import pyarrow as pa

from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst.hashing import hash_keys, normalise_keys
from ...store.sst.types import HASH, arrow_schema
from ...store.versions.manifest import Manifest, Table
from ..diff.candidates import changes_between, rows_of
from ..diff.key_changes import KeyChanges
from ..diff.side import Side, distinct
from ..diff.versions import Ancestry, ancestry
from ..query.columns import visible_schema


@dataclass(frozen=True, slots=True)
class ChangedKeys(KeyChanges):
    """Keys of one table, and their rows around a commit."""

    named: bool
    """Whether the predicate named these keys, in this order; else they are those that the commit changed, by key."""


def changed_keys(
    store: ObjectStore,
    cache: SstCache,
    before: Manifest | None,
    after: Manifest,
    rows: pa.Table,
    shared: Ancestry | None = None,
) -> ChangedKeys | None:
    """The keys that a commit turned bad, None for a stage without a table.

    It made the version `after` of `before`, None when the stage had none. If the rows that the predicate returned have
    all key columns, their keys are meant, in their order; else all whose row the commit changed, those that expired
    with it included. `shared` is what the two have in common, where they are not versions of one line.
    """
    table = after.table
    if table is None:
        return None
    earlier = Side(store, cache, table, before, before.clock_ms if before is not None else 0)
    later = Side(store, cache, table, after, after.clock_ms)
    keys = _named_keys(rows, table)
    shown = [name for name in visible_schema(table).names if name not in earlier.key]
    if keys is not None:
        return _of(rows_of(keys, (earlier, None), (later, None), names=shown), named=True)
    if shared is None:
        shared = ancestry((store, before), (store, after)) if before is not None else Ancestry()
    return _of(changes_between(earlier, later, shared, shown).changed().in_order(), named=False)


def _of(found: KeyChanges, *, named: bool) -> ChangedKeys:
    return ChangedKeys(**{each.name: getattr(found, each.name) for each in fields(found)}, named=named)


def _named_keys(rows: pa.Table, table: Table) -> pa.Table | None:
    """The keys in a predicate's result, each once, with `_hash`; None if not all are there, in types that fit."""
    schema = arrow_schema(table.key)
    if not set(schema.names) <= set(rows.schema.names):
        return None
    try:
        keys = normalise_keys(rows.select(schema.names).cast(schema), schema.names)
    except pa.ArrowException:
        # Another shape (a list, a struct), or a text that is no number: the query gave the name to something else.
        return None
    return distinct(keys.add_column(0, HASH, pa.array(hash_keys(keys, schema.names))))
