"""Where the next batch of one input ends. Runs in the source's own process on the driver.

Spark asks many times a second; the answer comes from memory, and Kafka and the store are looked at only as often as
set here. A batch ends early, at once and also when idle, where a snapshot wants it to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...errors import Unavailable
from ...snapshot.cut.requests import open_requests
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..kafka.patience import Patience
from ..kafka.topics import end_offsets

__all__ = ["ChannelPlanner", "Pace", "Position", "TopicPlanner", "admit"]

_KAFKA_POLL_S = 0.1
_REQUEST_POLL_S = 0.25
_IDLE_REQUEST_POLL_S = 1.0
"""Each look is a listing, which S3 charges for; beside batches it hardly counts."""
_STORE_POLL_MIN_S = 0.02
_STORE_POLL_MAX_S = 0.5


@dataclass(frozen=True, slots=True)
class Position:
    """How far an input has been read: Spark's offset of the source.

    Attributes:
        input: The input's declared name. A stage has several, and Spark tells them apart by their order alone.
        offsets: The next offset to read, by Kafka partition.
        version: For a channel, the upstream version read up to and with.
        consumed: For a channel, rows sent since it began that lie behind this, by Kafka partition: those that claims
            passed over, because they were gone, count as well (`Input.passed`).
        snapshots: Ids of the snapshots for which the batch that ended here ended.
    """

    input: str
    offsets: tuple[int, ...]
    version: int = 0
    consumed: tuple[int, ...] = ()
    snapshots: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Mapping[str, object]) -> Position:
        """From Spark's JSON object."""
        return cls(
            str(value["input"]),
            tuple(value["offsets"]),  # type: ignore[arg-type]
            int(value["version"]),  # type: ignore[call-overload]
            tuple(value["consumed"]),  # type: ignore[arg-type]
            tuple(value["snapshots"]),  # type: ignore[arg-type]
        )

    def json(self) -> dict[str, object]:
        """Spark's JSON object. Spark compares its text: the order of the fields is part of the value."""
        return {
            "input": self.input,
            "offsets": list(self.offsets),
            "version": self.version,
            "consumed": list(self.consumed),
            "snapshots": list(self.snapshots),
        }


class Pace:
    """When a stage may start a batch: not two within its trigger interval, and none while `held` says so.

    A snapshot that asks overrules both. Batches start at whole multiples of the interval on the wall clock, as
    Structured Streaming's do, so that the inputs of a stage, each of which is planned in a process of its own, come due
    together.
    """

    def __init__(
        self,
        interval_s: float,
        clock: Callable[[], float] = time.time,
        *,
        held: Callable[[], bool] = lambda: False,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._held = held
        self._next = 0.0

    def due(self) -> bool:
        """Whether a batch may start now."""
        return self._clock() >= self._next and not self._held()

    def started(self) -> None:
        """A batch starts now."""
        if self._interval_s:
            self._next = (self._clock() // self._interval_s + 1) * self._interval_s


class _Every:
    """Lets something through every so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._next = 0.0

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
    if max_records is None or total <= max_records:
        return tuple(at + waiting for at, waiting in zip(known, backlog, strict=True))
    return tuple(
        at + min(waiting, max(1, waiting * max_records // total)) for at, waiting in zip(known, backlog, strict=True)
    )


class TopicPlanner:
    """Plans batches of a user's topic."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        topic: str,
        *,
        pace: Pace,
        max_records: int | None,
        patience_s: float,
        requests: Callable[[], tuple[str, ...]],
        handled: frozenset[str],
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._pace = pace
        self._max_records = max_records
        self._patience = Patience(f"Kafka at {kafka['bootstrap.servers']}", patience_s)
        self._requests = requests
        self._handled = set(handled)
        self._ends: tuple[int, ...] = ()
        self._look_at_kafka = _Every(_KAFKA_POLL_S)
        self._look_at_requests = _Every(_REQUEST_POLL_S)
        self._look_when_idle = _Every(_IDLE_REQUEST_POLL_S)
        self._idle = False

    def latest(self, start: Position) -> Position:
        """Where the batch that starts at `start` ends; `start` itself when there is none to make.

        Raises:
            Unavailable: The broker has been away for too long.
        """
        asked: tuple[str, ...] = ()
        if (self._look_when_idle if self._idle else self._look_at_requests).now():
            asked = tuple(name for name in self._requests() if name not in self._handled)
        if asked:
            # At once, and without records: the snapshot need not wait for one more batch.
            self._handled.update(asked)
            return replace(start, snapshots=asked)
        self._idle = True
        if not self._pace.due():
            return start
        self._refresh()
        ends = admit(start.offsets, self._ends, self._max_records) if self._ends else start.offsets
        if ends == start.offsets:
            return start
        self._idle = False
        self._pace.started()
        return replace(start, offsets=ends, snapshots=())

    def _refresh(self) -> None:
        if not self._look_at_kafka.now():
            return
        try:
            ends = end_offsets(self._kafka, self._topic, timeout_s=2)
        except Unavailable as error:
            self._patience.waited(error.message)
            return
        self._patience.answered()
        # A topic that vanished has nothing new; the runner's start check says so in words.
        self._ends = ends or self._ends


class ChannelPlanner:
    """Plans batches of a repartition topic: whole upstream versions, never past a marker."""

    def __init__(
        self,
        store: ObjectStore,
        app: str,
        upstream: str,
        channel: str,
        *,
        pace: Pace,
        max_records: int | None,
    ) -> None:
        self._store = store
        self._app = app
        self._upstream = upstream
        self._channel = channel
        self._pace = pace
        self._max_records = max_records
        self._known: list[Manifest] = []
        self._poll = _Every(_STORE_POLL_MIN_S)

    def latest(self, start: Position) -> Position:
        """Where the batch that starts at `start` ends; `start` itself when there is none to make."""
        self._refresh(start.version)
        rows, end = 0, None
        snapshots: tuple[str, ...] = ()
        for manifest in self._known:
            output = manifest.outputs[self._channel]
            if end is not None and self._max_records is not None and rows + output.rows > self._max_records:
                break
            rows += output.rows
            if output.rows or output.markers:
                end = manifest
            if output.markers:
                snapshots = tuple(sorted(output.markers))
                break
        if end is None or not (snapshots or self._pace.due()):
            return start
        self._pace.started()
        output = end.outputs[self._channel]
        return Position(self._channel, output.ends, end.version, output.sent, snapshots)

    def attempts(self, start: int, end: int) -> frozenset[str]:
        """The attempts whose messages count in the upstream versions start + 1 to end."""
        names: set[str] = set()
        for version in range(start + 1, end + 1):
            names.update(history.read(self._store, self._app, self._upstream, version).outputs[self._channel].attempts)
        return frozenset(names)

    def _refresh(self, consumed: int) -> None:
        self._known = [manifest for manifest in self._known if manifest.version > consumed]
        if not self._poll.now():
            return
        last = max(consumed, *(manifest.version for manifest in self._known), 0)
        new = list(history.after(self._store, self._app, self._upstream, last))
        self._known += [manifest for manifest in new if self._channel in manifest.outputs]
        self._poll.seconds = _STORE_POLL_MIN_S if new else min(_STORE_POLL_MAX_S, self._poll.seconds * 1.3)


def request_ids(store: ObjectStore, app: str) -> tuple[str, ...]:
    """Ids of the snapshots that are asked of an app and not complete, oldest first."""
    return tuple(request.id for request in open_requests(store, app))
