"""State machine of the Chandy-Lamport protocol, as a table of transitions.

The table maps the current phase of a snapshot in one process, and a signal, to the new phase and the effects, in order.
Snapshots are independent and may overlap. A signal without a row is illegal.

`Process` maps events to signals (`marker_signal` and `records_signal`), stores the phase, and maps effects to actions.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from .events import ProtocolError


class Role(Enum):
    """Kind of process: with or without channel inputs."""

    SOURCE = "a process without channel inputs"
    READER = "a process with channel inputs"


class Phase(Enum):
    """Progress of one snapshot in one process."""

    UNKNOWN = "does not know"
    CAPTURING = "has recorded its state and awaits markers for"
    FINISHED = "has finished"


class Signal(Enum):
    """Kind of event, as one snapshot sees it."""

    REQUEST = "Requested"
    MARKER = "MarkerArrived on an awaited channel"
    LAST_MARKER = "MarkerArrived on the only awaited channel"
    REPEATED_MARKER = "MarkerArrived once more"
    RECORDS = "BatchArrived before the channel's marker"
    LATER_RECORDS = "BatchArrived after the channel's marker"
    END = "Forgotten"


class Effect(Enum):
    """Step that a transition requires: record the state, send markers, or capture records."""

    RECORD = auto()
    SEND_MARKERS = auto()
    CAPTURE = auto()


TRANSITIONS: Final[Mapping[tuple[Role, Phase], Mapping[Signal, tuple[Phase, tuple[Effect, ...]]]]] = {
    (Role.SOURCE, Phase.UNKNOWN): {
        Signal.REQUEST: (Phase.FINISHED, (Effect.RECORD, Effect.SEND_MARKERS)),
        Signal.END: (Phase.UNKNOWN, ()),
    },
    (Role.SOURCE, Phase.FINISHED): {
        Signal.REQUEST: (Phase.FINISHED, ()),
        Signal.END: (Phase.UNKNOWN, ()),
    },
    # The first marker makes the process record at once, independently of the other inputs: no input is blocked.
    (Role.READER, Phase.UNKNOWN): {
        Signal.MARKER: (Phase.CAPTURING, (Effect.RECORD, Effect.SEND_MARKERS)),
        Signal.LAST_MARKER: (Phase.FINISHED, (Effect.RECORD, Effect.SEND_MARKERS)),
        Signal.END: (Phase.UNKNOWN, ()),
    },
    (Role.READER, Phase.CAPTURING): {
        Signal.RECORDS: (Phase.CAPTURING, (Effect.CAPTURE,)),
        Signal.LATER_RECORDS: (Phase.CAPTURING, ()),
        Signal.MARKER: (Phase.CAPTURING, ()),
        Signal.LAST_MARKER: (Phase.FINISHED, ()),
        Signal.REPEATED_MARKER: (Phase.CAPTURING, ()),
        Signal.END: (Phase.UNKNOWN, ()),
    },
    (Role.READER, Phase.FINISHED): {
        Signal.LATER_RECORDS: (Phase.FINISHED, ()),
        Signal.REPEATED_MARKER: (Phase.FINISHED, ()),
        Signal.END: (Phase.UNKNOWN, ()),
    },
}


def transition(role: Role, phase: Phase, signal: Signal, snapshot: str) -> tuple[Phase, tuple[Effect, ...]]:
    """Look up the new phase and the effects of a signal. Raises `ProtocolError` if the table has no such row."""
    rows = TRANSITIONS[role, phase]
    if signal not in rows:
        raise ProtocolError(
            f"{role.value} that {phase.value} snapshot {snapshot!r} cannot continue",
            expected=" or ".join(row.value for row in rows),
            actual=signal.value,
        )
    return rows[signal]


def marker_signal(channel: str, awaited: frozenset[str]) -> Signal:
    if channel not in awaited:
        return Signal.REPEATED_MARKER
    return Signal.MARKER if awaited - {channel} else Signal.LAST_MARKER


def records_signal(channel: str, awaited: frozenset[str]) -> Signal:
    return Signal.RECORDS if channel in awaited else Signal.LATER_RECORDS
