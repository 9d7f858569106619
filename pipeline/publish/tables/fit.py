"""Casts of rows to the column types of a stored table, for a library that casts values without an error."""

import pyarrow as pa

from ....errors import Refused
from ...kafka.protocol import TransactionFailed


def fitted_schema(address: str, rows: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Return the schema of the rows in the table: the table's columns, followed by the rows' new columns.

    Fields of structs are treated like columns. Raises `TransactionFailed` if a type differs from the stored type,
    except for narrower integers and floats.
    """
    return pa.schema(list(_fitted(f"table {address}", "", pa.struct(list(rows)), pa.struct(list(stored)))))


def fit(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows to the types of `fitted_schema`. Missing columns and fields become null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema)


def _fitted(owner: str, path: str, new: pa.DataType, stored: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(new) and types.is_struct(stored):
        before = f"{path}." if path else ""
        added = {field.name: field.type for field in new}
        kinds = {
            field.name: _fitted(owner, before + field.name, added.get(field.name, field.type), field.type)
            for field in stored
        }
        return pa.struct(list((kinds | added | kinds).items()))
    if types.is_map(new) and types.is_map(stored):
        key = _fitted(owner, f"{path}.key", new.key_type, stored.key_type)
        return pa.map_(key, _fitted(owner, f"{path}.value", new.item_type, stored.item_type))
    if types.is_list(new) and types.is_list(stored):
        return pa.list_(_fitted(owner, f"{path}.element", new.value_type, stored.value_type))
    alike = any(is_kind(new) and is_kind(stored) for is_kind in (types.is_signed_integer, types.is_floating))
    if new == stored or (alike and new.bit_width <= stored.bit_width):
        return stored
    refused = Refused(
        f"{owner}: column {path!r} of the rows has the type {new}; expected {stored}, as it is stored",
        hint="cast it in the program, or publish to another table",
    )
    raise TransactionFailed(refused.message, refused)
