"""Global states, which are cuts in the words of the paper, and whether they are consistent. Pure.

Also when a snapshot of a network is complete, and whether markers can reach each of its stages.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .events import ProtocolError


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """One channel between one writer and one reader, as a global state found it.

    The counts are of records since it began, one for each partition: sums would let one partition hide what is missing
    in another. Raises `ProtocolError` for counts of different numbers of partitions, and for one that is negative.
    """

    name: str
    sender: str
    receiver: str
    sent: tuple[int, ...]
    """Sent by the sender up to and with its version."""
    consumed: tuple[int, ...]
    """Consumed by the receiver up to and with its version."""
    in_flight: tuple[int, ...]
    """Kept with the cut as the channel's state."""
    lost: tuple[int, ...] = ()
    """Sent, and passed over by the receiver up to and with its version: they were gone. Empty for none."""

    def __post_init__(self) -> None:
        counts = {"sent": self.sent, "consumed": self.consumed, "in flight": self.in_flight}
        if self.lost:
            counts["lost"] = self.lost
        what = f"counting channel {self.name!r}"
        if len({len(count) for count in counts.values()}) > 1:
            found = ", ".join(f"{len(count)} {verb}" for verb, count in counts.items())
            raise ProtocolError(what, "the same number of partitions", found)
        for verb, count in counts.items():
            if min(count, default=0) < 0:
                raise ProtocolError(what, "no count below 0", f"{min(count)} {verb}")


@dataclass(frozen=True, slots=True)
class GlobalState:
    """One version of each stage, and what every channel held between them.

    Raises `ProtocolError` where a channel's sender or receiver has no version.
    """

    versions: Mapping[str, int]
    channels: tuple[ChannelCounts, ...]

    def __post_init__(self) -> None:
        for channel in self.channels:
            for stage in (channel.sender, channel.receiver):
                if stage not in self.versions:
                    known = ", ".join(map(repr, sorted(self.versions))) or "no stage"
                    raise ProtocolError(f"cutting channel {channel.name!r}", f"versions of {known}", repr(stage))


def violations(state: GlobalState) -> tuple[str, ...]:
    """What makes the state inconsistent, one sentence each; empty when it is consistent.

    Nothing may be consumed that was not sent, and what was sent is consumed, lost or in flight.
    """
    found = []
    for channel in state.channels:
        sender = f"{channel.sender} at version {state.versions[channel.sender]}"
        receiver = f"{channel.receiver} at version {state.versions[channel.receiver]}"
        lost = channel.lost or (0,) * len(channel.sent)
        counts = zip(channel.sent, channel.consumed, lost, channel.in_flight, strict=True)
        for partition, (sent, consumed, gone, in_flight) in enumerate(counts):
            place = f"{channel.name}[{partition}]"
            had = f"consumed {consumed}, lost {gone}" if gone else f"consumed {consumed}"
            if consumed + gone > sent:
                found.append(f"{place}: {receiver} {had} records, but {sender} had sent only {sent}")
            elif sent != consumed + gone + in_flight:
                found.append(
                    f"{place}: {sender} sent {sent} records, but {receiver} {had} and {in_flight} are in flight"
                )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Ports:
    """The channels of one stage; users' topics are none."""

    inputs: frozenset[str]
    outputs: frozenset[str]


def completed(network: Mapping[str, Ports], finished: Mapping[str, int]) -> dict[str, int] | None:
    """The cut of one snapshot, as the version of each stage; None while a stage has not finished its part.

    `network` has all stages by name; `finished`, of each that awaits no marker any more, the version that it recorded.
    Raises `ProtocolError` where no snapshot of this network would complete: it is empty, a channel has no writer or
    more than one, or channels lead in a circle.
    """
    what = "the network cannot be recorded"
    if not network:
        raise ProtocolError(what, "at least one stage", "none")
    writers = Counter(channel for ports in network.values() for channel in ports.outputs)
    for channel in sorted(writers.keys() | {name for ports in network.values() for name in ports.inputs}):
        if writers[channel] != 1:
            raise ProtocolError(what, f"one stage that writes channel {channel!r}", str(writers[channel]))
    # Every process records when markers can reach it from an initiator (Chandy and Lamport, section 3.3). They allow
    # circles; but there the marker of a forgotten snapshot would go round, beginning it anew for ever.
    reached: set[str] = set()
    marked: set[str] = set()
    while new := {name for name in network.keys() - reached if network[name].inputs <= marked}:
        reached |= new
        marked |= {channel for name in new for channel in network[name].outputs}
    if reached != network.keys():
        found = ", ".join(map(repr, sorted(network.keys() - reached)))
        raise ProtocolError(what, "no stage in or behind a circle of channels", found)
    return {stage: finished[stage] for stage in network} if network.keys() <= finished.keys() else None
