"""What a stage's function makes of a version's records, however they are arranged, and at which time.

Where the plan shows that each row is made of one record by Spark's own deterministic expressions, the function runs
once, and each arrangement's rows are picked out of what it made. Else it is one Spark job for each batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...errors import SlackwaterError
from ...fold.failing import RECORD
from ..batch.rerun import Rerun, records_of
from ..batch.transform import over
from ..replay.stage_replay import StageReplay
from ..spark.clock import stopped
from ..spark.expressions import Impurities, at_time, impurities, workers_at
from ..spark.plans import hidden, plan_of
from ..spark.session import with_settings
from ..spark.user_errors import translate
from .arrangements import Arrangement, Batch, Came, Rows, as_read

_SHUFFLE, _ARROW = "spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxRecordsPerBatch"
_FEW, _MOST_PARTS = 7, 100
"""Where Spark has records apart, how many are together at least, and in how many parts they are at most."""


def came(replay: StageReplay) -> dict[str, Came]:
    """Where the records of a version come from, by input. Raises as reading them does."""
    return {name: Came(records.partitions, records.versions) for name, records in replay.records.items()}


@dataclass(frozen=True)
class FunctionRows:
    """The function of one version's stage. Raises `Refused` where it fails."""

    replay: StageReplay
    times_ms: tuple[int, int]
    """The two times at which it is asked, milliseconds since 1970 UTC."""

    def of(self, arrangement: Arrangement, at_ms: int) -> tuple[pa.Table, ...]:
        """What it makes of each batch."""
        if self._plain is None:
            return tuple(self._made(batch, at_ms, apart=arrangement.apart) for batch in arrangement.batches)
        numbers = self._plain[RECORD].to_numpy()
        found = []
        for batch in arrangement.batches:
            rank = np.full(sum(map(len, self._numbers.values())), -1)
            chosen = np.concatenate([self._numbers[name][rows] for name, rows in batch.items()])
            rank[chosen] = np.arange(len(chosen))
            place = rank[numbers]
            order = np.argsort(place, kind="stable")
            found.append(self._plain.take(pa.array(order[np.searchsorted(place[order], 0) :])))
        return tuple(found)

    @cached_property
    def impurities(self) -> Impurities:
        """What its plan has that may give another value for the same record."""
        return self._looked_at[0]

    @cached_property
    def _numbers(self) -> dict[str, Rows]:
        """By input, the number of each of its records: in the order in which they were read."""
        counts = [records.rows.num_rows for records in self.replay.records.values()]
        ends = np.cumsum([0, *counts])
        return {
            name: np.arange(first, first + count)
            for name, first, count in zip(self.replay.records, ends.tolist(), counts, strict=False)
        }

    @property
    def _plain(self) -> pa.Table | None:
        """Its rows of all records, each with its record's number, where nothing else goes into them."""
        return self._looked_at[1]

    @cached_property
    def _looked_at(self) -> tuple[Impurities, pa.Table | None]:
        every, (at_ms, other_ms) = as_read(came(self.replay)), self.times_ms
        with self._rerun(every, at_ms) as rerun:
            frame, feeds = rerun.needed(rerun.rows), [plan_of(each) for each in rerun.inputs]
            found = impurities(frame, feeds)
            if found or rerun.numbered is None:
                return found, None
            # What the function itself takes from a clock, or draws, stands in the plan as it came.
            shown = [hidden(each) for each in rerun.inputs]
            plans = []
            for time_ms in (at_ms, other_ms):
                with stopped(time_ms):
                    plans.append([plan_of(each) for each in over(self.replay.stage, shown)])
            if not all(one.sameResult(other) for one, other in zip(*plans, strict=True)):
                return found, None
            with self._calling():
                return found, rerun.needed(rerun.numbered).toArrow()

    def _made(self, batch: Batch, at_ms: int, *, apart: bool) -> pa.Table:
        spark, found = self.replay.program.spark, self.impurities
        few = max(_FEW, -(-max(map(len, batch.values())) // _MOST_PARTS))
        with self._rerun(batch, at_ms, few if apart else None) as rerun, ExitStack() as until_done:
            frame = rerun.needed(rerun.rows)
            until_done.enter_context(self._calling())
            settings = {_SHUFFLE: "5", _ARROW: str(few)} if apart else {_SHUFFLE: "2"}
            until_done.enter_context(with_settings(spark, settings))
            if found.python:
                feeds = [plan_of(each) for each in rerun.inputs]
                until_done.enter_context(workers_at(frame, feeds, at_ms))
            return (at_time(frame, at_ms) if found.clocks else frame).toArrow()

    @contextmanager
    def _rerun(self, batch: Batch, at_ms: int, few: int | None = None) -> Iterator[Rerun]:
        """The function over a batch's records; with `few`, no more than so many are together."""
        replay, size = self.replay, {"batch_rows": few} if few is not None else {}
        with tempfile.TemporaryDirectory(prefix="slackwater-check-") as folder:
            inputs = [
                records_of(
                    replay.program.spark,
                    records.rows.take(pa.array(batch[name])),
                    self._numbers[name][batch[name]],
                    Path(folder) / name,
                    **size,
                )
                for name, records in replay.records.items()
            ]
            with stopped(at_ms):
                made = Rerun(replay.stage, replay.shape, inputs, replay.output)
            yield made

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except SlackwaterError:
            raise
        except Exception as error:
            raise translate(self.replay.after.stage, str(error)) from error
