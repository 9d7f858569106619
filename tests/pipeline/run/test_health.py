"""Answers to probes of a runner, for schedules of progress and of hangs."""

from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.run.monitoring import Health, Metrics
from slackwater.snapshot.status.overview import InputLag, StageLag


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now


def lags(records: int | None) -> tuple[StageLag, ...]:
    return (StageLag("a", "s", (InputLag("t", "t", "", (0,), None, records, records, None),), True),)


class Driver:
    """A run of one stage, as its probes see it."""

    def __init__(self, *, hung_s: float = 600, patience_s: float = 120, trigger_s: float = 0) -> None:
        self.clock = Clock()
        self.health = Health(hung_s, self.clock)
        self.held = False
        self.tasks = 0
        self.health.on_running({"s": trigger_s}, patience_s, lambda _stage: self.held)

    def pass_time(
        self, seconds: float, *, busy: bool = False, version: int = 1, tasks: bool = False, records: int | None = 0
    ) -> None:
        """Let time pass, in which the loop runs and Spark answers every five seconds."""
        for _ in range(round(seconds / 5)):
            self.clock.now += 5
            self.tasks += tasks
            self.health.on_loop()
            self.health.on_ownership_checked()
            self.health.on_spark_answered(self.tasks)
            self.health.on_stage_polled("s", busy=busy, version=version)
            self.health.on_lags(lags(records))


def test_a_run_that_waits_for_records_lives_for_ever() -> None:
    driver = Driver()
    driver.pass_time(100_000)
    assert (driver.health.liveness_problems(), driver.health.readiness_problems()) == ((), ())


def test_nobody_knows_whether_records_wait_while_kafka_is_away() -> None:
    driver = Driver()
    driver.pass_time(100_000, records=None)
    assert driver.health.liveness_problems() == ()


def test_a_jvm_that_does_not_answer_hangs_the_run() -> None:
    driver = Driver()
    for _ in range(30):
        driver.clock.now += 2
        driver.health.on_loop()
    assert driver.health.liveness_problems() == ()
    driver.clock.now += 5
    driver.health.on_loop()
    assert driver.health.liveness_problems() == ("Spark's JVM has not answered for 65 s",)
    driver.health.on_spark_answered(1)
    assert driver.health.liveness_problems() == ()


def test_a_loop_may_wait_for_a_store_as_long_as_its_patience_lasts() -> None:
    driver = Driver(patience_s=120)
    for second in range(200):
        driver.clock.now += 1
        driver.health.on_spark_answered(second)
        assert driver.health.liveness_problems() == (
            () if second < 180 else (f"the driver's loop has been stuck for {second + 1} s",)
        )


def test_a_long_batch_lives_while_its_tasks_end() -> None:
    driver = Driver()
    driver.pass_time(50_000, busy=True, tasks=True)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(600, busy=True)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(10, busy=True)
    assert driver.health.liveness_problems() == ("stage 's': no task of its batch has ended for 610 s",)
    driver.pass_time(5, version=2)
    assert driver.health.liveness_problems() == ()


def test_a_batch_may_wait_for_a_store_as_long_as_its_patience_lasts() -> None:
    driver = Driver(patience_s=3_600)
    driver.pass_time(3_600, busy=True)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(70, busy=True)
    assert driver.health.liveness_problems() != ()


def test_a_stage_whose_batches_are_long_may_be_quiet_for_longer() -> None:
    driver = Driver()
    driver.pass_time(200, busy=True)
    driver.pass_time(5, version=2)
    driver.pass_time(1_900, busy=True, version=2)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(120, busy=True, version=2)
    assert driver.health.liveness_problems() != ()


def test_a_stage_that_begins_no_batch_though_records_wait_hangs_unless_it_is_held() -> None:
    driver = Driver()
    driver.pass_time(10_000)
    driver.pass_time(600, records=7)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(15, records=7)
    assert driver.health.liveness_problems() == ("stage 's': records are waiting, but no batch has started for 610 s",)
    driver.held = True
    assert driver.health.liveness_problems() == ()


def test_a_stage_of_a_long_trigger_is_waited_for() -> None:
    driver = Driver(trigger_s=3_600)
    driver.pass_time(3 * 3_600, records=7)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(30, records=7)
    assert driver.health.liveness_problems() != ()


def test_a_start_and_an_end_may_take_long_step_by_step() -> None:
    clock = Clock()
    health = Health(600, clock)
    for step in ("waiting for Kafka", "starting Spark", "checking the program"):
        health.on_activity(step)
        clock.now += 599
        assert health.liveness_problems() == ()
    assert health.readiness_problems() == ("no batches are running: checking the program",)
    clock.now += 2
    assert health.liveness_problems() == ("checking the program for 601 s",)


def test_a_runner_is_ready_while_its_stages_are_seen_to_be_its_own() -> None:
    driver = Driver()
    driver.clock.now += 29
    assert driver.health.readiness_problems() == ()
    driver.clock.now += 2
    assert driver.health.readiness_problems() == ("ownership of its stages was last confirmed 31 s ago",)
    driver.health.on_ownership_checked()
    assert driver.health.readiness_problems() == ()
    driver.health.on_ending()
    driver.health.on_activity("waiting for Spark to end")
    assert driver.health.readiness_problems() == ("no batches are running: waiting for Spark to end",)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 5)), max_size=30))
def test_whatever_goes_on_a_run_in_which_something_does_lives(steps: list[tuple[bool, bool, int]]) -> None:
    driver, version = Driver(), 1
    for busy, tasks, records in steps:
        version += 1
        driver.pass_time(300, busy=busy, version=version, tasks=tasks, records=records)
        assert driver.health.liveness_problems() == ()


def test_probes_are_answered_beside_the_metrics() -> None:
    driver = Driver()
    port = Metrics(driver.health).serve(0)

    def ask(path: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    assert (ask("livez"), ask("readyz")) == ((200, "ok\n"), (200, "ok\n"))
    assert "slackwater_runner_live 1.0" in ask("metrics")[1]
    driver.clock.now += 100
    assert ask("livez") == (503, "Spark's JVM has not answered for 100 s\n")
    assert ask("readyz") == (503, "ownership of its stages was last confirmed 100 s ago\n")
    found = ask("metrics")[1]
    assert "slackwater_runner_live 0.0" in found
    assert "slackwater_runner_ready 0.0" in found


@pytest.mark.parametrize("records", [0, None])
def test_what_waited_once_is_forgotten_when_it_was_read(records: int | None) -> None:
    driver = Driver()
    driver.pass_time(500, records=3)
    driver.pass_time(500, records=records)
    driver.pass_time(500, records=3)
    assert driver.health.liveness_problems() == ()
