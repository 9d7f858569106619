"""Number of tasks of a batch: a small batch has fewer than there are hash ranges, because each task costs a put."""

from collections.abc import Sequence

from ...state.next_version import TaskReport

MIN_ROWS = 20_000
"""Fewest rows of a task, if there are several: fewer are merged faster than a task is started."""


class TaskCount:
    """Chooses the number of tasks of one stage's batches. A batch that is computed again may get another number."""

    def __init__(self) -> None:
        self._rows_per_record = 1.0

    def choose(self, ranges: int, records: int | None) -> int:
        """Return the largest divisor of `ranges` that gives each task `MIN_ROWS` rows. `records` is None if unknown."""
        if records is None:
            return ranges
        most = max(1, int(records * self._rows_per_record) // MIN_ROWS)
        return max(count for count in range(1, min(ranges, most) + 1) if ranges % count == 0)

    def learn(self, records: int | None, results: Sequence[TaskReport]) -> None:
        """Remember how many rows the function returned for each record of a batch, but for a function that drops rows.

        The next batch might have records of which it drops none.
        """
        if records:
            self._rows_per_record = max(1.0, sum(result.rows_in for result in results) / records)
