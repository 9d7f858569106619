"""The records of a batch, which Spark keeps, and what the stage's function makes of any of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import functions as F

from ...fold.failing import RECORD
from ..api.stage import Stage
from ..batch.applied import over, tag
from ..batch.schemas import Shape
from ..spark.plans import frame_of, plan_of, rebuilt
from ..spark.provenance import hidden, with_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Records = npt.NDArray[np.int64]


@dataclass
class KeptRecords:
    """A stage's function over the records of a batch.

    Attributes:
        inputs: Each input's records, with their numbers as `RECORD`, in the order in which the function gets them.
        rows: What the function makes of all of them, as the batch's own rows.
    """

    spark: SparkSession
    stage: Stage
    shape: Shape
    inputs: Sequence[DataFrame]

    def __post_init__(self) -> None:
        self._kept = [frame.persist() for frame in self.inputs]
        self._feeds = [plan_of(frame) for frame in self._kept]
        self._shown = [hidden(frame) for frame in self._kept]
        self._frames = over(self.stage, self._shown)
        self.rows = tag(self._frames, self.shape.key)

    def close(self) -> None:
        """Let go of what is kept."""
        for frame in self._kept:
            frame.unpersist()

    @property
    def needed(self) -> DataFrame:
        """Of the function's rows, what the batch computes."""
        return self.rows if self.shape.bound is None else self._for_state(self.rows)

    @cached_property
    def numbers(self) -> Records:
        """Those of all records, ascending."""
        parts = [frame.select(RECORD).toArrow()[RECORD].to_numpy() for frame in self._kept]
        return np.sort(np.concatenate(parts))

    @cached_property
    def numbered(self) -> DataFrame | None:
        """The function's rows, each with its record's number as `RECORD`; None where it mixes records."""
        located = [with_records(frame, self._shown) for frame in self._frames]
        known = [frame for frame in located if frame is not None]
        return tag(known, (*self.shape.key, RECORD)) if len(known) == len(located) else None

    def of_keys(self, keys: Collection[int], without: Collection[int]) -> DataFrame | None:
        """`numbered`, the rows of these keys, by `_hash`."""
        if self.numbered is None:
            return None
        wanted = ", ".join(f"{key}L" for key in keys)
        of_key = F.expr(f"xxhash64({', '.join(f'`{name}`' for name in self.shape.key)}) IN ({wanted})")
        return self.without(self.numbered, without).where(of_key)

    def without(self, rows: DataFrame, left_out: Collection[int]) -> DataFrame:
        """Rows of the function, where it does not get these records."""
        if not left_out:
            return rows
        return self._where(rows, f"`{RECORD}` NOT IN ({', '.join(f'{number}L' for number in sorted(left_out))})")

    def only(self, rows: DataFrame, chosen: Records) -> DataFrame:
        """Rows of the function, where it gets these records alone: some of `numbers`, ascending."""
        places = np.searchsorted(self.numbers, chosen)
        begins = np.flatnonzero(np.append(True, np.diff(places) > 1))
        ends = np.append(begins[1:], len(places)) - 1
        spans = (
            f"`{RECORD}` BETWEEN {chosen[first]} AND {chosen[last]}" for first, last in zip(begins, ends, strict=True)
        )
        return self._where(rows, " OR ".join(spans))

    def _where(self, rows: DataFrame, condition: str) -> DataFrame:
        def replace(before: Any, after: Any) -> Any:
            # Where a union has an input twice, its columns have other ids the second time.
            if any(before.sameResult(feed) for feed in self._feeds):
                return plan_of(frame_of(after, self.spark).where(condition))
            return after

        return frame_of(rebuilt(plan_of(rows), self.spark, replace), self.spark)

    def _for_state(self, rows: DataFrame) -> DataFrame:
        assert self.shape.bound is not None  # noqa: S101  a stage with state has one
        times = (name for one in self.shape.watermarks for name in one.columns)
        wanted = dict.fromkeys((*self.shape.key, *self.shape.bound.needs, *times, *self.shape.late))
        return rows.select(*(F.col(f"`{name}`") for name in wanted), F.xxhash64(*self.shape.key).alias("_hash"))
