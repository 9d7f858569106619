"""Ledger of a cut's channels: records sent, consumed, lost and in flight, and a check of their sum.

`chandy_lamport` defines the equation that must hold. In-flight records are counted independently of the other numbers.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from ...chandy_lamport import global_state as protocol
from ...chandy_lamport.events import ProtocolError
from ...errors import NotFound, Refused, SlackwaterError, Unavailable
from ...store.versions.forgotten import add_counts
from ..cut.graph import Cut
from ..cut.kafka_topics import KafkaTopics
from ..cut.stored import Captured
from ..take.capture import count_by_partition
from .captured import ChannelState
from .report import CheckOutcome, as_sentence

Counts = tuple[int, ...]  # by partition


@dataclass(frozen=True, slots=True)
class InFlightCount:
    """Number of records in flight, counted independently of the numbers of sent and consumed records."""

    rows: int | None
    by_partition: tuple[int, ...]
    """Number of records by partition; empty if only the sum is known."""
    where: str
    """Source of the count: `manifests`, `snapshot`, `kept records` or `Kafka`; empty if nothing was counted."""
    not_reread: str = ""
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Counts of one channel and one receiver, in records since the channel began."""

    channel: str
    sender: str
    sender_version: int
    receiver: str
    receiver_version: int
    sent: tuple[int, ...]
    consumed: tuple[int, ...]
    """Records consumed, by Kafka partition; empty if the reader did not start at the beginning."""
    in_flight: InFlightCount
    lost: tuple[int, ...] = ()
    """Records that were deleted before the reader could read them, by Kafka partition; empty for none."""

    @property
    def difference(self) -> int | None:
        if not self.consumed or self.in_flight.rows is None:
            return None
        return sum(self.sent) - sum(self.consumed) - sum(self.lost) - self.in_flight.rows

    @property
    def partitions(self) -> tuple[tuple[int, int, int, int | None, int | None], ...]:
        """Counts by Kafka partition: records sent, consumed, lost and in flight, and the difference. Empty if unknown.

        If the in-flight records are known only as a sum over all partitions, they are None here. The difference is then
        None as well, except in a partition where more records were consumed or lost than were sent.
        """
        lost = self.lost or (0,) * len(self.sent)
        if not len(self.sent) == len(self.consumed) == len(lost):
            return ()
        counted = self.in_flight.by_partition
        is_known = len(counted) == len(self.sent)
        lines = []
        for number, (sent, consumed, passed_over) in enumerate(zip(self.sent, self.consumed, lost, strict=True)):
            unconsumed, rows = sent - consumed - passed_over, counted[number] if is_known else None
            lines.append(
                (sent, consumed, passed_over, rows, unconsumed - (rows or 0) if is_known or unconsumed < 0 else None)
            )
        return tuple(lines)


def ledger_entries(
    cut: Cut,
    states: Iterable[ChannelState],
    captured: Mapping[tuple[str, str], Captured],
    recounts: Mapping[tuple[str, str], tuple[int, ...] | None],
    reader: KafkaTopics | None,
    *,
    deep: bool,
) -> Iterator[LedgerEntry]:
    """Yield the counts of each channel and receiver, upstream senders first. Faults are in `InFlightCount.wrong`.

    `captured` has the captured channels of the cut's snapshot. `recounts` has the numbers of records in the captured
    objects, as returned by `recount_captured`. Both are by channel and receiver. With `deep`, records are counted in
    Kafka if there is a `reader`.
    """
    for state in states:
        channel = state.channel
        output, source = cut.stages[channel.sender].outputs[channel.name], channel.input
        channel_key = (channel.name, channel.receiver)
        if channel_key not in captured:
            counted = _count_in_flight(state, reader, deep=deep)
        elif channel_key not in recounts:
            counts = add_counts(captured[channel_key].counts, captured[channel_key].forgotten)
            counted = InFlightCount(sum(counts), counts, "snapshot", wrong=state.faults)
        elif (recounted := recounts[channel_key]) is None:
            # The checks of the objects report the fault.
            counted = InFlightCount(None, (), "", not_reread="an object cannot be read", wrong=state.faults)
        else:
            recounted = add_counts(recounted, captured[channel_key].forgotten)
            counted = InFlightCount(sum(recounted), recounted, "kept records", wrong=state.faults)
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


def _count_in_flight(state: ChannelState, reader: KafkaTopics | None, *, deep: bool) -> InFlightCount:
    in_flight, not_reread = state.in_flight, ""
    if in_flight is None:
        return InFlightCount(None, (), "", wrong=state.faults)
    if deep and in_flight.attempts:
        counts = np.zeros(len(in_flight.ends), np.int64)
        # Without expected counts: missing records then show as a difference in the ledger instead of an error.
        try:
            for rows in reader.read(replace(in_flight, counts=())) if reader else ():
                counts += count_by_partition(rows, len(counts))
        except (Refused, NotFound, Unavailable) as error:
            not_reread = error.message
        except SlackwaterError as error:
            return InFlightCount(None, (), "Kafka", wrong=(as_sentence(error),))
        else:
            if reader is not None:
                return InFlightCount(int(counts.sum()), tuple(counts.tolist()), "Kafka")
            not_reread = "no Kafka configured"
    if not state.is_exact:
        return InFlightCount(None, (), "", not_reread)
    return InFlightCount(in_flight.rows, (), "manifests", not_reread)


def check_balance(entry: LedgerEntry) -> CheckOutcome:
    """Check that sent records are the sum of consumed, lost and in-flight records. Unknown counts are not checked."""
    counted = entry.in_flight
    wrong: tuple[str, ...] = ()
    if len(entry.sent) == len(entry.consumed) and counted.by_partition:
        wrong = _violations(entry, entry.sent, entry.consumed, entry.lost, counted.by_partition)
    elif len(entry.sent) == len(entry.consumed):
        # Only the sum is known. No partition may have consumed more records than it received, and the sums must agree.
        passed = (sum(counts) for counts in zip_longest(entry.consumed, entry.lost, fillvalue=0))
        least = tuple(max(0, sent - past) for sent, past in zip(entry.sent, passed, strict=False))
        wrong = _violations(entry, entry.sent, entry.consumed, entry.lost, least)
        if not wrong and counted.rows is not None:
            lost = (sum(entry.lost),) if entry.lost else ()
            sums = _violations(entry, (sum(entry.sent),), (sum(entry.consumed),), lost, (counted.rows,))
            # The sums were passed as partition 0. The sentence must not name this partition.
            wrong = tuple(entry.channel + sentence.removeprefix(f"{entry.channel}[0]") for sentence in sums)
    where = f"{entry.channel} from {entry.sender} to {entry.receiver}"
    return CheckOutcome("channels", where, (*counted.wrong, *wrong))


def _violations(entry: LedgerEntry, sent: Counts, consumed: Counts, lost: Counts, in_flight: Counts) -> tuple[str, ...]:
    versions = {entry.sender: entry.sender_version, entry.receiver: entry.receiver_version}
    try:
        channel = protocol.ChannelCounts(entry.channel, entry.sender, entry.receiver, sent, consumed, in_flight, lost)
        return protocol.find_violations(protocol.GlobalState(versions, (channel,)))
    except ProtocolError as error:
        return (str(error),)
