"""A batch once more, over any of its records: one plan, and which records its jobs read is said beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from ..api.stage import Stage
from ..batch.applied import over
from ..batch.schemas import Shape
from ..source.own_errors import ERROR_MARK, Feed
from ..spark.provenance import RECORD, hidden, with_records
from ..state.multi_input import tag
from .blame import Blame, blamed
from .failed_task import failed_task
from .feed import CHOSEN, TASKS, Chosen
from .places import Places, Reading, left_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


@dataclass
class Again:
    """A stage's function over the records of a batch.

    Attributes:
        places: Where these are.
        rows: What the function gives of those that are chosen: as the batch's own rows.
        last: The error of the last trial that failed.
        trials: How many jobs were run to find out what fails.
    """

    spark: SparkSession
    stage: Stage
    shape: Shape
    places: Places
    feeds: Mapping[str, Feed]
    num_rows: Callable[[int], int]
    """How many records the message at a place has."""
    last: Blame | None = None
    trials: int = 0

    def __post_init__(self) -> None:
        tasks = self.spark.range(0, TASKS, 1, TASKS)
        fed = [
            hidden(tasks.mapInArrow(ERROR_MARK.on(feed), numbered(self.shape.inputs[name])))
            for name, feed in self.feeds.items()
        ]
        self._frames = over(self.stage, fed)
        self._located = [with_records(frame, fed) for frame in self._frames]
        self.rows = tag(self._frames, self.shape.key)
        self._computed = self.rows if self.shape.bound is None else self._hashed(self.rows)
        self._kept: DataFrame | None = None

    def close(self) -> None:
        """Let go of what is kept."""
        if self._kept is not None:
            self._kept.unpersist()

    @cached_property
    def _tells_task(self) -> bool:
        """Whether a task's number says what it has read: where there is no exchange."""
        plan = self._computed._jdf.queryExecution().executedPlan().toString()
        return re.search(r"\bExchange\b", plan) is None

    @property
    def width(self) -> int:
        """Into how many pieces one cuts what fails: where no task tells which one fails, each costs a job."""
        return TASKS if self._tells_task else 2

    @contextmanager
    def choosing(self, pieces: Sequence[Sequence[Reading]], without: Collection[int] = ()) -> Iterator[None]:
        """While jobs read these records, a piece for each task; `without` are numbers of records."""
        tasks: list[list[Reading]] = [[] for _ in range(min(TASKS, len(pieces)))]
        for number, piece in enumerate(pieces):
            tasks[number % TASKS] += piece
        skipped = {name: tuple(each) for name, each in left_out(without, self.places).items()}
        chosen = Chosen(tuple(map(tuple, tasks)), skipped)
        context = self.spark.sparkContext
        context.setLocalProperty(CHOSEN, msgspec.json.encode(chosen).decode())
        try:
            yield
        finally:
            context.setLocalProperty(CHOSEN, None)  # type: ignore[arg-type]  # it takes the property away

    def whole(self) -> list[list[Reading]]:
        """All that the batch reads, a piece for each stretch."""
        return [[each] for each in self.places.readings(self.places.all)]

    def failing(self, pieces: Sequence[Sequence[Reading]]) -> int | None:
        """Tries pieces side by side, by what the stage's function does with them: the place of one that fails."""
        if self._tells_task and len(pieces) <= TASKS:
            failed = self._try(pieces)
            if failed is None:
                return None
            if 0 <= failed < len(pieces):
                return failed
        for number, piece in enumerate(pieces):
            if self._try([piece]) is not None:
                return number
        return None

    def _try(self, pieces: Sequence[Sequence[Reading]]) -> int | None:
        """Have the function's rows computed; the number of the task that failed, -1 where that is not known."""
        self.trials += 1
        with self.choosing(pieces):
            try:
                self._computed.write.format("noop").mode("overwrite").save()
            except Exception as error:
                self.last = blamed(error)
                if self.last is None:
                    raise
                task = failed_task(self.spark) if self._tells_task else None
                return task.number % TASKS if task is not None else -1
        return None

    def rows_of(self, keys: Collection[int], without: Collection[int]) -> pa.Table | None:
        """The function's rows of keys, by `_hash`, with `RECORD`; None where it mixes records.

        One job, which reads all records but those left out and keeps their rows: `computed` reads nothing after it.
        """
        known = [frame for frame in self._located if frame is not None]
        if len(known) < len(self._frames) or self.shape.bound is None:
            return None
        if self._kept is None:
            self._kept = self._hashed(tag(known, (*self.shape.key, RECORD)), RECORD).persist()
        self.trials += 1
        with self.choosing(self.whole(), without):
            return _except(self._kept, without).where(F.col("_hash").isin(list(keys))).toArrow()

    def computed(self, compute: Callable[[DataFrame], T], without: Collection[int]) -> T:
        """What `compute` makes of the rows of all records but these."""
        with self.choosing(self.whole(), without):
            if self._kept is None:
                return compute(self.rows)
            # What is kept may be there from before one of these was found.
            return compute(_except(self._kept, without).drop(RECORD, "_hash"))

    def _hashed(self, rows: DataFrame, *more: str) -> DataFrame:
        assert self.shape.bound is not None  # noqa: S101  a stage with state has one
        times = (name for one in self.shape.watermarks for name in one.columns)
        wanted = dict.fromkeys((*self.shape.key, *self.shape.bound.needs, *times, *self.shape.late, *more))
        return rows.select(*(F.col(f"`{name}`") for name in wanted), F.xxhash64(*self.shape.key).alias("_hash"))


def records_of(rows: pa.Table) -> npt.NDArray[np.int64]:
    """The records that rows come of, each once, ascending."""
    return np.unique(rows[RECORD].to_numpy())


def numbered(schema: StructType) -> StructType:
    """An input's columns, and `RECORD` as the last."""
    return StructType([*schema.fields, StructField(RECORD, LongType(), nullable=False)])


def _except(rows: DataFrame, without: Collection[int]) -> DataFrame:
    return rows.where(~F.col(RECORD).isin(sorted(without))) if without else rows
