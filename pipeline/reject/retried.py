"""Rejected records that are put through a stage again: as its inputs have them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ...errors import Refused
from ...fold.failing import RECORD
from ..api.stage import Stage


def inputs_of(
    stage: Stage, rows: pa.Table, schemas: Mapping[str, pa.Schema]
) -> tuple[dict[str, pa.Table], list[dict[str, object]]]:
    """Rejected records by input, numbered as `RECORD`; and the table's rows, at the places that are these numbers.

    Raises:
        Refused: A record was on an input, or of columns, that the program's stage does not read.
    """
    inputs, ordered = {}, list[dict[str, object]]()
    each = rows.to_pylist()
    for wrong in {str(one["input"]) for one in each} - set(schemas):
        raise Refused(f"stage {stage.name!r} reads no {wrong!r}, from which rejected records are")
    for name, schema in schemas.items():
        mine = [one for one in each if one["input"] == name]
        numbers = pa.array(range(len(ordered), len(ordered) + len(mine)), pa.int64())
        inputs[name] = rows_of(stage, name, mine, schema).append_column(RECORD, numbers)
        ordered += mine
    return inputs, ordered


def rows_of(stage: Stage, name: str, rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    """Rows of the table as an input of the stage has them. Raises `Refused` where it has other columns now."""
    return _of_channel(name, rows, schema) if name in stage.channels else _of_topic(rows, schema)


def _of_topic(rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    columns = [*([one[name] for one in rows] for name in ("key", "value", "topic", "partition", "offset", "time"))]
    return pa.Table.from_arrays(
        [pa.array(each, field.type) for each, field in zip([*columns, [0] * len(rows)], schema, strict=True)],
        schema=schema,
    )


def _of_channel(name: str, rows: list[dict[str, object]], schema: pa.Schema) -> pa.Table:
    if not rows:
        return schema.empty_table()
    parts = []
    for one in rows:
        with pa.ipc.open_stream(one["value"]) as reader:
            parts.append(reader.read_all())
    try:
        return pa.concat_tables([part.select(schema.names).cast(schema) for part in parts])
    except (pa.ArrowException, KeyError) as error:
        raise Refused(
            f"rejected rows of {name!r} have other columns than the program's: {error}",
            hint="run the program that they were rejected by",
        ) from error
