"""Records that waited in a join without a match."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

import pyarrow as pa

from ....snapshot.diff.key_history import RowChange, VersionList, key_changes
from ....snapshot.diff.stored_rows import KeyReader
from ....snapshot.query.fields import Field, json_leaves, parse_json, record_leaves
from ....state.kinds.join import Join
from ....state.kinds.kind import kind_of
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.sst.hashing import normalise_keys
from ....store.sst.schema import arrow_schema
from ....store.versions.manifest import Manifest
from .reasons import MissingReason


def join_of(version: Manifest) -> Join | None:
    kind = kind_of(version.table.state) if version.table is not None else None
    return kind if isinstance(kind, Join) else None


def explain_unmatched(
    store: ObjectStore,
    cache: SstCache,
    heads: Mapping[str, Manifest],
    stage: str,
    read: Manifest,
    topic: str,
    record: pa.Table,
) -> MissingReason | None:
    """Return the reason `unmatched` if a record found no row of its key on the join's other side while it waited.

    `read` is the version of the join's stage that read the record. `topic` is the program's name of the record's topic.
    Returns None if the record had a match, or if its key in the join is unknown.
    """
    key, join = join_key(heads[stage], topic, record), join_of(read)
    if key is None or join is None or read.table is None:
        return None
    head = heads[stage]
    versions = VersionList(store, head.app, head.stage, head.version)
    reader = KeyReader(store, cache, key)
    if reader.find_seq(read, read.row_seq, read.table) is None:
        return None
    others = [side for side in (join.left, join.right) if side != topic]
    if len(others) != 1:
        return None
    changes = [*key_changes(versions, reader, 0)]
    waited = [*takewhile(lambda change: change.version >= read.version, changes)]
    if not waited or any(_waiting(change, others[0]) for change in waited):
        return None
    ended = waited[0]
    until = f"until v{ended.version}, when its time had passed" if ended.after is None else "still"
    return MissingReason("unmatched", f"{stage}@v{read.version} kept it waiting for {others[0]}, {until}: none came")


def _waiting(change: RowChange, side: str) -> bool:
    rows = (row.get(side) for row in (change.before, change.after) if row is not None)
    return any(rows)


def join_key(head: Manifest, topic: str, record: pa.Table) -> pa.Table | None:
    """Return the key that a stage's function makes from a record, according to lineage, as a table of one row.

    None if the key's fields are unknown, or if the function computes the key instead of copying fields.
    """
    if head.table is None:
        return None
    columns = []
    for column in arrow_schema(head.table.key):
        sources = [source for source in head.lineage.get("", {}).get(column.name, ()) if source.input == topic]
        values = [_value(record, source.field) for source in sources if source.field and not source.by]
        if len(values) != 1 or len(sources) != 1:
            return None
        try:
            columns.append(pa.array([values[0]]).cast(column.type))
        except pa.ArrowException:
            return None
    names = [column.name for column in head.table.key]
    return normalise_keys(pa.table(columns, names=names), names)


def _value(record: pa.Table, text: str) -> object:
    for leaves in record_leaves(record, Field.parse(text)):
        values = leaves.values.to_pylist()
        if not leaves.remaining_steps:
            return values[0] if values else None
        for value in values:
            document, _ = parse_json(value if isinstance(value, bytes) else str(value).encode())
            return next(iter(json_leaves(document, leaves.remaining_steps)), None)
    return None
