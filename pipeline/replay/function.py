"""A stage's own function, run by Spark over chosen records: the rows that it gives, if possible with their records."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField

from ...fold.failing import RECORD
from ..api.stage import Stage
from ..batch.applied import over, tag
from ..batch.schemas import Shape
from ..spark.provenance import hidden, with_records

_BATCH_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class _Feed:
    """Gives a task rows of a file, by the numbers of those that its batches begin with; for `mapInArrow`."""

    path: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with pa.memory_map(self.path) as file:
                rows = pa.ipc.open_file(file).read_all()
            for first in batch["id"].to_pylist():
                yield from rows.slice(first, _BATCH_ROWS).to_batches()


def function_rows(
    spark: SparkSession,
    stage: Stage,
    shape: Shape,
    inputs: Mapping[str, pa.Table],
    numbers: Mapping[str, npt.NDArray[np.int64]],
    *,
    output: str = "",
) -> tuple[pa.Table, bool]:
    """What the stage's function makes of these records: one Spark job.

    Args:
        spark: A session on this machine.
        stage: As declared.
        shape: Its schemas.
        inputs: The records of each input, by its declared name.
        numbers: A number for each record of each input.
        output: Of a stage without state, the output whose rows are wanted.

    Returns:
        For a stage with state, `_hash`, the key and the columns that the state and late rows need; for one without, the
        rows that go to `output`. With the column `RECORD` if each row comes of one record, and whether that is so.

    Raises:
        Refused: The function fails. Spark's own errors where it fails in a task.
    """
    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        feeds = [
            hidden(_fed(spark, rows.append_column(RECORD, pa.array(numbers[name], pa.int64())), Path(folder) / name))
            for name, rows in inputs.items()
        ]
        frames = over(stage, feeds)
        if shape.bound is None and len(frames) > 1:
            frames = (frames[[each.name for each in stage.writes].index(output)],)
        known = [with_records(frame, feeds) for frame in frames]
        apart = [frame for frame in known if frame is not None]
        if len(apart) == len(frames):
            return _wanted(apart, shape, RECORD).toArrow(), True
        return _wanted(frames, shape).toArrow(), False


def _wanted(frames: Sequence[DataFrame], shape: Shape, *more: str) -> DataFrame:
    if shape.bound is None:
        return frames[0]
    rows = tag(frames, (*shape.key, *more))
    wanted = dict.fromkeys((*shape.key, *shape.bound.needs, *shape.late, *more))
    return rows.select(*(F.col(f"`{name}`") for name in wanted), F.xxhash64(*shape.key).alias("_hash"))


def _fed(spark: SparkSession, rows: pa.Table, path: Path) -> DataFrame:
    """A DataFrame of these rows, which Spark reads from a file with as many tasks as it has cores."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    tasks = max(1, min(spark.sparkContext.defaultParallelism, -(-rows.num_rows // _BATCH_ROWS)))
    schema = from_arrow_schema(rows.schema)
    schema.fields[-1] = StructField(RECORD, LongType(), nullable=False)
    return spark.range(0, rows.num_rows, _BATCH_ROWS, tasks).mapInArrow(_Feed(str(path)), schema)
