"""The books of a cut's channels: what was sent, what was consumed or lost, and what is in flight between.

`chandy_lamport` says what must add up; what is in flight is counted apart from the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from ...chandy_lamport import cut as protocol
from ...chandy_lamport.errors import ProtocolError
from ...errors import NotFound, Refused, SlackwaterError, Unavailable
from ..cut.graph import Cut
from ..cut.in_flight import InFlight
from ..cut.stored import Captured
from ..take.capture import ChannelReader, count_by_partition
from .captured import Reread
from .channel_state import Flight
from .report import Checked, as_sentence

__all__ = ["Counted", "Entry", "balance", "entries"]


@dataclass(frozen=True, slots=True)
class Counted:
    """Records in flight, counted without looking at what was sent or consumed."""

    rows: int | None
    """None when nothing could be counted."""
    by_partition: tuple[int, ...]
    """Empty when only the sum is known."""
    where: str
    """What was counted: `manifests`, `snapshot`, `kept records` or `Kafka`; empty for nothing."""
    not_reread: str = ""
    """Why the records themselves were not read, where they were to be."""
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the books: one channel and one receiver. Counts are of records since the channel began."""

    channel: str
    sender: str
    sender_version: int
    receiver: str
    receiver_version: int
    sent: tuple[int, ...]
    """By Kafka partition; empty when not known."""
    consumed: tuple[int, ...]
    """By Kafka partition; empty when not known: the reader began in the middle."""
    in_flight: Counted
    lost: tuple[int, ...] = ()
    """By Kafka partition, what the reader passed over because it was gone; empty for nothing."""

    @property
    def difference(self) -> int | None:
        """Sent, less consumed, lost and in flight; None when one of them is not known."""
        if not (self.sent and self.consumed) or self.in_flight.rows is None:
            return None
        return sum(self.sent) - sum(self.consumed) - sum(self.lost) - self.in_flight.rows

    @property
    def partitions(self) -> tuple[tuple[int, int, int, int | None, int | None], ...]:
        """Sent, consumed, lost, in flight and the difference, by Kafka partition; empty when not known.

        In flight is None where only the sum is known; a difference is known all the same where more was consumed than
        sent.
        """
        gone = self.lost or (0,) * len(self.sent)
        if not len(self.sent) == len(self.consumed) == len(gone):
            return ()
        counted = self.in_flight.by_partition
        if len(counted) != len(self.sent):
            behind = zip(self.sent, self.consumed, gone, strict=True)
            return tuple(
                (sent, used, lost, None, sent - used - lost if used + lost > sent else None)
                for sent, used, lost in behind
            )
        lines = zip(self.sent, self.consumed, gone, counted, strict=True)
        return tuple((sent, used, lost, rows, sent - used - lost - rows) for sent, used, lost, rows in lines)


def entries(
    cut: Cut,
    found: tuple[Flight, ...],
    kept: Mapping[tuple[str, str], Captured],
    reread: Mapping[tuple[str, str], Reread],
    reader: ChannelReader | None,
    *,
    deep: bool,
) -> Iterator[Entry]:
    """The books, senders upstream first. What damage does to them is in `Counted.wrong`.

    Args:
        cut: the cut.
        found: its channels, as `flights` gives them.
        kept: what the cut's snapshot keeps, by channel and receiver.
        reread: of these, what was found in the objects themselves.
        reader: Kafka, None when nothing says where it is.
        deep: whether to count the records themselves.
    """
    for flight in found:
        channel = flight.channel
        output, source = cut.stages[channel.sender].outputs[channel.name], channel.input
        place = (channel.name, channel.receiver)
        if place in kept:
            counted = _count_kept(kept[place], reread.get(place), flight.wrong)
        elif flight.in_flight is None:
            counted = Counted(None, (), "", wrong=flight.wrong)
        elif deep:
            counted = _count_in_kafka(flight, flight.in_flight, reader)
        else:
            counted = _count_in_manifests(flight, flight.in_flight)
        yield Entry(
            channel=channel.name,
            sender=channel.sender,
            sender_version=cut.stages[channel.sender].version,
            receiver=channel.receiver,
            receiver_version=cut.stages[channel.receiver].version,
            sent=output.sent,
            consumed=source.consumed if source else (),
            in_flight=counted,
            lost=source.lost if source else (),
        )


