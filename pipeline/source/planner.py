"""Where the next batch of one input ends. Runs in the source's own process on the driver.

Spark asks many times a second; the answer comes from memory, and Kafka and the store are looked at only as often as
set here. A batch ends early, at once and also when idle, where a snapshot wants it to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...common import instants
from ...errors import AnotherTopic, NotFound, Unavailable
from ...state.records import Position, sent
from ...state.topics import TopicState, merged, why_another
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..kafka.patience import Patience
from ..kafka.protocol import Kafka

_KAFKA_POLL_S = 0.1
_REQUEST_POLL_S = 0.1
_STORE_POLL_MIN_S = 0.02
_STORE_POLL_MAX_S = 0.5
_STORE_POLL_IDLE_S = 2.0
_IDLE_SHARE = 1 / 30
"""After a long silence a look comes later, by at most this share of the silence."""


@dataclass(slots=True)
class Pace:
    """When a stage may start a batch: not two within its trigger interval, and none while `held` says so.

    A snapshot that asks overrules both. Batches start at whole multiples of the interval on the wall clock, as
    Structured Streaming's do, so that the inputs of a stage, each of which is planned in a process of its own, come due
    together.
    """

    interval_s: float
    clock: Callable[[], float] = time.time
    held: Callable[[], bool] = lambda: False
    _next: float = field(default=0.0, init=False)

    def due(self) -> bool:
        """Whether a batch may start now."""
        return self.clock() >= self._next and not self.held()

    def started(self) -> None:
        """A batch starts now."""
        if self.interval_s:
            self._next = (self.clock() // self.interval_s + 1) * self.interval_s


@dataclass(slots=True)
class _Every:
    """Lets something through every so many seconds."""

    seconds: float
    _next: float = field(default=0.0, init=False)

    def now(self) -> bool:
        at = time.monotonic()
        if at < self._next:
            return False
        self._next = at + self.seconds
        return True


def admit(start: tuple[int, ...], ends: tuple[int, ...], max_records: int | None) -> tuple[int, ...]:
    """At most `max_records` of what lies between, shared out among the partitions by their backlog.

    Partitions that `start` does not know are new and begin at 0. The same rule as Structured Streaming's
    maxOffsetsPerTrigger; each partition with a backlog moves by one record at least.
    """
    known = start + (0,) * (len(ends) - len(start))
    backlog = [max(0, end - at) for at, end in zip(known, ends, strict=True)]
    total = sum(backlog)
    if max_records is not None and total > max_records:
        backlog = [min(waiting, max(1, waiting * max_records // total)) for waiting in backlog]
    return tuple(at + waiting for at, waiting in zip(known, backlog, strict=True))


@dataclass(slots=True)
class TopicPlanner:
    """Plans batches of a user's topic."""

    kafka: Kafka
    topic: str
    pace: Pace
    max_records: int | None
    patience: Patience
    requests: Callable[[], tuple[str, ...]]
    """Gives the ids of the snapshots that are asked for."""
    handled: set[str]
    """Ids of those for which a batch has ended."""
    until: tuple[int, ...] | None = None
    """Where it ends for this reader, whatever comes after; None for nowhere."""
    woken: Callable[[int], int] = lambda _handled: 0
    """Gives the version after which a batch is to start whatever there is to read, above one version; 0 for none."""
    bounds: Callable[[], tuple[int, ...] | None] = lambda: None
    """Gives where it ends for now, while the app is held: a partition that is not there stands still. None for not."""
    topic_id: str = ""
    """Of the topic that is read, as `Input.topic_id`."""
    _seen_ms: int = field(default_factory=instants.now_ms, init=False)
    """When Kafka still had that one."""
    _ends: tuple[int, ...] = field(default=(), init=False)
    _poll_kafka: _Every = field(default_factory=lambda: _Every(_KAFKA_POLL_S), init=False)
    _poll_requests: _Every = field(default_factory=lambda: _Every(_REQUEST_POLL_S), init=False)

    def latest(self, start: Position) -> Position:
        """Where the batch that starts at `start` ends; `start` itself when there is none to make.

        Raises `Unavailable` when the broker has been away for too long, and `AnotherTopic`.
        """
        new = [name for name in self.requests() if name not in self.handled] if self._poll_requests.now() else []
        if new:
            # At once, and without records: the snapshot need not wait for one more batch.
            self.handled.update(new)
            return replace(start, snapshots=tuple(new))
        if not self.pace.due():
            return start
        self._refresh(start.offsets)
        ends, bounds = self._ends, self.bounds()
        if bounds is not None:
            stands = start.offsets + (0,) * (len(ends) - len(start.offsets))
            ends = tuple(map(min, ends, bounds + stands[len(bounds) :]))
        ends = admit(start.offsets, ends, self.max_records) if ends else start.offsets
        woken = self.woken(start.woken)
        if ends == start.offsets and not woken:
            return start
        self.pace.started()
        return replace(start, offsets=ends, snapshots=(), woken=woken or start.woken)

    def _refresh(self, read: tuple[int, ...]) -> None:
        if not self._poll_kafka.now():
            return
        try:
            now = self.kafka.state(self.topic, timeout_s=2)
        except Unavailable as error:
            self.patience.waited(error.message)
            return
        except NotFound:
            # A topic that vanished has nothing new; the runner's start check says so in words.
            self.patience.answered()
            return
        self.patience.answered()
        self._check_same(read, now)
        ends = now.ends
        if self.until is not None:
            ends = tuple(map(min, ends, self.until + (0,) * (len(ends) - len(self.until))))
        self._ends = ends or self._ends

    def _check_same(self, read: tuple[int, ...], now: TopicState) -> None:
        if why := why_another(self.topic, self.topic_id, read, now):
            since = instants.iso(self._seen_ms)
            raise AnotherTopic(
                f"{why}. A batch that was committed after {since} may have read the topic that is there now"
            )
        self.topic_id, self._seen_ms = merged(self.topic_id, now.id), instants.now_ms()


