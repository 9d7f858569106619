"""What a publisher does, without Kafka, threads or time: take committed versions in order, each row once.

The rows of a sink lie in its internal topic, between the offsets that manifests name, as messages of the attempts that
these name: what is published is fixed before anybody publishes it. So all that a publisher has to remember is a place,
and all that must be atomic is to publish rows together with the place behind them. That is the target's to do: Kafka
in a transaction, a function's receiver by the number of the version.
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
from ...store.versions.published import Place

_AHEAD = 1_000
"""Committed versions that are remembered; further ones are read from the store."""
_READ = 100
"""Versions that are read from the store at once."""


class Share(NamedTuple):
    """What is published next: messages of the internal topic."""

    start: int
    end: int
    """The message after the last."""
    attempts: frozenset[str]
    """Whose messages count."""
    place: Place
    """Where the publisher is behind it."""


class Target(Protocol):
    """Where rows go to, with the place behind them. Its methods raise a `SlackwaterError` where it never does it."""

    @property
    def max_rows(self) -> int:
        """About how many rows are published at once, where that is more than a version; 0 for a version at a time."""

    def open(self) -> Place:
        """Take over from whoever published before, and say where that was. Raises `Broken`."""

    def begin(self, version: int) -> None:
        """Begin to publish rows up to this version. Raises `Overtaken` or `Broken`."""

    def add(self, rows: pa.Table) -> None:
        """Publish rows, for nobody to see yet. Raises `Overtaken` or `Broken`."""

    def commit(self, place: Place) -> None:
        """Publish what was added, and that this is where to go on. Raises `Overtaken` or `Broken`."""

    def close(self) -> None:
        """Give up what is open."""


Read = Callable[[int, int, frozenset[str]], Iterator[tuple[int, pa.Table]]]
"""The rows of these attempts' messages from one offset to before another, each with the offset behind it."""


class Backlog:
    """The committed versions of a sink that are not published yet; `after` reads those after one, from the store."""

    def __init__(self, sink: str, after: Callable[[int], Iterable[Manifest]]) -> None:
        self._sink = sink
        self._after = after
        self._heard: deque[tuple[int, Sink | None]] = deque(maxlen=_AHEAD)
        self._known: deque[tuple[int, Sink]] = deque()
        self._up_to = self._newest = 0
        """All versions up to the first are known, published, or without rows; there are some up to the second."""

    def restart(self, version: int) -> None:
        """Go on behind this version."""
        self._known.clear()
        self._up_to = version

    def offer(self, committed: Manifest) -> None:
        """A version was committed. May be called from another thread; one that is missed is read from the store."""
        self._heard.append((committed.version, committed.sinks.get(self._sink)))

    def share(self, place: Place, max_rows: int) -> Share | None:
        """What is published next behind a place; None when all that is committed is."""
        while self._heard:
            version, heard = self._heard.popleft()
            self._newest = max(self._newest, version)
            if version == self._up_to + 1 and len(self._known) < _AHEAD:
                self._add(version, heard)
        while self._known and self._known[0][0] <= place.version:
            self._known.popleft()
        while not self._known and self._up_to < self._newest:
            for manifest in islice(self._after(self._up_to), _READ):
                self._add(manifest.version, manifest.sinks.get(self._sink))
        if not self._known:
            return None
        taken = [self._known[0]]
        rows = taken[0][1].rows
        for version, sink in islice(self._known, 1, None):
            rows += sink.rows
            if rows > max_rows:
                break
            taken.append((version, sink))
        version, last = taken[-1]
        attempts = frozenset(attempt for _, sink in taken for attempt in sink.attempts)
        return Share(place.offset, last.end, attempts, Place(version, last.end, last.sent))

    def passed(self, place: Place) -> Place:
        """The place, where there is nothing to publish, behind the versions without rows that came since."""
        return place if self._known else replace(place, version=max(place.version, self._up_to))

    def _add(self, version: int, sink: Sink | None) -> None:
        if sink is not None and sink.rows:
            self._known.append((version, sink))
        self._up_to = version


class Publisher:
    """Publishes one sink, a transaction a step. `place` is how far it is, once opened."""

    def __init__(self, name: str, backlog: Backlog, target: Target, read: Read) -> None:
        self.place = Place(1, 0, 0)
        self._name = name
        self._backlog = backlog
        self._target = target
        self._read = read

    def open(self) -> None:
        """Begin, or begin again: where the target says that the last transaction ended. Raises as `Target.open`."""
        self.place = self._target.open()
        self._backlog.restart(self.place.version)

    def step(self) -> bool:
        """Publish what is next; False when all that is committed is published.

        Raises `Overtaken` or `Broken` where nothing of this step has an effect, or all of it (`open` tells),
        `Corruption` where the internal topic has not the rows that the manifests say, and another `SlackwaterError`
        where they cannot be read or published.
        """
        share = self._backlog.share(self.place, self._target.max_rows)
        if share is None:
            self.place = self._backlog.passed(self.place)
            return False
        self._target.begin(share.place.version)
        rows, most = self.place.rows, max(1, self._target.max_rows)
        for offset, part in self._read(share.start, share.end, share.attempts):
            self._target.add(part)
            rows += part.num_rows
            if self._target.max_rows and rows - self.place.rows >= most and rows < share.place.rows:
                # A version that is larger than a transaction may be is published in several.
                self._commit(Place(self.place.version, offset, rows))
                self._target.begin(share.place.version)
        if rows != share.place.rows:
            raise Corruption(
                f"the internal topic of {self._name} has {rows:,} rows up to offset {share.end}; the manifests up to "
                f"v{share.place.version} say {share.place.rows:,}",
                object_key=self._name,
                hint="was it written to by something else, or were records deleted from it?",
            )
        self._commit(share.place)
        return True

    def pass_over(self) -> int:
        """Go on behind the next version without it, as Kafka has lost it; the rows given up. Raises as `step`."""
        share = self._backlog.share(self.place, 0)
        if share is None:
            return 0
        lost = share.place.rows - self.place.rows
        self._target.begin(share.place.version)
        self._commit(share.place)
        return lost

    def _commit(self, place: Place) -> None:
        self._target.commit(place)
        self.place = place
