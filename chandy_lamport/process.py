"""`Process`: the state of one stage in the Chandy-Lamport protocol."""

from collections.abc import Iterable, Mapping

from .events import (
    Action,
    BatchArrived,
    Capture,
    Event,
    MarkerArrived,
    ProtocolError,
    RecordState,
    SendMarker,
    SnapshotEnded,
    SnapshotRequested,
)
from .state import Effect, Phase, Role, Signal, marker_signal, records_signal, transition


class Process:
    """One stage in the protocol: it records its state at a snapshot's first marker, and forwards the marker.

    The process also captures in-flight records. All actions for the events of one commit must take effect in that
    commit. If the commit fails, discard this object and create a process from the last successful commit.

    Args:
        inputs: Channels that the process reads; empty for a stage that reads only users' topics.
        outputs: Channels that the process writes.
        recorded: Value of the property `recorded` at the last commit.

    Raises `ProtocolError` if a snapshot awaits a marker on a channel that is not an input.
    """

    __slots__ = ("_inputs", "_outputs", "_role", "_snapshots", "_unknown")

    def __init__(
        self, inputs: frozenset[str], outputs: frozenset[str], recorded: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        self._inputs = inputs
        self._outputs = tuple(sorted(outputs))
        self._role = Role.READER if inputs else Role.SOURCE
        self._unknown = (Phase.UNKNOWN, inputs)
        self._snapshots: dict[str, tuple[Phase, frozenset[str]]] = {}
        for snapshot, channels in (recorded or {}).items():
            awaited = frozenset(channels)
            for channel in sorted(awaited):
                self._check_input(channel, f"snapshot {snapshot!r} is restored and awaits a marker")
            self._snapshots[snapshot] = (Phase.CAPTURING if awaited else Phase.FINISHED, awaited)

    @property
    def recorded(self) -> dict[str, frozenset[str]]:
        """Channels whose marker is still awaited, by id of each snapshot that is recorded and has not ended.

        Store exactly this state. A snapshot without awaited channels is finished. When a snapshot is completed or
        cancelled, send a `SnapshotEnded` event. Send the event again if a late marker restarts the snapshot.
        """
        return {snapshot: awaited for snapshot, (_, awaited) in self._snapshots.items()}

    def receive(self, event: Event) -> tuple[Action, ...]:
        """Return the actions for `event`, in order. An illegal event raises `ProtocolError` and changes nothing."""
        match event:
            case SnapshotRequested(snapshot):
                return self._advance(snapshot, Signal.REQUEST)
            case MarkerArrived(snapshot, channel):
                self._check_input(channel, f"a marker of snapshot {snapshot!r} arrived")
                _, awaited = self._snapshots.get(snapshot, self._unknown)
                return self._advance(snapshot, marker_signal(channel, awaited), arrived=channel)
            case BatchArrived(channel, records):
                self._check_input(channel, "a batch arrived")
                actions: list[Action] = []
                for snapshot, awaited in self.recorded.items():
                    late = Capture(snapshot, channel, records)
                    actions += self._advance(snapshot, records_signal(channel, awaited), late=late)
                return tuple(actions)
            case SnapshotEnded(snapshot):
                return self._advance(snapshot, Signal.END)
        event_types = "Requested, BatchArrived, MarkerArrived or Forgotten"
        raise ProtocolError("a process received an unknown event", event_types, repr(event))

    def _advance(
        self, snapshot: str, signal: Signal, *, arrived: str = "", late: Capture | None = None
    ) -> tuple[Action, ...]:
        phase, awaited = self._snapshots.get(snapshot, self._unknown)
        phase, steps = transition(self._role, phase, signal, snapshot)
        if phase is Phase.UNKNOWN:
            self._snapshots.pop(snapshot, None)
        else:
            self._snapshots[snapshot] = (phase, awaited - {arrived})
        actions: list[Action] = []
        for step in steps:
            match step:
                case Effect.RECORD:
                    actions.append(RecordState(snapshot))
                case Effect.SEND_MARKERS:
                    actions += (SendMarker(snapshot, output) for output in self._outputs)
                case Effect.CAPTURE if late:
                    actions.append(late)
        return tuple(actions)

    def _check_input(self, channel: str, context: str) -> None:
        if channel not in self._inputs:
            inputs = " or ".join(map(repr, sorted(self._inputs)))
            expected = f"it on {inputs}" if inputs else "none, for this process reads no channel"
            raise ProtocolError(context, expected, f"it on {channel!r}")
