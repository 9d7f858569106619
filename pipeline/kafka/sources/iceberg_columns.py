"""Columns of an Iceberg table that its files have under other names, or lack.

A file names a column as the schema did with which it was written; the field id stays. Imported files lack the columns
by which the table is partitioned.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import index_name_by_id
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from ....errors import Refused
from .rows import encode_rows


class TableColumns:
    """Columns of a table as of a schema, by default the newest.

    Raises `Refused` if fields within columns were renamed.
    """

    def __init__(self, table: Table, schema_id: int | None) -> None:
        schema = next((past for number, past in table.schemas().items() if number == schema_id), table.schema())
        self._by_id = {column.field_id: column.name for column in schema.fields}
        self._types, self._specs = schema_to_pyarrow(schema), table.specs()
        columns = [column for past in table.schemas().values() for column in past.fields]
        inner = defaultdict[int, list[Mapping[int, str]]](list)
        for column in columns:
            inner[column.field_id].append(index_name_by_id(column.field_type))
        if any(map(_disagree, inner.values())):
            raise Refused(
                f"Iceberg table {'.'.join(table.name())}: fields of a struct were renamed or added again, which is "
                "not supported",
                hint="copy the rows to a new table, and read that one",
            )
        is_ambiguous = _disagree([{column.field_id: column.name} for column in columns])
        self.names = {str(number): name for number, name in self._by_id.items()} if is_ambiguous else {}
        """Names by field id, if schemas of the table disagree about them."""

    def partition_values(self, file: DataFile) -> dict[str, Any]:
        """Return the values of the columns by which the table is partitioned, as JSON has them."""
        values = dict[str, Any]()
        for number, part in enumerate(self._specs[file.spec_id].fields):
            name, value = self._by_id.get(part.source_id), file.partition[number]
            if name is None or value is None or not isinstance(part.transform, IdentityTransform):
                continue
            if isinstance(value, Decimal):
                values[name] = str(value)
                continue
            kind = self._types.field(name).type
            # Times are numbers in the table's metadata.
            plain = pa.array([value], pa.int32()) if pa.types.is_date32(kind) else pa.array([value])
            values |= json.loads(encode_rows(pa.table({name: plain.cast(kind)}), {})[0].as_py())
        return values


def _disagree(schemas: Sequence[Mapping[int, str]]) -> bool:
    pairs = {pair for names in schemas for pair in names.items()}
    return not len(pairs) == len({number for number, _ in pairs}) == len({name for _, name in pairs})
