"""Records of two sinks that are equal but for the last bits of floats, in columns or in the JSON of their values."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from .equality import has_floats, unlike

_VALUE = "value"


@dataclass
class _Group:
    """Records that say the same beside floats."""

    places: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    """Of each side, their rows."""
    floats: list[list[float]] = field(default_factory=list)
    """Those of each record, of one side and then of the other."""


def unequal(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of each table that have no equal in the other, by the rule of `equality`.

    The rows are those that differ exactly, so their number follows what differs. Bytes in the column `value` that are
    JSON on both sides are compared by what they say: names in any order, floats within the tolerance.
    """
    if not ours.num_rows or not theirs.num_rows or ours.schema != theirs.schema:
        return ours, theirs
    if _VALUE in ours.column_names and pa.types.is_binary(ours.schema.field(_VALUE).type):
        return _unequal_json(ours, theirs)
    if not any(has_floats(kind) for kind in ours.schema.types):
        return ours, theirs
    left = unlike(ours, theirs)
    return ours.filter(pa.array(left[0])), theirs.filter(pa.array(left[1]))


def _unequal_json(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    # Records that differ in nothing but the numbers that are floats, by all the rest: places on both sides, and floats.
    groups: defaultdict[bytes, _Group] = defaultdict(_Group)
    sides = ours, theirs
    for side, table in enumerate(sides):
        for place, row in enumerate(table.to_pylist()):
            rest, floats = _parted(row)
            groups[rest].places[side].append(place)
            groups[rest].floats.append(floats)
    left = [np.ones(table.num_rows, bool) for table in sides]
    for group in groups.values():
        places, others = group.places
        if not places or not others:
            continue
        columns = np.array(group.floats, np.float64).reshape(len(group.floats), -1).T
        rows = pa.table([pa.array(column) for column in columns], names=[str(at) for at in range(len(columns))])
        if not rows.num_columns:  # no floats: the records are equal but for the order of names
            rows = pa.table({"nothing": pa.nulls(len(group.floats), pa.int8())})
        left[0][places], left[1][others] = unlike(rows.slice(0, len(places)), rows.slice(len(places)))
    return ours.filter(pa.array(left[0])), theirs.filter(pa.array(left[1]))


def _parted(row: dict[str, object]) -> tuple[bytes, list[float]]:
    """Return what a record says beside floats, and its floats in order; a value that is no JSON is taken as it is."""
    value, floats = row[_VALUE], list[float]()

    def without_floats(node: object) -> object:
        if isinstance(node, float) and math.isfinite(node):
            floats.append(node)
            return ...
        if isinstance(node, dict):
            return tuple((name, without_floats(node[name])) for name in sorted(node))
        return [without_floats(item) for item in node] if isinstance(node, list) else node

    try:
        said = without_floats(msgspec.json.decode(value)) if isinstance(value, bytes) else value
    except msgspec.DecodeError:
        said = value
    return repr((said, {name: row[name] for name in row if name != _VALUE})).encode(), floats
