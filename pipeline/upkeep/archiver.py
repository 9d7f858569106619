"""What committed batches read, appended to the app's input archive, in a thread beside the batches.

Readers have left it in a spool on this machine; what is not there (tasks on other machines, a crash) is read from Kafka
again. Nothing waits for it: the manifests say what was read, and the archive's index what it has of that, so the next
run makes up for what this one did not come to, as long as Kafka has it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from ...common import instants
from ...common.durations import DAY_MS
from ...errors import CommitConflict, Gone, SlackwaterError, Unavailable
from ...state.records import ranges, stretches
from ...state.topics import is_known
from ...store.archive import index, merge
from ...store.archive.extents import Extent, Extents, common, count, minus, union
from ...store.archive.index import INDEXES, ArchiveIndex
from ...store.archive.merge import append
from ...store.archive.objects import ArchiveWriter
from ...store.objects.protocol import ObjectStore
from ...store.versions.apps import read_app
from ...store.versions.manifest import Input, Manifest
from ..kafka.columns import Columns
from ..kafka.protocol import Kafka
from ..listener import ArchiveState, Listener
from ..source.spool import InputSpool, Spooled
from .prefetcher import lower_priority

_log = logging.getLogger("slackwater")

_EVERY_S = 5.0
"""From one object to the next, while little is read."""
_MANY = 200_000
"""Offsets for which it does not wait so long."""
_RETRY_S = 30.0
_LOOK_AT_TOPIC_S = 60.0
"""How often to ask Kafka whether a topic is still the same."""
_SWEEP_EVERY = 200
"""Indexes that come before those are swept that they replaced."""
_MERGES_WITHIN = 16
"""Objects of a topic are merged within spans of this part of how long they stay: they go as wholes."""


@dataclass(slots=True)
class _Topic:
    """The archive of one topic. Only `pending` is written by other threads, under the lock."""

    name: str
    keep_ms: int
    first: dict[str, Input] = field(default_factory=dict)
    """By stage, where it stood when it was seen first."""
    pending: Extents = ()
    """What was read since, and is not known to be in the archive."""
    read_ms: int = 0
    """When the newest version that read of it was committed."""
    head: ArchiveIndex | None = None
    looked_s: float = float("-inf")
    retry_s: float = 0.0
    error: str = ""
    swept: int = 0


class Archiver(Listener):
    """Archives what the stages of one runner read. `move` may be called by any thread; the rest is one thread's.

    Args:
        keep_ms: For how long what is read of a topic is to stay; None for topics that are not archived.
        spool: Where readers leave what they have fetched; None where they run on other machines.
    """

    def __init__(
        self,
        store: ObjectStore,
        app: str,
        kafka: Kafka,
        keep_ms: Callable[[str], int | None],
        *,
        spool: InputSpool | None,
        by: str,
        patience_s: float,
        told: Callable[[tuple[ArchiveState, ...]], None] = lambda _states: None,
    ) -> None:
        self._store, self._app, self._kafka, self._keep_ms = store, app, kafka, keep_ms
        self._spool, self._by, self._patience_s, self._told = spool, by, patience_s, told
        self._heads: dict[str, Manifest] = {}
        self._topics: dict[str, _Topic] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()

    def move(self, head: Manifest, _tip: Manifest | None = None) -> None:
        """Note the newest committed version of a stage: what it read since the one before it is to be archived."""
        with self._lock:
            before = self._heads.get(head.stage)
            self._heads[head.stage] = head
            for name, at in head.inputs.items():
                keep_ms = self._keep_ms(at.topic)
                if keep_ms is None:
                    continue
                topic = self._topics.setdefault(at.topic, _Topic(at.topic, keep_ms))
                known = before.inputs.get(name) if before is not None else None
                if known is None or known.topic != at.topic:
                    topic.first[head.stage] = at
                elif head.traits.reads_records:
                    read = (Extent(one.partition, one.first, one.last) for one in ranges(known.offsets, at.offsets))
                    topic.pending = union(topic.pending, read)
                    topic.read_ms = max(topic.read_ms, head.time_ms)
                    if count(topic.pending) >= _MANY:
                        self._wake.set()

    @contextmanager
    def at_work(self, drain_s: Callable[[], float]) -> Iterator[None]:
        """Inside, it archives on a thread of its own; at the end it has so many seconds for what is left."""
        over = threading.Event()
        thread = threading.Thread(target=self._work, args=(over,), name="archiver", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            self._wake.set()
            thread.join(drain_s())

    def _work(self, over: threading.Event) -> None:
        lower_priority()
        while not over.is_set():
            self.round(over)
            self._told(self.states)
            self._wake.wait(_EVERY_S)
            self._wake.clear()
        for topic in self._topics.values():
            topic.retry_s = 0.0
        self.round(over, merging=False)

    @property
    def states(self) -> tuple[ArchiveState, ...]:
        """How far the archives are."""
        with self._lock:
            return tuple(
                ArchiveState(
                    self._app,
                    each.name,
                    count(each.pending),
                    len(each.head.objects) if each.head is not None else 0,
                    each.head.bytes if each.head is not None else 0,
                    each.error,
                )
                for each in self._topics.values()
            )

    def round(self, over: threading.Event | None = None, *, merging: bool = True) -> None:
        """Archive what was read so far, and merge what is to be merged. Whatever fails is tried again later."""
        with self._lock:
            topics = tuple(self._topics.values())
        for topic in topics:
            if time.monotonic() < topic.retry_s:
                continue
            try:
                self._archive(topic)
                if merging:
                    self._merge(topic, over or threading.Event())
                topic.error = ""
            except SlackwaterError as error:
                self._failed(topic, error.message, known=isinstance(error, Unavailable | CommitConflict))
            except Exception as error:
                _log.debug("archiving %s of %s", topic.name, self._app, exc_info=True)
                self._failed(topic, f"{type(error).__name__}: {error}", known=False)

    def _failed(self, topic: _Topic, why: str, *, known: bool) -> None:
        topic.retry_s, topic.looked_s = time.monotonic() + _RETRY_S, float("-inf")
        if topic.error != why:
            say = _log.info if known else _log.warning
            say("the input archive of %s waits: %s of %s: %s", self._app, count(topic.pending), topic.name, why)
        topic.error = why

    def _archive(self, topic: _Topic) -> None:
        now_s = time.monotonic()
        if now_s - topic.looked_s > _LOOK_AT_TOPIC_S:
            self._open(topic)
            topic.looked_s = now_s
        assert topic.head is not None  # noqa: S101  it was opened
        while wanted := self._wanted(topic):
            topic.head = self._append(topic, topic.head, wanted)
            if self._wanted(topic) == wanted:
                break

    def _open(self, topic: _Topic) -> None:
        """Find the archive of the topic as Kafka has it now, or begin one where the stages stand."""
        with self._lock:
            stands = list(topic.first.values())
        read_app(self._store, self._app)  # one that was removed shall not be there again
        # Of the topic that the stages read: Kafka's may be another one meanwhile.
        read = (at.topic_id for at in stands if is_known(at.topic_id))
        topic_id, known = next(read, "") or self._kafka.topic_id(topic.name), topic.head
        life = known.life if known is not None else index.topics(self._store, self._app).get(topic.name, 1)
        head = index.newest(self._store, self._app, topic.name, life, previous=known)
        if head is not None and topic_id and head.topic_id not in ("", topic_id):
            _log.warning(
                "topic %s was deleted and made anew: what is read of it goes to another input archive of %s; the old "
                "one stays",
                topic.name,
                self._app,
            )
            life, head = life + 1, None
        begins = tuple(map(min, zip(*(at.offsets for at in stands), strict=False))) if stands else ()
        empty = index.empty(self._app, topic.name, life, topic_id)
        begun = index.begun(begins)
        topic.head = head or index.change(self._store, empty, begun, by=self._by, now_ms=instants.now_ms())
        # What was read by whoever ran before, and did not get here.
        owed = topic.head.owes(read for at in stands for read in stretches(None, at, former=False))
        with self._lock:
            topic.pending = union(topic.pending, owed)
            topic.first.clear()

    def _wanted(self, topic: _Topic) -> Extents:
        assert topic.head is not None  # noqa: S101  it was opened
        with self._lock:
            topic.pending = minus(topic.pending, topic.head.covered)
            return topic.pending

    def _append(self, topic: _Topic, head: ArchiveIndex, wanted: Extents) -> ArchiveIndex:
        """Append one object of what is wanted, or as much of it as an object shall have."""
        spooled = self._spool.look(topic.name) if self._spool is not None else []
        writer, read, gone = ArchiveWriter(), list[Extent](), list[Extent]()
        for part, source in _sources(wanted, spooled):
            lost: list[Gone] = []
            for records in self._records(head, part, source, lost):
                writer.append(records)
            there = minus((part,), self._lost(topic.name, part)) if lost else (part,)
            gone += minus((part,), there)
            read += there
            if writer.num_bytes >= merge.TARGET_BYTES // 2:
                break
        if read:
            made = append(
                self._store,
                head,
                writer,
                union(read),
                topic.read_ms or instants.now_ms(),
                by=self._by,
                now_ms=instants.now_ms(),
            )
        else:
            made = head
        for each in gone:
            _log.info("%s%s of %s is gone from Kafka, and not in its input archive", topic.name, each, self._app)
        with self._lock:
            topic.pending = minus(topic.pending, gone)
        for file in spooled:
            if not minus((file.extent,), made.covered):
                file.path.unlink(missing_ok=True)
        return made

    def _records(
        self, head: ArchiveIndex, part: Extent, source: Spooled | None, lost: list[Gone]
    ) -> Iterator[pa.Table]:
        if source is not None:
            try:
                yield from source.records(part)
            except OSError:
                source.path.unlink(missing_ok=True)  # the next time from Kafka
                raise
            return
        where, topic_id = (head.topic, part.partition, part.first, part.end), head.topic_id
        for chunk in self._kafka.read(*where, patience_s=self._patience_s, gone=lost, topic_id=topic_id):
            yield pa.Table.from_batches([Columns(chunk).records()])

    def _lost(self, topic: str, part: Extent) -> Extents:
        """What Kafka has lost of a range."""
        first = self._kafka.offsets(topic)[0][part.partition]
        return common((part,), (Extent(part.partition, 0, first),)) if first else ()

    def _merge(self, topic: _Topic, over: threading.Event) -> None:
        assert topic.head is not None  # noqa: S101  it was opened
        span_ms = max(1, min(DAY_MS, topic.keep_ms // _MERGES_WITHIN))
        while not over.is_set() and (inputs := merge.pick(topic.head, span_ms)):
            topic.head = merge.merge(self._store, topic.head, inputs, by=self._by, now_ms=instants.now_ms())
        if topic.head.number - topic.swept >= _SWEEP_EVERY:
            topic.swept = topic.head.number
            for info in index.replaced(INDEXES.listed(self._store, topic.head.prefix)):
                self._store.delete(info.key)


def _sources(wanted: Extents, spooled: Sequence[Spooled]) -> Iterator[tuple[Extent, Spooled | None]]:
    """What is wanted, in order, each part with the file that has it; None for Kafka."""
    parts: list[tuple[Extent, Spooled | None]] = []
    for file in spooled:
        found = common(wanted, (file.extent,))
        parts += [(part, file) for part in found]
        wanted = minus(wanted, found)
    for part in wanted:
        steps = range(part.first, part.end, _MANY)
        parts += [(Extent(part.partition, first, min(first + _MANY, part.end)), None) for first in steps]
    return iter(sorted(parts, key=lambda each: each[0]))
