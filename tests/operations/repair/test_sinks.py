"""A rewind's report of published rows: all rows since the moment are counted, even if sinks were restarted."""

from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from slackwater.client.show.maintenance import rewind_result
from slackwater.common import instants
from slackwater.errors import Refused
from slackwater.operations.repair.rewind import Rewound, rewind
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.snapshot.cut.refs import parse_ref
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps

from tests.operations.staging.promote.runners import until_idle
from tests.operations.staging.promote.test_promote import OUT, World


@pytest.fixture
def world() -> Iterator[World]:
    """Return a world in which `p` has published three rows, and its clone `s` runs."""
    world = World(Random(1))
    world.start("s")
    yield world
    world.close()


def published(world: World, folder: str, count: int) -> None:
    """Send records, run all apps until they are idle, and check that the app in `folder` published the rows."""
    if folder not in world.runners:
        world.start(folder)
    world.send(count)
    for each, runner in list(world.runners.items()):
        world.guarded(each, partial(until_idle, runner))
    assert [each for each, _ in world.published()[-count:]] == [folder] * count


def pinned(world: World, app: str, name: str) -> None:
    pin_cut(world.store, resolve(world.store, app, now_ms=instants.now_ms()), name)


def back(world: World, cache: SstCache, app: str, name: str, *, dry_run: bool = True) -> Rewound:
    kafka, now_ms = KafkaChannels(world.kafka), instants.now_ms()
    ref = parse_ref(f"{app}@{name}", now_ms=now_ms)
    how = {"by": "ada@host", "now_ms": now_ms, "cache": cache, "fence": True, "dry_run": dry_run}
    return rewind(world.store, app, ref, kafka, **how)  # type: ignore[arg-type]


def given(done: Rewound) -> list[tuple[str, int]]:
    return [(each.topic, each.rows) for each in done.plan.sinks]


def words(done: Rewound) -> str:
    return str(rewind_result(done, dry_run=True))


def test_published_rows_are_counted_across_promotions_in_both_directions(world: World, cache: SstCache) -> None:
    pinned(world, "p", "base")
    published(world, "p", 5)
    world.promote("p", "s", calm=True)
    # Silent by now: with the sink that it had, after its runner's last claim without.
    assert given(back(world, cache, "p", "base")) == [(OUT, 5)]
    published(world, "s", 7)
    world.start("p")
    assert world.runners["p"].committers["alerts"].head.sinks == {}
    assert given(back(world, cache, "p", "base")) == [(OUT, 5)]
    assert back(world, cache, "p", "base").plan.others == ("s",)

    world.promote("p", "", calm=True)
    published(world, "p", 2)

    assert apps.folder_of(world.store, "p") == "p"
    done = back(world, cache, "p", "base")
    assert given(done) == [(OUT, 7)]
    assert done.plan.others == ("s",)
    ((where,),) = (each.offsets for each in done.plan.sinks)
    assert f"sink {OUT}: published since and not withdrawn: 7 of the rows in {where};" in words(done)
    assert "this name belonged to s after a promotion; rows that s published stay" in words(done)
    pinned(world, "s", "later")
    assert back(world, cache, "s", "later").plan.sinks == ()


def test_rows_published_before_an_earlier_rewind_are_counted_too(world: World, cache: SstCache) -> None:
    world.end("s")
    pinned(world, "p", "base")
    published(world, "p", 20)
    back(world, cache, "p", "base", dry_run=False)
    world.start("p")
    until_idle(world.runners["p"])
    assert len(world.published()) == 3 + 20 + 20

    done = back(world, cache, "p", "base")

    assert given(done) == [(OUT, 40)]
    # Back to the line that was undone, only what came after it was given besides.
    assert given(back(world, cache, "p", "before-rewind-1")) == [(OUT, 20)]
    assert done.plan.others == ()


def test_rows_that_an_earlier_rewind_dropped_unpublished_are_not_counted(world: World, cache: SstCache) -> None:
    world.end("s")
    pinned(world, "p", "base")
    published(world, "p", 4)
    world.send(6)
    runner = world.runners["p"]
    for stage in ("numbers", "alerts"):
        runner.begin(stage)
        runner.end(stage)
    done = back(world, cache, "p", "base")
    assert [(each.rows, each.dropped) for each in done.plan.sinks] == [(4, 6)]
    back(world, cache, "p", "base", dry_run=False)
    world.start("p")
    until_idle(world.runners["p"])
    assert given(back(world, cache, "p", "base")) == [(OUT, 4 + 10)]


def test_a_rewind_waits_for_rows_of_a_stage_that_has_committed_nothing_since(world: World, cache: SstCache) -> None:
    world.end("s")
    world.send(4)
    runner = world.runners["p"]
    for stage in ("numbers", "alerts"):
        runner.begin(stage)
        runner.end(stage)
    pinned(world, "p", "base")
    world.send(2)
    runner.begin("numbers")
    runner.end("numbers")
    with pytest.raises(Refused, match="has not published 4 rows"):
        back(world, cache, "p", "base", dry_run=False)
    until_idle(runner)
    back(world, cache, "p", "base", dry_run=False)
    world.start("p")
    until_idle(world.runners["p"])
    assert len(world.published()) == 3 + 6 + 2
