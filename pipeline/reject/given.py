"""Records that the driver has, put through a stage's function: of a batch the few that are left, or rejected ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from ...errors import Refused
from ..api.stage import Stage
from .feed import chosen_by
from .places import ROW_BITS, Places, Reading, Stretch, record_number


@dataclass(frozen=True, slots=True)
class GivenFeed:
    """Gives tasks the rows that the job chose, each with its number; for `mapInArrow`."""

    input: str
    rows: bytes = field(repr=False)
    """An Arrow stream of the input's columns, and as the last the records' numbers."""
    schema: pa.Schema
    """Of these columns."""
    starts: Mapping[int, tuple[int, int]]
    """By Kafka partition, its first offset and that one's place."""

    @classmethod
    def of(
        cls, name: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, starts: Mapping[int, tuple[int, int]]
    ) -> GivenFeed:
        """Of these rows."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return cls(name, bytes(sink.getvalue()), schema, starts)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the job chose for the tasks whose numbers the batches hold."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101  only Spark's workers call this
        chosen = chosen_by(context)
        out = [
            record_number(self._place(partition, offset), row)
            for partition, offset, row in chosen.left_out.get(self.input, ())
        ]
        with pa.ipc.open_stream(self.rows) as reader:
            rows = reader.read_all()
        numbers = rows.columns[-1].to_numpy()
        for batch in batches:
            for number in batch["id"].to_pylist():
                for reading in chosen.readings[number] if number < len(chosen.readings) else ():
                    if reading.input == self.input:
                        keep = self._chosen(reading, numbers) & ~np.isin(numbers, out)
                        yield from rows.filter(pa.array(keep)).to_batches()

    def _chosen(self, reading: Reading, numbers: np.ndarray) -> np.ndarray:
        low, high = (self._place(reading.partition, offset) for offset in (reading.first, reading.last))
        keep = (numbers >= record_number(low, 0)) & (numbers < record_number(high, 0))
        if reading.rows is None:
            return keep
        rows = numbers & ((1 << ROW_BITS) - 1)
        return keep & (rows >= reading.rows[0]) & (rows < reading.rows[1])

    def _place(self, partition: int, offset: int) -> int:
        first, place = self.starts[partition]
        return place + offset - first


def feeds_of(
    stage: Stage, rows: pa.Table, schemas: Mapping[str, pa.Schema], numbered: Mapping[str, pa.Schema]
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
        numbers = pa.array([record_number(len(ordered) + at, 0) for at in range(len(mine))], pa.int64())
        made = rows_of(stage, name, mine, schema).append_column(numbered[name].field(-1), numbers)
        feeds[name] = GivenFeed.of(name, made.cast(numbered[name]).to_batches(), numbered[name], {0: (0, len(ordered))})
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
