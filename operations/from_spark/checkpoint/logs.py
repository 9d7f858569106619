"""What Spark's own logs in a checkpoint say of a batch: the text files `metadata`, `offsets/N` and `commits/N`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ....errors import Corruption, Refused

METADATA, OFFSETS, COMMITS = "metadata", "offsets/", "commits/"
_KNOWN = {OFFSETS: 2, COMMITS: 3}
"""The newest version of each log that is read here: those of Spark 4.3."""
_NOTHING = "-"


class SourceOffsets(Struct, frozen=True):
    """How far one source of a query was read at the end of a batch."""

    source: str
    """The source's number among those of the query, or its name where the query names it."""
    topics: dict[str, tuple[int, ...]]
    """Of Kafka: by topic the next offset of each partition, -1 for one that is not read. Empty for other sources."""
    text: str
    """As Spark wrote it; empty where the source had nothing yet."""


class Offsets(Struct, frozen=True):
    """One file of `offsets/`: what a batch was to read."""

    sources: tuple[SourceOffsets, ...]
    time_ms: int
    watermark_ms: int | None
    """None before there was one."""
    conf: dict[str, str]
    """Settings of the query's session that a restart takes over, such as the number of shuffle partitions."""
    operation: str
    """Of a batch that reads nothing and does something else, such as a repartition, Spark's word for it; else empty."""


StateIds = dict[int, tuple[tuple[str, ...], ...]]
"""By operator and partition the ids in the names of its stores' files, in the stores' order."""


def query_id(data: bytes) -> str:
    """The id in the file `metadata`. Raises `Corruption`."""
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(METADATA, error) from error


def offsets(data: bytes, key: str) -> Offsets:
    """A file of `offsets/`. Raises `Corruption`, or `Refused` for one of a Spark that is newer."""
    version, head, lines = _lines(data, key, OFFSETS)
    named = [line.partition(":")[::2] if version > 1 else (str(at), line) for at, line in enumerate(lines)]
    try:
        said = json.loads(head)
        watermark_ms = int(said["batchWatermarkMs"])
        return Offsets(
            tuple(_source(name, "" if text == _NOTHING else text) for name, text in named),
            int(said["batchTimestampMs"]),
            watermark_ms if watermark_ms > 0 else None,
            {str(name): str(value) for name, value in said.get("conf", {}).items()},
            str((said.get("controlBatchInfo") or {}).get("operationType", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(key, error) from error


class Commit(Struct, frozen=True):
    """One file of `commits/`: a batch that has ended."""

    next_watermark_ms: int | None
    """The one with which the next batch runs; None where there is none."""
    state_ids: StateIds
    """Of checkpoint format 2; else none."""


def commit(data: bytes, key: str) -> Commit:
    """A file of `commits/`. Raises as `offsets`."""
    _, head, _ = _lines(data, key, COMMITS)
    try:
        said = json.loads(head or "{}")
        watermark_ms, ids = int(said.get("nextBatchWatermarkMs", 0)), said.get("stateUniqueIds") or {}
        return Commit(
            watermark_ms if watermark_ms > 0 else None,
            {int(each): tuple(tuple(map(str, ids)) for ids in parts) for each, parts in ids.items()},
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(key, error) from error


def _lines(data: bytes, key: str, log: str) -> tuple[int, str, Sequence[str]]:
    """The version of a log's file, the line of JSON that it begins with, and those behind it."""
    first, *lines = data.decode(errors="replace").splitlines() or [""]
    version = int(first[1:]) if first[:1] == "v" and first[1:].isdecimal() else 0
    if version > _KNOWN[log]:
        raise Refused(
            f"{key} of the checkpoint is of version {version}; expected one up to {_KNOWN[log]}",
            hint="a newer Spark wrote it: take a slackwater that knows it",
        )
    if not version:
        raise Corruption(f"{key} of the checkpoint does not begin with its version", object_key=key)
    return version, (lines[0] if lines else ""), lines[1:]


def _source(name: str, text: str) -> SourceOffsets:
    return SourceOffsets(name, _topics(text), text)


def _topics(text: str) -> dict[str, tuple[int, ...]]:
    """By topic the next offset of each partition, where a text is Kafka's."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(said, Mapping) or not all(map(_is_topic, said.values())):
        return {}
    return {topic: _positions({int(each): int(at) for each, at in parts.items()}) for topic, parts in said.items()}


def _is_topic(said: Any) -> bool:
    return isinstance(said, Mapping) and all(each.isdecimal() and type(at) is int for each, at in said.items())


def _positions(of: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(of.get(number, -1) for number in range(max(of, default=-1) + 1))


def _unreadable(key: str, error: Exception) -> Corruption:
    return Corruption(f"{key} of the checkpoint is not as Spark writes it: {error}", object_key=key)


def offsets_of(sources: Iterable[SourceOffsets]) -> dict[str, tuple[int, ...]]:
    """Where each source stands: a Kafka topic by partition, another source by the one number that says it.

    A source of which Spark keeps no number is none of them.
    """
    found: dict[str, tuple[int, ...]] = {}
    for source in sources:
        # The same topic may be read twice; of a partition that is not read, Spark says -1.
        for topic, ends in source.topics.items():
            found[f"{topic}.{source.source}" if topic in found else topic] = tuple(max(0, at) for at in ends)
        if not source.topics and (at := _number(source.text)) is not None:
            found[f"source-{source.source}"] = (at,)
    return found


def others_of(sources: Iterable[SourceOffsets]) -> frozenset[str]:
    """Those of `offsets_of` that are no Kafka topic."""
    return frozenset(f"source-{each.source}" for each in sources if not each.topics)


def _number(text: str) -> int | None:
    """The number of a file source's log, of rows or of seconds; None where there is none."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if isinstance(said, Mapping):
        # The number of the last entry of a file source's log, from 0.
        said = said["logOffset"] + 1 if isinstance(said.get("logOffset"), int) else None
    return max(0, said) if isinstance(said, int) else None
