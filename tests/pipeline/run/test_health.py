"""Answers to a runner's probes, for simulated schedules of progress and hangs."""

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
    """A run of one stage, as its probes see it. The test advances its clock."""

    def __init__(self, *, hung_s: float = 600, patience_s: float = 120, trigger_s: float = 0) -> None:
        self.clock = Clock()
        self.health = Health(hung_s, self.clock)
        self.held = False
        self.tasks = 0
        self.health.on_running({"s": trigger_s}, patience_s, lambda _stage: self.held)

    def pass_time(
        self, seconds: float, *, busy: bool = False, version: int = 1, tasks: bool = False, records: int | None = 0
    ) -> None:
        """Let time pass. Meanwhile, the loop runs, and Spark answers every five seconds."""
        for _ in range(round(seconds / 5)):
            self.clock.now += 5
            self.tasks += tasks
            self.health.on_loop()
            self.health.on_ownership_checked()
            self.health.on_spark_answered(self.tasks)
            self.health.on_stage_polled("s", busy=busy, version=version)
            self.health.on_lags(lags(records))


def test_a_run_that_waits_for_records_stays_alive() -> None:
    driver = Driver()
    driver.pass_time(100_000)
    assert (driver.health.liveness_problems(), driver.health.readiness_problems()) == ((), ())


def test_a_run_stays_alive_while_kafka_is_away_and_the_backlog_unknown() -> None:
    driver = Driver()
    driver.pass_time(100_000, records=None)
    assert driver.health.liveness_problems() == ()


def test_a_run_whose_jvm_does_not_answer_is_hung() -> None:
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


def test_the_loop_may_wait_for_a_store_within_its_patience() -> None:
    driver = Driver(patience_s=120)
    for second in range(200):
        driver.clock.now += 1
        driver.health.on_spark_answered(second)
        assert driver.health.liveness_problems() == (
            () if second < 180 else (f"the driver's loop has been stuck for {second + 1} s",)
        )


def test_a_long_batch_is_alive_while_its_tasks_finish() -> None:
    driver = Driver()
    driver.pass_time(50_000, busy=True, tasks=True)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(600, busy=True)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(10, busy=True)
    assert driver.health.liveness_problems() == ("stage 's': no task of its batch has ended for 610 s",)
    driver.pass_time(5, version=2)
    assert driver.health.liveness_problems() == ()


def test_a_batch_may_wait_for_a_store_within_its_patience() -> None:
    driver = Driver(patience_s=3_600)
    driver.pass_time(3_600, busy=True)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(70, busy=True)
    assert driver.health.liveness_problems() != ()


def test_a_stage_with_long_batches_may_be_silent_for_longer() -> None:
    driver = Driver()
    driver.pass_time(200, busy=True)
    driver.pass_time(5, version=2)
    driver.pass_time(1_900, busy=True, version=2)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(120, busy=True, version=2)
    assert driver.health.liveness_problems() != ()


def test_a_stage_that_starts_no_batch_for_waiting_records_is_hung_unless_it_is_held() -> None:
    driver = Driver()
    driver.pass_time(10_000)
    driver.pass_time(600, records=7)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(15, records=7)
    assert driver.health.liveness_problems() == ("stage 's': records are waiting, but no batch has started for 610 s",)
    driver.held = True
    assert driver.health.liveness_problems() == ()


def test_a_stage_with_a_long_trigger_is_not_hung() -> None:
    driver = Driver(trigger_s=3_600)
    driver.pass_time(3 * 3_600, records=7)
    assert driver.health.liveness_problems() == ()
    driver.pass_time(30, records=7)
    assert driver.health.liveness_problems() != ()


def test_start_and_stop_may_take_long_if_each_step_does_not() -> None:
    clock = Clock()
    health = Health(600, clock)
    for step in ("waiting for Kafka", "starting Spark", "checking the program"):
        health.on_activity(step)
        clock.now += 599
        assert health.liveness_problems() == ()
    assert health.readiness_problems() == ("no batches are running: checking the program",)
    clock.now += 2
    assert health.liveness_problems() == ("checking the program for 601 s",)


def test_a_runner_is_ready_while_its_claims_are_confirmed() -> None:
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
def test_a_run_with_any_progress_is_alive(steps: list[tuple[bool, bool, int]]) -> None:
    driver, version = Driver(), 1
    for busy, tasks, records in steps:
        version += 1
        driver.pass_time(300, busy=busy, version=version, tasks=tasks, records=records)
        assert driver.health.liveness_problems() == ()


def test_probes_are_answered_on_the_metrics_port() -> None:
    driver = Driver()
    port = Metrics(driver.health).serve(0)

    def ask(path: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=180) as answer:
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
def test_a_backlog_that_was_read_resets_the_timer(records: int | None) -> None:
    driver = Driver()
    driver.pass_time(500, records=3)
    driver.pass_time(500, records=records)
    driver.pass_time(500, records=3)
    assert driver.health.liveness_problems() == ()
