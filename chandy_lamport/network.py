"""The network of all stages: whether markers can reach each of them, and when a snapshot is complete."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Ports:
    """The channels of one stage; users' topics are none."""

    inputs: frozenset[str]
    outputs: frozenset[str]


def completed(network: Mapping[str, Ports], finished: Mapping[str, int]) -> dict[str, int] | None:
    """The cut of one snapshot, as the version of each stage; None while a stage has not finished its part.

    Args:
        network: All stages, by name.
        finished: The version that each stage recorded which awaits no marker any more.

    Raises:
        ProtocolError: No snapshot of this network would complete: it is empty, a channel has no writer or more
            than one, or channels lead in a circle.
    """
    _check(network)
    return {stage: finished[stage] for stage in network} if network.keys() <= finished.keys() else None


def _check(network: Mapping[str, Ports]) -> None:
    what = "the network cannot be recorded"
    if not network:
        raise ProtocolError(what, "at least one stage", "none")
    writers = Counter(channel for ports in network.values() for channel in ports.outputs)
    for channel in sorted(writers.keys() | {name for ports in network.values() for name in ports.inputs}):
        if writers[channel] != 1:
            raise ProtocolError(what, f"one stage that writes channel {channel!r}", str(writers[channel]))
    # Every process records when markers can reach it from an initiator (Chandy and Lamport, section 3.3).
    # They allow circles; but there the marker of a forgotten snapshot would go round, beginning it anew for
    # ever.
    reached: set[str] = set()
    marked: set[str] = set()
    while new := {name for name in network.keys() - reached if network[name].inputs <= marked}:
        reached |= new
        marked |= {channel for name in new for channel in network[name].outputs}
    if reached != network.keys():
        found = ", ".join(map(repr, sorted(network.keys() - reached)))
        raise ProtocolError(what, "no stage in or behind a circle of channels", found)
