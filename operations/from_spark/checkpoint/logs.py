"""Parsers of Spark's own logs in a checkpoint: the text files `metadata`, `offsets/N` and `commits/N`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ....errors import Corruption, Refused

METADATA, OFFSETS, COMMITS = "metadata", "offsets/", "commits/"
_KNOWN = {OFFSETS: 2, COMMITS: 3}
"""Newest supported version of each log; Spark 4.3 writes these versions."""
_NOTHING = "-"


class SourceOffsets(Struct, frozen=True):
    """Offsets up to which a query has read one source at the end of a batch."""

    source: str
    """Number of the source in the query, or its name if it has one."""
    topics: dict[str, tuple[int, ...]]
    """Next offset of each partition by Kafka topic; -1 for an unread partition. Empty for other sources."""
    text: str


class OffsetLog(Struct, frozen=True):
    """Content of a file in `offsets/`, which Spark writes before it runs a batch."""

    sources: tuple[SourceOffsets, ...]
    time_ms: int
    watermark_ms: int | None
    conf: dict[str, str]
    operation: str


StateIds = dict[int, tuple[tuple[str, ...], ...]]
"""Ids in the names of state files, by operator and partition, in the order of the operator's stores."""


def query_id(data: bytes) -> str:
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(METADATA, error) from error


def parse_offset_log(data: bytes, key: str) -> OffsetLog:
    """Parse a file of `offsets/`. Raises `Corruption`, or `Refused` for a file of a newer Spark."""
    version, head, lines = _lines(data, key, OFFSETS)
    sources = [line.partition(":")[::2] if version > 1 else (str(at), line) for at, line in enumerate(lines)]
    try:
        header = json.loads(head)
        watermark_ms = int(header["batchWatermarkMs"])
        return OffsetLog(
            tuple(_source(name, "" if text == _NOTHING else text) for name, text in sources),
            int(header["batchTimestampMs"]),
            watermark_ms if watermark_ms > 0 else None,
            {str(name): str(value) for name, value in header.get("conf", {}).items()},
            str((header.get("controlBatchInfo") or {}).get("operationType", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(key, error) from error


class CommitLog(Struct, frozen=True):
    """Content of a file in `commits/`, which describes a completed batch."""

    next_watermark_ms: int | None
    state_ids: StateIds
    """Ids in the names of state files; empty in checkpoint format 1."""


def parse_commit_log(data: bytes, key: str) -> CommitLog:
    """Parse a file of `commits/`. Raises `Corruption`, or `Refused` for a file of a newer Spark."""
    _, head, _ = _lines(data, key, COMMITS)
    try:
        header = json.loads(head or "{}")
        watermark_ms, ids = int(header.get("nextBatchWatermarkMs", 0)), header.get("stateUniqueIds") or {}
        return CommitLog(
            watermark_ms if watermark_ms > 0 else None,
            {int(operator): tuple(tuple(map(str, ids)) for ids in parts) for operator, parts in ids.items()},
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(key, error) from error


def _lines(data: bytes, key: str, log: str) -> tuple[int, str, Sequence[str]]:
    first, *lines = data.decode(errors="replace").splitlines() or [""]
    version = int(first[1:]) if first[:1] == "v" and first[1:].isdecimal() else 0
    if version > _KNOWN[log]:
        raise Refused(
            f"{key} of the checkpoint has version {version}; supported up to {_KNOWN[log]}",
            hint="a newer Spark wrote it: update slackwater",
        )
    if not version:
        raise Corruption(f"{key} of the checkpoint does not begin with its version", object_key=key)
    return version, (lines[0] if lines else ""), lines[1:]


def _source(name: str, text: str) -> SourceOffsets:
    return SourceOffsets(name, _topics(text), text)


def _topics(text: str) -> dict[str, tuple[int, ...]]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(document, Mapping) or not all(map(_is_topic, document.values())):
        return {}
    return {
        topic: _by_partition({int(partition): int(at) for partition, at in parts.items()})
        for topic, parts in document.items()
    }


def _is_topic(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        partition.isdecimal() and type(at) is int for partition, at in value.items()
    )


def _by_partition(offsets_by_partition: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(offsets_by_partition.get(number, -1) for number in range(max(offsets_by_partition, default=-1) + 1))


def _unreadable(key: str, error: Exception) -> Corruption:
    return Corruption(f"{key} of the checkpoint is malformed: {error}", object_key=key)


def offsets_by_source(sources: Iterable[SourceOffsets]) -> dict[str, tuple[int, ...]]:
    """Return the offsets of each source: one for each Kafka partition, a single number for other sources.

    Sources without a numeric offset are left out.
    """
    result: dict[str, tuple[int, ...]] = {}
    for source in sources:
        # Two sources may read the same topic. Spark writes -1 for an unread partition.
        for topic, ends in source.topics.items():
            result[f"{topic}.{source.source}" if topic in result else topic] = tuple(max(0, at) for at in ends)
        if not source.topics and (at := _single_offset(source.text)) is not None:
            result[f"source-{source.source}"] = (at,)
    return result


def non_kafka_sources(sources: Iterable[SourceOffsets]) -> frozenset[str]:
    return frozenset(f"source-{source.source}" for source in sources if not source.topics)


def _single_offset(text: str) -> int | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, Mapping):
        # Index of the last entry of a file source's log.
        value = value["logOffset"] + 1 if isinstance(value.get("logOffset"), int) else None
    return max(0, value) if isinstance(value, int) else None
