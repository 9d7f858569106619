"""Applies a stage's function to chosen records outside of its query, to reject records or to replay history."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField

from ...state.event_time import Times
from ...state.failing import RECORD
from ...store.versions.column_types import in_backticks
from ..api.stage import Stage
from ..source.spark_types import spark_schema_of
from ..spark.plans import frame_of, hidden, plan_of, rebuilt, with_records
from ..spark.session import part_by_part
from .schemas import Shape
from .transform import for_state, over, tag

Numbers = npt.NDArray[np.int64]
_BATCH_ROWS = 10_000


@dataclass
class Rerun:
    """Result of a stage's function for given records, and for subsets of them. Raises `Refused` if the function fails.

    `rows` has the result for all records, in the form of a batch's rows. `spark` is the session of these rows.
    """

    stage: Stage
    shape: Shape
    inputs: Sequence[DataFrame]
    """Records of each input, in the order of the function's arguments, with their numbers in the column `RECORD`."""
    output: str = ""
    """Output whose rows are wanted, if a stage without state returns a DataFrame for each; empty for all outputs."""

    def __post_init__(self) -> None:
        self._feeds = [plan_of(frame) for frame in self.inputs]
        self._shown = [hidden(frame) for frame in self.inputs]
        self._frames = over(self.stage, self._shown)
        if self.output and self.shape.bound is None and len(self._frames) > 1:
            self._frames = (self._frames[[sink.name for sink in self.stage.writes].index(self.output)],)
        self.rows = tag(self._frames, self.shape.key)
        self.spark = self.rows.sparkSession

    @cached_property
    def numbered(self) -> DataFrame | None:
        """Rows of the function, with record numbers in the column `RECORD`; None if the function mixes records."""
        located = [with_records(frame, self._shown) for frame in self._frames]
        numbered = [frame for frame in located if frame is not None]
        return tag(numbered, (*self.shape.key, RECORD)) if len(numbered) == len(located) else None

    def needed(self, rows: DataFrame) -> DataFrame:
        """Select the columns that a batch computes: `_hash`, the key, and columns for the state and for late rows."""
        key, bound = self.shape.key, self.shape.bound
        return for_state(rows, key, bound.needs, Times(self.shape.watermarks), self.shape.late) if bound else rows

    def table(self) -> tuple[pa.Table, bool]:
        """Compute all needed columns in one Spark job. The second value is True if they include `RECORD`."""
        return self.needed(self.rows if self.numbered is None else self.numbered).toArrow(), self.numbered is not None

    @cached_property
    def numbers(self) -> Numbers:
        parts = [frame.select(RECORD).toArrow()[RECORD].to_numpy() for frame in self.inputs]
        return np.sort(np.concatenate(parts))

    def of_keys(self, keys: Collection[int], without: Collection[int]) -> DataFrame | None:
        """Return numbered rows with these key hashes, except for records `without`; None if rows have no numbers."""
        if self.numbered is None:
            return None
        hashes = ", ".join(f"{key}L" for key in keys)
        of_key = F.expr(f"xxhash64({', '.join(map(in_backticks, self.shape.key))}) IN ({hashes})")
        return self.without(self.numbered, without).where(of_key)

    def without(self, rows: DataFrame, left_out: Collection[int]) -> DataFrame:
        if not left_out:
            return rows
        return self._where(rows, f"`{RECORD}` NOT IN ({', '.join(f'{number}L' for number in sorted(left_out))})")

    def only(self, rows: DataFrame, chosen: Numbers) -> DataFrame:
        """Return the function's rows for the records `chosen`, an ascending subset of `numbers`."""
        indexes = np.searchsorted(self.numbers, chosen)
        begins = np.flatnonzero(np.append(True, np.diff(indexes) > 1))
        ends = np.append(begins[1:], len(indexes)) - 1
        spans = zip(chosen[begins], chosen[ends], strict=True)
        return self._where(rows, " OR ".join(f"`{RECORD}` BETWEEN {first} AND {last}" for first, last in spans))

    def _where(self, rows: DataFrame, condition: str) -> DataFrame:
        def replace(old: Any, new: Any) -> Any:
            # In a union that has an input twice, the second use has other column ids.
            if any(old.sameResult(feed) for feed in self._feeds):
                return plan_of(frame_of(new, self.spark).where(condition))
            return new

        # Spark merges this filter with the function's. Common subexpressions must not be evaluated before the filter.
        return frame_of(rebuilt(plan_of(rows), self.spark, replace), self._part_by_part)

    @cached_property
    def _part_by_part(self) -> SparkSession:
        return part_by_part(self.spark)


def records_of(
    spark: SparkSession, rows: pa.Table, numbers: Numbers, path: Path, batch_rows: int = _BATCH_ROWS
) -> DataFrame:
    """Write records and their numbers to a file, and return a DataFrame that reads the file in parallel.

    Spark has at most one task for each core, and for each `batch_rows` rows of the file.
    """
    rows = rows.append_column(RECORD, pa.array(numbers, pa.int64()))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    tasks = max(1, min(spark.sparkContext.defaultParallelism, -(-rows.num_rows // batch_rows)))
    schema = spark_schema_of(rows.schema)
    schema.fields[-1] = StructField(RECORD, LongType(), nullable=False)
    file_path = str(path)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with pa.memory_map(file_path) as mapped:
                table = pa.ipc.open_file(mapped).read_all()
            for first in batch["id"].to_pylist():
                yield from table.slice(first, batch_rows).to_batches()

    return spark.range(0, rows.num_rows, batch_rows, tasks).mapInArrow(read, schema)
