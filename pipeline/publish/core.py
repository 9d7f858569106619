"""Publishing algorithm, without Kafka, threads or time: publishes committed versions in order, each row once.

A sink's rows are in its internal topic, between the offsets that manifests name, in messages of the attempts that
manifests name. So the content is fixed before anything is published, and a publisher only needs to store its position.
Rows, and the position after these rows, must be published atomically. A Kafka target ensures this by a transaction; a
function can ensure it by the version number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

import pyarrow as pa
from msgspec.structs import replace

from ...errors import Corruption
from ...store.versions.manifest import Manifest, Sink
from ...store.versions.published import PublishedPosition

_MAX_VERSIONS_IN_MEMORY = 1_000
"""Maximum number of committed versions kept in memory. Newer versions are read from the store when needed."""
_VERSIONS_PER_READ = 100


class PublishRange(NamedTuple):
    """Range of the internal topic to publish next, with valid attempts, and the position after the range."""

    start: int
    end: int
    attempts: frozenset[str]
    position: PublishedPosition


class Target(Protocol):
    """Destination of a sink's rows. Also stores the publisher's position, together with the rows.

    Methods raise a `SlackwaterError` for permanent failures.
    """

    @property
    def max_rows(self) -> int:
        """Approximate maximum number of rows in a transaction of several versions; 0 to publish versions one by one."""

    def open(self) -> PublishedPosition:
        """Fence the previous publisher, and return the stored position. Raises `TransactionFailed`."""

    def begin(self, version: int) -> None:
        """Begin to publish rows up to and including this version. Raises `ProducerFenced` or `TransactionFailed`."""

    def add(self, rows: pa.Table) -> None:
        """Add rows, which readers do not see before `commit`. Raises `ProducerFenced` or `TransactionFailed`."""

    def commit(self, place: PublishedPosition) -> None:
        """Publish the added rows and store the position `place` after them, atomically.

        Raises `ProducerFenced` or `TransactionFailed`.
        """

    def close(self) -> None:
        """Abort the open transaction, if any."""


ReadRows = Callable[[int, int, frozenset[str]], Iterator[tuple[int, pa.Table]]]
"""Function that yields the rows of given attempts in a range of offsets, as tables, each with the next offset."""


class Backlog:
    """Committed versions of a sink that are not published yet.

    The function `after` reads the versions after a given version.
    """

    def __init__(self, sink: str, after: Callable[[int], Iterable[Manifest]]) -> None:
        self._sink = sink
        self._read_after = after
        self._offered: deque[tuple[int, Sink | None]] = deque(maxlen=_MAX_VERSIONS_IN_MEMORY)
        self._unpublished: deque[tuple[int, Sink]] = deque()
        self._up_to = self._newest = 0
        """Newest version for which the rows are known.

        Each version up to `_up_to` is in `_unpublished`, or is published, or has no rows. `_newest` is the newest
        offered version.
        """

    def restart(self, version: int) -> None:
        self._unpublished.clear()
        self._up_to = version

    def offer(self, committed: Manifest) -> None:
        """Add a committed version. Thread-safe. Versions that were not offered are read from the store."""
        self._offered.append((committed.version, committed.sinks.get(self._sink)))

    def next_range(self, place: PublishedPosition, max_rows: int) -> PublishRange | None:
        """Return the range to publish after the position `place`; None if all committed rows are published."""
        while self._offered:
            version, sink = self._offered.popleft()
            self._newest = max(self._newest, version)
            if version == self._up_to + 1 and len(self._unpublished) < _MAX_VERSIONS_IN_MEMORY:
                self._add(version, sink)
        while self._unpublished and self._unpublished[0][0] <= place.version:
            self._unpublished.popleft()
        while not self._unpublished and self._up_to < self._newest:
            for manifest in islice(self._read_after(self._up_to), _VERSIONS_PER_READ):
                self._add(manifest.version, manifest.sinks.get(self._sink))
        if not self._unpublished:
            return None
        versions = [self._unpublished[0]]
        rows = versions[0][1].rows
        for version, sink in islice(self._unpublished, 1, None):
            rows += sink.rows
            if rows > max_rows:
                break
            versions.append((version, sink))
        version, last = versions[-1]
        attempts = frozenset(attempt for _, sink in versions for attempt in sink.attempts)
        return PublishRange(place.offset, last.end, attempts, PublishedPosition(version, last.end, last.sent))

    def advance_over_empty(self, place: PublishedPosition) -> PublishedPosition:
        return place if self._unpublished else replace(place, version=max(place.version, self._up_to))

    def _add(self, version: int, sink: Sink | None) -> None:
        if sink is not None and sink.rows:
            self._unpublished.append((version, sink))
        self._up_to = version


class Publisher:
    """Publishes the rows of one sink, step by step, in transactions. `position` is valid after `open`."""

    def __init__(self, name: str, backlog: Backlog, target: Target, read: ReadRows) -> None:
        self.position = PublishedPosition(1, 0, 0)
        self._name = name
        self._backlog = backlog
        self._target = target
        self._read = read

    def open(self) -> None:
        self.position = self._target.open()
        self._backlog.restart(self.position.version)

    def publish_next(self) -> bool:
        """Publish the next range; return False if all committed rows are published.

        After `ProducerFenced` or `TransactionFailed`, the last transaction may or may not be committed; `open` finds
        the position. Raises `Corruption` if the internal topic does not have the rows that manifests name, and another
        `SlackwaterError` if the rows cannot be read or published.
        """
        share = self._backlog.next_range(self.position, self._target.max_rows)
        if share is None:
            self.position = self._backlog.advance_over_empty(self.position)
            return False
        self._target.begin(share.position.version)
        rows, most = self.position.rows, max(1, self._target.max_rows)
        for offset, part in self._read(share.start, share.end, share.attempts):
            self._target.add(part)
            rows += part.num_rows
            if self._target.max_rows and rows - self.position.rows >= most and rows < share.position.rows:
                # A version with more rows than a transaction may have is published in several transactions.
                self._commit(PublishedPosition(self.position.version, offset, rows))
                self._target.begin(share.position.version)
        if rows != share.position.rows:
            raise Corruption(
                f"the internal topic of {self._name} has {rows:,} rows up to offset {share.end}; the manifests up to "
                f"v{share.position.version} have {share.position.rows:,}",
                object_key=self._name,
                hint="check if another program wrote to it, or if records were deleted",
            )
        self._commit(share.position)
        return True

    def skip_version(self) -> int:
        """Skip the next version, because Kafka has lost its rows. Returns the number of skipped rows.

        Raises the errors of `publish_next`.
        """
        share = self._backlog.next_range(self.position, 0)
        if share is None:
            return 0
        lost = share.position.rows - self.position.rows
        self._target.begin(share.position.version)
        self._commit(share.position)
        return lost

    def _commit(self, place: PublishedPosition) -> None:
        self._target.commit(place)
        self.position = place
