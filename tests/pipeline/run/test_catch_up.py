"""The end of `--until-caught-up`: all records that existed at the start are processed; later ones are not awaited."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.pipeline.run.supervisor import CatchUp
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import EventTime, Manifest

from tests.support.diamonds import APP, STAGES, Diamond


def heads(diamond: Diamond, *without: str) -> dict[str, Manifest]:
    return {stage: diamond.heads[stage] for stage in STAGES if stage not in without}


def seen(diamond: Diamond, stage: str) -> set[int]:
    return set(diamond.seen[stage, diamond.heads[stage].version])


@given(st.integers(0, 12), st.lists(st.sampled_from(STAGES), max_size=30))
def test_a_run_is_done_as_soon_as_the_records_of_the_start_have_reached_the_last_stage(
    there: int, schedule: list[str]
) -> None:
    diamond = Diamond()
    catch_up = CatchUp(diamond.store, APP, {"numbers": (there,)})
    done = False
    # In the end every stage has its turn again and again, and there is always more to read.
    for number, stage in enumerate([*schedule, *STAGES * 10]):
        diamond.step(stage, max_records=4)
        done = catch_up.is_done(heads(diamond))
        assert not done or seen(diamond, "joined") >= set(range(there))
        if done:
            assert number < len(schedule) + len(STAGES) * 9
            break
    assert done


def test_an_idle_app_has_caught_up_at_once() -> None:
    diamond = Diamond()
    assert CatchUp(diamond.store, APP, {"numbers": (0,)}).is_done(heads(diamond))


def test_a_stage_has_not_caught_up_while_rows_are_due_at_its_watermark() -> None:
    diamond = Diamond()
    owing = heads(diamond)
    owing["joined"] = replace(owing["joined"], event_time=EventTime(60, due_ms=50, next_due_ms=60))
    catch_up = CatchUp(diamond.store, APP, {"numbers": (0,)})
    assert not catch_up.is_done(owing)
    done = EventTime(60, due_ms=60, next_due_ms=61)
    assert catch_up.is_done(owing | {"joined": replace(owing["joined"], event_time=done)})


def test_a_stage_with_its_own_watermark_does_not_wait_for_its_upstreams() -> None:
    diamond = Diamond(("moves", "evens"))
    diamond.step("moves")
    moves = successor(diamond.heads["moves"], kind="batch", epoch=1, writer="w", by="test:1", now_ms=50)
    for at_ms in (100, 100):
        version = diamond.heads["moves"].version + 1
        moves = diamond.heads["moves"] = replace(moves, version=version, event_time=EventTime(at_ms))
        commit(diamond.store, moves)
        evens = diamond.step("evens")
    # The planner has no batch to make of the last one, which says no more than that before it.
    assert evens.inputs["moved"].version < moves.version
    now = diamond.heads | {"evens": replace(evens, inputs={"moved": replace(evens.inputs["moved"], watermark_ms=90)})}
    assert not CatchUp(diamond.store, APP, {"numbers": (0,)}).is_done(now)
    assert CatchUp(diamond.store, APP, {"numbers": (0,)}, {"evens": {"moved"}}).is_done(now)


def test_for_a_writer_in_another_process_its_head_at_the_start_is_the_end() -> None:
    diamond = Diamond()
    diamond.step("moves")
    catch_up = CatchUp(diamond.store, APP, {})
    assert not catch_up.is_done(heads(diamond, "moves", "joined"))
    for stage in ("moves", "evens", "odds"):
        assert not catch_up.is_done(heads(diamond, "moves", "joined"))
        diamond.step(stage)
    assert catch_up.is_done(heads(diamond, "moves", "joined"))
