"""A process: one stage's side of the protocol. It does not know which stage it is."""

from collections.abc import Iterable, Mapping

from .events import (
    Action,
    BatchArrived,
    Capture,
    Event,
    Forgotten,
    MarkerArrived,
    ProtocolError,
    RecordState,
    Requested,
    SendMarker,
)
from .state import Effect, Phase, Role, Signal, marker_signal, records_signal, transition


class Process:
    """Records its state at the first marker of a snapshot, passes the marker on, and captures what is late.

    All actions that one commit's events give belong in that commit. When the commit did not happen, this object is
    ahead of the truth: make another from the last commit that did.

    Args:
        inputs: The channels it reads; none for a stage that reads only users' topics.
        outputs: The channels it writes.
        recorded: What the property of that name was at the last commit. Raises `ProtocolError` where a snapshot awaits
            a marker on a channel that is no input.
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
        """Every snapshot recorded and not forgotten, with the channels whose marker it awaits.

        This is all there is to store. A process that awaits none has done its part. For those that nobody asks for any
        more, `Forgotten` is due: also when it was received before, for a later marker begins the snapshot anew.
        """
        return {snapshot: awaited for snapshot, (_, awaited) in self._snapshots.items()}

    def receive(self, event: Event) -> tuple[Action, ...]:
        """What to do about `event`, in order. Raises `ProtocolError` for one that is illegal here, changing nothing."""
        match event:
            case Requested(snapshot):
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
            case Forgotten(snapshot):
                return self._advance(snapshot, Signal.FORGET)
        known = "Requested, BatchArrived, MarkerArrived or Forgotten"
        raise ProtocolError("a process received what it does not know", known, repr(event))

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

    def _check_input(self, channel: str, what: str) -> None:
        if channel not in self._inputs:
            known = " or ".join(map(repr, sorted(self._inputs)))
            expected = f"it on {known}" if known else "none, for this process reads no channel"
            raise ProtocolError(what, expected, f"it on {channel!r}")
