"""The records for which a batch fails: searched for, left out, and the rest computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from ...errors import Refused
from ...fold.culprit import Items, TooMany
from ...fold.failing import Failure, StateFailed, failing
from ...fold.next_version import Result
from ..batch.job import Batch
from ..batch.rerun import Rerun
from .blame import blamed
from .operators import Failures, Operators

log = logging.getLogger(__name__)

_ROUNDS = 100
"""Times that the batch is computed anew: each leaves out a record more at least."""
_AT_ONCE = 4
"""Jobs that try groups of records side by side, where no plan tells more than that one fails."""


@dataclass
class Culprits:
    """Finds the records of one batch without which it passes.

    Attributes:
        most: How many there may be.
        tell: Is told, now and then, how many are known.
        found: By number, why each is left out.
    """

    records: Rerun
    batch: Batch
    most: int
    tell: Callable[[int], None]
    found: Failures = field(default_factory=dict)

    def compute(self, error: Exception | None) -> tuple[Result, ...]:
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
                    more = self._of_operators() or self._of_groups(self._needed, _compute)
                # Once, what failed may have failed by chance.
                if not more and number:
                    raise error
                self._add(more)
            if self.batch.job.stopping():
                raise error or Refused("the stage is to stop")
            try:
                return self.batch.compute(self.records.without(self.records.rows, self.found))
            except Exception as failed:
                error = failed
        raise error or AssertionError("nothing was tried")

    @property
    def _needed(self) -> DataFrame:
        return self.records.needed(self.records.rows)

    def _add(self, more: Failures) -> None:
        self.found |= more
        self.tell(len(self.found))
        if len(self.found) > self.most:
            raise TooMany(tuple(self.found))

    def _of_operators(self) -> Failures:
        """The records for which an operator of the function's plan fails."""

        def told(count: int) -> None:
            if self.batch.job.stopping():
                raise Refused("the stage is to stop")
            self.tell(len(self.found) + count)

        operators = Operators(self.records.spark, self.most - len(self.found), told)
        try:
            operators.search(self.records.without(self._needed, self.found))
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
            if self.batch.job.stopping():
                raise Refused("the stage is to stop")
            try:
                attempt(self.records.only(rows, numbers[items]))
            except Exception as error:
                if (why := blamed(error)) is None:
                    raise
                return why
            return None

        def side_by_side(groups: Sequence[Items]) -> list[Failure | None]:
            self.tell(len(self.found))
            with ThreadPoolExecutor(_AT_ONCE) as jobs:
                return [*jobs.map(inheritable_thread_target(self.records.spark)(tried), groups)]

        found = failing(len(numbers), side_by_side, self.most - len(self.found))
        return {int(numbers[item]): why for item, why in found.items()}


def _compute(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
