"""The law: every transition of the protocol is a row of the one table in this file.

A row is about one snapshot and one process: in this phase, this signal leads to that phase and asks for these steps,
in their order. Snapshots do not know each other, so any number of them may overlap. What has no row is illegal.

`Process` only turns events into signals (by `marker_signal` and `records_signal`), keeps the phase that the table
answers, and turns steps into actions. It decides nothing.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from .events import ProtocolError


class Role(Enum):
    """Which kind of process."""

    SOURCE = "a process without channel inputs"
    READER = "a process with channel inputs"


class Phase(Enum):
    """How far the process is with one snapshot."""

    UNKNOWN = "does not know"
    CAPTURING = "has recorded its state and awaits markers for"
    FINISHED = "has finished"


class Signal(Enum):
    """What an event means to one snapshot."""

    REQUEST = "Requested"
    MARKER = "MarkerArrived on an awaited channel"
    LAST_MARKER = "MarkerArrived on the only awaited channel"
    REPEATED_MARKER = "MarkerArrived once more"
    RECORDS = "BatchArrived before the channel's marker"
    LATER_RECORDS = "BatchArrived after the channel's marker"
    FORGET = "Forgotten"


class Effect(Enum):
    """What a transition asks for."""

    RECORD = auto()
    SEND_MARKERS = auto()
    CAPTURE = auto()


TRANSITIONS: Final[Mapping[tuple[Role, Phase], Mapping[Signal, tuple[Phase, tuple[Effect, ...]]]]] = {
    (Role.SOURCE, Phase.UNKNOWN): {
        Signal.REQUEST: (Phase.FINISHED, (Effect.RECORD, Effect.SEND_MARKERS)),
        Signal.FORGET: (Phase.UNKNOWN, ()),
    },
    (Role.SOURCE, Phase.FINISHED): {
        Signal.REQUEST: (Phase.FINISHED, ()),
        Signal.FORGET: (Phase.UNKNOWN, ()),
    },
    # The first marker records at once, whatever the other inputs do: nobody ever waits.
    (Role.READER, Phase.UNKNOWN): {
        Signal.MARKER: (Phase.CAPTURING, (Effect.RECORD, Effect.SEND_MARKERS)),
        Signal.LAST_MARKER: (Phase.FINISHED, (Effect.RECORD, Effect.SEND_MARKERS)),
        Signal.FORGET: (Phase.UNKNOWN, ()),
    },
    (Role.READER, Phase.CAPTURING): {
        Signal.RECORDS: (Phase.CAPTURING, (Effect.CAPTURE,)),
        Signal.LATER_RECORDS: (Phase.CAPTURING, ()),
        Signal.MARKER: (Phase.CAPTURING, ()),
        Signal.LAST_MARKER: (Phase.FINISHED, ()),
        Signal.REPEATED_MARKER: (Phase.CAPTURING, ()),
        Signal.FORGET: (Phase.UNKNOWN, ()),
    },
    (Role.READER, Phase.FINISHED): {
        Signal.LATER_RECORDS: (Phase.FINISHED, ()),
        Signal.REPEATED_MARKER: (Phase.FINISHED, ()),
        Signal.FORGET: (Phase.UNKNOWN, ()),
    },
}


def transition(role: Role, phase: Phase, signal: Signal, snapshot: str) -> tuple[Phase, tuple[Effect, ...]]:
    """Look the row up, or raise `ProtocolError` where there is none; `snapshot` is for the message only."""
    rows = TRANSITIONS[role, phase]
    if signal not in rows:
        raise ProtocolError(
            f"{role.value} that {phase.value} snapshot {snapshot!r} cannot go on",
            expected=" or ".join(row.value for row in rows),
            found=signal.value,
        )
    return rows[signal]


def marker_signal(channel: str, awaited: frozenset[str]) -> Signal:
    """What a marker on `channel` means while the markers of `awaited` have not arrived."""
    if channel not in awaited:
        return Signal.REPEATED_MARKER
    return Signal.MARKER if awaited - {channel} else Signal.LAST_MARKER


def records_signal(channel: str, awaited: frozenset[str]) -> Signal:
    """What records on `channel` mean while the markers of `awaited` have not arrived."""
    return Signal.RECORDS if channel in awaited else Signal.LATER_RECORDS
