"""A model of a transactional broker, a committing stage and killable publishers, for tests of `core` without Kafka."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace
from slackwater.pipeline.kafka.protocol import ProducerFenced, TransactionFailed
from slackwater.pipeline.publish.core import Backlog, Publisher, Target
from slackwater.store.versions.manifest import Manifest, Sink
from slackwater.store.versions.published import PublishedPosition

SINK = "alerts"
START = PublishedPosition(1, 0, 0)


class Killed(Exception):
    """Simulated kill of the publisher's process."""


@dataclass
class Stage:
    """Versions of a stage, and the messages of its internal topic with their attempts and rows."""

    versions: list[Manifest] = field(default_factory=list)
    log: list[tuple[str, list[int]]] = field(default_factory=list)
    rows: int = 0

    def __post_init__(self) -> None:
        self._commit(Sink("internal", 0, since=1))

    @property
    def sink(self) -> Sink:
        return self.versions[-1].sinks[SINK]

    def commit(self, messages: list[int], losers: int) -> None:
        """Commit a version whose task wrote messages with these numbers of rows, among those of failed attempts."""
        version = len(self.versions) + 1
        first = self.rows
        for number, count in enumerate(messages):
            if number < losers:
                self.log.append((f"lost.{version}.{number}", [-1] * count))
            self.log.append((f"won.{version}", list(range(self.rows, self.rows + count))))
            self.rows += count
        attempts = (f"won.{version}",) if messages else ()
        self._commit(replace(self.sink, end=len(self.log), attempts=attempts, rows=self.rows - first, sent=self.rows))

    def _commit(self, sink: Sink) -> None:
        version = len(self.versions) + 1
        self.versions.append(Manifest("app", "stage", version, 1, "w", version, "batch", sinks={SINK: sink}))

    def after(self, version: int) -> Iterator[Manifest]:
        yield from self.versions[version:]

    def read(self, start: int, end: int, attempts: frozenset[str]) -> Iterator[tuple[int, pa.Table]]:
        for offset in range(start, end):
            attempt, rows = self.log[offset]
            if attempt in attempts:
                yield offset + 1, pa.table({"row": rows})


@dataclass
class Broker:
    """Transactional broker: committed rows with the position, and the producer that may write."""

    published: list[int] = field(default_factory=list)
    place: PublishedPosition = START
    owner: int = 0
    """Newest producer of the transactional id; all others are fenced."""


@dataclass
class Topic:
    """A topic to publish to.

    `happens` runs before and after each effect. It may run other publishers, and it returns "killed", or "broken" if no
    answer arrives.
    """

    broker: Broker
    happens: Callable[[], str]
    max_rows: int
    mine: int = 0
    held: list[int] | None = None

    def open(self) -> PublishedPosition:
        self._before()
        self.broker.owner += 1
        self.mine, self.held = self.broker.owner, None
        self._after()
        # Since the id was taken over, nobody else's transaction can end; unless it is taken over again.
        return self.broker.place

    def begin(self, version: int) -> None:
        self._before()
        self._check()
        assert self.held is None
        self.held = []

    def add(self, rows: pa.Table) -> None:
        self._before()
        self._check()
        assert self.held is not None
        self.held += rows["row"].to_pylist()

    def commit(self, place: PublishedPosition) -> None:
        self._before()
        self._check()
        assert self.held is not None
        self.broker.published += self.held
        self.broker.place = place
        self.held = None
        self._after()

    def close(self) -> None:
        self.held = None

    def _check(self) -> None:
        if self.broker.owner != self.mine:
            raise ProducerFenced("fenced")

    def _before(self) -> None:
        match self.happens():
            case "killed":
                raise Killed
            case "broken":
                raise TransactionFailed("no answer; nothing was done")

    def _after(self) -> None:
        match self.happens():
            case "killed":
                raise Killed
            case "broken":
                raise TransactionFailed("the answer is lost")


@dataclass
class Receiver:
    """Receiver in a user's function: stores rows and the version in one transaction."""

    rows: list[int] = field(default_factory=list)
    version: int = 0
    calls: list[int] = field(default_factory=list)


@dataclass
class Function:
    """A target that calls a user's function; its position is stored after the call."""

    receiver: Receiver
    store: list[PublishedPosition]
    happens: Callable[[], str]
    max_rows: int = 0
    held: list[int] = field(default_factory=list)

    def open(self) -> PublishedPosition:
        self._maybe()
        return max(self.store, default=START)

    def begin(self, version: int) -> None:
        self._maybe()
        self.held = []

    def add(self, rows: pa.Table) -> None:
        self.held += rows["row"].to_pylist()

    def commit(self, place: PublishedPosition) -> None:
        self._maybe()
        self.receiver.calls.append(place.version)
        if place.version > self.receiver.version:
            self.receiver.rows += self.held
            self.receiver.version = place.version
        self._maybe()
        self.store.append(place)
        self._maybe()

    def close(self) -> None:
        self.held = []

    def _maybe(self) -> None:
        match self.happens():
            case "killed":
                raise Killed
            case "broken":
                raise TransactionFailed("it failed")


class Runner:
    """A publisher driven step by step. It is reopened after errors, and gone when killed."""

    def __init__(self, stage: Stage, target: Target) -> None:
        self.stage, self.target = stage, target
        self.backlog = Backlog(SINK, stage.after)
        self.publisher = Publisher("the sink", self.backlog, target, stage.read)
        self.opened = False

    def hear(self) -> None:
        """Tell the publisher about the newest version."""
        self.backlog.offer(self.stage.versions[-1])

    def step(self) -> bool:
        """Run one step. Returns True if there may be more to do; raises `Killed`."""
        try:
            if not self.opened:
                self.publisher.open()
                self.opened = True
                return True
            return self.publisher.publish_next()
        except (ProducerFenced, TransactionFailed):
            self.opened = False
            return True
