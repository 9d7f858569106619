"""The books of a cut's channels: what was sent, what was consumed or lost, and what is in flight between.

`chandy_lamport` says what must add up; what is in flight is counted apart from the others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from ...chandy_lamport import global_state as protocol
from ...chandy_lamport.events import ProtocolError
from ...errors import NotFound, Refused, SlackwaterError, Unavailable
from ...store.versions.forgotten.index import added
from ..cut.graph import Cut
from ..cut.kafka_topics import Topics
from ..cut.stored import Captured
from ..take.capture import count_by_partition
from .captured import ChannelState
from .report import Verified, as_sentence

Counts = tuple[int, ...]  # by partition


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
class LedgerEntry:
    """A line of the books: one channel and one receiver. Counts are of records since the channel began."""

    channel: str
    sender: str
    sender_version: int
    receiver: str
    receiver_version: int
    sent: tuple[int, ...]
    """By Kafka partition."""
    consumed: tuple[int, ...]
    """By Kafka partition; empty when not known: the reader began in the middle."""
    in_flight: Counted
    lost: tuple[int, ...] = ()
    """By Kafka partition, what the reader passed over because it was gone; empty for nothing."""

    @property
    def difference(self) -> int | None:
        """Sent, less consumed, lost and in flight; None when one of the last three is not known."""
        if not self.consumed or self.in_flight.rows is None:
            return None
        return sum(self.sent) - sum(self.consumed) - sum(self.lost) - self.in_flight.rows

    @property
    def partitions(self) -> tuple[tuple[int, int, int, int | None, int | None], ...]:
        """Sent, consumed, lost, in flight and the difference, by Kafka partition; empty when not known.

        In flight is None where only the sum is known; a difference is known all the same where more was consumed than
        sent.
        """
        lost = self.lost or (0,) * len(self.sent)
        if not len(self.sent) == len(self.consumed) == len(lost):
            return ()
        counted = self.in_flight.by_partition
        known = len(counted) == len(self.sent)
        lines = []
        for number, (sent, used, gone) in enumerate(zip(self.sent, self.consumed, lost, strict=True)):
            left, rows = sent - used - gone, counted[number] if known else None
            lines.append((sent, used, gone, rows, left - (rows or 0) if known or left < 0 else None))
        return tuple(lines)


def entries(
    cut: Cut,
    states: Iterable[ChannelState],
    captured: Mapping[tuple[str, str], Captured],
    recounts: Mapping[tuple[str, str], tuple[int, ...] | None],
    reader: Topics | None,
    *,
    deep: bool,
) -> Iterator[LedgerEntry]:
    """The books, senders upstream first. What damage does to them is in `Counted.wrong`.

    By channel and receiver, `captured` is what the cut's snapshot keeps, and `recounts` what was counted of that in the
    objects themselves (`recount`). Only with `deep` the records in Kafka are counted, if there is a `reader`.
    """
    for state in states:
        channel = state.channel
        output, source = cut.stages[channel.sender].outputs[channel.name], channel.input
        place = (channel.name, channel.receiver)
        if place not in captured:
            counted = _count_in_flight(state, reader, deep=deep)
        elif place not in recounts:
            counts = added(captured[place].counts, captured[place].forgotten)
            counted = Counted(sum(counts), counts, "snapshot", wrong=state.wrong)
        elif (recounted := recounts[place]) is None:
            # What is wrong with the objects is said where they are checked.
            counted = Counted(None, (), "", not_reread="an object cannot be read", wrong=state.wrong)
        else:
            recounted = added(recounted, captured[place].forgotten)
            counted = Counted(sum(recounted), recounted, "kept records", wrong=state.wrong)
        yield LedgerEntry(
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


def _count_in_flight(state: ChannelState, reader: Topics | None, *, deep: bool) -> Counted:
    """In Kafka if that is asked for and can be done, else as the manifests say."""
    in_flight, not_reread = state.in_flight, ""
    if in_flight is None:
        return Counted(None, (), "", wrong=state.wrong)
    if deep and in_flight.attempts:
        counts = np.zeros(len(in_flight.ends), np.int64)
        # Counted, not checked while it is read: the books shall say what is missing, and where.
        try:
            for rows in reader.read(replace(in_flight, counts=())) if reader else ():
                counts += count_by_partition(rows, len(counts))
        except (Refused, NotFound, Unavailable) as error:
            not_reread = error.message
        except SlackwaterError as error:
            return Counted(None, (), "Kafka", wrong=(as_sentence(error),))
        else:
            if reader is not None:
                return Counted(int(counts.sum()), tuple(counts.tolist()), "Kafka")
            not_reread = "nothing says where Kafka is"
    if not state.exact:
        return Counted(None, (), "", not_reread)
    return Counted(in_flight.rows, (), "manifests", not_reread)


def balance(entry: LedgerEntry) -> Verified:
    """Whether the line adds up, as the protocol defines it. What is not known is not checked."""
    counted = entry.in_flight
    wrong: tuple[str, ...] = ()
    if len(entry.sent) == len(entry.consumed) and counted.by_partition:
        wrong = _violations(entry, entry.sent, entry.consumed, entry.lost, counted.by_partition)
    elif len(entry.sent) == len(entry.consumed):
        # Only the sum is known: no partition may have passed more than was sent to it, and the sums must agree.
        passed = (sum(each) for each in zip_longest(entry.consumed, entry.lost, fillvalue=0))
        least = tuple(max(0, sent - past) for sent, past in zip(entry.sent, passed, strict=False))
        wrong = _violations(entry, entry.sent, entry.consumed, entry.lost, least)
        if not wrong and counted.rows is not None:
            lost = (sum(entry.lost),) if entry.lost else ()
            sums = _violations(entry, (sum(entry.sent),), (sum(entry.consumed),), lost, (counted.rows,))
            # It is not partition 0 that differs.
            wrong = tuple(entry.channel + each.removeprefix(f"{entry.channel}[0]") for each in sums)
    where = f"{entry.channel} from {entry.sender} to {entry.receiver}"
    return Verified("channels", where, (*counted.wrong, *wrong))


def _violations(entry: LedgerEntry, sent: Counts, consumed: Counts, lost: Counts, in_flight: Counts) -> tuple[str, ...]:
    versions = {entry.sender: entry.sender_version, entry.receiver: entry.receiver_version}
    try:
        channel = protocol.ChannelCounts(entry.channel, entry.sender, entry.receiver, sent, consumed, in_flight, lost)
        return protocol.violations(protocol.GlobalState(versions, (channel,)))
    except ProtocolError as error:
        return (str(error),)
