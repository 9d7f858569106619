import pytest
from slackwater.chandy_lamport import (
    Cancel,
    Complete,
    Injector,
    InjectorEvent,
    ProtocolError,
    Request,
    Requested,
    Stage,
    StageFinished,
    Take,
)


def network(**stages: str) -> dict[str, Stage]:
    """`name="inputs > outputs"`."""
    sides = {name: [frozenset(side.split()) for side in text.split(">")] for name, text in stages.items()}
    return {name: Stage(inputs, outputs) for name, (inputs, outputs) in sides.items()}


CHAIN = network(parse=" > by-key", total="by-key > sums", alert="sums > ")


def test_a_snapshot_of_a_chain_is_asked_of_its_first_stage_and_complete_when_the_last_has_answered() -> None:
    injector = Injector(CHAIN)
    assert injector.receive(Take("s")) == (Request("s", "parse"),)
    assert injector.receive(StageFinished("s", "parse", 7)) == ()
    assert injector.receive(StageFinished("s", "total", 5)) == ()
    assert injector.waiting("s") == {"alert"}
    assert injector.open == {"s"}
    assert injector.receive(StageFinished("s", "alert", 9)) == (Complete("s", {"parse": 7, "total": 5, "alert": 9}),)
    assert injector.waiting("s") == frozenset()
    assert injector.open == frozenset()


def test_every_stage_that_reads_no_channel_is_asked() -> None:
    injector = Injector(network(b=" > from-b", a=" > from-a", join="from-a from-b > ", alone=" > "))
    assert injector.receive(Take("s")) == (Request("s", "a"), Request("s", "alone"), Request("s", "b"))


def test_answers_may_come_in_any_order_and_again() -> None:
    injector = Injector(CHAIN)
    injector.receive(Take("s"))
    for _ in range(2):
        assert injector.receive(StageFinished("s", "alert", 3)) == ()
        assert injector.receive(StageFinished("s", "total", 2)) == ()
    assert injector.receive(StageFinished("s", "parse", 1)) == (Complete("s", {"parse": 1, "total": 2, "alert": 3}),)
    assert injector.receive(StageFinished("s", "parse", 1)) == (), "complete once"


def test_taking_it_again_asks_those_that_have_not_answered() -> None:
    injector = Injector(network(a=" > ", b=" > "))
    injector.receive(Take("s"))
    injector.receive(StageFinished("s", "a", 1))
    assert injector.receive(Take("s")) == (Request("s", "b"),)
    assert injector.waiting("s") == {"b"}


def test_a_cancelled_snapshot_never_completes() -> None:
    injector = Injector(network(a=" > ", b=" > "))
    injector.receive(Take("s"))
    injector.receive(StageFinished("s", "a", 1))
    assert injector.receive(Cancel("s")) == ()
    assert injector.open == frozenset()
    assert injector.receive(StageFinished("s", "b", 1)) == ()
    assert injector.receive(StageFinished("s", "a", 2)) == (), "nobody compares what nobody asks for"
    assert injector.receive(Cancel("s")) == ()


def test_snapshots_are_collected_apart() -> None:
    injector = Injector(network(a=" > ", b=" > "))
    injector.receive(Take("first"))
    injector.receive(Take("second"))
    injector.receive(StageFinished("second", "a", 2))
    assert injector.receive(StageFinished("first", "b", 1)) == ()
    assert injector.receive(StageFinished("first", "a", 1)) == (Complete("first", {"a": 1, "b": 1}),)
    assert injector.waiting("second") == {"b"}


def test_an_app_of_one_stage_needs_one_answer() -> None:
    injector = Injector(network(only=" > "))
    assert injector.receive(StageFinished("s", "only", 1)) == (), "nobody asked"
    injector.receive(Take("s"))
    assert injector.receive(StageFinished("s", "only", 4)) == (Complete("s", {"only": 4}),)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            StageFinished("s", "parser", 1),
            "stage 'parser' finished snapshot 's': expected one of 'alert', 'parse', 'total', found 'parser'",
        ),
        (
            StageFinished("s", "parse", 8),
            "stage 'parse' finished snapshot 's': expected version 7 as it said before, found version 8",
        ),
        (
            Requested("s"),
            "the injector received what it does not know: expected Take, StageFinished or Cancel, "
            "found Requested(snapshot='s')",
        ),
    ],
)
def test_an_illegal_event_says_what_was_expected_and_changes_nothing(event: InjectorEvent, message: str) -> None:
    injector = Injector(CHAIN)
    injector.receive(Take("s"))
    injector.receive(StageFinished("s", "parse", 7))
    with pytest.raises(ProtocolError) as caught:
        injector.receive(event)
    assert str(caught.value) == message
    assert injector.waiting("s") == {"total", "alert"}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({}, "expected at least one stage, found none"),
        (network(a=" > ", b="c > "), "expected one stage that writes channel 'c', found 0"),
        (network(a=" > c", b=" > c"), "expected one stage that writes channel 'c', found 2"),
        (
            network(a=" > c", b="c back > d", d="d > back", e="d > ", f="c > "),
            "expected no stage in or behind a circle of channels, found 'b', 'd', 'e'",
        ),
    ],
)
def test_a_network_that_no_marker_can_cover_is_refused(stages: dict[str, Stage], message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Injector(stages)
    assert str(caught.value) == f"the network cannot be recorded: {message}"


def test_a_channel_may_have_several_readers_or_none() -> None:
    injector = Injector(network(a=" > shared unread", b="shared > ", c="shared > "))
    injector.receive(Take("s"))
    assert injector.waiting("s") == {"a", "b", "c"}
