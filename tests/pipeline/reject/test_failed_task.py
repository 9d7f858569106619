"""Where a record is looked for, by the task that failed for it."""

from dataclasses import dataclass

import pytest
from slackwater.pipeline.reject.failed_task import FailedTask, most_failed, suspects
from slackwater.pipeline.reject.places import Places, Stretch
from slackwater.snapshot.bisect.poison import Ranges

PLACES = Places((Stretch("a", 0, 100, 150), Stretch("a", 2, 7, 8), Stretch("b", 0, 0, 40)))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        pytest.param(FailedTask(0, 3, 1), (((0, 1),), ((0, 50),)), id="the first of its task"),
        pytest.param(FailedTask(0, 3, 50), (((49, 50),), ((0, 50),)), id="the last of its task"),
        pytest.param(FailedTask(2, 3, 5), (((55, 56),), ((51, 91),)), id="another task's"),
        pytest.param(FailedTask(1, 3, 0), (((50, 51),),), id="nobody knows how many it took"),
        pytest.param(FailedTask(2, 3, 41), (((51, 91),),), id="more than it was to read: not its own"),
        pytest.param(FailedTask(0, 8, 5), (), id="not one of the tasks that read"),
    ],
)
def test_the_record_that_was_taken_last_then_its_task_s(task: FailedTask, expected: tuple[Ranges, ...]) -> None:
    assert suspects(task, PLACES, each=True) == expected


def test_of_messages_with_many_records_it_is_the_task_s() -> None:
    assert suspects(FailedTask(0, 3, 5), PLACES, each=False) == (((0, 50),),)


@dataclass(frozen=True)
class Attempt:
    """As Spark's status store has one."""

    task: int
    number: int

    def index(self) -> int:
        return self.task

    def attempt(self) -> int:
        return self.number


def test_a_task_whose_executor_was_lost_is_not_the_one_that_failed_the_job() -> None:
    lost, culprit = Attempt(0, 0), [Attempt(7, number) for number in range(4)]
    assert most_failed([lost, *culprit]) == culprit[-1]
