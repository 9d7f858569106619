r"""Replacement of table values that SQL and text cannot represent.

Spark keeps any bytes in a string, and keeps duplicate map keys from JSON or Protobuf. State tables store these values
unchanged. DuckDB refuses a whole file with such a value, so strings that are not UTF-8 get `\xff` in place of invalid
bytes, and maps with duplicate keys become null.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .hashing import digests


def all_showable(rows: pa.Table) -> bool:
    """Return True if all strings are UTF-8 and no map has duplicate keys."""
    return all(_is_showable(chunk) for column in rows.columns for chunk in column.chunks)


def showable(rows: pa.Table) -> pa.Table:
    """Return the rows with invalid strings escaped, and maps with duplicate keys replaced by null."""
    return _replace_values(rows, _null_duplicates)


def escaped(rows: pa.Table) -> pa.Table:
    """Return the rows with strings that are not UTF-8 escaped."""
    return _replace_values(rows, lambda maps: maps)


def _replace_values(rows: pa.Table, of_map: Callable[[pa.MapArray], pa.Array]) -> pa.Table:
    columns = [
        column
        if all(map(_is_showable, column.chunks))
        else pa.chunked_array([changed_inside(chunk, _escaped, of_map) for chunk in column.chunks], column.type)
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def maps_as_lists(array: pa.Array) -> pa.Array:
    """Return the array with maps, at any depth, as lists of their entries, which allows duplicate keys."""

    def listed(maps: pa.MapArray) -> pa.Array:
        entries = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
        return pa.ListArray.from_arrays(maps.offsets, entries, mask=maps.is_null() if maps.null_count else None)

    return changed_inside(array, lambda leaf: leaf, listed)


def changed_inside(
    array: pa.Array, of_leaf: Callable[[pa.Array], pa.Array], of_map: Callable[[pa.MapArray], pa.Array] = lambda it: it
) -> pa.Array:
    """Return an array of structs, lists and maps, at any depth, with its plain values and then its maps changed."""
    kind, types = array.type, pa.types
    if not (types.is_struct(kind) or types.is_map(kind) or types.is_list(kind)):
        return of_leaf(array)
    if array.offset:
        array = array.take(pa.array(np.arange(len(array))))  # copy, so that nulls and offsets begin at 0
    mask = array.is_null() if array.null_count else None

    def inside(part: pa.Array) -> pa.Array:
        return changed_inside(part, of_leaf, of_map)

    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        parts = [inside(array.field(number)) for number in range(kind.num_fields)]
        named = [field.with_type(part.type) for field, part in zip(fields, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=named, mask=mask)
    if types.is_map(kind):
        return of_map(pa.MapArray.from_arrays(array.offsets, inside(array.keys), inside(array.items), mask=mask))
    return pa.ListArray.from_arrays(array.offsets, inside(array.values), mask=mask)


def _is_showable(array: pa.Array) -> bool:
    kind, types = array.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return _is_text(array)
    if types.is_struct(kind):
        return all(map(_is_showable, array.flatten()))
    if types.is_map(kind):
        keys, items = array.keys, array.items
        return _is_showable(keys) and _is_showable(items) and not _has_duplicate_keys(array).any()
    return not types.is_list(kind) or _is_showable(array.flatten())


def _is_text(array: pa.Array) -> bool:
    try:
        # The cast to binary copies nothing; the cast back validates each byte.
        array.cast(pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _escaped(array: pa.Array) -> pa.Array:
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)) or _is_text(array):
        return array
    values = array.cast(pa.large_binary()).to_pylist()
    texts = (None if value is None else value.decode(errors="backslashreplace") for value in values)
    return pa.array(texts, array.type)


def _has_duplicate_keys(maps: pa.MapArray) -> npt.NDArray[np.bool_]:
    """Which of these maps have a key twice."""
    starts = np.asarray(maps.offsets).astype(np.int64)
    owners = np.repeat(np.arange(len(maps)), np.diff(starts))
    hashes = digests(maps.keys.slice(starts[0], starts[-1] - starts[0]))
    order = np.lexsort((hashes, owners))
    owners, hashes = owners[order], hashes[order]
    duplicates = np.zeros(len(maps), bool)
    duplicates[owners[1:][(owners[1:] == owners[:-1]) & (hashes[1:] == hashes[:-1])]] = True
    return duplicates


def _null_duplicates(maps: pa.MapArray) -> pa.Array:
    duplicates = _has_duplicate_keys(maps)
    return maps.take(pa.array(np.arange(len(maps)), mask=duplicates)) if duplicates.any() else maps
