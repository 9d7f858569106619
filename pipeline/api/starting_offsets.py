"""Where a stage that has no version yet begins to read a topic: the options of Structured Streaming's Kafka source.

`startingTimestamp` wins over `startingOffsetsByTimestamp`, and that over `startingOffsets`; here, in snake case.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec

from ...common.validation import whole
from ...errors import Refused, Usage

_LATEST, _EARLIEST = -1, -2
_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Offset = Annotated[int, msgspec.Meta(ge=_EARLIEST)]


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Where each partition of a topic is read from."""

    option: str = "starting_offsets"
    """The argument that says so, for messages."""
    everywhere: int = _EARLIEST
    """An offset (-1 for latest, -2 for earliest) or a timestamp, in ms since 1970, for all partitions."""
    by_partition: Mapping[int, int] | None = None
    """One for each Kafka partition in the place of `everywhere`; None where that counts."""
    by_time: bool = False
    """Whether these are timestamps: a partition begins at its first record that is as late, or later."""
    or_latest: bool = False
    """By time, whether a partition without such a record begins at its end; else it is refused."""
    stored: bool = False
    """Whether they were chosen when the app began: Kafka may have lost them since (then they come out all the same,
    below what it has), and the topic may have got partitions."""

    @property
    def moves(self) -> bool:
        """Whether they are others tomorrow: the ends of a topic, or those of a time."""
        return self.by_time or min((self.by_partition or {0: self.everywhere}).values()) < 0

    def resolve(
        self,
        topic: str,
        earliest: Sequence[int],
        ends: Sequence[int],
        first_since: Callable[[Sequence[int]], Sequence[int]],
    ) -> tuple[int, ...]:
        """The first offset to read of each partition.

        `topic` is its name in Kafka, which has offsets from `earliest` to before `ends`. `first_since` gets a timestamp
        for each partition, in ms since 1970, and gives the offset of the first record that is as late or later, -1
        where there is none. Raises `Refused` where the partitions named are not those of the topic, an offset is not
        there, or no record is as late.
        """
        what = f"{self.option} of topic {topic!r}"
        if self.by_partition is None:
            begins = [self.everywhere] * len(ends)
        elif self.by_partition.keys() == set(range(len(ends))) or (self.stored and len(self.by_partition) <= len(ends)):
            begins = [self.by_partition.get(partition, _EARLIEST) for partition in range(len(ends))]
        else:
            named = ", ".join(map(str, sorted(self.by_partition))) or "none"
            raise Refused(f"{what} names the partitions {named}; expected each of 0 to {len(ends) - 1}")
        if self.by_time:
            found = first_since(begins)
            if -1 in found and not self.or_latest:
                late = [f"{topic}[{partition}] {begins[partition]}" for partition, at in enumerate(found) if at < 0]
                raise Refused(
                    f"{what}: no record is as late as {', '.join(late)} (ms since 1970)",
                    hint='starting_offsets_by_timestamp_strategy="latest" begins such partitions at their end',
                )
            return tuple(end if at < 0 else at for at, end in zip(found, ends, strict=True))
        special = {_EARLIEST: earliest, _LATEST: ends}
        offsets = tuple(special[at][p] if at in special else at for p, at in enumerate(begins))
        outside = [
            f"{topic}[{partition}] is to begin at {at}, but holds {first}..{end}"
            for partition, (at, first, end) in enumerate(zip(offsets, earliest, ends, strict=True))
            if at > end or (at < first and not self.stored)
        ]
        if outside:
            raise Refused(f"{what}: {'; '.join(outside)}", hint="write -2 for the earliest, -1 for the latest")
        return offsets


EARLIEST = StartingOffsets()


def starting_offsets_of(
    topic: str, offsets: str, timestamp: int | str | None, by_timestamp: str | None, strategy: str
) -> StartingOffsets:
    """What these arguments of `topic(...)` say. Raises `Usage` where one is not such as Spark takes."""
    if strategy not in ("error", "latest"):
        raise Usage(
            f"starting_offsets_by_timestamp_strategy of topic {topic!r} is {strategy!r}: expected 'error' or 'latest'"
        )
    timed = partial(StartingOffsets, by_time=True, or_latest=strategy == "latest")
    if timestamp is not None:
        number = int(timestamp) if isinstance(timestamp, str) and timestamp.isdecimal() else timestamp
        since = whole(f"starting_timestamp of topic {topic!r} (ms since 1970)", number, 0)
        return timed("starting_timestamp", since)
    if by_timestamp is not None:
        option = "starting_offsets_by_timestamp"
        return timed(option, by_partition=_by_partition(option, topic, by_timestamp, _Whole))
    if offsets in ("earliest", "latest"):
        return StartingOffsets(everywhere=_EARLIEST if offsets == "earliest" else _LATEST)
    return StartingOffsets(by_partition=_by_partition("starting_offsets", topic, offsets, _Offset))


def starting_offsets_in(words: Sequence[str]) -> dict[str, StartingOffsets]:
    """What the command line says, by topic: `flights=latest`, `flights={"0":23,"1":-2}`, or Spark's JSON for several.

    Raises `Usage` where a word is none of these, or a topic is there twice.
    """
    found: dict[str, StartingOffsets] = {}
    for word in words:
        topic, equals, text = word.partition("=")
        options = {topic: text} if equals else {}
        try:
            if word.lstrip().startswith("{"):
                several = msgspec.json.decode(word, type=dict[str, Any])
                options = {name: msgspec.json.encode({name: at}).decode() for name, at in several.items()}
            elif text.lstrip().startswith("{"):
                options = {topic: msgspec.json.encode({topic: msgspec.json.decode(text)}).decode()}
        except msgspec.MsgspecError:
            options = {}
        if not options or found.keys() & options.keys():
            raise Usage(
                f"--offsets {word!r}: expected TOPIC=WHERE or JSON by topic and partition, and each topic once",
                hint='such as flights=latest, flights=earliest, \'flights={"0":23,"1":-2}\'',
            )
        for name, where in options.items():
            found[name] = replace(starting_offsets_of(name, where, None, None, "error"), option="--offsets")
    return found


def starting_at(time_ms: int) -> StartingOffsets:
    """From the first record of a time on, in ms since 1970, of each partition; at its end where none is as late."""
    return StartingOffsets("--at", time_ms, by_time=True, or_latest=True)


def stored_starts(starts: Mapping[str, Sequence[int]]) -> dict[str, StartingOffsets]:
    """The offsets at which an app was begun, by topic."""
    return {
        topic: StartingOffsets("the start by `slackwater init`", by_partition=dict(enumerate(offsets)), stored=True)
        for topic, offsets in starts.items()
    }


def _by_partition(option: str, topic: str, text: str, values: Any) -> dict[int, int]:
    """From Spark's JSON, `{"flights":{"0":23,"1":-2}}`. Raises `Usage`."""
    with suppress(TypeError, msgspec.MsgspecError):
        found = msgspec.json.decode(text, type=dict[str, dict[_Whole, values]])
        if found.keys() == {topic}:
            return found[topic]
    words = "" if values is _Whole else "'earliest', 'latest' or "
    example = msgspec.json.encode({topic: {"0": 23, "1": 42}}).decode()
    raise Usage(
        f"{option} of topic {topic!r} is {text!r}: expected {words}JSON by topic and partition",
        hint=f"such as {example}{'' if values is _Whole else '; -2 is the earliest offset, -1 the latest'}",
    )
