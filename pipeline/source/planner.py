"""Plans the end of an input's next batch, outside of the driver's process (`spark/planner_server.py`).

Spark asks for the end many times a second. The answers come from memory; Kafka and the store are polled at the
intervals below. If a snapshot requires it, a batch ends early, or starts even without records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...common import instants, runtime
from ...errors import AnotherTopic, NotFound, Unavailable
from ...state.records import Position, TopicState, explain_recreated_topic, id_to_store, sent_messages
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.keys import is_source
from ...store.versions.manifest import Manifest
from ..kafka.protocol import Kafka, Patience

_KAFKA_POLL_S = 0.1
_REQUEST_POLL_S = 0.1
_STORE_POLL_MIN_S = 0.02
_STORE_POLL_MAX_S = 0.5
_STORE_POLL_IDLE_S = 2.0
_IDLE_SHARE = 1 / 30
"""Maximum polling interval, as a fraction of the time since the last new version."""


@dataclass(slots=True)
class Pace:
    """Decides when a stage may start a batch: at most one per trigger interval, and none while `is_held` returns True.

    Requests for snapshots are exempt from both rules. As in Structured Streaming, batches start at whole multiples of
    the interval on the wall clock. So all inputs of a stage are due at the same time, although each has its own
    planner.
    """

    interval_s: float
    clock: Callable[[], float] = runtime.time
    is_held: Callable[[], bool] = lambda: False
    _next: float = field(default=0.0, init=False)

    def is_due(self) -> bool:
        return self.clock() >= self._next and not self.is_held()

    def record_start(self) -> None:
        if self.interval_s:
            self._next = (self.clock() // self.interval_s + 1) * self.interval_s


@dataclass(slots=True)
class _IntervalGate:
    """Allows an action at most once per interval."""

    seconds: float
    _next: float = field(default=0.0, init=False)

    def try_pass(self) -> bool:
        at = runtime.monotonic()
        if at < self._next:
            return False
        self._next = at + self.seconds
        return True


def admit_records(start: tuple[int, ...], ends: tuple[int, ...], max_records: int | None) -> tuple[int, ...]:
    """Return end offsets that limit a batch to `max_records` records, divided among partitions by their backlog.

    The division is that of Structured Streaming's maxOffsetsPerTrigger, with one exception: each partition with a
    backlog advances by at least one record. Partitions missing in `start` are new and begin at 0.
    """
    begins = start + (0,) * (len(ends) - len(start))
    backlog = [max(0, end - at) for at, end in zip(begins, ends, strict=True)]
    total = sum(backlog)
    if max_records is not None and total > max_records:
        backlog = [min(waiting, max(1, waiting * max_records // total)) for waiting in backlog]
    return tuple(at + waiting for at, waiting in zip(begins, backlog, strict=True))


@dataclass(slots=True)
class TopicPlanner:
    """Plans batches of a user's topic."""

    kafka: Kafka
    topic: str
    pace: Pace
    max_records: int | None
    patience: Patience
    requests: Callable[[], tuple[str, ...]]
    handled_snapshots: set[str]
    end_offsets: tuple[int, ...] | None = None
    """End offsets up to which to read, by partition; None to read to the topic's end."""
    wake_version: Callable[[int], int] = lambda _handled: 0
    """Function from a handled version to a newer version after which a batch without records is due; 0 for none."""
    hold_offsets: Callable[[], tuple[int, ...] | None] = lambda: None
    """Function that returns the offsets, by partition, at which reading stops during a promotion; None for no limit.

    Partitions without an offset are not read.
    """
    topic_id: str = ""
    _seen_ms: int = field(default_factory=instants.now_ms, init=False)
    _ends: tuple[int, ...] = field(default=(), init=False)
    _poll_kafka: _IntervalGate = field(default_factory=lambda: _IntervalGate(_KAFKA_POLL_S), init=False)
    _poll_requests: _IntervalGate = field(default_factory=lambda: _IntervalGate(_REQUEST_POLL_S), init=False)

    def plan_end(self, start: Position) -> Position:
        """Return the end of the batch that starts at `start`; `start` itself if no batch is due.

        Raises `Unavailable` if the broker is unavailable for too long, and `AnotherTopic` if the topic is re-created.
        """
        new = (
            [name for name in self.requests() if name not in self.handled_snapshots]
            if self._poll_requests.try_pass()
            else []
        )
        if new:
            # The batch starts at once and without records, so that the snapshot need not wait for another batch.
            self.handled_snapshots.update(new)
            return replace(start, snapshots=tuple(new))
        if not self.pace.is_due():
            return start
        self._refresh(start.offsets)
        ends, bounds = self._ends, self.hold_offsets()
        if bounds is not None:
            stands = start.offsets + (0,) * (len(ends) - len(start.offsets))
            ends = tuple(map(min, ends, bounds + stands[len(bounds) :]))
        ends = admit_records(start.offsets, ends, self.max_records) if ends else start.offsets
        if is_source(self.topic) and (limit := self.kafka.end_of_files(self.topic, start.offsets[0])) is not None:
            ends = (min(limit, *ends),)
        woken = self.wake_version(start.woken)
        if ends == start.offsets and not woken:
            return start
        self.pace.record_start()
        return replace(start, offsets=ends, snapshots=(), woken=woken or start.woken)

    def _refresh(self, read: tuple[int, ...]) -> None:
        if not self._poll_kafka.try_pass():
            return
        try:
            now = self.kafka.topic_state(self.topic, timeout_s=2)
        except Unavailable as error:
            self.patience.record_silence(error.message)
            return
        except NotFound:
            # A deleted topic has no new records; the check when the next runner starts reports it.
            self.patience.record_answer()
            return
        self.patience.record_answer()
        self._check_same_topic(read, now)
        ends = now.ends
        if self.end_offsets is not None:
            ends = tuple(map(min, ends, self.end_offsets + (0,) * (len(ends) - len(self.end_offsets))))
        self._ends = ends or self._ends

    def _check_same_topic(self, read: tuple[int, ...], now: TopicState) -> None:
        if why := explain_recreated_topic(self.topic, self.topic_id, read, now):
            since = instants.format_iso(self._seen_ms)
            raise AnotherTopic(f"{why}. A batch that was committed after {since} may have read the new topic")
        self.topic_id, self._seen_ms = id_to_store(self.topic_id, now.id), instants.now_ms()


