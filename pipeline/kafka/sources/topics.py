"""`SourcedKafka`: a Kafka client for which sources are topics with one partition."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ....common import runtime
from ....errors import Gone, NotFound, SlackwaterError, Unavailable
from ....state.records import Range, TopicState
from ....store.objects.protocol import ObjectStore
from ....store.versions.keys import is_source
from ..declared_source import Source, declare_source, find_source
from ..protocol import Chunk, ForwardingKafka, Kafka, Offsets, topic_recreated_error
from .file_list import FileList, SourceFile

if TYPE_CHECKING:
    from .rows import FileReader

_POLL_S, _REMOTE_POLL_S = 1.0, 3.0
"""Interval between two searches for new files."""
_REFRESH_S = 2.0
_FILES_AT_ONCE = 1_000


_log = logging.getLogger("slackwater")


class Finder(Protocol):
    """Finds new files of a source."""

    def find(self, known: list[SourceFile], time_limit_s: float | None, /) -> Iterator[SourceFile]:
        """Yield the files that `known` does not have, in the order of their offsets.

        An error comes between two versions of a table, never among the files of one.
        """


@lru_cache(maxsize=256)
def _list_of(_root: str, topic: str, _id: str) -> FileList:
    return FileList(topic)


class ListedSource:
    """One source: the list of its files, and the search for new ones."""

    def __init__(self, store: ObjectStore, source: Source) -> None:
        # Imported late: reading Parquet takes time to load, and many commands read no record.
        from .rows import FileReader

        self.source, self._store = source, store
        self.files = _list_of(store.url, source.topic, source.id)
        self.reader = FileReader(source, store)
        self._finder: Finder | None = None
        self._find_at_s = self._refresh_at_s = 0.0

    def refresh(self, *, at_once: bool = False) -> None:
        """Read the list as it is stored, at most every few seconds unless `at_once`."""
        now_s = runtime.monotonic()
        if at_once or now_s >= self._refresh_at_s:
            self.files.refresh(self._store)
            self._refresh_at_s = now_s + _REFRESH_S

    def find_new(self, time_limit_s: float | None) -> bool:
        """Add new files to the list. With a time limit, does nothing until the interval has passed.

        Returns False if another process or thread added files first, so that some may not be in the list.
        """
        now_s = runtime.monotonic()
        if time_limit_s is not None and now_s < self._find_at_s:
            return True
        if self._finder is None:
            self.refresh(at_once=True)
        # A finder that found files that are not in the list is not used again: the next one begins after the list.
        finder, self._finder = self._finder or _finder_of(self.reader), None
        seen, new = len(self.files.files), list[SourceFile]()
        try:
            for file in finder.find(self.files.files, time_limit_s):
                # A reader continues after the last version of the list, so all files of a version are added at once.
                is_whole = self.source.kind == "files" or (new and new[-1].version != file.version)
                if len(new) >= _FILES_AT_ONCE and is_whole:
                    if not self.files.append(self._store, new, seen):
                        return False
                    seen, new = seen + len(new), []
                new.append(file)
        except SlackwaterError:
            if new:
                self.files.append(self._store, new, seen)
            raise
        if new and not self.files.append(self._store, new, seen):
            return False
        self._finder = finder
        self._find_at_s = now_s + (_REMOTE_POLL_S if "://" in self.source.address else _POLL_S)
        return True

    def read(self, span: Range, deletion_errors: list[Gone] | None) -> Iterator[Chunk]:
        if span.last > self.files.end:
            self.refresh(at_once=True)
            if span.last > self.files.end:
                raise Unavailable(
                    f"the list of the files of {self.source.topic} ends at offset {self.files.end}; expected "
                    f"{span.last}",
                    hint=f"check that {self._store.url} is complete: it may be an older copy",
                )
        for first, file in self.files.between(span.first, span.last):
            at = max(first, span.first)
            try:
                for messages in self.reader.records(first, file, span.first, span.last):
                    yield (messages,)
                    at = messages[-1].offset() + 1
            except Gone as error:
                error.lost_from, error.resume_at = at, first + file.rows
                if deletion_errors is None:
                    error.resume_at = self._end_of_gone(error.resume_at)
                    raise
                deletion_errors.append(error)

    def _end_of_gone(self, at: int) -> int:
        """Return the offset of the first file from `at` on that still exists, so that one reset passes over many."""
        for first, file in self.files.between(at, self.files.end):
            if not self.reader.is_gone(file):
                return first
        return self.files.end


def _finder_of(reader: FileReader) -> Finder:
    if reader.source.kind == "files":
        from .folder import FolderFinder

        return FolderFinder(reader)
    if reader.source.kind == "delta":
        from .delta import DeltaFinder

        return DeltaFinder(reader)
    from .iceberg import IcebergFinder

    return IcebergFinder(reader)


@dataclass(slots=True)
class SourcedKafka(ForwardingKafka):
    """Implements `Kafka`: topics of a cluster, and sources of a store."""

    kafka: Kafka = field(repr=False)
    open_store: Callable[[], ObjectStore] = field(repr=False)
    finds_new: bool = False
    """True for the process that looks for new files; others see the files that it has found."""
    _topics: dict[str, ListedSource] = field(default_factory=dict, init=False, repr=False)

    def declare(self, source: Source) -> None:
        store = self.open_store()
        declared, topic = declare_source(store, source), self._topics.get(source.topic)
        if topic is None or topic.source != declared:
            topic = self._topics[source.topic] = ListedSource(store, declared)
        while not topic.find_new(None):
            pass
        if not topic.files.end:
            is_missing = source.kind != "iceberg" and source.address[0] == "/" and not Path(source.address).exists()
            state = "does not exist" if is_missing else "has no rows"
            _log.warning("%s: %s %s yet", source.topic, source.label, state)

    def partition_counts(self, *, timeout_s: float = 10) -> dict[str, int]:
        return {**self.kafka.partition_counts(timeout_s=timeout_s), **dict.fromkeys(self._topics, 1)}

    def topic_state(self, topic: str, *, timeout_s: float = 10) -> TopicState:
        if not is_source(topic):
            return self.kafka.topic_state(topic, timeout_s=timeout_s)
        source = self._source(topic)
        if self.finds_new:
            source.find_new(timeout_s)
        else:
            source.refresh()
        return TopicState((0,), (source.files.end,), source.source.id)

    def offsets_for_times(self, topic: str, times_ms: Sequence[int]) -> Offsets:
        if not is_source(topic):
            return self.kafka.offsets_for_times(topic, times_ms)
        source = self._source(topic)
        source.refresh()
        return tuple(map(source.files.first_since, times_ms))

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        ids = self.kafka.topic_ids(inner) if (inner := [topic for topic in topics if not is_source(topic)]) else {}
        for topic in filter(is_source, topics):
            try:
                ids[topic] = self._source(topic).source.id
            except NotFound:
                continue
        return ids

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return {"retention.ms": "-1"} if is_source(topic) else self.kafka.topic_config(topic)

    def commit_offsets(self, group: str, positions: Mapping[str, Offsets], *, wait: bool = True) -> None:
        inner = {topic: offsets for topic, offsets in positions.items() if not is_source(topic)}
        if inner:
            self.kafka.commit_offsets(group, inner, wait=wait)

    def read_ranges(
        self,
        topic: str,
        parts: Sequence[Range],
        *,
        patience_s: float,
        deletion_errors: Mapping[int, list[Gone]] | None = None,
        topic_id: str = "",
    ) -> Iterator[Chunk]:
        if not is_source(topic):
            yield from self.kafka.read_ranges(
                topic, parts, patience_s=patience_s, deletion_errors=deletion_errors, topic_id=topic_id
            )
            return
        source = self._source(topic)
        if topic_id and topic_id != source.source.id:
            raise topic_recreated_error(topic, topic_id, source.source.id)
        for part in parts:
            yield from source.read(part, None if deletion_errors is None else deletion_errors[part.partition])

    def place(self, topic: str, offset: int) -> str:
        if not is_source(topic):
            return ""
        source = self._source(topic)
        source.refresh()
        return next(
            (source.reader.place(part, offset - first) for first, part in source.files.between(offset, offset + 1)), ""
        )

    def end_of_files(self, topic: str, offset: int) -> int | None:
        source = self._source(topic)
        count = source.source.max_files
        return source.files.end_of_files(offset, count) if count else None

    def _source(self, topic: str) -> ListedSource:
        if topic not in self._topics:
            store = self.open_store()
            declared = find_source(store, topic)
            if declared is None:
                raise NotFound("source", topic, hint="`slackwater run` of an app that reads it creates it")
            self._topics[topic] = ListedSource(store, declared)
        return self._topics[topic]
