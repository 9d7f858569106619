"""Lag of stages behind their inputs, by manifests and the ends of topics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ...state.records import ranges, unread
from ...store.versions import published
from ...store.versions.manifest import Input, Manifest
from ...store.versions.published import Place

EndsOf = Callable[[Input], tuple[int, ...] | None]
"""End offsets of the user's topic of an input, by partition; None when they are not known, or it is another topic."""


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
    """Offsets: of records and of marks of transactions in a user's topic, of Arrow batches and markers in a repartition
    topic."""
    records: int | None
    """Of a user's topic as `lag`: whether each offset has a record, nobody knows before it is read. Rows of a
    repartition topic; None too where a reader began amidst a topic."""
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
    """That are committed and not published."""
    versions: int
    """Of the stage since; 0 where they brought no rows."""
    sent: int = 0
    """Rows that the stage has given it since it began."""


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
    def unit(self) -> str:
        """What `records` counts: rows where all inputs are repartition topics, else offsets."""
        return "row" if self.inputs and all(one.upstream for one in self.inputs) else "offset"

    @property
    def records(self) -> int | None:
        """What is left to read of all inputs; None when that of one is not known."""
        counts = [one.records for one in self.inputs]
        return None if None in counts else sum(count or 0 for count in counts)


def sink_lags(head: Manifest, places: Mapping[str, Place | None]) -> tuple[SinkLag, ...]:
    """The lag of each sink of `head`, by where its publisher is: None for one that has not begun."""
    found = []
    for name, sink in head.sinks.items():
        if name not in places:
            continue  # nobody publishes it
        place = places[name]
        rows = published.behind(sink, place)
        at = place.version if place is not None else None
        versions = head.version - (at or sink.since) if rows else 0
        found.append(SinkLag(name, sink.topic, at, rows, versions, sink.sent))
    return tuple(found)


def input_lag(name: str, head: Manifest, heads: Mapping[str, Manifest], ends_of: EndsOf) -> InputLag:
    """The lag of one input of `head`. `heads` are the newest versions of the stages that may have written it.

    A retired stage has none: it is to read nothing more.
    """
    source = head.inputs[name]
    lag = partial(InputLag, name, source.topic, source.upstream, source.offsets)
    sender = heads.get(source.upstream)
    output = sender.outputs.get(name) if sender is not None else None
    ends = output.ends if output is not None else None if source.upstream or head.retired else ends_of(source)
    if head.retired or ends is None:
        return lag(None, None, None, None)
    messages = sum(one.last - one.first for one in ranges(source.offsets, ends))
    if sender is None or output is None:
        return lag(ends, messages, messages, None)
    if messages == 0:
        # Versions that sent nothing are not read: claims, compactions, batches whose rows went elsewhere.
        return lag(ends, 0, 0, 0)
    rows = unread(output, source)
    return lag(ends, messages, None if rows is None else max(0, rows), max(0, sender.version - source.version))
