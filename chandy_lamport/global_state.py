"""Checks of global states (cuts): tests for consistency, and for the completion of a snapshot."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .events import ProtocolError


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """Numbers of records of one channel in a global state, by partition, since the channel began.

    Partitions are counted separately, because a sum could hide a loss in one partition behind a surplus in another.
    Raises `ProtocolError` if the tuples differ in length, or a number is negative.
    """

    name: str
    sender: str
    receiver: str
    sent: tuple[int, ...]
    consumed: tuple[int, ...]
    in_flight: tuple[int, ...]
    """Number of records stored with the cut as the channel's state, by partition."""
    lost: tuple[int, ...] = ()
    """Number of deleted records that the receiver skipped before the cut, by partition; empty for none."""

    def __post_init__(self) -> None:
        counts = {"sent": self.sent, "consumed": self.consumed, "in flight": self.in_flight}
        if self.lost:
            counts["lost"] = self.lost
        subject = f"counting channel {self.name!r}"
        if len({len(count) for count in counts.values()}) > 1:
            counted = ", ".join(f"{len(count)} {verb}" for verb, count in counts.items())
            raise ProtocolError(subject, "the same number of partitions", counted)
        for verb, count in counts.items():
            if min(count, default=0) < 0:
                raise ProtocolError(subject, "no count below 0", f"{min(count)} {verb}")


@dataclass(frozen=True, slots=True)
class GlobalState:
    """A global state: the version of each stage, and the counts of records of every channel.

    Raises `ProtocolError` if a channel's sender or receiver has no version.
    """

    versions: Mapping[str, int]
    channels: tuple[ChannelCounts, ...]

    def __post_init__(self) -> None:
        for channel in self.channels:
            for stage in (channel.sender, channel.receiver):
                if stage not in self.versions:
                    stages = ", ".join(map(repr, sorted(self.versions))) or "no stage"
                    raise ProtocolError(f"cutting channel {channel.name!r}", f"versions of {stages}", repr(stage))


def find_violations(state: GlobalState) -> tuple[str, ...]:
    """Return one sentence for each inconsistency of a global state; empty if the state is consistent.

    In a consistent state, every consumed record was sent, and every sent record is consumed, lost or in flight.
    """
    sentences = []
    for channel in state.channels:
        sender = f"{channel.sender} at version {state.versions[channel.sender]}"
        receiver = f"{channel.receiver} at version {state.versions[channel.receiver]}"
        lost = channel.lost or (0,) * len(channel.sent)
        counts = zip(channel.sent, channel.consumed, lost, channel.in_flight, strict=True)
        for partition, (sent, consumed, gone, in_flight) in enumerate(counts):
            partition_name = f"{channel.name}[{partition}]"
            received = f"consumed {consumed}, lost {gone}" if gone else f"consumed {consumed}"
            if consumed + gone > sent:
                sentences.append(f"{partition_name}: {receiver} {received} records, but {sender} had sent only {sent}")
            elif sent != consumed + gone + in_flight:
                sentences.append(
                    f"{partition_name}: {sender} sent {sent} records, but {receiver} {received} and {in_flight} are in "
                    "flight"
                )
    return tuple(sentences)


@dataclass(frozen=True, slots=True)
class StageChannels:
    """Channels that one stage reads and writes. Users' topics are not channels."""

    inputs: frozenset[str]
    outputs: frozenset[str]


def completed_cut(network: Mapping[str, StageChannels], finished: Mapping[str, int]) -> dict[str, int] | None:
    """Return the version of each stage in a snapshot's cut; None while a stage still awaits a marker.

    `network` has all stages by name; `finished` has the recorded version of each stage that awaits no marker. Raises
    `ProtocolError` if no snapshot of this network can complete: the network is empty, a channel has not exactly one
    writer, or channels form a cycle.
    """
    problem = "the network cannot be recorded"
    if not network:
        raise ProtocolError(problem, "at least one stage", "none")
    writers = Counter(channel for ports in network.values() for channel in ports.outputs)
    for channel in sorted(writers.keys() | {name for ports in network.values() for name in ports.inputs}):
        if writers[channel] != 1:
            raise ProtocolError(problem, f"one stage that writes channel {channel!r}", str(writers[channel]))
    # Every process records its state if markers can reach it from an initiator (Chandy and Lamport, section 3.3). The
    # paper allows cycles. But in a cycle, the marker of a forgotten snapshot would circulate forever and restart the
    # snapshot.
    reached: set[str] = set()
    marked: set[str] = set()
    while new := {name for name in network.keys() - reached if network[name].inputs <= marked}:
        reached |= new
        marked |= {channel for name in new for channel in network[name].outputs}
    if reached != network.keys():
        unreached = ", ".join(map(repr, sorted(network.keys() - reached)))
        raise ProtocolError(problem, "no stage in or after a cycle of channels", unreached)
    return {stage: finished[stage] for stage in network} if network.keys() <= finished.keys() else None
