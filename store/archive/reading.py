"""Reads ranges of offsets from the archives of an app, and of the apps that it was cloned from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...common import runtime
from ...errors import Corruption, Gone
from ..objects.protocol import ObjectStore
from ..versions.apps import find_app
from .columns import SCHEMA
from .extents import Extent, Extents, intersect, subtract, union
from .index import ArchiveIndex, ArchiveObject, newest, newest_incarnations

if TYPE_CHECKING:
    from .objects import ArchivedRecords

_CACHE_S = 30.0


@dataclass(slots=True)
class Archive:
    """Reader of one archive. Reloads the index if an object of its current index was deleted."""

    store: ObjectStore
    index: ArchiveIndex
    _open: "ArchivedRecords | None" = field(default=None, init=False, repr=False)
    _open_key: str = field(default="", init=False, repr=False)

    def rows(self, partition: int, first: int, end: int, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.Table]:
        requested = (Extent(partition, first, end),)
        parts = ((part, item) for item in self.index.objects for part in intersect(requested, item.extents))
        for part, item in sorted(parts, key=itemgetter(0)):
            try:
                records = self._open_records(item)
            except Corruption:
                # A forget deletes replaced objects at once, so the index is outdated.
                head = newest(self.store, self.index.app, self.index.topic, self.index.life, previous=self.index)
                if head is None or item in head.objects:
                    raise
                self.index = head
                yield from self.rows(part.partition, part.first, part.end, columns)
            else:
                yield from records.rows(part.partition, part.first, part.end, columns)

    def _open_records(self, item: ArchiveObject) -> "ArchivedRecords":
        # Imported late, because Kafka readers import this module but rarely read objects, and Parquet is slow to load.
        from .objects import ArchivedRecords

        if self._open is None or self._open_key != item.object:
            self._open, self._open_key = ArchivedRecords(self.store, item), item.object
        return self._open


@dataclass(frozen=True, slots=True)
class TopicArchives:
    """Archives of one topic in several apps. An offset is read from the first archive that covers it."""

    archives: tuple[Archive, ...]

    @property
    def topic_id(self) -> str:
        return next((archive.index.topic_id for archive in self.archives if archive.index.topic_id), "")

    def __bool__(self) -> bool:
        return bool(self.archives)

    def with_topic_id(self, topic_id: str) -> "TopicArchives":
        """Return the archives of the topic with this id, or with `self.topic_id` if no archive has the given id.

        An archive without an id matches any id.
        """
        for requested in (topic_id, self.topic_id):
            matches = tuple(archive for archive in self.archives if archive.index.topic_id in ("", requested))
            if matches and requested:
                return TopicArchives(matches)
        return self

    def covered(self, partition: int) -> Extents:
        every = (extent for archive in self.archives for extent in archive.index.covered)
        return union(extent for extent in every if extent.partition == partition)

    def uncovered(self, partition: int, first: int, end: int) -> Extents:
        return subtract((Extent(partition, first, end),), self.covered(partition))

    def covered_start(self, partition: int, first: int) -> int:
        """Return the start of the covered range that contains `first` or ends at `first`; else `first`."""
        return next((extent.first for extent in self.covered(partition) if extent.first < first <= extent.end), first)

    def rows(self, partition: int, first: int, end: int, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.Table]:
        remaining: Extents = (Extent(partition, first, end),)
        parts: list[tuple[Extent, int]] = []
        for number, archive in enumerate(self.archives):
            covered = intersect(remaining, archive.index.covered)
            parts += [(part, number) for part in covered]
            remaining = subtract(remaining, covered)
        for part, number in sorted(parts):
            yield from self.archives[number].rows(part.partition, part.first, part.end, columns)

    def has_forgotten_keys(self, partition: int, first: int, end: int) -> bool:
        """Return True if keys were forgotten from a range. Call this function after the range was read."""
        return any(intersect((Extent(partition, first, end),), archive.index.forgotten) for archive in self.archives)

    def first_offset_since(self, partition: int, first: int, end: int, time_ms: int, otherwise: int) -> int:
        for rows in self.rows(partition, first, end, ("offset", "timestamp")):
            late = np.flatnonzero(rows["timestamp"].cast(pa.int64()).to_numpy() >= time_ms)
            if len(late):
                return int(rows["offset"][late[0]].as_py())
        return otherwise

    def missing_error(self, extent: Extent, kafka_reason: str) -> Gone:
        """Return the error for offsets that are neither in the archives nor in Kafka.

        `kafka_reason` is the reason why Kafka lacks the offsets.
        """
        index = self.archives[0].index
        is_thinned = any(intersect((extent,), archive.index.thinned) for archive in self.archives)
        reason = "were deleted there by `input` in [retention]" if is_thinned else "were never archived"
        error = Gone(
            f"offsets {extent.first} to {extent.end - 1} of {index.topic}[{extent.partition}] are {kafka_reason}, "
            f"and not in "
            f"the input archive of {index.app!r}: they {reason}",
            hint=f"choose a moment whose records are archived: `slackwater archive {index.app}` shows them",
        )
        error.lost_from, error.resume_at = extent.first, extent.end
        return error


class Archives:
    """All archives that an app can read: its own, and those of the apps from which it was cloned.

    `open_store` is called at the first use. Results are cached for half a minute. An empty app name has no archives.
    """

    def __init__(self, open_store: Callable[[], ObjectStore], app: str, *, at_ms: int | None = None) -> None:
        self._open_store, self._app, self._at_ms = open_store, app, at_ms
        self._archives_by_topic: dict[tuple[str, str], tuple[float, TopicArchives]] = {}

    def for_topic(self, topic: str, topic_id: str = "") -> TopicArchives:
        """Return the archives of a topic: the app's own first, then those of the apps it was cloned from, in order.

        For a re-created topic, `topic_id` selects the incarnation; without it, the newest incarnation of each app is
        used. Makes a few requests for each app. Raises `Corruption`.
        """
        now_s, key = runtime.monotonic(), (topic, topic_id)
        at_s, archives = self._archives_by_topic.get(key, (0.0, None))
        if archives is None or now_s - at_s > _CACHE_S:
            archives = TopicArchives(tuple(self._find(topic, topic_id)))
            self._archives_by_topic[key] = now_s, archives
        return archives

    def _find(self, topic: str, topic_id: str) -> Iterator[Archive]:
        if not self._app:
            return
        seen: set[tuple[str, str]] = set()
        store, name = self._open_store(), self._app
        while (store.url, name) not in seen:
            seen.add((store.url, name))
            for incarnation in range(newest_incarnations(store, name).get(topic, 0), 0, -1):
                index = newest(store, name, topic, incarnation)
                if index is None or (topic_id and index.topic_id not in ("", topic_id)):
                    continue
                is_named = bool(topic_id) and index.topic_id == topic_id
                if is_named or incarnation == 1 or self._at_ms is None or index.begun_ms <= self._at_ms:
                    yield Archive(store, index)
                    break
            info = find_app(store, name)
            if info is None or info.origin is None or info.origin.is_deep:
                return
            store, name = store.at(info.origin.root), info.origin.app
