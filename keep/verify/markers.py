"""Whether the markers of a snapshot stand where its cut says, and nothing behind them belongs to it."""

from collections.abc import Iterator
from typing import Protocol

from ...errors import NotFound, Refused, Unavailable
from ...moments.cut.graph import Channel, Cut, channels
from ...moments.cut.stored import Snapshot
from ...moments.take.capture import ChannelReader
from .report import Checked


class Rereader(ChannelReader, Protocol):
    """What verifying deeply needs of Kafka; `pipeline` implements it."""

    def marker(self, topic: str, partition: int, offset: int, /) -> str | None:
        """The id of the snapshot whose marker lies at this offset; empty when something else does.

        None when there is nothing at the offset any more.

        Raises `NotFound` where there is no such topic, `Refused` where it cannot be read, and `Unavailable`.
        """
        ...


def markers_of(snapshot: Snapshot | None, cut: Cut, channel: str, sender: str) -> tuple[int, ...]:
    """The offset of the snapshot's marker in each partition of a channel; empty when there is none."""
    if snapshot is None or sender not in cut.stages or channel not in cut.stages[sender].outputs:
        return ()
    output = cut.stages[sender].outputs[channel]
    found = output.markers.get(snapshot.id, ())
    return found if len(found) == len(output.ends) else ()


def check_markers(snapshot: Snapshot, cut: Cut) -> Iterator[Checked]:
    """What the manifests say: every sender's version names the marker, and no reader in the cut has passed it."""
    seen = set()
    for channel in channels(cut):
        wrong = list(_passed(snapshot, cut, channel))
        count = 0
        if channel.name not in seen:
            seen.add(channel.name)
            wrong[:0] = _placed(snapshot, cut, channel)
            count = len(cut.stages[channel.sender].outputs[channel.name].ends)
        yield Checked("markers", f"{channel.name} from {channel.sender}", tuple(wrong), count)


def _placed(snapshot: Snapshot, cut: Cut, channel: Channel) -> Iterator[str]:
    sender = cut.stages[channel.sender]
    output = sender.outputs[channel.name]
    at = f"{channel.sender}@v{sender.version}"
    if snapshot.id not in output.markers:
        yield f"{at} names no marker of snapshot {snapshot.name!r} on channel {channel.name!r}"
    elif len(found := output.markers[snapshot.id]) != len(output.ends):
        yield (
            f"{at} names {len(found)} markers of snapshot {snapshot.name!r} on channel {channel.name!r}; "
            f"expected one in each of {len(output.ends)} partitions"
        )
    else:
        for partition, (marker, end) in enumerate(zip(found, output.ends, strict=True)):
            if marker >= end:
                yield f"{at} names a marker at {output.topic}[{partition}]@{marker}, but its messages end at {end}"


def _passed(snapshot: Snapshot, cut: Cut, channel: Channel) -> Iterator[str]:
    # What follows the marker up to `ends` are markers of other snapshots: they are of the same version.
    ends = cut.stages[channel.sender].outputs[channel.name].ends
    if channel.input is None or not markers_of(snapshot, cut, channel.name, channel.sender):
        return
    for partition, (end, offset) in enumerate(zip(ends, channel.input.offsets, strict=False)):
        if offset > end:
            yield (
                f"{channel.receiver}@v{cut.stages[channel.receiver].version} consumed {channel.input.topic}"
                f"[{partition}] up to {offset}, past the marker of snapshot {snapshot.name!r}: expected {end} at most"
            )


def reread_markers(snapshot: Snapshot, cut: Cut, reader: Rereader | None, not_reread: list[str]) -> Iterator[Checked]:
    """Look at each marker in Kafka. Channels whose markers are not there any more are told to `not_reread`."""
    for name, sender in sorted({(channel.name, channel.sender) for channel in channels(cut)}):
        topic = cut.stages[sender].outputs[name].topic
        for partition, offset in enumerate(markers_of(snapshot, cut, name, sender)):
            place = f"{topic}[{partition}]@{offset}"
            found, why = None, "nothing says where Kafka is"
            if reader is not None:
                try:
                    found, why = reader.marker(topic, partition, offset), f"{place} is gone from Kafka"
                except (NotFound, Refused, Unavailable) as error:
                    why = error.message
            if found is None:
                not_reread.append(f"markers on {name} were not re-read: {why}")
                break
            if found != snapshot.id:
                what = f"the marker of {found}" if found else "no marker"
                yield Checked("markers", place, (f"{place} holds {what}; expected that of {snapshot.id}",), 0)
