"""Events that a process receives, actions that it returns, and the error for illegal events. Compared by value.

The id of a snapshot is never reused. Channels and stages are named as the app declares them.
"""

from dataclasses import dataclass


class ProtocolError(Exception):
    """A step that the protocol does not allow: a bug of the caller. The called object is unchanged.

    The message says what was being done, what would have been legal, and what was found.
    """

    def __init__(self, what: str, expected: str, found: str) -> None:
        # All three go into `args`, so that the error survives pickling.
        super().__init__(what, expected, found)
        self.what, self.expected, self.found = what, expected, found

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    """A snapshot was requested. Only for a process without channel inputs, where the protocol starts."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class BatchArrived:
    """Records of a channel were consumed. They precede every marker of the channel that has not yet arrived.

    In one commit, the batches of all channels come before the markers, so that the state that the commit records
    includes the batches of all channels.
    """

    channel: str
    records: object
    """Range of offsets, opaque to the protocol; returned in a `Capture`."""


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    """The channel was consumed up to this snapshot's marker, in every partition.

    In one commit, no `BatchArrived` may follow a marker.
    """

    snapshot: str
    channel: str


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """The snapshot was completed or cancelled."""

    snapshot: str


Event = SnapshotRequested | BatchArrived | MarkerArrived | SnapshotEnded


@dataclass(frozen=True, slots=True)
class RecordState:
    """Record the version being committed as this process's part of the cut."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class SendMarker:
    """Write a marker into every partition of the channel, after all records sent so far."""

    snapshot: str
    channel: str


@dataclass(frozen=True, slots=True)
class Capture:
    """Add to the channel's state the records that were sent before the cut and consumed after it."""

    snapshot: str
    channel: str
    records: object


Action = RecordState | SendMarker | Capture
"""Action that a process requests. The actions of one `receive` belong in one atomic commit, in their order."""
