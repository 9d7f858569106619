"""Promoting one app over another: after any kill, each row is in the sink once, and the same command finishes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Fenced, NotFound, Refused, SlackwaterError, Usage
from slackwater.operations.maintenance.removal import remove_app
from slackwater.operations.program_changes import migrate_app
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.promote import _HeadPoller
from slackwater.operations.staging.promote_plan import make_plan
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.listener import Listener
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.preflight import PreflightResult, preflight
from slackwater.snapshot.change.stages import commit_retired
from slackwater.snapshot.change.switch import SwitchoverFailed, SwitchoverPosition
from slackwater.snapshot.cut.moments import heads_of
from slackwater.snapshot.under_way import runners as holds
from slackwater.snapshot.under_way.runners import HEARTBEATS
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps
from slackwater.store.versions.amend import Amendment, amend
from slackwater.store.versions.manifest import AppInfo
from ulid import ULID

from tests.crash.points import killed_at_each_call
from tests.models.profiles import scaled
from tests.operations.staging.promote.runners import STAGES, Runner, program, started, until_idle
from tests.operations.staging.promote.world import OUT, TOPIC, Killed, World, idle, promote_with, tick
from tests.support.collecting import AgingStore


@pytest.fixture
def world() -> Iterator[World]:
    world = World(Random(1))
    yield world
    world.close()


@scaled(40)
@given(st.integers(0, 1 << 32), st.integers(1, 3), st.sampled_from((0, 0, 1, 4)), st.booleans())
def test_each_row_is_in_the_sink_once_after_any_kills(seed: int, times: int, ahead: int, timed: bool) -> None:
    # The table of rows that fall due is made of versions, as these are committed.
    world = World(Random(seed), ahead=0 if timed else ahead, timed=timed)
    # One that never ran is not promoted; from here on it is killed and started as chance has it.
    world.start("s")
    for time in range(times):
        old, new = ("p", "s") if time % 2 == 0 else ("s", "p")
        staging = "s" if new == "s" else ""
        for _ in range(world.chance.randrange(4)):
            try:
                world.promote("p", staging)
            except (Killed, Refused):
                world.now_s += world.chance.choice((0, 1, 30))
            else:
                break
        world.promote("p", staging, calm=True)
        assert apps.owner_folders(world.store, "p")[:2] == (new, old)
        for _ in range(world.chance.randrange(40)):
            world.step()
    world.start(new)
    for _ in range(2):
        until_idle(world.runners[new])
        world.now_s += 60
    world.close()
    numbers = [number for _, number in world.published()]
    assert sorted(numbers) == list(range(world.sent))
    folders = [folder for folder, _ in world.published()]
    turns = [folder for at, folder in enumerate(folders) if at == 0 or folders[at - 1] != folder]
    assert turns == ["p", "s", "p", "s"][: len(turns)]


def test_a_promotion_killed_at_any_call_is_finished_by_the_same_command() -> None:
    def build() -> World:
        world = World(Random(1), AgingStore())
        world.start("s")
        world.send(3)
        return world

    def calm(world: World) -> None:
        world.promote("p", "s", calm=True)

    for world, _ in killed_at_each_call("promote", build, calm, lambda world: world.promoter):
        calm(world)
        assert apps.owner_folders(world.store, "p")[:2] == ("s", "p")
        world.send(3)
        for _ in range(3):
            world.calmly()
            world.now_s += 60
        world.close()
        assert sorted(number for _, number in world.published()) == list(range(world.sent))


def test_an_undisturbed_promotion_is_immediate_and_a_repeated_one_reports_done(world: World) -> None:
    world.start("s")
    world.send(10)
    until_idle(world.runners["p"])

    done = world.promote("p", "s", calm=True)

    assert done.at == {TOPIC: (7, 6)}
    assert [(each.sink, each.topic, each.new) for each in done.plan.sinks] == [(OUT, OUT, False)]
    assert apps.folder_of(world.store, "p") == "s"
    assert apps.folder_of(world.store, "p~1") == "p"
    world.send(5)
    until_idle(world.runners["s"])
    assert sorted(number for _, number in world.published()) == list(range(18))
    assert {number for folder, number in world.published() if folder == "s"} == set(range(13, 18))
    assert world.promote("p", "s", calm=True).plan.done
    with pytest.raises(NotFound, match="'p' has had 1 earlier owner"):
        apps.folder_of(world.store, "p~2")


def test_the_old_app_is_fenced_runs_on_without_publishing_and_the_new_one_needs_no_restart(world: World) -> None:
    world.start("s")
    old, new = world.runners["p"], world.runners["s"]
    promote_with(world, pause=lambda: idle(old, new))
    with pytest.raises(Fenced, match="promoted over"):
        old.committers["numbers"].adopt_newest()
    world.start("p")
    assert world.runners["p"].committers["alerts"].head.sinks == {}
    assert world.runners["p"].committers["alerts"].head.silent == {OUT: "topic"}
    world.send(4)
    for runner in (new, world.runners["p"]):
        until_idle(runner)
    assert sorted(number for _, number in world.published()) == list(range(7))


def test_an_undecided_promotion_is_withdrawn_by_a_restarted_runner_of_the_old_app(world: World) -> None:
    world.start("s")
    world.calmly()
    found, old, new = make_plan(world.store, "p", "s", KafkaChannels(world.kafka))
    switch = found.switchover(1, SwitchoverPosition({TOPIC: (2, 1)}, None), "ada@host")
    switch.prepare(world.store, KafkaChannels(world.kafka), (old, new), 1)
    world.start("p")
    world.send(3)
    for folder in "ps":
        until_idle(world.runners[folder])
    assert [folder for folder, _ in world.published()] == ["p"] * 6
    with pytest.raises(SwitchoverFailed, match="was withdrawn, by runner"):
        switch.decide(world.store, 1)
    world.promote("p", "s", calm=True)
    world.send(3)
    until_idle(world.runners["s"])
    assert sorted(number for _, number in world.published()) == list(range(9))
    assert apps.PROMOTION_OUTCOMES.newest(world.store, "p").number == 2  # type: ignore[union-attr]


def test_a_new_app_that_is_restarted_in_a_prepared_promotion_gets_no_sinks(world: World) -> None:
    world.start("s")
    world.calmly()
    found, _, new = make_plan(world.store, "p", "s", KafkaChannels(world.kafka))
    switch = found.switchover(1, SwitchoverPosition({TOPIC: (2, 1)}, None), "ada@host")
    half = {"numbers": new["numbers"]}
    switch.prepare(world.store, KafkaChannels(world.kafka), ({}, half), 1)
    world.start("s")
    assert not world.runners["s"].committers["alerts"].head.sinks
    with pytest.raises(SwitchoverFailed, match="was withdrawn, by runner"):
        switch.decide(world.store, 1)
    world.send(3)
    for folder in "ps":
        until_idle(world.runners[folder])
    assert [folder for folder, _ in world.published()] == ["p"] * 6
    world.promote("p", "s", calm=True)
    world.send(3)
    until_idle(world.runners["s"])
    assert sorted(number for _, number in world.published()) == list(range(9))


def test_a_new_app_that_is_removed_while_the_promoter_stalls_does_not_get_the_name() -> None:
    store = AgingStore()
    world = World(Random(1), store)
    world.start("s")
    world.calmly()
    found, *heads = make_plan(world.store, "p", "s", KafkaChannels(world.kafka))
    stalled, late = (found.switchover(1, SwitchoverPosition({TOPIC: (2, 1)}, None), "ada@host") for _ in range(2))
    stalled.prepare(world.store, KafkaChannels(world.kafka), heads, 1)

    def outside(_removal: object) -> None:
        with pytest.raises(SwitchoverFailed, match="s is being removed"):
            late.prepare(world.store, KafkaChannels(world.kafka), heads, 1)

    remove_app(store, "s", by="eve@host", now_ms=1 << 42, fence=True, remove_topics=outside, pause=store.pause)
    with pytest.raises(SwitchoverFailed, match="was withdrawn, by eve@host"):
        stalled.decide(world.store, 1)
    world.start("p")
    world.send(3)
    until_idle(world.runners["p"])
    assert apps.folder_of(store, "p") == "p"
    assert sorted(number for _, number in world.published()) == list(range(6))
    world.close()


def test_a_clone_that_never_ran_is_refused_and_a_migration_does_not_count_as_a_run(world: World) -> None:
    for change in (None, Amendment("migration", lambda draft: draft), Amendment("compaction", lambda draft: draft)):
        for stage in STAGES if change is not None else ():
            amend(world.store, ("s", stage), change, writer=str(ULID()), by="ada@host", now_ms=1)  # type: ignore[arg-type]
        for dry_run in (True, False):
            with pytest.raises(Refused, match="s is not ready to take over: its alerts and numbers never ran") as said:
                promote_with(world, pause=world.calmly, dry_run=dry_run)
            assert said.value.hint == "slackwater run FILE --app s, and promote while it runs"
    world.stop("p")
    with pytest.raises(Refused, match="never ran"):
        promote_with(world, pause=world.calmly)
    assert apps.folder_of(world.store, "p") == "p"
    for folder in "ps":
        world.start(folder)
    assert world.promote("p", "s", calm=True).plan.to == "s"


def test_a_stopped_new_app_is_refused_while_the_old_app_runs(world: World) -> None:
    world.start("s")
    world.stop("s")
    before = {app: heads_of(world.store, app, STAGES) for app in "ps"}
    for dry_run in (True, False):
        with pytest.raises(Refused, match="s is not running, and p is: the promotion would stop it"):
            promote_with(world, pause=lambda: tick(world), dry_run=dry_run)
    assert {app: heads_of(world.store, app, STAGES) for app in "ps"} == before


def test_a_runner_that_has_just_claimed_its_stages_is_waited_for(world: World) -> None:
    world.start("s")
    HEARTBEATS.remove(world.store, world.runners["s"].committers["alerts"].head.writer, "s")

    def pause() -> None:
        tick(world)
        world.runners["s"].write_heartbeat()

    assert not promote_with(world, pause=pause, dry_run=True).idle


def test_if_neither_app_runs_the_promotion_proceeds_and_says_so(world: World) -> None:
    world.start("s")
    until_idle(world.runners["s"])
    for folder in "ps":
        world.stop(folder)
    done = promote_with(world, pause=lambda: tick(world))
    assert done.idle
    assert apps.folder_of(world.store, "p") == "s"


def test_a_prepared_promotion_is_finished_even_if_the_new_app_has_stopped(world: World) -> None:
    world.start("s")
    world.calmly()
    found, *heads = make_plan(world.store, "p", "s", KafkaChannels(world.kafka))
    switch = found.switchover(1, SwitchoverPosition({TOPIC: (2, 1)}, None), "ada@host")
    switch.prepare(world.store, KafkaChannels(world.kafka), heads, 1)
    world.stop("s")
    done = promote_with(world, pause=lambda: tick(world))
    assert (done.at, done.idle) == ({TOPIC: (2, 1)}, False)
    assert apps.folder_of(world.store, "p") == "s"
    assert promote_with(world, pause=lambda: tick(world)).plan.done


def test_both_apps_continue_if_one_does_not_reach_the_common_offsets(world: World) -> None:
    world.start("s")
    world.end("s")
    world.send(5)
    until_idle(world.runners["p"])
    with pytest.raises(Refused, match="within 3 s: s is 5 records behind p"):
        promote_with(world, pause=lambda: tick(world, world.runners["p"]), timeout_s=3)
    world.send(5)
    until_idle(world.runners["p"])
    assert len(world.published()) == 13


def test_a_run_that_was_starting_during_the_promotion_reports_the_new_owner_of_the_name(world: World) -> None:
    world.start("s")
    world.calmly()

    def meanwhile(folder: str, staging: str, why: str) -> None:
        starting = world.runner(folder).start()
        next(starting)
        world.promote("p", staging, calm=True)
        with pytest.raises(Refused, match=f"a promotion gave app {why} while this run started"):
            next(starting)

    meanwhile("s", "s", "'s' the name p")
    world.start("p")
    world.calmly()
    meanwhile("p", "", "'p' its name back")


def test_the_second_of_two_concurrent_promotions_is_refused(world: World) -> None:
    world.start("s")
    said = []

    def pause() -> None:
        world.now_s += 0.1
        holds.put_holds(
            world.store, [holds.Hold("p", "p", "other", "eve@host", len(said), {}, None)], wake_runners=False
        )
        said.append(1)

    holds.put_holds(world.store, [holds.Hold("p", "p", "other", "eve@host", 99, {}, None)], wake_runners=True)
    with pytest.raises(Refused, match="eve@host is promoting other over p right now"):
        promote_with(world, pause=pause)


def test_an_impossible_promotion_is_explained_in_one_sentence(world: World) -> None:
    def refused(staging: str, why: str, name: str = "p") -> None:
        with pytest.raises(SlackwaterError) as caught:
            make_plan(world.store, name, staging, KafkaChannels(world.kafka))
        assert why in caught.value.message

    world.kafka.create_topics({"elsewhere": 2, "otherwise": 1})
    world.kafka.send("elsewhere", [Record(b"0", 0), Record(b"1", 1), Record(b"2", 0)], patience_s=180)
    channels = KafkaChannels(world.kafka)
    clone(world.store, "p", "other-topic", topics={TOPIC: "elsewhere"}, channels=channels, by="ada@host")
    refused("other-topic", "other-topic reads elsewhere where p reads in: their offsets can never match")
    refused("p", "p has the name p already")
    refused("", "no app named 'p~1'; no app was promoted over p")
    refused("p~1", "the name p~1 refers to a different app after each promotion")
    refused("nobody", "no app named 'nobody'")
    refused("Not A Name", "app name 'Not A Name' is not usable")

    alone = Runner(world.store, world.kafka, program("alone", TOPIC, OUT), world.chance, lambda: world.now_s)
    started(alone).close()
    refused("alone", "alone is not a clone of p")
    clone(world.store, "p", "renamed", topics={}, channels=channels, by="ada@host")
    renamed = Runner(world.store, world.kafka, program("renamed", TOPIC, "otherwise"), world.chance, lambda: 0.0)
    started(renamed).close()
    refused("renamed", "the sink 'out' of p has no counterpart in the program of renamed, which has otherwise")
    world.kafka.delete_topics([TOPIC])
    world.kafka.create_topics({TOPIC: 2})
    refused("s", "topic in ends before the offsets that were read: it was recreated")
    world.kafka.send(TOPIC, [Record(b"x", number % 2) for number in range(200)], patience_s=180)
    refused("s", "topic in is not the one that was read: it was recreated")
    with pytest.raises(Usage, match="not usable"):
        apps.create_app(world.store, AppInfo("p~1", 1))


def test_after_a_promotion_the_old_program_cannot_take_over_the_new_app_by_name(tmp_path: Path) -> None:
    files = {folder: tmp_path / f"{folder}.py" for folder in "ps"}
    for folder, file in files.items():
        file.write_text(f"# the program of {folder}")
    world = World(Random(1), open_store(str(tmp_path / "store")), files)
    world.start("s")
    world.promote("p", "s", calm=True)
    world.close()
    options = Options(store=str(tmp_path / "store"), kafka=world.kafka.properties)

    def start(called: str, file: Path, topic: str = TOPIC) -> PreflightResult:
        return preflight(replace(program("p", topic, OUT), name=called, file=file), options, Listener())

    # The same if the program does not fit the stored versions any more: the way to continue is to promote one back.
    for called, topic in (("p", TOPIC), ("p", "another"), ("s", TOPIC)):
        with pytest.raises(Refused, match=r"p\.py is the program that p had before s was promoted over it") as said:
            start(called, files["p"], topic)
        assert said.value.hint.endswith(f"run {files['p']} --app p~1")
    with pytest.raises(Refused, match="its stored state comes from 'in'"):
        start("p", files["s"], "another")
    before = replace(program("s", "another", OUT), file=files["p"])
    for dry_run in (True, False):
        with pytest.raises(Refused, match=r"p\.py is the program that p had before s was promoted over it"):
            migrate_app(before, open_store(str(tmp_path / "store")), options, renames={}, dry_run=dry_run)
    new, old = start("p", files["s"]), start("p~1", files["p"])
    assert (new.claimer.app.name, new.claimer.publishes, new.is_clone) == ("s", None, False)
    assert (old.claimer.app.name, old.claimer.publishes, old.is_clone) == ("p", {}, True)
    for info in list(world.store.list("s/")):
        world.store.delete(info.key)
    # Whatever deleted the app, no new app starts under the production name.
    for called in "ps":
        with pytest.raises(
            Refused, match="since a promotion, the name 'p' belongs to app 's', which is gone: a new app cannot have it"
        ):
            start(called, files["s"])
    with pytest.raises(Refused, match="a new app cannot have it"):
        clone(world.store, "p", "s", topics={}, channels=KafkaChannels(world.kafka), by="ada@host")


def test_an_app_that_is_being_removed_is_not_promoted(world: World) -> None:
    world.start("s")
    world.calmly()
    found, old, new = make_plan(world.store, "p", "s", KafkaChannels(world.kafka))
    for head in new.values():
        commit_retired(world.store, head, by="eve@host", now_ms=1)
    switch = found.switchover(1, SwitchoverPosition({TOPIC: (2, 1)}, None), "ada@host")
    with pytest.raises(Refused, match="every stage of s is retired"):
        switch.prepare(
            world.store, KafkaChannels(world.kafka), _HeadPoller(world.store, {"p": old, "s": new}).poll(), 1
        )
    assert apps.promotions(world.store, "p") == ()


def test_the_error_that_stops_the_old_apps_runner_has_the_commands_to_continue(world: World) -> None:
    world.start("s")
    old, new = world.runners["p"], world.runners["s"]
    promote_with(world, pause=lambda: idle(old, new))
    with pytest.raises(Fenced) as caught:
        old.committers["numbers"].adopt_newest()
    assert caught.value.hint.endswith("(slackwater run FILE --app p~1), and then: slackwater promote --back --over p")
    world.promote("p", "", calm=True)
    with pytest.raises(Fenced) as caught:
        new.committers["numbers"].adopt_newest()
    assert caught.value.hint.endswith("and then: slackwater promote s --over p")
