"""Rejected records, put through a stage's function again: from the table, which has all of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from ...errors import Refused
from ..api.app import Stage
from .feed import CHOSEN, Chosen
from .places import Places, Stretch, record_number


@dataclass(frozen=True, slots=True)
class GivenFeed:
    """Gives tasks rows that the driver has, each with its number; for `mapInArrow`."""

    input: str
    rows: bytes = field(repr=False)
    """An Arrow stream of the input's columns."""
    schema: pa.Schema
    """These, and the number's as the last."""
    start: int
    """The place of the first row."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the job chose for the tasks whose numbers the batches hold."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101  only Spark's workers call this
        chosen = msgspec.json.decode(context.getLocalProperty(CHOSEN) or "[[]]", type=Chosen)
        out = {offset for _, offset, _ in chosen.left_out.get(self.input, ())}
        with pa.ipc.open_stream(self.rows) as reader:
            table = reader.read_all()
        for batch in batches:
            for number in batch["id"].to_pylist():
                for reading in chosen.readings[number] if number < len(chosen.readings) else ():
                    places = [at for at in range(reading.first, reading.last) if at not in out]
                    if reading.input == self.input and places:
                        numbers = [record_number(self.start + at, 0) for at in places]
                        some = table.take(pa.array(places)).append_column(self.schema.field(-1), pa.array(numbers))
                        yield from some.cast(self.schema).to_batches()


def feeds_of(
    stage: Stage, rows: pa.Table, schemas: dict[str, pa.Schema], numbered: dict[str, pa.Schema]
) -> tuple[Places, dict[str, GivenFeed], list[dict[str, object]]]:
    """Rejected records as a stage's inputs: their places, what reads them, and the table's rows in the same order.

    Raises:
        Refused: A record was on an input, or of columns, that the program's stage does not read.
    """
    stretches, feeds, ordered = [], {}, list[dict[str, object]]()
    each = rows.to_pylist()
    for wrong in {str(one["input"]) for one in each} - set(schemas):
        raise Refused(f"stage {stage.name!r} reads no {wrong!r}, from which rejected records are")
    for name, schema in schemas.items():
        mine = [one for one in each if one["input"] == name]
        made = rows_of(stage, name, mine, schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, made.schema) as writer:
            writer.write_table(made)
        feeds[name] = GivenFeed(name, bytes(sink.getvalue()), numbered[name], len(ordered))
        if mine:
            stretches.append(Stretch(name, 0, 0, len(mine)))
        ordered += mine
    return Places(tuple(stretches)), feeds, ordered


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
