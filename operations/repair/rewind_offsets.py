"""Scenarios and scopes of a reset, as in Kafka's own tool, `kafka-consumer-groups --reset-offsets`.

A reset has one scenario, and a scope of topics and partitions. As in Kafka's tool, a partition without a record at or
after the given time goes to its end. Unlike there, an offset that Kafka no longer holds is refused, and not moved to
the nearest available one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from ...common.durations import parse_ms
from ...common.instants import iso
from ...errors import NotFound, Refused, Usage
from ...snapshot.cut.kafka_topics import Topics
from ...state.records import NOT_KNOWN, why_another
from ...store.versions.manifest import Input

_ISO_SPAN = re.compile(r"P(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?", re.ASCII | re.IGNORECASE)
_SCOPE = re.compile(r"(?P<topic>[^:]+)(?::(?P<partitions>\d+(?:,\d+)*))?")


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Position from which one input continues."""

    offsets: tuple[int, ...]
    """Offset of each Kafka partition."""
    topic_id: str = ""
    """Id of the current topic if it replaced the one that was read; `?` if not known. Else empty."""
    another: str = ""
    """Sentence that describes the old and the new topic if the topic was replaced; else empty."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rule that determines the new offsets."""

    kind: Literal["earliest", "latest", "time", "shift", "offset"]
    value: int = 0
    """Time in ms since 1970 UTC, number of records, or offset."""

    @classmethod
    def of(
        cls,
        *,
        to_earliest: bool = False,
        to_latest: bool = False,
        to_datetime_ms: int | None = None,
        by_duration: str = "",
        shift_by: int | None = None,
        to_offset: int | None = None,
        now_ms: int,
    ) -> Self:
        """Return the scenario of the one given option; a duration counts back from `now_ms`. Raises `Usage`."""
        scenarios = [
            *([cls("earliest")] if to_earliest else []),
            *([cls("latest")] if to_latest else []),
            # Kafka gives negative timestamps a special meaning.
            *([cls("time", max(0, to_datetime_ms))] if to_datetime_ms is not None else []),
            *([cls("time", max(0, now_ms - span_ms(by_duration)))] if by_duration else []),
            *([cls("shift", shift_by)] if shift_by is not None else []),
            *([cls("offset", to_offset)] if to_offset is not None else []),
        ]
        if len(scenarios) != 1:
            raise Usage(
                f"a reset takes one scenario; found {len(scenarios)}",
                hint="give one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by and --to-offset",
            )
        if scenarios[0].kind == "offset" and scenarios[0].value < 0:
            raise Usage(f"--to-offset is {scenarios[0].value}; expected an offset from 0")
        return scenarios[0]

    def __str__(self) -> str:
        match self.kind:
            case "earliest" | "latest":
                return f"to the {self.kind} offset"
            case "time":
                return f"to {iso(self.value)}"
            case "shift":
                return f"by {self.value:+,}"
            case "offset":
                return f"to offset {self.value}"

    def offsets(self, kafka: Topics, at: Input, partitions: Sequence[int] | None) -> ReadFrom:
        """Return the new offsets of an input; partitions outside `partitions` keep their offsets.

        If the topic was recreated since it was read, all partitions must be chosen, and a shift counts from the offsets
        that were read in the old topic.

        Raises `NotFound` if Kafka lacks the topic or a partition, and `Refused` if it does not hold an offset.
        """
        topic = at.topic
        now = kafka.state(topic)
        if now is None:
            raise NotFound("Kafka topic", topic, found="it was deleted", hint="recreate the topic first")
        starts, ends = now.earliest, now.ends
        another = why_another(topic, at.topic_id, at.offsets, now)
        # New partitions of the topic are read from their beginning.
        previous = (at.offsets + (0,) * (len(ends) - len(at.offsets)))[: len(ends)]
        chosen = range(len(ends)) if partitions is None else partitions
        if unknown := [partition for partition in chosen if partition >= len(ends)]:
            raise NotFound(f"partition of topic {topic!r}", str(unknown[0]), map(str, range(len(ends))))
        if another and len({*chosen}) < len(ends):
            raise Refused(another, hint=f"reset all of its partitions: --topic {topic}")
        offsets = list(previous)
        targets = self._wanted(kafka, topic, previous, starts, ends)
        for partition in chosen:
            offsets[partition] = targets[partition]
        if outside := [p for p in chosen if not starts[p] <= offsets[p] <= ends[p]]:
            facts = "; ".join(
                f"{topic}[{p}] would be read from {offsets[p]}, and Kafka has {starts[p]}..{ends[p]}" for p in outside
            )
            why = f"{facts}. {another[:1].upper()}{another[1:]}" if another else facts
            raise Refused(why, hint="choose offsets in that range, or --to-earliest or --to-latest")
        return ReadFrom(tuple(offsets), (now.id or NOT_KNOWN) if another else "", another)

    def _wanted(
        self, kafka: Topics, topic: str, previous: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> Sequence[int]:
        match self.kind:
            case "earliest":
                return starts
            case "latest":
                return ends
            case "time":
                return kafka.since(topic, self.value)
            case "shift":
                return [offset + self.value for offset in previous]
            case "offset":
                return [self.value] * len(ends)


def span_ms(text: str) -> int:
    """Parse a time span, in the format of Kafka's tool (`P1DT2H30M`) or slackwater's own (`1h`). Raises `Usage`."""
    if _ISO_SPAN.fullmatch(text) and text[-1].upper() not in "PT":
        return parse_ms("--by-duration", text.upper().replace("P", "").replace("T", "").lower())
    return parse_ms("--by-duration", text)


def scopes(words: Sequence[str], *, all_topics: bool) -> dict[str, tuple[int, ...] | None]:
    """Parse `flights` or `flights:0,1` into the partitions of each topic; None for all, empty for all topics.

    Raises `Usage` for another format, or if both or neither of `words` and `all_topics` are given.
    """
    if bool(words) == all_topics:
        raise Usage(
            "a reset needs either topics or --all-topics",
            hint="use --topic NAME, or --topic NAME:0,1 for some partitions",
        )
    scope: dict[str, tuple[int, ...] | None] = {}
    for word in words:
        match = _SCOPE.fullmatch(word)
        if match is None or match["topic"] in scope:
            raise Usage(
                f"--topic {word!r} is not NAME or NAME:PARTITION,…, each topic once", hint="for example flights:0,1"
            )
        partitions = match["partitions"]
        scope[match["topic"]] = tuple(sorted({int(number) for number in partitions.split(",")})) if partitions else None
    return scope
