"""Conversion of values between Python and a server's JSON: keys as text, rows in the types of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ...snapshot.diff.key_changes import KeyChanges
from ...snapshot.diff.moments import ColumnMatch, TableDiff
from ...snapshot.query.columns import TableColumn, value_from_json
from ...snapshot.query.key_text import format_key
from ...store.sst.arrow_types import to_arrow
from ...store.versions.codec import register_type


def key_to_text(key: object) -> str:
    """Return a key as text, in the format of the server."""
    return format_key(key if isinstance(key, tuple) else (key,))


def row_from_json(row: dict[str, Any] | None, kinds: dict[str, pa.DataType]) -> dict[str, object] | None:
    """Convert the values of a JSON row to the types of its columns, such as bytes and dates, which JSON lacks."""
    if row is None:
        return None
    return {name: value_from_json(value, kinds[name]) if name in kinds else value for name, value in row.items()}


def rows_to_arrow(rows: Sequence[dict[str, Any] | None], kinds: dict[str, pa.DataType]) -> pa.Table:
    """Return rows as an Arrow table; None becomes a row of nulls."""
    typed_rows = [row_from_json(row, kinds) or dict.fromkeys(kinds) for row in rows]
    return pa.table({name: pa.array([row.get(name) for row in typed_rows], kind) for name, kind in kinds.items()})


def parse_table_diff(document: dict[str, Any], columns: Sequence[TableColumn]) -> TableDiff:
    """Convert one table's differences from a server's JSON document to a `TableDiff`."""
    matches = msgspec.convert(document["columns"], register_type(tuple[ColumnMatch, ...]))
    kinds = {column.name: to_arrow(column.type) for column in columns}
    keys = {column.name: kinds[column.name] for column in columns if column.key}
    compared = {match.column: kinds[match.column] for match in matches if match.column in kinds}
    document_rows = document["rows"]
    was_there, is_there = (
        np.array([row[side] is not None for row in document_rows], np.bool_) for side in ("before", "after")
    )
    old, new = (rows_to_arrow([row[side] for row in document_rows], compared) for side in ("before", "after"))
    changes = KeyChanges.compare(
        rows_to_arrow([row["key"] for row in document_rows], keys), old, new, was_there, is_there
    )
    names = ("table", "added", "removed", "changed", "rows_in_both", "about", "near")
    more = {name: document[name] for name in names}
    return TableDiff(changes=changes, columns=matches, unlike=tuple(document["unlike"]), **more)
