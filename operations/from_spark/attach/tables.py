"""The tables of a query's state as a stage's: its first is the stage's own, the others lie beside it."""

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
from msgspec.structs import replace

from ....errors import Refused, Usage
from ....state.kinds.attached import Attached
from ....store.sst.arrow_types import from_arrow
from ....store.sst.hashing import hash_keys
from ....store.sst.types import arrow_schema, shape
from ....store.versions import keys
from ....store.versions.manifest import Column, Manifest, SideTable, Table
from ..checkpoint.protocol import ReadableTable

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_-]+")
_LONGEST = 63


def name_from(text: str, otherwise: str) -> str:
    """A name that stages and tables can have, made of any text."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-_")[:_LONGEST] or otherwise


def declared(tables: Sequence[ReadableTable], partitions: int) -> dict[str, Table]:
    """The tables by their names behind the stage's, empty for its own. Raises `Refused` for what cannot be one."""
    found: dict[str, Table] = {}
    for number, table in enumerate(tables):
        name = name_from(table.name, f"table{number}") if number else ""
        if name in found:
            name = f"{name[: _LONGEST - 4]}-{number}"
        what = f"the table {table.name or 'of the query'} ({table.kind})"
        try:
            keys.check_columns(what, [*table.key.names, *table.values.names])
            hash_keys(table.key.empty_table(), table.key.names)
            key, values = map(_columns, (table.key, table.values))
        except Usage as error:
            raise Refused(f"{what} cannot be carried: {error.message}", hint=error.hint) from error
        found[name] = Table(key, values, partitions, Attached(table.kind).stored)
    return found


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    return tuple(Column(each.name, from_arrow(each.type)) for each in schema)


def agreed(stored: Mapping[str, Table], found: Mapping[str, Table]) -> dict[str, Table]:
    """The tables that there are, with what is stored of them, and those that came since.

    Raises `Refused` where one has other columns now, or has gone.
    """
    made = {}
    for name, table in found.items():
        was = stored.get(name)
        if was is not None and (was.key, was.values, was.state) != (table.key, table.values, table.state):
            had, has = (shape(arrow_schema(each.columns)) for each in (was, table))
            raise Refused(
                f"the query's table {name or 'of its own'} has the columns {has}, and had {had}: its state was changed",
                hint="attach it under another --app or --stage",
            )
        made[name] = was or table
    if gone := sorted(stored.keys() - found.keys()):
        raise Refused(f"the query keeps no table {gone[0]!r} any more", hint="attach it under another --app or --stage")
    return made


def tables_in(manifest: Manifest) -> dict[str, Table]:
    """What a version declares, by the names of `declared`."""
    own = {"": manifest.table} if manifest.table is not None else {}
    return own | {name: each.table for name, each in manifest.side_tables.items()}


def with_tables(manifest: Manifest, tables: Mapping[str, Table]) -> Manifest:
    """The version with these tables declared, and what is in them."""
    sides = {
        name: replace(manifest.side_tables.get(name) or SideTable(table), table=table)
        for name, table in tables.items()
        if name
    }
    return replace(manifest, table=tables[""], side_tables=manifest.side_tables | sides)


def fitting(rows: pa.RecordBatch | pa.Table, columns: Sequence[Column]) -> pa.Table:
    """The rows with exactly these columns, in their types.

    Raises `Refused` where a value is none of its column's type: what is read is not what was said.
    """
    schema = arrow_schema(columns)
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    try:
        return table.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Refused(
            f"state does not fit its table: expected {shape(schema)}; found {shape(table.schema)} ({error})",
            hint="nothing was written of this batch",
        ) from error
