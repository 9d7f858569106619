"""Values as a server takes and gives them: keys as text, rows of their columns' types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ...common.learned import learned
from ...snapshot.diff.key_changes import KeyChanges
from ...snapshot.diff.moments import ColumnMatch, TableDiff
from ...snapshot.query.columns import TableColumn, value_of
from ...snapshot.query.key_text import text_of_key
from ...store.sst.arrow_types import to_arrow


def text(key: object) -> str:
    """Return a key as a server takes it."""
    return text_of_key(key if isinstance(key, tuple) else (key,))


def typed(row: dict[str, Any] | None, kinds: dict[str, pa.DataType]) -> dict[str, object] | None:
    """The values of a row, of their columns' types: JSON has no bytes and no dates."""
    if row is None:
        return None
    return {name: value_of(value, kinds[name]) if name in kinds else value for name, value in row.items()}


def rows(rows: Sequence[dict[str, Any] | None], kinds: dict[str, pa.DataType]) -> pa.Table:
    """A table of rows, nulls for those that are None."""
    found = [typed(row, kinds) or dict.fromkeys(kinds) for row in rows]
    return pa.table({name: pa.array([row.get(name) for row in found], kind) for name, kind in kinds.items()})


def table_diff(found: dict[str, Any], columns: Sequence[TableColumn]) -> TableDiff:
    """What `diff` found of a table with these columns, of the server's document."""
    matches = msgspec.convert(found["columns"], learned(tuple[ColumnMatch, ...]))
    kinds = {each.name: to_arrow(each.type) for each in columns}
    keys = {each.name: kinds[each.name] for each in columns if each.key}
    compared = {each.column: kinds[each.column] for each in matches if each.column in kinds}
    found_rows = found["rows"]
    was, is_there = (np.array([row[side] is not None for row in found_rows], np.bool_) for side in ("before", "after"))
    before, after = (rows([row[side] for row in found_rows], compared) for side in ("before", "after"))
    changes = KeyChanges.between(rows([row["key"] for row in found_rows], keys), before, after, was, is_there)
    names = ("table", "added", "removed", "changed", "rows_in_both", "about", "near")
    more = {name: found[name] for name in names}
    return TableDiff(changes=changes, columns=matches, unlike=tuple(found["unlike"]), **more)