def _count_kept(kept: Captured, reread: Reread | None, wrong: tuple[str, ...]) -> Counted:
    if reread is None:
        return Counted(sum(kept.counts), kept.counts, "snapshot", wrong=wrong)
    if reread.counts is None:
        # What is wrong with the objects is said where they are checked.
        return Counted(None, (), "", not_reread="an object cannot be read", wrong=wrong)
    return Counted(sum(reread.counts), reread.counts, "kept records", wrong=wrong)


def _count_in_manifests(flight: Flight, in_flight: InFlight, not_reread: str = "") -> Counted:
    if not flight.exact:
        return Counted(None, (), "", not_reread)
    return Counted(in_flight.rows, (), "manifests", not_reread)


def _count_in_kafka(flight: Flight, in_flight: InFlight, reader: ChannelReader | None) -> Counted:
    if not in_flight.attempts:
        return _count_in_manifests(flight, in_flight)
    if reader is None:
        return _count_in_manifests(flight, in_flight, "nothing says where Kafka is")
    counts = np.zeros(len(in_flight.ends), np.int64)
    # Counted, not checked while it is read: the books shall say what is missing, and where.
    try:
        for rows in reader.read(replace(in_flight, counts=())):
            counts += count_by_partition(rows, len(counts))
    except (Refused, NotFound, Unavailable) as error:
        return _count_in_manifests(flight, in_flight, error.message)
    except SlackwaterError as error:
        return Counted(None, (), "Kafka", wrong=(as_sentence(error),))
    return Counted(int(counts.sum()), tuple(counts.tolist()), "Kafka")


def balance(entry: Entry) -> Checked:
    """Whether the line adds up, as the protocol defines it. What is not known is not judged."""
    wrong = list(entry.in_flight.wrong)
    if len(entry.sent) == len(entry.consumed):
        wrong += _violations(entry)
    where = f"{entry.channel} from {entry.sender} to {entry.receiver}"
    return Checked("channels", where, tuple(wrong))


def _violations(entry: Entry) -> tuple[str, ...]:
    counted = entry.in_flight
    if counted.by_partition:
        return _judge(entry, entry.sent, entry.consumed, entry.lost, counted.by_partition)
    # Only the sum is known: no partition may have passed more than was sent to it, and the sums must agree.
    passed = (sum(each) for each in zip_longest(entry.consumed, entry.lost, fillvalue=0))
    least = tuple(max(0, sent - past) for sent, past in zip(entry.sent, passed, strict=False))
    ahead = _judge(entry, entry.sent, entry.consumed, entry.lost, least)
    if ahead or counted.rows is None:
        return ahead
    lost = (sum(entry.lost),) if entry.lost else ()
    sums = _judge(entry, (sum(entry.sent),), (sum(entry.consumed),), lost, (counted.rows,))
    # It is not partition 0 that differs.
    return tuple(entry.channel + each.removeprefix(f"{entry.channel}[0]") for each in sums)


def _judge(
    entry: Entry,
    sent: tuple[int, ...],
    consumed: tuple[int, ...],
    lost: tuple[int, ...],
    in_flight: tuple[int, ...],
) -> tuple[str, ...]:
    versions = {entry.sender: entry.sender_version, entry.receiver: entry.receiver_version}
    try:
        channel = protocol.Channel(entry.channel, entry.sender, entry.receiver, sent, consumed, in_flight, lost)
        return protocol.violations(protocol.Cut(versions, (channel,)))
    except ProtocolError as error:
        return (str(error),)
