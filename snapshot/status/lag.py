"""How far a stage is behind what it reads. Pure: manifests and the ends of topics in, numbers out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ...fold.records import ranges, unread
from ...store.versions import published
from ...store.versions.manifest import Manifest
from ...store.versions.published import Place

EndOffsets = Callable[[str], tuple[int, ...] | None]
"""End offsets of a user's topic by partition, or None when they are not known."""


@dataclass(frozen=True, slots=True)
class InputLag:
    """How far one input of a stage has not been read. None is what nobody knows."""

    name: str
    """As declared."""
    topic: str
    upstream: str
    """The stage that writes it; empty for a user's topic."""
    offsets: tuple[int, ...]
    """The next to read, by partition."""
    ends: tuple[int, ...] | None
    """Where the topic ends, by partition."""
    lag: int | None
    """Messages: records of a user's topic, Arrow batches and markers of a repartition topic."""
    records: int | None
    """Records of a user's topic, rows of a repartition topic; None too where a reader began amidst a topic."""
    versions: int | None
    """Of a repartition topic: committed versions of its writer, those that sent nothing among them; 0 once all
    messages are read."""


@dataclass(frozen=True, slots=True)
class SinkLag:
    """How far one sink of a stage is not published."""

    name: str
    """As declared."""
    topic: str
    """The internal topic."""
    place: int | None
    """The version up to which it is published; None before its publisher's first start."""
    rows: int
    """Rows that are committed and not published."""
    versions: int
    """Versions of the stage since; 0 where they brought no rows."""


@dataclass(frozen=True, slots=True)
class StageLag:
    """How far one stage is, and whether it runs."""

    app: str
    stage: str
    inputs: tuple[InputLag, ...]
    running: bool | None
    """Whether a runner that gives signs of life has it; None when that is not known."""
    sinks: tuple[SinkLag, ...] = ()
    """Of a stage of the run that reports."""

    @property
    def records(self) -> int | None:
        """Records of all inputs; None when those of one are not known."""
        counts = [one.records for one in self.inputs]
        return None if None in counts else sum(count or 0 for count in counts)


def sink_lags(head: Manifest, places: Mapping[str, Place | None]) -> tuple[SinkLag, ...]:
    """The lag of each sink of `head`, by where its publisher is; None for one that has not begun."""
    found = []
    for name, sink in head.sinks.items():
        place = places.get(name)
        rows = published.behind(sink, place)
        at = place.version if place is not None else None
        found.append(SinkLag(name, sink.topic, at, rows, head.version - (at or sink.since) if rows else 0))
    return tuple(found)


def input_lag(name: str, head: Manifest, heads: Mapping[str, Manifest], ends_of: EndOffsets) -> InputLag:
    """The lag of one input of `head`. `heads` are the newest versions of the stages that may have written it.

    A retired stage has none: it is to read nothing more.
    """
    source = head.inputs[name]
    lag = partial(InputLag, name, source.topic, source.upstream, source.offsets)
    if head.retired:
        return lag(None, None, None, None)
    if not source.upstream:
        ends = ends_of(source.topic)
        behind = _behind(source.offsets, ends)
        return lag(ends, behind, behind, None)
    sender = heads.get(source.upstream)
    output = sender.outputs.get(name) if sender is not None else None
    if sender is None or output is None:
        return lag(None, None, None, None)
    messages = _behind(source.offsets, output.ends)
    if messages == 0:
        # Versions that sent nothing are not read: claims, compactions, batches whose rows went elsewhere.
        return lag(output.ends, 0, 0, 0)
    left = unread(output, source)
    rows = max(0, left) if left is not None else None
    versions = max(0, sender.version - source.version)
    return lag(output.ends, messages, rows, versions)


def _behind(offsets: tuple[int, ...], ends: tuple[int, ...] | None) -> int | None:
    return None if ends is None else sum(one.last - one.first for one in ranges(offsets, ends))
