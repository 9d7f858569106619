import pytest
from slackwater.chandy_lamport.events import ProtocolError
from slackwater.chandy_lamport.global_state import StageChannels, completed_cut


def network(**stages: str) -> dict[str, StageChannels]:
    """Parse `name="inputs > outputs"` into stages."""
    sides = {name: [frozenset(side.split()) for side in text.split(">")] for name, text in stages.items()}
    return {name: StageChannels(inputs, outputs) for name, (inputs, outputs) in sides.items()}


CHAIN = network(parse=" > by-key", total="by-key > sums", alert="sums > ")


def test_a_snapshot_completes_when_every_stage_has_finished_in_any_order() -> None:
    versions = {"parse": 7, "total": 5, "alert": 9}
    assert completed_cut(CHAIN, versions) == versions
    assert completed_cut(CHAIN, {}) is None
    for last in versions:
        assert completed_cut(CHAIN, {stage: version for stage, version in versions.items() if stage != last}) is None


def test_a_stage_outside_the_network_is_not_in_the_cut() -> None:
    assert completed_cut(network(only=" > "), {"only": 4, "retired": 2}) == {"only": 4}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({}, "expected at least one stage, found none"),
        (network(a=" > ", b="c > "), "expected one stage that writes channel 'c', found 0"),
        (network(a=" > c", b=" > c"), "expected one stage that writes channel 'c', found 2"),
        (
            network(a=" > c", b="c back > d", d="d > back", e="d > ", f="c > "),
            "expected no stage in or after a cycle of channels, found 'b', 'd', 'e'",
        ),
    ],
)
def test_a_network_that_markers_cannot_cover_is_refused(stages: dict[str, StageChannels], message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        completed_cut(stages, dict.fromkeys(stages, 1))
    assert str(caught.value) == f"the network cannot be recorded: {message}"


def test_a_channel_may_have_several_readers_or_none() -> None:
    assert completed_cut(network(a=" > shared unread", b="shared > ", c="shared > "), {}) is None
