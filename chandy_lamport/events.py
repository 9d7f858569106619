"""What goes into a process, what comes out, and the error for what may not be. Values; they compare by content.

A snapshot is named by an id that is never used twice. Channels and stages are named as the app declares them.
"""

from dataclasses import dataclass


class ProtocolError(Exception):
    """A step the protocol does not have. Whatever received it is unchanged; the caller has a bug.

    It says what was being done, what would have been legal, and what came instead.
    """

    def __init__(self, what: str, expected: str, found: str) -> None:
        # All three go into `args`, so that the error survives pickling.
        super().__init__(what, expected, found)
        self.what, self.expected, self.found = what, expected, found

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True)
class Requested:
    """Somebody wants this snapshot. For a process without channel inputs: the protocol starts there."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class BatchArrived:
    """Records of a channel were consumed. They lie before every marker of it that has not yet arrived.

    In one commit, the batches of all channels come before the markers: a batch is a barrier, so the state that the
    commit records has already seen them.
    """

    channel: str
    records: object
    """An address range, opaque here: what a `Capture` hands back."""


@dataclass(frozen=True, slots=True)
class MarkerArrived:
    """All of the channel up to this snapshot's marker was consumed, in every partition of the channel.

    Where it is the process's first marker of the snapshot, nothing after it may be in the same commit.
    """

    snapshot: str
    channel: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The snapshot was completed or cancelled; nobody asks for it any more."""

    snapshot: str


Event = Requested | BatchArrived | MarkerArrived | Forgotten
"""What a process receives."""


@dataclass(frozen=True, slots=True)
class RecordState:
    """The version now being committed is this process's part of the cut."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class SendMarker:
    """Write a marker into every partition of the channel, behind all records sent so far."""

    snapshot: str
    channel: str


@dataclass(frozen=True, slots=True)
class Capture:
    """These records were sent before the cut and consumed after it: they are part of the channel's state."""

    snapshot: str
    channel: str
    records: object


Action = RecordState | SendMarker | Capture
"""What a process wants done. The actions of one `receive` belong in one atomic commit, in their order."""
