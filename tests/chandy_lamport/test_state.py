"""Completeness of the protocol's transition table."""

import pytest
from slackwater.chandy_lamport.events import ProtocolError
from slackwater.chandy_lamport.state import TRANSITIONS, Effect, Phase, Role, Signal, transition


def test_every_phase_that_a_row_leads_to_has_its_own_rows() -> None:
    for (role, _), rows in TRANSITIONS.items():
        for phase, _ in rows.values():
            assert (role, phase) in TRANSITIONS


def test_every_phase_signal_and_step_is_used() -> None:
    assert {phase for _, phase in TRANSITIONS} == set(Phase)
    assert {signal for rows in TRANSITIONS.values() for signal in rows} == set(Signal)
    assert {step for rows in TRANSITIONS.values() for _, steps in rows.values() for step in steps} == set(Effect)


def test_a_snapshot_can_be_aborted_in_every_phase() -> None:
    for rows in TRANSITIONS.values():
        assert rows[Signal.END] == (Phase.UNKNOWN, ())


def test_the_state_is_recorded_when_the_snapshot_becomes_known_and_before_its_markers() -> None:
    for (_, phase), rows in TRANSITIONS.items():
        for after, steps in rows.values():
            if phase is Phase.UNKNOWN is not after:
                assert steps[:2] == (Effect.RECORD, Effect.SEND_MARKERS)
            else:
                assert not {Effect.RECORD, Effect.SEND_MARKERS} & set(steps)


def test_a_step_without_a_row_is_refused() -> None:
    with pytest.raises(ProtocolError, match="without channel inputs that has finished snapshot 's' cannot continue"):
        transition(Role.SOURCE, Phase.FINISHED, Signal.MARKER, "s")
