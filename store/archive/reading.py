"""Reading an archive: the records of a range of offsets, out of whichever objects have them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...errors import Corruption, Gone
from ..objects.protocol import ObjectStore
from ..versions.apps import find_app
from .columns import SCHEMA
from .extents import Extent, Extents, common, minus, union
from .index import ArchiveIndex, ArchiveObject, newest, topics

if TYPE_CHECKING:
    from .objects import ArchivedRecords


@dataclass(slots=True)
class Archive:
    """One archive as an index has it; by the newest one where an object is gone since: what it covers stays covered."""

    store: ObjectStore
    index: ArchiveIndex
    _open: "ArchivedRecords | None" = field(default=None, init=False, repr=False)
    """The object that was read last."""
    _of: str = field(default="", init=False, repr=False)

    def lacks(self, partition: int, first: int, end: int) -> Extents:
        """Of a range of offsets, what cannot be read here."""
        return self.index.lacks(partition, first, end)

    def rows(self, partition: int, first: int, end: int, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.Table]:
        """The records of a range of offsets that are here, ascending, in tables of these columns of `columns.SCHEMA`.

        Raises `Corruption` where an object is missing or damaged, `Unavailable` where the store did not answer.
        """
        wanted = (Extent(partition, first, end),)
        for part, one in sorted(self._parts(wanted), key=lambda each: each[0]):
            try:
                records = self._opened(one)
            except Corruption:
                # Where keys were forgotten, what an index replaced is gone at once.
                now = newest(self.store, self.index.app, self.index.topic, self.index.life, known=self.index)
                if now is None or one in now.objects:
                    raise
                self.index = now
                yield from self.rows(part.partition, part.first, part.end, columns)
            else:
                yield from records.rows(part.partition, part.first, part.end, columns)

    def _parts(self, wanted: Extents) -> Iterator[tuple[Extent, ArchiveObject]]:
        for one in self.index.objects:
            for part in common(wanted, one.extents):
                yield part, one

    def _opened(self, one: ArchiveObject) -> "ArchivedRecords":
        # Readers of Kafka have this module, and seldom an object to read: Parquet takes long to load.
        from .objects import ArchivedRecords

        if self._open is None or self._of != one.object:
            self._open, self._of = ArchivedRecords(self.store, one), one.object
        return self._open


@dataclass(frozen=True, slots=True)
class TopicArchives:
    """The archives of one topic, of several apps, as one: an offset is read in the first of them that has it."""

    archives: tuple[Archive, ...]

    @property
    def topic_id(self) -> str:
        """Kafka's id of the topic; empty where nobody knows."""
        return next((each.index.topic_id for each in self.archives if each.index.topic_id), "")

    def __bool__(self) -> bool:
        return bool(self.archives)

    def of_topic(self, topic_id: str) -> "TopicArchives":
        """Those of the topic of this id, where there are any; else those of one topic, that of the first."""
        for wanted in (topic_id, self.topic_id):
            found = tuple(each for each in self.archives if each.index.topic_id in ("", wanted))
            if found and wanted:
                return TopicArchives(found)
        return self

    def covered(self, partition: int) -> Extents:
        """What can be read of a partition."""
        every = (extent for each in self.archives for extent in each.index.covered)
        return union(extent for extent in every if extent.partition == partition)

    def lacks(self, partition: int, first: int, end: int) -> Extents:
        """Of a range of offsets, what cannot be read."""
        return minus((Extent(partition, first, end),), self.covered(partition))

    def reaches_back(self, partition: int, first: int) -> int:
        """From where on all is here up to an offset, from which on Kafka has it; the offset itself for none."""
        return next((each.first for each in self.covered(partition) if each.first < first <= each.end), first)

    def rows(self, partition: int, first: int, end: int, columns: Sequence[str] = SCHEMA.names) -> Iterator[pa.Table]:
        """The records of a range of offsets that are here, each once, as `Archive.rows`."""
        wanted: Extents = (Extent(partition, first, end),)
        parts: list[tuple[Extent, int]] = []
        for number, archive in enumerate(self.archives):
            found = common(wanted, archive.index.covered)
            parts += [(part, number) for part in found]
            wanted = minus(wanted, found)
        for part, number in sorted(parts):
            yield from self.archives[number].rows(part.partition, part.first, part.end, columns)

    def forgotten(self, partition: int, first: int, end: int) -> bool:
        """Whether keys were taken out of what is here of a range: as known once it was read."""
        return any(common((Extent(partition, first, end),), each.index.forgotten) for each in self.archives)

    def first_since(self, partition: int, first: int, end: int, time_ms: int, otherwise: int) -> int:
        """The first offset in a range whose record is of this time or later, in ms since 1970; else `otherwise`."""
        for rows in self.rows(partition, first, end, ("offset", "timestamp")):
            late = np.flatnonzero(rows["timestamp"].cast(pa.int64()).to_numpy() >= time_ms)
            if len(late):
                return int(rows["offset"][late[0]].as_py())
        return otherwise

    def gap(self, extent: Extent, why: str) -> Gone:
        """The error for offsets that are neither in Kafka, `why`, nor here."""
        index = self.archives[0].index
        went = any(common((extent,), each.index.thinned) for each in self.archives)
        here = "were let go there by its rule (input in [retention])" if went else "were never in it"
        return Gone(
            f"offsets {extent.first} to {extent.end - 1} of {index.topic}[{extent.partition}] are {why}, and not in "
            f"the input archive of {index.app!r}: they {here}",
            hint=f"choose a moment whose records are there; `slackwater archive {index.app}` shows which these are",
        )


class Archives:
    """The archives from which an app's past may be read: its own, and those of the apps that it was cloned from.

    `opened` gives the store, when there is something to be read there. What is found is known for a while. Without an
    app, empty, there are none.
    """

    def __init__(
        self, opened: Callable[[], ObjectStore], app: str, *, fresh_s: float = 30.0, at_ms: int | None = None
    ) -> None:
        self._opened, self._app, self._fresh_s, self._at_ms = opened, app, fresh_s, at_ms
        self._known: dict[tuple[str, str], tuple[float, TopicArchives]] = {}

    def of(self, topic: str, topic_id: str = "") -> TopicArchives:
        """The archives of a topic, the nearest app's first.

        Of topics made anew under the name it is that of the one of this id; by default of the last one, or of the last
        one that had begun `at_ms`. A few requests for each app. Raises `Corruption` and `Unavailable`.
        """
        now_s, which = time.monotonic(), (topic, topic_id)
        at_s, found = self._known.get(which, (now_s - self._fresh_s - 1, TopicArchives(())))
        if now_s - at_s > self._fresh_s:
            found = TopicArchives(tuple(self._find(topic, topic_id)))
            self._known[which] = now_s, found
        return found

    def _find(self, topic: str, topic_id: str) -> Iterator[Archive]:
        if not self._app:
            return
        seen: set[tuple[str, str]] = set()
        store, name = self._opened(), self._app
        while (store.url, name) not in seen:
            seen.add((store.url, name))
            for life in range(topics(store, name).get(topic, 0), 0, -1):
                index = newest(store, name, topic, life)
                if index is None or (topic_id and index.topic_id not in ("", topic_id)):
                    continue
                is_named = bool(topic_id) and index.topic_id == topic_id
                if is_named or life == 1 or self._at_ms is None or index.begun_ms <= self._at_ms:
                    yield Archive(store, index)
                    break
            info = find_app(store, name)
            if info is None or info.origin is None or info.origin.deep:
                return
            store, name = store.at(info.origin.root), info.origin.app
