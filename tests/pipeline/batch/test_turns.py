"""Turns of stages: which stage is next, fairness, and the number of concurrent batches."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.batch.turns import TurnOrder, Turns

from tests.support.running import eventually

CHAIN = {"a": {"b"}, "b": {"c"}}


def admitted(order: TurnOrder) -> str:
    stage = order.next()
    assert stage is not None
    order.admit(stage)
    return stage


def experienced(readers: dict[str, set[str]], stages: str) -> TurnOrder:
    """Return a turn order in which each of these stages has had a turn."""
    order = TurnOrder(readers)
    for stage in stages:
        order.add(stage)
        order.admit(stage)
    return order


def test_waiting_readers_go_before_their_writers_and_others_first_come_first_served() -> None:
    order = experienced(CHAIN, "abcxy")
    for stage in "xaybc":
        order.add(stage)
    assert [admitted(order) for _ in range(5)] == [*"xycba"]
    assert order.next() is None


def test_a_reader_with_other_input_overtakes_its_writer_only_once() -> None:
    order = experienced(CHAIN, "ab")
    order.add("a")
    order.add("b")
    assert admitted(order) == "b"
    order.add("b")
    assert [admitted(order), admitted(order)] == ["a", "b"]


def test_stages_that_never_had_a_turn_go_first() -> None:
    order = experienced(CHAIN, "bx")
    for stage in "xbac":
        order.add(stage)
    assert order.next(only_new=True) == "a"
    assert [admitted(order) for _ in range(4)] == [*"acxb"]
    order.add("x")
    assert order.next(only_new=True) is None


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, dict[str, set[str]]]:
    """Draw a number of stages, and an acyclic graph in which later stages read earlier ones."""
    count = draw(st.integers(1, 6))
    readers = {str(at): {str(to) for to in range(at + 1, count) if draw(st.booleans())} for at in range(count)}
    return count, readers


@given(graphs(), st.data())
def test_no_stage_waits_forever_even_if_all_others_always_have_input(
    graph: tuple[int, dict[str, set[str]]], data: st.DataObject
) -> None:
    count, readers = graph
    order = TurnOrder(readers)
    for stage in data.draw(st.permutations([str(at) for at in range(count)])):
        order.add(stage)
    turns, waited = Counter[str](), Counter[str]()
    for _ in range(20 * count):
        stage = admitted(order)
        order.add(stage)
        turns[stage] += 1
        waited = Counter({other: waited[other] + 1 for other in order.waiting if other != stage})
        assert max(waited.values(), default=0) <= count
        assert max(turns.values()) - min(turns[str(at)] for at in range(count)) <= 1, turns


def test_at_most_two_batches_run_at_once_and_each_stage_gets_a_turn_before_any_gets_two() -> None:
    turns, ends = Turns(2, {}), {stage: threading.Semaphore(0) for stage in "abc"}
    began = Counter[str]()

    def work(stage: str) -> None:
        while began[stage] < 2:
            with turns.turn(stage):
                began[stage] += 1
                assert ends[stage].acquire(timeout=180)

    with ThreadPoolExecutor() as pool:
        done = [pool.submit(work, stage) for stage in "ab"]
        eventually(lambda: began == {"a": 1, "b": 1}, "both run")
        done.append(pool.submit(work, "c"))
        eventually(lambda: turns.waiting == {"c"}, "the third waits")
        assert turns.stages_ahead("c").keys() == {"a", "b"}
        assert turns.stages_ahead("a") == {}
        ends["a"].release()
        eventually(lambda: began["c"] == 1, "it has the place of the first")
        ends["c"].release()
        eventually(lambda: turns.waiting == {"a", "c"}, "two have had their turn")
        assert began == {"a": 1, "b": 1, "c": 1}
        turns.open()
        eventually(lambda: began["a"] == 2, "the first that waits goes on")
        for stage in "abc":
            ends[stage].release(2)
        for future in done:
            future.result(60)
    assert turns.waiting == set()


def test_nobody_waits_for_a_turn_after_the_run_has_ended() -> None:
    turns = Turns(1, {})
    with ThreadPoolExecutor() as pool, turns.turn("a"):
        other = pool.submit(lambda: turns.turn("b").__enter__())
        eventually(lambda: turns.waiting == {"b"}, "it waits")
        turns.end()
        other.result(60)