@dataclass(slots=True)
class ChannelPlanner:
    """Plans batches of a repartition topic: whole upstream versions, never past a marker."""

    store: ObjectStore
    app: str
    upstream: str
    channel: str
    pace: Pace
    max_records: int | None
    woken: Callable[[int], int] = lambda _handled: 0
    """Gives the version after which a batch is to start whatever there is to read, above one version; 0 for none."""
    committed: Callable[[], int | None] = lambda: None
    """Gives the newest version of the upstream stage where that runs on this machine; None where nobody tells."""
    _known: list[Manifest] = field(default_factory=list, init=False)
    _poll: _Every = field(default_factory=lambda: _Every(_STORE_POLL_MIN_S), init=False)
    _news_s: float = field(default=0.0, init=False)
    """When there was something new, at the latest when the store was first read."""
    _read_after: int = field(default=0, init=False)
    """The commit after which the store was read."""

    def latest(self, start: Position) -> Position:
        """Where the batch that starts at `start` ends; `start` itself when there is none to make."""
        self._refresh(start.version)
        rows, end = 0, None
        snapshots: tuple[str, ...] = ()
        for manifest in self._known:
            output = manifest.outputs[self.channel]
            if end is not None and self.max_records is not None and rows + output.rows > self.max_records:
                break
            rows += output.rows
            if output.rows or output.markers or manifest.handed_on_ms != start.watermark_ms:
                end = manifest
            if output.markers:
                snapshots = tuple(sorted(output.markers))
                break
        if not (snapshots or self.pace.due()):
            return start
        woken = self.woken(start.woken)
        if end is None and not woken:
            return start
        self.pace.started()
        woken = woken or start.woken
        if end is None:
            return replace(start, snapshots=(), woken=woken)
        output = end.outputs[self.channel]
        return Position(self.channel, output.ends, end.version, output.sent, snapshots, end.handed_on_ms, woken)

    def attempts(self, start: int, end: int) -> frozenset[str]:
        """The attempts whose messages count in the upstream versions start + 1 to end."""
        versions = history.between(self.store, self.app, self.upstream, start, end)
        return frozenset(sent(self.channel, versions).attempts)

    def _refresh(self, consumed: int) -> None:
        self._known = [manifest for manifest in self._known if manifest.version > consumed]
        last = max(consumed, *(manifest.version for manifest in self._known), 0)
        committed = self.committed()
        if not ((committed or 0) > max(last, self._read_after) or self._poll.now()):
            return
        self._read_after = committed or 0
        new = list(history.after(self.store, self.app, self.upstream, last))
        if new:
            # Who reads a channel from its beginning comes by what a rewind has undone since.
            counting = new[-1].follows(consumed)
            self._known = [
                manifest
                for manifest in (*self._known, *new)
                if self.channel in manifest.outputs and any(manifest.version in each for each in counting)
            ]
        now_s = time.monotonic()
        self._news_s = now_s if new else self._news_s or now_s
        if committed is not None:
            # Its commits are told as they come; others may commit, too.
            self._poll.seconds = _STORE_POLL_IDLE_S
        else:
            longest_s = min(_STORE_POLL_IDLE_S, max(_STORE_POLL_MAX_S, (now_s - self._news_s) * _IDLE_SHARE))
            self._poll.seconds = _STORE_POLL_MIN_S if new else min(longest_s, self._poll.seconds * 1.3)