@dataclass(slots=True)
class ChannelPlanner:
    """Plans batches of a repartition topic: whole upstream versions, never past a marker."""

    store: ObjectStore
    app: str
    upstream: str
    channel: str
    pace: Pace
    max_records: int | None
    wake_version: Callable[[int], int] = lambda _handled: 0
    committed_version: Callable[[], int | None] = lambda: None
    """Function that returns the upstream stage's newest version if the same runner runs that stage; None if unknown."""
    _unread: list[Manifest] = field(default_factory=list, init=False)
    _poll: _IntervalGate = field(default_factory=lambda: _IntervalGate(_STORE_POLL_MIN_S), init=False)
    _news_s: float = field(default=0.0, init=False)
    _read_after: int = field(default=0, init=False)

    def plan_end(self, start: Position) -> Position:
        self._refresh(start.version)
        rows, end = 0, None
        snapshots: tuple[str, ...] = ()
        for manifest in self._unread:
            output = manifest.outputs[self.channel]
            if end is not None and self.max_records is not None and rows + output.rows > self.max_records:
                break
            rows += output.rows
            if output.rows or output.markers or manifest.downstream_watermark_ms != start.watermark_ms:
                end = manifest
            if output.markers:
                snapshots = tuple(sorted(output.markers))
                break
        if not (snapshots or self.pace.is_due()):
            return start
        woken = self.wake_version(start.woken)
        if end is None and not woken:
            return start
        self.pace.record_start()
        woken = woken or start.woken
        if end is None:
            return replace(start, snapshots=(), woken=woken)
        output = end.outputs[self.channel]
        return Position(
            self.channel, output.ends, end.version, output.sent, snapshots, end.downstream_watermark_ms, woken
        )

    def counted_attempts(self, start: int, end: int) -> frozenset[str]:
        versions = history.iter_between(self.store, self.app, self.upstream, start, end)
        return frozenset(sent_messages(self.channel, versions).attempts)

    def _refresh(self, consumed: int) -> None:
        self._unread = [manifest for manifest in self._unread if manifest.version > consumed]
        last = max(consumed, *(manifest.version for manifest in self._unread), 0)
        committed = self.committed_version()
        if not ((committed or 0) > max(last, self._read_after) or self._poll.try_pass()):
            return
        self._read_after = committed or 0
        new = list(history.iter_after(self.store, self.app, self.upstream, last))
        if new:
            # A reader from the channel's beginning also passes versions that a rewind has undone.
            counting = new[-1].base_versions(consumed)
            self._unread = [
                manifest
                for manifest in (*self._unread, *new)
                if self.channel in manifest.outputs and any(manifest.version in counted for counted in counting)
            ]
        now_s = runtime.monotonic()
        self._news_s = now_s if new else self._news_s or now_s
        if committed is not None:
            # The runner announces its commits; other processes may commit, too.
            self._poll.seconds = _STORE_POLL_IDLE_S
        else:
            longest_s = min(_STORE_POLL_IDLE_S, max(_STORE_POLL_MAX_S, (now_s - self._news_s) * _IDLE_SHARE))
            self._poll.seconds = _STORE_POLL_MIN_S if new else min(longest_s, self._poll.seconds * 1.3)
