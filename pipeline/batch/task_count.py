"""Number of tasks of a batch. A small batch has fewer tasks than hash ranges, because each task costs a put."""

from collections.abc import Sequence

from ...state.next_version import TaskReport

MIN_ROWS = 20_000
"""Minimum number of rows of each task, if a batch has several tasks.

Measured on two cores: with fewer rows, an additional task costs more time than it saves.
"""


class TaskCount:
    """Chooses the number of tasks of one stage's batches. When a batch is computed again, the number may differ."""

    def __init__(self) -> None:
        self._rows_per_record = 1.0

    def choose(self, ranges: int, records: int | None) -> int:
        """Return the largest divisor of `ranges` that gives each task `MIN_ROWS` rows. `records` is None if unknown."""
        if records is None:
            return ranges
        most = max(1, int(records * self._rows_per_record) // MIN_ROWS)
        return max(count for count in range(1, min(ranges, most) + 1) if ranges % count == 0)

    def learn(self, records: int | None, results: Sequence[TaskReport]) -> None:
        """Learn the number of rows per record from a batch.

        The minimum is 1, because the next batch may drop fewer rows.
        """
        if records:
            self._rows_per_record = max(1.0, sum(result.rows_in for result in results) / records)
