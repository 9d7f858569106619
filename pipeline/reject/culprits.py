"""Finds which records make a batch fail, and computes the batch without them.

The state's function tells keys, an operator of Spark's plan tells records (`operators.py`); where nothing tells more
than that it fails, groups of records are tried (`fold/failing.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from pyspark import inheritable_thread_target

from ...errors import Refused
from ...fold.culprit import Items, TooMany
from ...fold.failing import Failure, StateFailed, failing
from ...fold.next_version import TaskReport
from ..batch.job import Batch
from ..batch.rerun import Rerun
from .blame import blamed
from .operators import Failures, Operators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_ROUNDS = 100
"""Times that the batch is computed anew: each leaves out a record more at least."""
_AT_ONCE = 4
"""Jobs that try groups of records side by side, where no plan tells more than that one fails."""
_SAID_S = 5.0
"""Between two lines that say how far a search is: one that is short says nothing."""


@dataclass
class Culprits:
    """Finds the records of one batch without which it passes.

    Attributes:
        most: How many there may be.
        found: By number, why each is left out.
    """

    records: Rerun
    batch: Batch
    most: int
    found: Failures = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic, init=False)
    _logged: float = field(default_factory=time.monotonic, init=False)

    def compute(self, error: Exception | None) -> tuple[TaskReport, ...]:
        """The batch without those that are to blame; `error` is why it failed, None where it was not tried yet.

        Raises:
            TooMany: More than `most` are to blame.
            Exception: What no record is to blame for; or `error` where it is not known which.
        """
        for number in range(_ROUNDS):
            if error is not None:
                if isinstance(error, StateFailed):
                    more = self._of_state(error)
                elif blamed(error) is None:
                    raise error
                else:
                    needed = self.records.needed(self.records.rows)
                    more = self._of_operators(needed) or self._of_groups(needed, _compute)
                # Once, what failed may have failed by chance.
                if not more and number:
                    raise error
                self.found |= more
                self._log_progress(len(self.found))
                if len(self.found) > self.most:
                    raise TooMany(tuple(self.found))
            if self.batch.job.stopping():
                raise error or Refused("the stage is to stop")
            try:
                return self.batch.compute(self.records.without(self.records.rows, self.found))
            except Exception as failed:
                error = failed
        raise error or AssertionError("nothing was tried")

    def _log_progress(self, count: int) -> None:
        """Say, now and then, how many records are known."""
        now = time.monotonic()
        if now - self._logged >= _SAID_S:
            self._logged = now
            log.warning(
                "stage %r: a batch fails for some of its records, which are looked for: %d found in %.0f s",
                self.records.stage.name,
                count,
                now - self._began,
            )

    def _check_going_on(self) -> None:
        if self.batch.job.stopping():
            raise Refused("the stage is to stop")

    def _of_operators(self, needed: DataFrame) -> Failures:
        """The records for which an operator of the function's plan fails."""

        def on_found(count: int) -> None:
            self._check_going_on()
            self._log_progress(len(self.found) + count)

        operators = Operators(self.records.spark, self.most - len(self.found), on_found)
        try:
            operators.search(self.records.without(needed, self.found))
        except (TooMany, Refused):
            raise
        except Exception:
            # An operator that is not tried apart, such as the condition of a join, fails before others are reached; and
            # a plan may have what cannot be tried so. Jobs over groups of records tell whose fault it is.
            log.debug("an operator could not be tried", exc_info=True)
        return operators.found

    def _of_state(self, error: StateFailed) -> Failures:
        """The records for whose keys the state's function fails."""
        if not error.told.keys:
            return {}
        rows = self.records.of_keys(error.told.keys, self.found)
        if rows is None:
            return self._of_groups(self.records.rows, self.batch.check)
        try:
            self.batch.check(rows)
        except StateFailed as failed:
            return failed.told.records
        return {}

    def _of_groups(self, rows: DataFrame, attempt: Callable[[DataFrame], object]) -> Failures:
        """The records for which an attempt fails, where only jobs over some of them tell: many groups, side by side."""
        numbers = self.records.numbers[~np.isin(self.records.numbers, list(self.found))]

        def tried(items: Items) -> Failure | None:
            self._check_going_on()
            try:
                attempt(self.records.only(rows, numbers[items]))
            except Exception as error:
                if (why := blamed(error)) is None:
                    raise
                return why
            return None

        def side_by_side(groups: Sequence[Items]) -> list[Failure | None]:
            self._log_progress(len(self.found))
            with ThreadPoolExecutor(_AT_ONCE) as jobs:
                return [*jobs.map(inheritable_thread_target(self.records.spark)(tried), groups)]

        found = failing(len(numbers), side_by_side, self.most - len(self.found))
        return {int(numbers[item]): why for item, why in found.items()}


def _compute(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
