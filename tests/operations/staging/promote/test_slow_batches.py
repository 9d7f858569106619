"""Promotion of apps with long batches: the apps are held as long as their batches need, up to the timeout."""

from random import Random

import pytest
from slackwater.errors import Refused
from slackwater.store.versions import apps

from tests.operations.staging.promote.runners import STAGES, Runner, until_idle
from tests.operations.staging.promote.world import World, promote_with


def slow_world(slow_s: float) -> World:
    """Return two apps that read a record per second, with batches of this duration."""
    world = World(Random(1))
    world.start("s")
    until_idle(world.runners["s"])
    for runner in world.runners.values():
        runner.slow_s = slow_s
    for _ in range(10 * round(slow_s) * 4):
        at_work(world)
    return world


def at_work(world: World) -> None:
    world.now_s += 0.1
    if round(world.now_s * 10) % 10 == 0:
        world.send(1)
    for folder, runner in tuple(world.runners.items()):

        def act(runner: Runner = runner) -> None:
            runner.look()
            for stage in STAGES:
                runner.end(stage)
                runner.begin(stage)
            while runner.publish():
                pass

        world.guarded(folder, act)


def test_a_hold_lasts_as_long_as_slow_batches_need() -> None:
    world, told = slow_world(60), list[str]()
    began = world.now_s
    done = promote_with(world, pause=lambda: at_work(world), timeout_s=1_200, on_wait=told.append)
    assert 20 < done.held_s <= 3 * 2 * 60
    assert world.now_s - began < 600
    assert not any("trying again" in line for line in told)
    assert apps.folder_of(world.store, "p") == "s"
    for _ in range(1_000):
        at_work(world)
    numbers = [number for _, number in world.published()]
    assert sorted(set(numbers)) == sorted(numbers)
    assert set(range(max(numbers) + 1)) == set(numbers)
    world.close()


def test_with_batches_longer_than_the_timeout_the_error_suggests_a_longer_timeout() -> None:
    world = slow_world(25)
    began = world.now_s
    with pytest.raises(Refused, match="within 15 s") as refused:
        promote_with(world, pause=lambda: at_work(world), timeout_s=15)
    assert world.now_s - began < 17
    assert "batches took up to 50 s through all stages" in refused.value.hint
    assert "--timeout" in refused.value.hint
    assert "--max-records" in refused.value.hint
    for _ in range(1_000):
        at_work(world)
    assert {folder for folder, _ in world.published()} == {"p"}
    world.close()
