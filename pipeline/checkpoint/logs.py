"""What Spark's own logs in a checkpoint say of a batch: the text files `metadata`, `offsets/N` and `commits/N`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...errors import Corruption, Refused

OFFSETS, COMMITS = "offsets/", "commits/"
_VERSIONS = ("v1", "v2")


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
    """Settings of the session that a restart must take over, such as the number of shuffle partitions."""


class Commit(Struct, frozen=True):
    """One file of `commits/`: a batch has ended."""

    state_ids: dict[int, tuple[tuple[str, ...], ...]]
    """Of checkpoint format 2: by operator and partition the ids in the names of its stores' files, in their order."""


def query_id(data: bytes, key: str) -> str:
    """The id in the file `metadata`. Raises `Corruption`."""
    try:
        return str(json.loads(data)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(key, error) from error


def offsets(data: bytes, key: str) -> Offsets:
    """A file of `offsets/`. Raises `Corruption`, or `Refused` for a log of a Spark that is newer."""
    head, lines = _lines(data, key)
    try:
        said = json.loads(head)
        watermark_ms = int(said["batchWatermarkMs"])
        named = json.loads(lines[0]) if len(lines) == 1 and _is_map(lines[0]) else None
        texts = dict(enumerate(lines)) if named is None else named
        return Offsets(
            tuple(_source(str(name), "" if text in ("-", None) else str(text)) for name, text in texts.items()),
            int(said["batchTimestampMs"]),
            watermark_ms if watermark_ms > 0 else None,
            {str(name): str(value) for name, value in said.get("conf", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(key, error) from error


def commit(data: bytes, key: str) -> Commit:
    """A file of `commits/`. Raises as `offsets`."""
    head, _ = _lines(data, key)
    try:
        said = json.loads(head or "{}").get("stateUniqueIds") or {}
        return Commit({int(each): tuple(tuple(map(str, ids)) for ids in parts) for each, parts in said.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(key, error) from error


def _lines(data: bytes, key: str) -> tuple[str, Sequence[str]]:
    """The line of JSON that a log's file begins with, and those behind it."""
    version, *lines = data.decode(errors="replace").splitlines() or [""]
    if version not in _VERSIONS:
        if version.startswith("v"):
            raise Refused(
                f"{key} of the checkpoint is of format {version!r}; expected one of {', '.join(_VERSIONS)}",
                hint="a newer Spark wrote it; take a slackwater that knows it",
            )
        raise Corruption(f"{key} of the checkpoint does not begin with a version", object_key=key)
    return (lines[0] if lines else ""), lines[1:]


def _is_map(line: str) -> bool:
    """Whether a line has the offsets of all sources by name, instead of one line for each."""
    return False


def _source(name: str, text: str) -> SourceOffsets:
    return SourceOffsets(name, _topics(text), text)


def _topics(text: str) -> dict[str, tuple[int, ...]]:
    """By topic the next offset of each partition, where a text is Kafka's."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(said, Mapping) or not all(_is_topic(each) for each in said.values()):
        return {}
    return {topic: _positions({int(each): int(at) for each, at in parts.items()}) for topic, parts in said.items()}


def _is_topic(said: Any) -> bool:
    return isinstance(said, Mapping) and all(str(each).isdecimal() and isinstance(at, int) for each, at in said.items())


def _positions(of: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(of.get(number, -1) for number in range(max(of, default=-1) + 1))


def _unreadable(key: str, error: Exception) -> Corruption:
    return Corruption(f"{key} of the checkpoint is not as Spark writes it: {error}", object_key=key)
