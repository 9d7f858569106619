"""Lag of stages behind their inputs, by manifests and the end offsets of topics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from ...state.records import ranges, unread
from ...store.versions import published
from ...store.versions.manifest import Input, Manifest
from ...store.versions.published import Place

EndsOf = Callable[[Input], tuple[int, ...] | None]
"""Function from an input to the end offsets of its topic, by partition; None if unknown or if recreated."""


@dataclass(frozen=True, slots=True)
class InputLag:
    """Lag of one input of a stage. None means unknown."""

    name: str
    """Declared name."""
    topic: str
    upstream: str
    """Stage that writes the topic; empty for a user's topic."""
    offsets: tuple[int, ...]
    """Next offset to read, by partition."""
    ends: tuple[int, ...] | None
    """End offsets of the topic, by partition."""
    lag: int | None
    """Unread offsets, including transaction markers of a user's topic and snapshot markers of a repartition topic."""
    records: int | None
    """Unread rows of a repartition topic, None if the reader did not start at the beginning; for a user's topic the
    same as `lag`, since only reading tells which offsets have a record.
    """
    versions: int | None
    """Unread versions of the sender of a repartition topic, even if they sent nothing; 0 once all messages are read."""


@dataclass(frozen=True, slots=True)
class SinkLag:
    """Lag of one sink of a stage."""

    name: str
    """Declared name."""
    topic: str
    """Internal topic of the sink."""
    place: int | None
    """Version up to which the sink is published; None before the publisher's first start."""
    rows: int
    """Number of committed rows that are not published."""
    versions: int
    """Number of versions since the published one; 0 if they have no rows."""
    sent: int = 0
    """Number of rows that the stage has sent to the sink since it began."""


@dataclass(frozen=True, slots=True)
class StageLag:
    """Lag of one stage, and whether it runs."""

    app: str
    stage: str
    inputs: tuple[InputLag, ...]
    running: bool | None
    """True if a runner with a recent heartbeat runs the stage; None if unknown."""
    sinks: tuple[SinkLag, ...] = ()
    """Sinks that this run publishes."""

    @property
    def unit(self) -> str:
        """Unit of `records`: rows if all inputs are repartition topics, else offsets."""
        return "row" if self.inputs and all(input_lag.upstream for input_lag in self.inputs) else "offset"

    @property
    def records(self) -> int | None:
        """Unread records of all inputs; None if unknown for one of them."""
        counts = [input_lag.records for input_lag in self.inputs]
        return None if None in counts else sum(count or 0 for count in counts)


def sink_lags(head: Manifest, places: Mapping[str, Place | None]) -> tuple[SinkLag, ...]:
    """Return the lag of each sink of `head`. `places` has the progress of publishers, None before the first start."""
    lags = []
    for name, sink in head.sinks.items():
        if name not in places:
            continue  # it has no publisher
        place = places[name]
        rows = published.behind(sink, place)
        version = place.version if place is not None else None
        versions = head.version - (version or sink.since) if rows else 0
        lags.append(SinkLag(name, sink.topic, version, rows, versions, sink.sent))
    return tuple(lags)


def input_lag(name: str, head: Manifest, heads: Mapping[str, Manifest], ends_of: EndsOf) -> InputLag:
    """Return the lag of one input of `head`. `heads` are the newest versions of the stages that may have written it.

    The lag of a retired stage is unknown, since it reads nothing any more.
    """
    source = head.inputs[name]
    lag = partial(InputLag, name, source.topic, source.upstream, source.offsets)
    sender = heads.get(source.upstream)
    output = sender.outputs.get(name) if sender is not None else None
    ends = output.ends if output is not None else None if source.upstream or head.retired else ends_of(source)
    if head.retired or ends is None:
        return lag(None, None, None, None)
    messages = sum(unread_range.last - unread_range.first for unread_range in ranges(source.offsets, ends))
    if sender is None or output is None:
        return lag(ends, messages, messages, None)
    if messages == 0:
        # Unread versions sent nothing here: claims, compactions, batches whose rows went to other channels.
        return lag(ends, 0, 0, 0)
    rows = unread(output, source)
    return lag(ends, messages, None if rows is None else max(0, rows), max(0, sender.version - source.version))
