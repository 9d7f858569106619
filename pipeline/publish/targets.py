"""Targets of a sink, which store rows and the publisher's position: a Kafka topic, or a user's function.

Rows are written to a topic in transactions that also commit the position: the offset of the stage's consumer group on
the internal topic. The offset's metadata has the version and the app's id, because an app that was removed and created
again has other offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from ...errors import Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, commit, history, published
from ...store.versions.manifest import Manifest, Sink
from ...store.versions.published import Place
from ..api.sink import VersionFunction
from ..kafka.protocol import Broken, Overtaken, Transactions
from ..messages.outgoing import HEADER, HEADERS
from ..spark.user_errors import as_user_error


@dataclass(slots=True)
class Book:
    """Access to the published position, the promotion and the epoch of a sink of a claimed stage, in the store."""

    store: ObjectStore
    claimed: Manifest
    name: str
    noted: Place | None = None

    @property
    def sink(self) -> Sink:
        return self.claimed.sinks[self.name]

    @property
    def title(self) -> str:
        return f"sink {self.name!r} of stage {self.claimed.stage!r}"

    def began(self) -> Place:
        """Return the position where the sink began.

        That version is not garbage collected before all rows are published.
        """
        first, since = self.claimed, self.sink.since
        if since != first.version:
            first = history.read(self.store, first.app, first.stage, since)
        return Place(since, first.sinks[self.name].end, 0)

    def decided(self) -> bool | None:
        """Return True if the sink may be published, False if it never may, None while its promotion is undecided.

        Costs one request, or none.
        """
        promotion = self.claimed.promotion
        if promotion is None or promotion.to != self.claimed.app:
            return True
        return apps.outcome(self.store, promotion)

    def read(self) -> Place | None:
        self.noted = published.newest(self.store, self.claimed, self.name)
        return self.noted

    def note(self, place: Place) -> None:
        published.note(self.store, self.claimed, self.name, place, self.noted)
        self.noted = place

    def check_epoch(self) -> None:
        claimed = self.claimed
        head = history.head(self.store, claimed.app, claimed.stage, hint=claimed.version)
        commit.check_epoch(head or claimed, claimed.epoch)


@dataclass(slots=True)
class ToTopic:
    """Target that publishes to a Kafka topic, by transactions."""

    max_rows: ClassVar[int] = 250_000

    transactions: Transactions
    book: Book
    app_id: int
    """Number that distinguishes this app from other apps that had its name."""
    accept_loss: bool = False

    def open(self) -> Place:
        """Fence the previous publisher, and return its last position. Raises `Refused` if that is unknown."""
        try:
            committed = self.transactions.open()
            place, stored = self._place(*committed) if committed else None, self.book.read()
            if place is None:
                place = self._begin(stored)
        except Overtaken as error:
            raise Broken(str(error)) from error
        # Versions without rows make no transaction; the place in the store may be further.
        return max(place, stored) if stored is not None and stored.rows == place.rows else place

    def begin(self, version: int) -> None:
        self.transactions.begin()

    def add(self, rows: pa.Table) -> None:
        keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
        if HEADERS in rows.column_names:
            maps = rows[HEADERS].to_pylist()
            headers = [[(header["key"], header["value"]) for header in entries or ()] for entries in maps]
            self.transactions.add(keys, values, headers)
            return
        named = [name for name in rows.column_names if name.startswith(HEADER)]
        if not named:
            self.transactions.add(keys, values)
            return
        columns = zip(*(rows[name].to_pylist() for name in named), strict=True)
        names = [name.removeprefix(HEADER) for name in named]
        headers = [
            [(name, value) for name, value in zip(names, row, strict=True) if value is not None] for row in columns
        ]
        self.transactions.add(keys, values, headers)

    def commit(self, place: Place) -> None:
        self.transactions.commit(place.offset, f"{self.app_id} v{place.version} {place.rows}")

    def close(self) -> None:
        self.transactions.close()

    def _begin(self, stored: Place | None) -> Place:
        """Choose the first position of a sink that has none in Kafka, and write it to Kafka and the store.

        It is the position in the store, or the sink's beginning if the store has none. If rows may have been published
        after it, raises `Refused`; with `accept_loss`, returns the position of the claim instead.
        """
        begin, sink = self.book.began() if stored is None else stored, self.book.sink
        if stored is not None and stored.rows < sink.sent:
            if not self.accept_loss:
                raise Refused(
                    f"Kafka no longer has the position of {self.book.title}: by the store, it was published at "
                    f"least up to v{stored.version}; newer versions may or may not be",
                    hint="Kafka deletes offsets after offsets.retention.minutes without a commit. --accept-loss "
                    "continues with new rows; the rows in between are in the internal topic until then",
                )
            begin = Place(self.book.claimed.version, sink.end, sink.sent)
        self.transactions.begin()
        self.commit(begin)
        self.book.note(begin)
        return begin

    def _place(self, offset: int, text: str) -> Place | None:
        parts = text.split()
        if len(parts) != 3 or parts[0] != str(self.app_id):
            return None
        place = Place(int(parts[1][1:]), offset, int(parts[2]))
        return place if place.version >= self.book.sink.since else None


@dataclass(slots=True)
class ToFunction:
    """Target that calls a function. After a crash, the function may get a version's rows twice."""

    max_rows: ClassVar[int] = 0

    function: VersionFunction
    book: Book
    _rows: list[pa.Table] = field(default_factory=list)

    def open(self) -> Place:
        place = self.book.read()
        if place is None:
            self.book.note(place := self.book.began())
        return place

    def begin(self, version: int) -> None:
        self._rows.clear()

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def commit(self, place: Place) -> None:
        claimed = self.book.claimed
        try:
            if self._rows:  # none if the rows were skipped
                with as_user_error(f"{self.book.title}, at v{place.version}", self.function):
                    # All tasks of a version send the same columns.
                    self.function(claimed.app, claimed.stage, place.version, pa.concat_tables(self._rows))
        except SlackwaterError as error:
            # The function's destination may be unavailable for a moment.
            raise Broken(error.message, error) from error
        self.book.note(place)

    def close(self) -> None:
        ...
