"""Where a reset has a topic read on from, in the words of Kafka's own tool, `kafka-consumer-groups --reset-offsets`.

One scenario, in a scope of topics and partitions. As there, a partition without a record of a time or later goes to its
end. Unlike there, an offset that Kafka does not hold is refused, and not moved to the nearest one that it does.
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
    """Where one input is read on from."""

    offsets: tuple[int, ...]
    """By Kafka partition."""
    topic_id: str = ""
    """Of the topic, where another one had its name when it was read; `?` where it is not known. Else empty."""
    another: str = ""
    """What was there and what is there, then."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where partitions are read on from."""

    kind: Literal["earliest", "latest", "time", "shift", "offset"]
    value: int = 0
    """A time in ms since 1970 UTC, a number of records, or an offset."""

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
        """The one of these that is given; a duration counts back from `now_ms`. Raises `Usage` unless it is one."""
        given = [
            *([cls("earliest")] if to_earliest else []),
            *([cls("latest")] if to_latest else []),
            # No record is of before 1970, and below 0 Kafka means other things.
            *([cls("time", max(0, to_datetime_ms))] if to_datetime_ms is not None else []),
            *([cls("time", max(0, now_ms - span_ms(by_duration)))] if by_duration else []),
            *([cls("shift", shift_by)] if shift_by is not None else []),
            *([cls("offset", to_offset)] if to_offset is not None else []),
        ]
        if len(given) != 1:
            raise Usage(
                f"a reset takes one scenario; found {len(given)}",
                hint="one of --to-earliest, --to-latest, --to-datetime, --by-duration, --shift-by and --to-offset",
            )
        if given[0].kind == "offset" and given[0].value < 0:
            raise Usage(f"--to-offset is {given[0].value}; expected an offset from 0")
        return given[0]

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
        """Where an input is read on from; of partitions that are not among `partitions`, where it stood.

        Of a topic that was made again since it was read, all partitions are to be chosen, and a shift counts from the
        offsets that were read of the former one.

        Raises `NotFound` where Kafka has no such topic, or that has no such partition, and `Refused` where it does not
        hold an offset.
        """
        topic = at.topic
        now = kafka.state(topic)
        if now is None:
            raise NotFound("Kafka topic", topic, found="it is gone", hint="an app reads on where a topic is")
        starts, ends = now.earliest, now.ends
        another = why_another(topic, at.topic_id, at.offsets, now)
        # Partitions that the topic got since are read from their beginning.
        stood = (at.offsets + (0,) * (len(ends) - len(at.offsets)))[: len(ends)]
        chosen = range(len(ends)) if partitions is None else partitions
        if unknown := [each for each in chosen if each >= len(ends)]:
            raise NotFound(f"partition of topic {topic!r}", str(unknown[0]), map(str, range(len(ends))))
        if another and len({*chosen}) < len(ends):
            raise Refused(another, hint=f"reset all of its partitions: --topic {topic}")
        found = list(stood)
        wanted = self._wanted(kafka, topic, stood, starts, ends)
        for each in chosen:
            found[each] = wanted[each]
        if outside := [p for p in chosen if not starts[p] <= found[p] <= ends[p]]:
            said = "; ".join(
                f"{topic}[{p}] would be read from {found[p]}, and Kafka has {starts[p]}..{ends[p]}" for p in outside
            )
            why = f"{said}. {another[:1].upper()}{another[1:]}" if another else said
            raise Refused(why, hint="choose offsets within that, or --to-earliest or --to-latest")
        return ReadFrom(tuple(found), (now.id or NOT_KNOWN) if another else "", another)

    def _wanted(
        self, kafka: Topics, topic: str, stood: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> Sequence[int]:
        match self.kind:
            case "earliest":
                return starts
            case "latest":
                return ends
            case "time":
                return kafka.since(topic, self.value)
            case "shift":
                return [each + self.value for each in stood]
            case "offset":
                return [self.value] * len(ends)


def span_ms(text: str) -> int:
    """A span of time as Kafka's tool takes it, `P1DT2H30M`, or as all else here does. Raises `Usage`."""
    if _ISO_SPAN.fullmatch(text) and text[-1].upper() not in "PT":
        return parse_ms("--by-duration", text.upper().replace("P", "").replace("T", "").lower())
    return parse_ms("--by-duration", text)


def scopes(words: Sequence[str], *, all_topics: bool) -> dict[str, tuple[int, ...] | None]:
    """The partitions of each topic that is named, as `flights` or `flights:0,1`; None for all. Empty for all topics.

    Raises `Usage` where a word is written otherwise, or where there are words and `all_topics`, or neither.
    """
    if bool(words) == all_topics:
        raise Usage(
            "a reset is of topics that are named, or of all; expected one of the two",
            hint="--topic NAME, or --topic NAME:0,1 for some of its partitions; or --all-topics",
        )
    found: dict[str, tuple[int, ...] | None] = {}
    for word in words:
        match = _SCOPE.fullmatch(word)
        if match is None or match["topic"] in found:
            raise Usage(
                f"--topic {word!r} is not NAME or NAME:PARTITION,…, each topic once", hint="for example flights:0,1"
            )
        some = match["partitions"]
        found[match["topic"]] = tuple(sorted({int(each) for each in some.split(",")})) if some else None
    return found
