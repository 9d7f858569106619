"""How far a stage is behind what it reads, by manifests and the ends of topics, and which stages have a runner.

A runner writes one small object of its own every quarter of a minute, and takes it away when it ends in order. Its age
tells of those that were killed.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from msgspec import Struct

from ...common import instants
from ...errors import Refused, Unavailable
from ...state.records import ranges, unread
from ...store.objects.protocol import ObjectStore
from ...store.versions import keys, limits, published
from ...store.versions.manifest import Input, Manifest
from ...store.versions.notes import Notes
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


BEAT_S = 15.0
"""How often a runner writes its sign of life."""
FRESH_S = 60.0
"""How old one may be: a few may be late or lost, and clocks differ."""
_FORGOTTEN_MS = 3_600_000


class Beat(Struct, frozen=True):
    """A runner's sign of life."""

    writer: limits.Ulid
    """Unique id of the runner, as in the manifests that it commits."""
    by: limits.Line
    """host:pid."""
    stages: dict[limits.Name, limits.Epoch]
    """The stages it has claimed, and under which epoch."""
    batches: dict[limits.Name, limits.Count] = {}
    """Of those that are the state of a query of Spark's, how many batches the query had committed."""
    waits: dict[limits.Name, limits.Line] = {}
    """Of those that worked at nothing, what they waited for, as far as the runner knew."""


RUNNERS = Notes(Beat, keys.runners, lambda runner: runner.writer)
"""The runners of an app, by their writer's id."""


def beats(store: ObjectStore, app: str, now_ms: int) -> tuple[Beat, ...]:
    """The runners that give signs of life. A listing, and a read for each.

    Raises `Corruption` (A sign of life cannot be read) and `Unavailable`.
    """
    return RUNNERS.all(store, app, since_ms=now_ms - round(FRESH_S * 1000))


def lapsed(
    store: ObjectStore, app: str, pause: Callable[[], None], now_ms: Callable[[], int] = instants.now_ms
) -> bool:
    """Whether nobody runs the app any more: False once a runner gives a new sign of life while this waits.

    A runner that was killed leaves its last one, which counts for a minute: `pause` is called until that is over.
    """
    seen: dict[str, int] = {}
    while alive := [each for each in RUNNERS.listed(store, app) if each.modified_ms >= now_ms() - FRESH_S * 1000]:
        if any(seen.setdefault(each.key, each.modified_ms) != each.modified_ms for each in alive):
            return False
        pause()
    return True


def runner_of(head: Manifest, alive: Iterable[Beat]) -> str:
    """Who runs the stage, as host:pid; empty when nobody does. One that was taken over claims an older epoch."""
    return next((runner.by for runner in alive if runner.stages.get(head.stage) == head.epoch), "")


@dataclass(slots=True)
class Heart:
    """Writes a runner's signs of life, whenever one is due, and takes the last one away. Who is away misses some."""

    store: ObjectStore
    app: str
    _due_s: float = 0.0
    _swept: bool = False

    def beat(self, now: Callable[[], Beat]) -> None:
        """Write one, unless the last one is still fresh."""
        if time.monotonic() < self._due_s:
            return
        self._due_s, beat = time.monotonic() + BEAT_S, now()
        with suppress(Unavailable, Refused):
            RUNNERS.put(self.store, beat, self.app)
            if not self._swept:
                sweep(self.store, self.app, beat.writer)
            self._swept = True

    def end(self, writer: str) -> None:
        """Take away the last one."""
        with suppress(Unavailable, Refused):
            RUNNERS.remove(self.store, writer, self.app)


def batches_behind(head: Manifest, alive: Iterable[Beat]) -> int | None:
    """How many batches of its query a stage lacks, as far as whoever follows it has said; None where nobody has."""
    said = [
        runner.batches[head.stage]
        for runner in alive
        if runner.stages.get(head.stage) == head.epoch and head.stage in runner.batches
    ]
    return max(0, said[0] - head.attached.next_batch) if said and head.attached is not None else None


def waits_for(head: Manifest, alive: Iterable[Beat]) -> str:
    """Return what a stage waited for when its runner gave its last sign of life; empty where it said nothing."""
    said = (runner.waits.get(head.stage, "") for runner in alive if runner.stages.get(head.stage) == head.epoch)
    return next(said, "")


def sweep(store: ObjectStore, app: str, writer: str) -> None:
    """Remove the signs of life of runners that were killed long ago; by storage's clock, which `writer`'s own tells."""
    listed, own = RUNNERS.listed(store, app), keys.note(keys.runners(app), writer)
    now_ms = next((info.modified_ms for info in listed if info.key == own), 0)
    RUNNERS.sweep(store, listed, lambda info: info.modified_ms < now_ms - _FORGOTTEN_MS)
