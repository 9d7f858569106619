"""Tables of a query's state as tables of a stage: the first is the stage's own, the others are side tables."""

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace

from ....errors import Refused, Usage
from ....state.kinds.attached import Attached
from ....store.sst.arrow_types import from_arrow
from ....store.sst.hashing import hash_keys
from ....store.sst.schema import arrow_schema, shape
from ....store.versions import keys
from ....store.versions.manifest import Column, Manifest, SideTable, Table
from ..checkpoint.protocol import ReadableTable

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
_LONGEST = 63


def name_from(text: str, otherwise: str) -> str:
    """Return a valid stage or table name that resembles any text; `otherwise` if nothing remains."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-_")[:_LONGEST] or otherwise


def declared(tables: Sequence[ReadableTable], partitions: int) -> dict[str, Table]:
    """Return the query's tables by side-table name; the stage's own table has the empty name.

    Raises `Refused` for columns that no table can have.
    """
    tables_by_name: dict[str, Table] = {}
    for number, table in enumerate(tables):
        name = name_from(table.name, f"table{number}") if number else ""
        if name in tables_by_name:
            name = f"{name[: _LONGEST - 4]}-{number}"
        label = f"the table {table.name or 'of the query'} ({table.kind})"
        try:
            keys.check_columns(label, [*table.key.names, *table.values.names])
            hash_keys(table.key.empty_table(), table.key.names)
            key, values = map(_columns, (table.key, table.values))
        except Usage as error:
            raise Refused(f"{label} cannot be stored: {error.message}", hint=error.hint) from error
        tables_by_name[name] = Table(key, values, partitions, Attached(table.kind).stored)
    return tables_by_name


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    return tuple(Column(field.name, from_arrow(field.type)) for field in schema)


def agreed(stored: Mapping[str, Table], current: Mapping[str, Table]) -> dict[str, Table]:
    """Return the query's current tables, in their stored form if they are stored.

    Raises `Refused` if a stored table is gone or has other columns now.
    """
    result = {}
    for name, table in current.items():
        previous = stored.get(name)
        if previous is not None and (previous.key, previous.values, previous.state) != (
            table.key,
            table.values,
            table.state,
        ):
            previous_columns, current_columns = (shape(arrow_schema(version.columns)) for version in (previous, table))
            raise Refused(
                f"the columns of the query's {f'table {name}' if name else 'first table'} have changed from "
                f"{previous_columns} to {current_columns}",
                hint="attach it under another --app or --stage",
            )
        result[name] = previous or table
    if missing := sorted(stored.keys() - current.keys()):
        raise Refused(
            f"the query no longer has the table {missing[0]!r}", hint="attach it under another --app or --stage"
        )
    return result


def tables_in(manifest: Manifest) -> dict[str, Table]:
    """Return the tables of a version by side-table name; the stage's own table has the empty name."""
    own = {"": manifest.table} if manifest.table is not None else {}
    return own | {name: side.table for name, side in manifest.side_tables.items()}


def with_tables(manifest: Manifest, tables: Mapping[str, Table]) -> Manifest:
    """Return the version with these tables declared; their SSTs stay."""
    sides = {
        name: replace(manifest.side_tables.get(name) or SideTable(table), table=table)
        for name, table in tables.items()
        if name
    }
    return replace(manifest, table=tables[""], side_tables=manifest.side_tables | sides)


def fitting(rows: pa.RecordBatch | pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return the rows with exactly these columns and their types. Raises `Refused` for a value of another type."""
    schema = arrow_schema(columns)
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    try:
        return table.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(
            f"state does not fit its table: expected {shape(schema)}; found {shape(table.schema)} ({error})",
            hint="nothing was written of this batch",
        ) from error
