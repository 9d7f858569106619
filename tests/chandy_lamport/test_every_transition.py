"""Mutation test of the protocol's table: if any row has another step or phase, a law fails under some schedule.

Tools for mutation testing change functions; the table is data, so its mutants are created here.
"""

from collections.abc import Iterator, Mapping
from random import Random

import pytest
from slackwater.chandy_lamport import state
from slackwater.chandy_lamport.events import ProtocolError
from slackwater.chandy_lamport.global_state import StageChannels, find_violations
from slackwater.chandy_lamport.state import TRANSITIONS, Effect, Phase, Role, Signal

from tests.chandy_lamport.network import Network

Row = tuple[Phase, tuple[Effect, ...]]
Table = Mapping[tuple[Role, Phase], Mapping[Signal, Row]]


def stages(*channels: str) -> dict[str, StageChannels]:
    """Return the stages of these channels. Each channel is named by its writer and reader."""
    return {
        name: StageChannels(
            frozenset(channel for channel in channels if channel[1] == name),
            frozenset(channel for channel in channels if channel[0] == name),
        )
        for name in sorted(set("".join(channels)))
    }


NETWORKS = (stages("ac", "bc", "cd"), stages("ab", "ac", "bd", "cd"), stages("ab", "bc"), stages("ad", "bd", "cd"))
NUM_SCHEDULES = 150


def faults() -> Iterator[tuple[Role, Phase, Signal, Row]]:
    """Yield mutants of each row of the table: a step less, another order or another phase. Omits harmless changes."""
    for (role, phase), rows in TRANSITIONS.items():
        for signal, (after, steps) in rows.items():
            if (phase, signal) == (Phase.UNKNOWN, Signal.END):
                continue  # the networks never say it
            for left_out in range(len(steps)):
                yield role, phase, signal, (after, steps[:left_out] + steps[left_out + 1 :])
            if len(steps) > 1:
                yield role, phase, signal, (after, steps[::-1])
            for other in {known for party, known in TRANSITIONS if party is role} - {after}:
                # A process that awaits no marker gets the same signals in both phases, and does the same.
                if not (after is Phase.FINISHED and other is Phase.CAPTURING):
                    yield role, phase, signal, (other, steps)


def broken_by(random: Random) -> bool:
    """Return True if a random schedule of a random network breaks a law."""
    network = Network(random.choice(NETWORKS), random.choice((1, 2)), random.randbytes(random.randrange(200, 800)))
    try:
        network.run()
    except (AssertionError, ProtocolError, KeyError):
        return True
    wanted = [snapshot for snapshot in network.taken if snapshot not in network.cancelled]
    return (
        sorted(one.snapshot for one in network.recordings) != wanted
        or any(find_violations(one.cut) for one in network.recordings)
        or any(process.recorded for process in network.processes.values())
    )


def name_of(fault: tuple[Role, Phase, Signal, Row]) -> str:
    role, phase, signal, (after, steps) = fault
    return "-".join((role.name, phase.name, signal.name, after.name, *(step.name for step in steps)))


def test_the_real_table_breaks_no_law() -> None:
    random = Random(1985)
    # Half the number, because `test_laws.py` has more schedules, on any network.
    assert not any(broken_by(random) for _ in range(NUM_SCHEDULES // 2))


@pytest.mark.parametrize("fault", sorted(faults(), key=name_of), ids=name_of)
def test_every_mutated_table_breaks_some_law(
    fault: tuple[Role, Phase, Signal, Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    role, phase, signal, row = fault
    table: Table = {**TRANSITIONS, (role, phase): {**TRANSITIONS[role, phase], signal: row}}
    monkeypatch.setattr(state, "TRANSITIONS", table)
    random = Random(1985)
    assert any(broken_by(random) for _ in range(NUM_SCHEDULES))
