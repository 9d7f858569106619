"""Number of tasks of a batch: few for a small batch, and always a divisor of the number of hash ranges."""

from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.batch.task_count import MIN_ROWS, TaskCount
from slackwater.state.next_version import TaskReport


def test_a_small_batch_has_one_task_and_a_large_one_a_task_per_range() -> None:
    count = TaskCount()
    assert [count.choose(8, records) for records in (0, 10, 2 * MIN_ROWS - 1)] == [1, 1, 1]
    assert [count.choose(8, tasks * MIN_ROWS) for tasks in (2, 3, 4, 7, 8, 100)] == [2, 2, 4, 4, 8, 8]
    assert count.choose(7, 6 * MIN_ROWS) == 1, "7 has no other divisor"
    assert count.choose(8, None) == 8, "it may be large"


@given(st.integers(1, 4096), st.integers(0, 1 << 40))
def test_the_number_of_tasks_divides_the_ranges_and_gives_each_enough_rows(ranges: int, records: int) -> None:
    tasks = TaskCount().choose(ranges, records)
    assert ranges % tasks == 0
    assert tasks == 1 or records >= tasks * MIN_ROWS


def test_a_function_that_multiplies_rows_gets_more_tasks_from_the_second_batch_on() -> None:
    count = TaskCount()
    assert count.choose(8, 1_000) == 1
    count.learn(1_000, [TaskReport("a", 30_000), TaskReport("b", 70_000)])
    assert count.choose(8, 1_000) == 4
    # What is dropped once may come another time.
    count.learn(1_000, [TaskReport("a", 10)])
    assert count.choose(8, 8 * MIN_ROWS) == 8
    count.learn(None, [TaskReport("a", 1 << 30)])
    count.learn(0, [TaskReport("a", 1 << 30)])
    assert count.choose(8, 1_000) == 1
