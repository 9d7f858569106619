"""The injector: asks the source stages for a snapshot and collects what every stage answers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ProtocolError
from .events import Cancel, Complete, InjectorAction, InjectorEvent, Request, StageFinished, Take
from .state import Phase, Role, Signal, Step, answer_signal, transition

__all__ = ["Injector", "Stage"]


@dataclass(frozen=True, slots=True)
class Stage:
    """The channels of one stage; users' topics are none."""

    inputs: frozenset[str]
    outputs: frozenset[str]


class Injector:
    """Begins snapshots at the stages that read no channel, and knows when every stage has finished.

    After a crash, a new one that is told `Take` for the open requests and `StageFinished` for what the
    stages' last commits say goes on where the old one was.

    Args:
        stages: The network, by the name of the stage.

    Raises:
        ProtocolError: Snapshots of this network would not come to an end: it is empty, a channel has no
            writer or more than one, or channels lead in a circle.
    """

    __slots__ = ("_open", "_sources", "_stages")

    def __init__(self, stages: Mapping[str, Stage]) -> None:
        _check(stages)
        self._stages = frozenset(stages)
        self._sources = tuple(sorted(name for name, stage in stages.items() if not stage.inputs))
        self._open: dict[str, dict[str, int]] = {}

    @property
    def open(self) -> frozenset[str]:
        """The snapshots neither complete nor cancelled: `Forgotten` is due for all others."""
        return frozenset(self._open)

    def waiting(self, snapshot: str) -> frozenset[str]:
        """The stages that have not answered; none for a snapshot that is not open."""
        return self._stages - self._open[snapshot].keys() if snapshot in self._open else frozenset()

    def receive(self, event: InjectorEvent) -> tuple[InjectorAction, ...]:
        """What to do about `event`, in order.

        Raises:
            ProtocolError: A stage that is not in the network answered, or one that answered before now
                names another version. The injector is as it was.
        """
        match event:
            case Take(snapshot):
                return self._advance(snapshot, Signal.TAKE, {})
            case StageFinished(snapshot, stage, version):
                self._check_answer(event)
                awaited = self._stages - self._open.get(snapshot, {}).keys()
                return self._advance(snapshot, answer_signal(stage, awaited), {stage: version})
            case Cancel(snapshot):
                return self._advance(snapshot, Signal.CANCEL, {})
        raise ProtocolError("the injector received what it does not know", "Take, StageFinished or Cancel", repr(event))

    def _advance(self, snapshot: str, signal: Signal, answer: dict[str, int]) -> tuple[InjectorAction, ...]:
        phase = Phase.COLLECTING if snapshot in self._open else Phase.UNKNOWN
        phase, steps = transition(Role.INJECTOR, phase, signal, snapshot)
        versions = self._open.pop(snapshot, {}) | answer
        if phase is Phase.COLLECTING:
            self._open[snapshot] = versions
        actions: list[InjectorAction] = []
        for step in steps:
            match step:
                case Step.REQUEST:
                    unanswered = (name for name in self._sources if name not in versions)
                    actions += (Request(snapshot, name) for name in unanswered)
                case Step.COMPLETE:
                    actions.append(Complete(snapshot, versions))
        return tuple(actions)

    def _check_answer(self, answer: StageFinished) -> None:
        what = f"stage {answer.stage!r} finished snapshot {answer.snapshot!r}"
        if answer.stage not in self._stages:
            raise ProtocolError(what, f"one of {_names(self._stages)}", repr(answer.stage))
        before = self._open.get(answer.snapshot, {}).get(answer.stage, answer.version)
        if before != answer.version:
            raise ProtocolError(what, f"version {before} as it said before", f"version {answer.version}")


def _check(stages: Mapping[str, Stage]) -> None:
    what = "the network cannot be recorded"
    if not stages:
        raise ProtocolError(what, "at least one stage", "none")
    writers = Counter(channel for stage in stages.values() for channel in stage.outputs)
    for channel in sorted(writers.keys() | {name for stage in stages.values() for name in stage.inputs}):
        if writers[channel] != 1:
            raise ProtocolError(what, f"one stage that writes channel {channel!r}", str(writers[channel]))
    # Every process records when markers can reach it from an initiator (Chandy and Lamport, section 3.3).
    # They allow circles; but there the marker of a forgotten snapshot would go round, beginning it anew for
    # ever.
    reached: set[str] = set()
    marked: set[str] = set()
    while new := {name for name in stages.keys() - reached if stages[name].inputs <= marked}:
        reached |= new
        marked |= {channel for name in new for channel in stages[name].outputs}
    if reached != stages.keys():
        lost = _names(stages.keys() - reached)
        raise ProtocolError(what, "no stage in or behind a circle of channels", lost)


def _names(names: frozenset[str] | set[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
