"""Comparison of the records of two sinks within the float tolerance, in columns or in JSON values."""

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
    """Records that are equal except for their floats."""

    places: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    """Row numbers on each side."""
    floats: list[list[float]] = field(default_factory=list)
    """Floats of each record: first those of one side, then of the other."""


def unequal(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of each table that have no equal row in the other, by the rule of `equality`.

    Both tables hold only rows that differ exactly. If the column `value` holds JSON on both sides, its content is
    compared: fields in any order, floats within the tolerance.
    """
    if not ours.num_rows or not theirs.num_rows or ours.schema != theirs.schema:
        return ours, theirs
    if _VALUE in ours.column_names and pa.types.is_binary(ours.schema.field(_VALUE).type):
        return _unequal_json(ours, theirs)
    if not any(has_floats(kind) for kind in ours.schema.types):
        return ours, theirs
    unmatched = unlike(ours, theirs)
    return ours.filter(pa.array(unmatched[0])), theirs.filter(pa.array(unmatched[1]))


def _unequal_json(ours: pa.Table, theirs: pa.Table) -> tuple[pa.Table, pa.Table]:
    # By content without floats.
    groups: defaultdict[bytes, _Group] = defaultdict(_Group)
    sides = ours, theirs
    for side, table in enumerate(sides):
        for place, row in enumerate(table.to_pylist()):
            content, floats = _split_floats(row)
            groups[content].places[side].append(place)
            groups[content].floats.append(floats)
    unmatched = [np.ones(table.num_rows, bool) for table in sides]
    for group in groups.values():
        our_rows, their_rows = group.places
        if not our_rows or not their_rows:
            continue
        columns = np.array(group.floats, np.float64).reshape(len(group.floats), -1).T
        rows = pa.table([pa.array(column) for column in columns], names=[str(at) for at in range(len(columns))])
        if not rows.num_columns:  # no floats: the records are equal but for the order of names
            rows = pa.table({"nothing": pa.nulls(len(group.floats), pa.int8())})
        unmatched[0][our_rows], unmatched[1][their_rows] = unlike(
            rows.slice(0, len(our_rows)), rows.slice(len(our_rows))
        )
    return ours.filter(pa.array(unmatched[0])), theirs.filter(pa.array(unmatched[1]))


def _split_floats(row: dict[str, object]) -> tuple[bytes, list[float]]:
    """Return the record's content without its floats, and the floats in order.

    A value that is not JSON is returned whole.
    """
    value, floats = row[_VALUE], list[float]()

    def without_floats(node: object) -> object:
        if isinstance(node, float) and math.isfinite(node):
            floats.append(node)
            return ...
        if isinstance(node, dict):
            return tuple((name, without_floats(node[name])) for name in sorted(node))
        return [without_floats(item) for item in node] if isinstance(node, list) else node

    try:
        content = without_floats(msgspec.json.decode(value)) if isinstance(value, bytes) else value
    except msgspec.DecodeError:
        content = value
    return repr((content, {name: row[name] for name in row if name != _VALUE})).encode(), floats
