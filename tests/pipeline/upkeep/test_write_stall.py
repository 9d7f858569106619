"""Batches are delayed before too many level-0 SSTs slow down reads, but never forever."""

import logging
from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.upkeep.upkeep import MergeProgress, StallTriggers, WriteStall

TRIGGERS = StallTriggers(20, 36)


class Held:
    """A stage with this many level-0 SSTs, and a simulated clock. `passes` is called at every time step."""

    def __init__(self, l0: int, compacting: MergeProgress = "under way") -> None:
        self.l0 = l0
        self.compacting = compacting
        self.now_s = 0.0
        self.passes: Callable[[], None] = lambda: None
        self.begins: Callable[[], None] = lambda: None
        self.stall = WriteStall(
            "stage a/s",
            TRIGGERS,
            lambda: self.l0,
            lambda: self.compacting,
            lambda: self.begins(),
            clock=lambda: self.now_s,
            sleep=self._sleep,
        )

    def wait(self, batch_s: float = 2.0) -> float:
        return self.stall.wait(batch_s, lambda: False)

    def _sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 0.1
        self.now_s += seconds
        self.passes()


@given(st.integers(1, 60), st.floats(0, 100))
def test_the_delay_grows_to_the_duration_of_a_batch_and_then_becomes_a_stop(l0: int, batch_s: float) -> None:
    delay, next_one = TRIGGERS.delay_s(l0, batch_s), TRIGGERS.delay_s(l0 + 1, batch_s)
    assert delay <= next_one
    assert delay == 0 if l0 < 20 else delay <= batch_s or l0 >= 36
    assert (delay == inf) == (l0 >= 36)
    assert TRIGGERS.delay_s(35, batch_s) == batch_s


def test_a_batch_is_delayed_by_a_fraction_of_a_batchs_duration() -> None:
    assert Held(19).wait() == 0
    assert Held(20).wait() == pytest.approx(2 / 16)
    assert Held(35).wait() == pytest.approx(2.0)
    assert Held(35).wait(batch_s=0) == 0


def test_a_delay_ends_when_compaction_has_caught_up() -> None:
    held = Held(35)

    def compacted() -> None:
        held.l0 = 35 if held.now_s < 1 else 3

    held.passes = compacted
    assert held.wait(batch_s=10) == pytest.approx(1, abs=0.2)


def test_a_stopped_stage_waits_while_a_merge_is_running() -> None:
    held = Held(40)

    def merged() -> None:
        held.l0 = 40 if held.now_s < 300 else 35
        held.compacting = "under way" if held.now_s < 300 else "nothing"

    held.passes = merged
    assert held.wait() == pytest.approx(300, abs=0.2)


def test_a_stage_that_starts_with_too_many_ssts_merges_them_first() -> None:
    held = Held(40, "nothing")

    def begins() -> None:
        held.compacting = "under way"

    def merged() -> None:
        held.compacting = "under way" if held.now_s < 5 else "finished"

    held.begins, held.passes = begins, merged
    assert held.wait() == pytest.approx(5, abs=0.2)


def test_a_batch_does_not_wait_if_a_finished_merge_will_be_adopted_with_it() -> None:
    assert Held(40, "finished").wait() == 0


def test_a_stage_without_compaction_continues_slowly_after_a_minute() -> None:
    held = Held(40, "nothing")
    assert held.wait() == pytest.approx(60, abs=0.2)
    assert held.wait() == pytest.approx(2.0)
    held.l0 = 3
    assert held.wait() == 0
    held.l0 = 40
    assert held.wait() == pytest.approx(60, abs=0.2)


def test_a_compaction_by_another_process_ends_the_wait() -> None:
    held = Held(40, "nothing")

    def adopted() -> None:
        held.l0 = 40 if held.now_s < 3 else 2

    held.passes = adopted
    assert held.wait() == pytest.approx(3, abs=0.2)


def test_stopping_the_app_ends_the_wait() -> None:
    held = Held(40)
    assert held.stall.wait(2.0, lambda: held.now_s >= 1) == pytest.approx(1, abs=0.2)
    assert held.stall.wait(2.0, lambda: True) == 0


def test_each_step_is_logged_once_every_time_compaction_falls_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = Held(25, "nothing")
    with caplog.at_level(logging.WARNING, "slackwater"):
        for l0 in (25, 30, 40, 41, 30, 19, 3, 25):
            held.l0 = l0
            held.wait()
    slowed, stopped, gave_up, done, again = (record.getMessage() for record in caplog.records)
    assert slowed == again
    assert slowed.startswith("stage a/s: 25 L0 SSTs in one hash range (l0_slowdown is 20): batches are delayed")
    assert stopped.startswith("stage a/s: 40 L0 SSTs in one hash range (l0_stop is 36): no batch starts before")
    assert gave_up == "stage a/s: no compaction for 60 s; batches continue, slowed down"
    assert done == "stage a/s: 19 L0 SSTs in one hash range; batches were delayed for 66 s"
