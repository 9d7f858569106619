"""Destinations of a sink's rows and of the publisher's position: a Kafka topic, or a user's function.

Rows are written to a topic in transactions that also commit the position: the offset of the stage's consumer group on
the internal topic. The offset's metadata has the version and the app's id: offsets of a removed app of the same name
are not valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from ...errors import Refused, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, commit, history, published
from ...store.versions.manifest import Manifest, Sink
from ...store.versions.published import PublishedPosition
from ..api.sink import VersionFunction
from ..kafka.protocol import ProducerFenced, TransactionalProducer, TransactionFailed
from ..messages.outgoing import record_headers
from ..spark.user_errors import as_user_error


@dataclass(slots=True)
class SinkProgress:
    """Reads and writes a sink's published position in the store. Also reads the sink's promotion and epoch."""

    store: ObjectStore
    claimed: Manifest
    name: str
    stored_position: PublishedPosition | None = None

    @property
    def sink(self) -> Sink:
        return self.claimed.sinks[self.name]

    @property
    def title(self) -> str:
        return f"sink {self.name!r} of stage {self.claimed.stage!r}"

    def first_position(self) -> PublishedPosition:
        """Return the position at which publishing of the sink began.

        The version of this position is kept from garbage collection until all rows are published.
        """
        first, since = self.claimed, self.sink.since
        if since != first.version:
            first = history.read(self.store, first.app, first.stage, since)
        return PublishedPosition(since, first.sinks[self.name].end, 0)

    def may_publish(self) -> bool | None:
        """Return True if the sink may be published, False if it never may, None if its promotion is undecided.

        Makes at most one request.
        """
        promotion = self.claimed.promotion
        if promotion is None or promotion.to != self.claimed.app:
            return True
        return apps.is_promotion_decided(self.store, promotion)

    def read_position(self) -> PublishedPosition | None:
        self.stored_position = published.newest(self.store, self.claimed, self.name)
        return self.stored_position

    def begin_position(self) -> PublishedPosition:
        """Return the stored position, or store and return the first position."""
        place = self.read_position()
        if place is None:
            self.store_position(place := self.first_position())
        return place

    def store_position(self, place: PublishedPosition) -> None:
        published.write_position(self.store, self.claimed, self.name, place, self.stored_position)
        self.stored_position = place

    def check_epoch(self) -> None:
        claimed = self.claimed
        head = history.head(self.store, claimed.app, claimed.stage, hint=claimed.version)
        commit.check_epoch(head or claimed, claimed.epoch)


@dataclass(slots=True)
class TopicTarget:
    """Target that publishes to a Kafka topic, by transactions."""

    max_rows: ClassVar[int] = 250_000

    producer: TransactionalProducer
    progress: SinkProgress
    app_id: int
    """Number that distinguishes this app from earlier apps of the same name."""
    accept_loss: bool = False

    def open(self) -> PublishedPosition:
        """Fence the previous publisher, and return the last published position. Raises `Refused` if it is unknown."""
        try:
            committed = self.producer.open()
            place, stored = self._parse_position(*committed) if committed else None, self.progress.read_position()
            if place is None:
                place = self._choose_first_position(stored)
        except ProducerFenced as error:
            raise TransactionFailed(str(error)) from error
        # Versions without rows make no transaction, so the position in the store may be newer.
        return max(place, stored) if stored is not None and stored.rows == place.rows else place

    def begin(self, version: int) -> None:
        self.producer.begin()

    def add(self, rows: pa.Table) -> None:
        self.producer.write(rows["key"].to_pylist(), rows["value"].to_pylist(), record_headers(rows))

    def commit(self, place: PublishedPosition) -> None:
        self.producer.commit(place.offset, f"{self.app_id} v{place.version} {place.rows}")

    def close(self) -> None:
        self.producer.close()

    def _choose_first_position(self, stored: PublishedPosition | None) -> PublishedPosition:
        """Choose the first position of a sink that has no position in Kafka, and write it to Kafka and the store.

        The result is the position in the store, or the sink's beginning if the store has none. If rows may have been
        published after that position, raises `Refused`; with `accept_loss`, returns the position of the claim instead.
        """
        begin, sink = self.progress.first_position() if stored is None else stored, self.progress.sink
        if stored is not None and stored.rows < sink.sent:
            if not self.accept_loss:
                raise Refused(
                    f"Kafka no longer has the position of {self.progress.title}: according to the store, rows up to "
                    f"v{stored.version} were published, and rows of newer versions may have been published, too",
                    hint="Kafka deletes offsets after offsets.retention.minutes without a commit. --accept-loss "
                    "continues with new rows; until then, rows after that version can be read from the internal topic",
                )
            begin = PublishedPosition(self.progress.claimed.version, sink.end, sink.sent)
        self.producer.begin()
        self.commit(begin)
        self.progress.store_position(begin)
        return begin

    def _parse_position(self, offset: int, text: str) -> PublishedPosition | None:
        parts = text.split()
        if len(parts) != 3 or parts[0] != str(self.app_id):
            return None
        place = PublishedPosition(int(parts[1][1:]), offset, int(parts[2]))
        return place if place.version >= self.progress.sink.since else None


@dataclass(slots=True)
class FunctionTarget:
    """Target that calls a function. After a crash, the function may get a version's rows twice."""

    max_rows: ClassVar[int] = 0

    function: VersionFunction
    progress: SinkProgress
    _rows: list[pa.Table] = field(default_factory=list)

    def open(self) -> PublishedPosition:
        return self.progress.begin_position()

    def begin(self, version: int) -> None:
        self._rows.clear()

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def commit(self, place: PublishedPosition) -> None:
        claimed = self.progress.claimed
        try:
            if self._rows:  # none if the rows were skipped
                with as_user_error(f"{self.progress.title}, at v{place.version}", self.function):
                    # All tasks of a version send the same columns.
                    self.function(claimed.app, claimed.stage, place.version, pa.concat_tables(self._rows))
        except SlackwaterError as error:
            # The function's destination may be unavailable for a moment.
            raise TransactionFailed(error.message, error) from error
        self.progress.store_position(place)

    def close(self) -> None: ...
