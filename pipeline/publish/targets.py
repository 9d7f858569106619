"""Where the rows of a sink go to, with the publisher's place: a Kafka topic, or a function of the user's.

Into a topic rows go in transactions that have the place in them: the offset on the internal topic that the stage's
consumer group has in Kafka. Beside it stands which version that is, and of which app: one that was removed and made
anew has offsets of its own.
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
    """What the store knows of a sink of a stage that was claimed."""

    store: ObjectStore
    claimed: Manifest
    name: str
    noted: Place | None = None
    """The place that the store has, as far as is known here."""

    @property
    def sink(self) -> Sink:
        return self.claimed.sinks[self.name]

    @property
    def title(self) -> str:
        """The sink, as messages name it."""
        return f"sink {self.name!r} of stage {self.claimed.stage!r}"

    def began(self) -> Place:
        """Where the sink began. Until all is published, no collection takes that version; after that, nobody asks."""
        first, since = self.claimed, self.sink.since
        if since != first.version:
            first = history.read(self.store, first.app, first.stage, since)
        return Place(since, first.sinks[self.name].end, 0)

    def decided(self) -> bool | None:
        """Whether the sink may be published: False for never, None where a promotion that gave it is not decided yet.

        One request, or none.
        """
        promotion = self.claimed.promotion
        if promotion is None or promotion.to != self.claimed.app:
            return True
        return apps.outcome(self.store, promotion)

    def read(self) -> Place | None:
        """The place that the store has, None before the first start."""
        self.noted = published.newest(self.store, self.claimed, self.name)
        return self.noted

    def note(self, place: Place) -> None:
        """Put a place into the store."""
        published.note(self.store, self.claimed, self.name, place, self.noted)
        self.noted = place

    def check_epoch(self) -> None:
        """Raise `Fenced` where somebody took the stage over."""
        claimed = self.claimed
        head = history.head(self.store, claimed.app, claimed.stage, hint=claimed.version)
        commit.check_epoch(head or claimed, claimed.epoch)


@dataclass(slots=True)
class ToTopic:
    """A target for `core.Publisher`: a topic, into which the transactions go."""

    max_rows: ClassVar[int] = 250_000

    transactions: Transactions
    book: Book
    app_id: int
    """Which app of its name this is."""
    accept_loss: bool = False
    """Whether to go on from the claim if nobody knows what was published."""

    def open(self) -> Place:
        """See the Protocol. Raises `Refused` where nobody knows any more what was published."""
        try:
            found = self.transactions.open()
            place, stored = self._place(*found) if found else None, self.book.read()
            if place is None:
                place = self._begin(stored)
        except Overtaken as error:
            raise Broken(str(error)) from error
        # Versions without rows bring no transaction; the store's place passes over them.
        return max(place, stored) if stored is not None and stored.rows == place.rows else place

    def begin(self, version: int) -> None:
        self.transactions.begin()

    def add(self, rows: pa.Table) -> None:
        """See the Protocol. The columns are those of `messages.outgoing.records`."""
        keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
        if HEADERS in rows.column_names:
            found = rows[HEADERS].to_pylist()
            self.transactions.add(keys, values, [[(one["key"], one["value"]) for one in each or ()] for each in found])
            return
        named = [name for name in rows.column_names if name.startswith(HEADER)]
        if not named:
            self.transactions.add(keys, values)
            return
        columns = zip(*(rows[name].to_pylist() for name in named), strict=True)
        names = [name.removeprefix(HEADER) for name in named]
        headers = [
            [(name, value) for name, value in zip(names, each, strict=True) if value is not None] for each in columns
        ]
        self.transactions.add(keys, values, headers)

    def commit(self, place: Place) -> None:
        self.transactions.commit(place.offset, f"{self.app_id} v{place.version} {place.rows}")

    def close(self) -> None:
        self.transactions.close()

    def _begin(self, stored: Place | None) -> Place:
        """The place of a sink of which Kafka has none: its beginning, or what the store knows for sure."""
        begin, sink = self.book.began() if stored is None else stored, self.book.sink
        if stored is not None and stored.rows < sink.sent:
            if not self.accept_loss:
                raise Refused(
                    f"Kafka has forgotten how far {self.book.title} was published: by the store at least up to "
                    f"v{stored.version}, and nobody knows whether the versions behind it were",
                    hint="it forgets offsets after offsets.retention.minutes without a commit. --accept-loss goes on "
                    "with what comes from now on; the rows in between are in the internal topic until then",
                )
            begin = Place(self.book.claimed.version, sink.end, sink.sent)
        self.transactions.begin()
        self.commit(begin)
        self.book.note(begin)
        return begin

    def _place(self, offset: int, text: str) -> Place | None:
        """What Kafka has, None where that is of another app of this name, or of an earlier sink."""
        words = text.split()
        if len(words) != 3 or words[0] != str(self.app_id):
            return None
        place = Place(int(words[1][1:]), offset, int(words[2]))
        return place if place.version >= self.book.sink.since else None


@dataclass(slots=True)
class ToFunction:
    """A target for `core.Publisher`. What is done twice, after a crash, has the same version both times."""

    max_rows: ClassVar[int] = 0

    function: VersionFunction
    book: Book
    _rows: list[pa.Table] = field(default_factory=list)

    def open(self) -> Place:
        """See the Protocol."""
        place = self.book.read()
        if place is None:
            self.book.note(place := self.book.began())
        return place

    def begin(self, version: int) -> None:
        self._rows.clear()

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def commit(self, place: Place) -> None:
        """See the Protocol. Raises `Broken` for whatever the function raises."""
        claimed = self.book.claimed
        try:
            if self._rows:  # else they are given up
                with as_user_error(f"{self.book.title}, at v{place.version}", self.function):
                    # Tasks of one version have the same columns.
                    self.function(claimed.app, claimed.stage, place.version, pa.concat_tables(self._rows))
        except SlackwaterError as error:
            # What it writes to may be away for a moment.
            raise Broken(error.message, error) from error
        self.book.note(place)

    def close(self) -> None:
        """Nothing is open."""
