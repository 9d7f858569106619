from dataclasses import replace
from pathlib import Path

import pytest
from slackwater.common import runtime
from slackwater.errors import Unavailable
from slackwater.store.objects.open import open_store
from slackwater.testing.simulation import Faults, Simulation, Stuck, World

from tests.simulation.ledger import COPIES, TOPIC, ledger, record
from tests.simulation.planted import planted
from tests.simulation.scenario import Plan, simulate

HOUR_S = 3_600.0


def test_time_jumps_to_the_next_timer_and_each_process_has_a_clock(tmp_path: Path) -> None:
    world, seen = World(1, folder=tmp_path), list[tuple[str, int]]()

    def work(name: str, seconds: float) -> None:
        runtime.sleep(seconds)
        seen.append((name, runtime.time_ns() // 10**9))

    with world.running():
        start_s = runtime.time_ns() // 10**9
        world.scheduler.spawn("late", lambda: work("late", HOUR_S))
        world.scheduler.spawn("wrong", lambda: work("wrong", 1.0), skew_ms=60_000)
        runtime.sleep(2 * HOUR_S)
    assert seen == [("wrong", start_s + 61), ("late", start_s + 3_600)]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_deadlock_is_a_failure_that_shows_the_threads_stacks(seed: int, tmp_path: Path) -> None:
    world = World(seed, folder=tmp_path)

    def hold(lock: runtime.Lock, other: runtime.Lock, crossed: runtime.Event) -> None:
        with lock:
            crossed.wait(1.0)
            with other:
                crossed.set()

    def run() -> None:
        with world.running():
            first, second, crossed = runtime.lock(), runtime.lock(), runtime.event()
            world.scheduler.spawn("one", lambda: hold(first, second, crossed))
            world.scheduler.spawn("two", lambda: hold(second, first, crossed))
            world.scheduler.wait_until(crossed.is_set)

    with pytest.raises(Stuck, match="all threads wait for each other") as stuck:
        run()
    assert str(stuck.value).count("in hold") >= 2


def test_a_killed_process_does_nothing_more(tmp_path: Path) -> None:
    world, done = World(2, folder=tmp_path), list[str]()

    def work() -> None:
        runtime.thread(lambda: (runtime.sleep(5.0), done.append("thread"))).start()
        try:
            runtime.sleep(5.0)
        finally:
            with pytest.raises(BaseException, match="doomed"):
                runtime.sleep(0.0)
        done.append("main")

    with world.running():
        process = world.scheduler.spawn("doomed", work)
        runtime.sleep(1.0)
        world.scheduler.kill(process)
        runtime.sleep(10.0)
    assert done == []


def test_the_store_injects_the_given_faults_and_never_returns_wrong_data(tmp_path: Path) -> None:
    world, results = World(3, Faults(refused=0.2, lost=0.2), folder=tmp_path), list[object]()

    def work() -> None:
        store = open_store(world.objects.url)
        for number in range(50):
            try:
                store.put(f"k{number}", b"x")
            except Unavailable as error:
                results.append(error)
        results.append(len(list(store.list("k"))))

    with world.running():
        process = world.scheduler.spawn("writer", work)
        world.scheduler.wait_until(lambda: not process.is_alive)
    assert results == [50]
    assert world.injected["lost"] > 3


def test_an_app_under_faults_ends_with_the_same_tables_as_without(tmp_path: Path) -> None:
    tables = []
    for faults in (Faults(), Faults(kill=0.5, refused=0.05, executor_lost=0.1, twin=0.2)):
        simulation = Simulation(ledger(), 7, faults, topics={TOPIC: 3, COPIES: 2}, folder=tmp_path)
        with simulation.running():
            for token in range(40):
                simulation.send(TOPIC, [record(token)])
                simulation.run_for(0.5)
            simulation.world.heal()
            simulation.run_for(300, simulation.is_caught_up)
            moment = simulation.client().app("ledger").at()
            tables.append(moment.query("FROM sections ORDER BY section").fetchall())
    assert tables[0] == tables[1]
    assert sum(records for _, records, *_ in tables[0]) == 80


def test_equal_seeds_give_equal_histories(tmp_path: Path) -> None:
    first, second, other = (simulate(Plan.of(seed).only(None, None, 10), tmp_path) for seed in (11, 11, 12))
    assert (first.failure, first.trace_hash) == ("", second.trace_hash)
    assert other.trace_hash != first.trace_hash


def test_a_planted_bug_is_found_and_also_by_a_smaller_plan(tmp_path: Path) -> None:
    plan = replace(Plan.of(0), faults=Faults(executor_lost=0.2, twin=0.3), verbs=(), seconds=15)
    with planted("messages of all attempts count"):
        outcome = simulate(plan, tmp_path)
        assert "each record is once in each table" in outcome.failure
        assert any(simulate(smaller, tmp_path).failure for smaller in plan.smaller())
    assert simulate(plan, tmp_path).failure == ""
