"""Events that a process of the snapshot protocol receives, and actions that it returns.

Events and actions are compared by value. The id of a snapshot is never reused. Channels and stages have the names that
the app declares.
"""

from dataclasses import dataclass


class ProtocolError(Exception):
    """The caller took a step that the protocol does not allow, which is a bug. The called object is unchanged.

    The message names the step, the legal steps, and the actual step.
    """

    def __init__(self, subject: str, expected: str, actual: str) -> None:
        # All three arguments go into `args`, so that the error survives pickling.
        super().__init__(subject, expected, actual)
        self.subject, self.expected, self.actual = subject, expected, actual

    def __str__(self) -> str:
        return f"{self.subject}: expected {self.expected}, found {self.actual}"


@dataclass(frozen=True, slots=True)
class SnapshotRequested:
    """A snapshot was requested. Only for processes without channel inputs, which start the protocol."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class BatchArrived:
    """A batch of records of a channel was consumed. All its records lie before the channel's next marker.

    Within one commit, all `BatchArrived` events precede the first `MarkerArrived`, so that the recorded state includes
    the batches of all channels.
    """

    channel: str
    records: object
    """Range of offsets. The protocol does not interpret it, and returns it in a `Capture`."""


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    """A channel was consumed up to this snapshot's marker, in every partition.

    Within one commit, no `BatchArrived` event may follow.
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
    """Record the version that is being committed as this stage's part of the cut."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class SendMarker:
    """Write a marker into every partition of the channel, after all records that were sent so far."""

    snapshot: str
    channel: str


@dataclass(frozen=True, slots=True)
class Capture:
    """Add records to the channel's state: they were sent before the cut, and consumed after it."""

    snapshot: str
    channel: str
    records: object


Action = RecordState | SendMarker | Capture
"""Action that a process requests. All actions of one `Process.receive` call go into one commit, in order."""
