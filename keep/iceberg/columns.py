"""A table's columns as an Iceberg schema, and which of its SSTs Iceberg's readers read by it as we do.

Column ids are the same in both: Iceberg finds a column by the field id in the file, as `sst.evolution` does. So what
was renamed, removed, added without a default, or widened as Iceberg widens needs nothing. Of an SST that lacks a column
with a default, or has a decimal of another scale, the rows are written anew, in their order: format v2 has no words for
that.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema

from ...errors import Refused
from ...store.sst.evolution import ColumnSource, Reading
from ...store.sst.types import EXPIRES, HASH, OP, PREV, SEQ, sst_schema
from ...store.versions.manifest import Table, is_internal


def data_schema(table: Table) -> pa.Schema:
    """The columns that users see, in Arrow's types, with the ids that the table's SSTs carry."""
    own = (HASH, SEQ, OP, PREV, EXPIRES)
    fields = sst_schema(table)
    return pa.schema([each for each in fields if each.name not in own and not is_internal(each.name)])


def iceberg_schema(name: str, table: Table) -> Schema:
    """The same as Iceberg has it. int8 and int16 are its int; a timestamp with a zone is timestamptz.

    Raises `Refused` where two columns would be one there: Iceberg writes a struct's field as `struct.field`.
    """
    fields = data_schema(table)
    numbers = list(_ids(pa.struct(fields)))
    try:
        if len(set(numbers)) != len(numbers):
            raise ValueError("two of its columns have the same field id")
        made = pyarrow_to_schema(fields)
        made.find_field(made.columns[0].name)  # makes the index by name
    except (ValueError, TypeError, ValidationError) as error:
        raise Refused(
            f"table {name!r} cannot be an Iceberg table: {error}", hint="rename one of its columns by a migration"
        ) from error
    return made


def _ids(kind: pa.DataType) -> Iterator[int]:
    inside: list[pa.Field] = []
    if pa.types.is_struct(kind):
        inside = [kind.field(place) for place in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inside = [kind.value_field]
    elif pa.types.is_map(kind):
        inside = [kind.key_field, kind.item_field]
    for each in inside:
        yield int(each.metadata[b"PARQUET:field_id"])
        yield from _ids(each.type)


def is_read_alike(reading: Reading | None) -> bool:
    """Whether Iceberg's readers make of such SSTs the rows that we do; None stands for SSTs of the table's columns."""
    if reading is None:
        return True
    shown = (each for name, each in reading.sources.items() if not is_internal(name))
    return all(_is_found(each) for each in shown)


def _is_found(source: ColumnSource) -> bool:
    if source.name is None:
        return not source.default.is_valid
    return _is_promoted(source.stored, source.type)


def _is_promoted(was: pa.DataType, kind: pa.DataType) -> bool:
    """Whether Iceberg reads the one as the other, of types of which every value of the one is one of the other."""
    types = pa.types
    if types.is_decimal(was):
        return bool(was.scale == kind.scale)
    if types.is_struct(was):
        return all(_is_promoted(field.type, kind.field(field.name).type) for field in was)
    if types.is_list(was):
        return _is_promoted(was.value_type, kind.value_type)
    if types.is_map(was):
        return _is_promoted(was.key_type, kind.key_type) and _is_promoted(was.item_type, kind.item_type)
    return True
