"""Applies a stage's function to chosen records outside of the stage's query, to reject records or to replay history."""

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

from ...state.event_time import EventTimeScan
from ...state.failing import RECORD
from ...store.versions.column_types import quote_for_spark
from ..api.stage import Stage
from ..source.spark_types import spark_schema_of
from ..spark.plans import analysed_plan, frame_of, hide_record_numbers, rebuild, with_record_numbers
from ..spark.session import without_subexpression_elimination
from .schemas import StageSchemas
from .transform import apply_to_records, select_batch_columns, union_tagged

RecordNumbers = npt.NDArray[np.int64]
_BATCH_ROWS = 10_000


@dataclass
class Rerun:
    """Rows that a stage's function returns for given records, or for subsets of these records.

    `rows` has the rows that the function returned for all records, in the format of a micro-batch. `spark` is the
    session of these rows. Raises `Refused` if the function fails.
    """

    stage: Stage
    schemas: StageSchemas
    inputs: Sequence[DataFrame]
    """Records of each input, in the order of the function's arguments, with record numbers in the column `RECORD`."""
    output: str = ""
    """Output to compute, if a stage without state returns a DataFrame for each output; empty for all outputs."""

    def __post_init__(self) -> None:
        self._feeds = [analysed_plan(frame) for frame in self.inputs]
        self._visible_inputs = [hide_record_numbers(frame) for frame in self.inputs]
        self._frames = apply_to_records(self.stage, self._visible_inputs)
        if self.output and self.schemas.bound is None and len(self._frames) > 1:
            self._frames = (self._frames[[sink.name for sink in self.stage.writes].index(self.output)],)
        self.rows = union_tagged(self._frames, self.schemas.key)
        self.spark = self.rows.sparkSession

    @cached_property
    def numbered_rows(self) -> DataFrame | None:
        """The function's rows, with record numbers in the column `RECORD`; None if the function mixes records."""
        located = [with_record_numbers(frame, self._visible_inputs) for frame in self._frames]
        numbered = [frame for frame in located if frame is not None]
        return union_tagged(numbered, (*self.schemas.key, RECORD)) if len(numbered) == len(located) else None

    def select_needed_columns(self, rows: DataFrame) -> DataFrame:
        """Select the columns that a batch computes: `_hash`, the key, and columns for the state and for late rows."""
        key, bound = self.schemas.key, self.schemas.bound
        return (
            select_batch_columns(
                rows, key, bound.needed_columns, EventTimeScan(self.schemas.watermarks), self.schemas.late_columns
            )
            if bound
            else rows
        )

    def to_arrow(self) -> tuple[pa.Table, bool]:
        """Compute the needed columns in one Spark job. Returns the rows, and True if they include `RECORD`."""
        return self.select_needed_columns(
            self.rows if self.numbered_rows is None else self.numbered_rows
        ).toArrow(), self.numbered_rows is not None

    @cached_property
    def numbers(self) -> RecordNumbers:
        parts = [frame.select(RECORD).toArrow()[RECORD].to_numpy() for frame in self.inputs]
        return np.sort(np.concatenate(parts))

    def rows_of_keys(self, keys: Collection[int], without: Collection[int]) -> DataFrame | None:
        """Return the rows whose key hash is in `keys`, except rows of the records `without`.

        Returns None if the function mixes records, so that rows have no record numbers.
        """
        if self.numbered_rows is None:
            return None
        hashes = ", ".join(f"{key}L" for key in keys)
        of_key = F.expr(f"xxhash64({', '.join(map(quote_for_spark, self.schemas.key))}) IN ({hashes})")
        return self.rows_without(self.numbered_rows, without).where(of_key)

    def rows_without(self, rows: DataFrame, left_out: Collection[int]) -> DataFrame:
        if not left_out:
            return rows
        return self._filter_records(
            rows, f"`{RECORD}` NOT IN ({', '.join(f'{number}L' for number in sorted(left_out))})"
        )

    def rows_of_records(self, rows: DataFrame, chosen: RecordNumbers) -> DataFrame:
        """Return the rows that come from the records `chosen`, an ascending array of record numbers."""
        indexes = np.searchsorted(self.numbers, chosen)
        begins = np.flatnonzero(np.append(True, np.diff(indexes) > 1))
        ends = np.append(begins[1:], len(indexes)) - 1
        spans = zip(chosen[begins], chosen[ends], strict=True)
        return self._filter_records(
            rows, " OR ".join(f"`{RECORD}` BETWEEN {first} AND {last}" for first, last in spans)
        )

    def _filter_records(self, rows: DataFrame, condition: str) -> DataFrame:
        def replace(old: Any, new: Any) -> Any:
            # In a union that uses an input twice, the columns of the second use have different ids.
            if any(old.sameResult(source) for source in self._feeds):
                return analysed_plan(frame_of(new, self.spark).where(condition))
            return new

        # Spark merges this filter with the filter of the user's function. Common subexpressions must not be evaluated
        # before the filter.
        return frame_of(rebuild(analysed_plan(rows), self.spark, replace), self._session_without_elimination)

    @cached_property
    def _session_without_elimination(self) -> SparkSession:
        return without_subexpression_elimination(self.spark)


def numbered_records_frame(
    spark: SparkSession, rows: pa.Table, numbers: RecordNumbers, path: Path, batch_rows: int = _BATCH_ROWS
) -> DataFrame:
    """Write records and their numbers to the file `path`, and return a DataFrame that reads the file.

    The DataFrame has one partition for each `batch_rows` rows, but at most as many partitions as there are cores.
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
