"""A sink that is a Kafka topic: rows go there in transactions that have the publisher's place in them.

The place is the offset on the internal topic that the stage's consumer group has in Kafka, committed with the records;
beside it stands which version that is, and of which app: one that was removed and made anew has offsets of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from ...errors import Refused
from ...store.versions.published import Place
from ..kafka.protocol import Aborted, Fenced, Transactions
from ..messages.outgoing import HEADER
from .core import Broken, Overtaken

_MAX_ROWS = 250_000


class ToTopic:
    """A target for `core.Publisher`.

    Args:
        name: The sink's, as messages name it.
        transactions: Into the topic.
        app_id: Which app of its name this is.
        first: The version that began the sink.
        since: Says where that was.
        stored: The place that the store has, None before the first start.
        note: Puts a place into the store.
        sent: Rows that are committed at the start.
        given_up: Where to go on if nobody knows what was published; None to refuse that.
    """

    max_rows = _MAX_ROWS

    def __init__(
        self,
        name: str,
        transactions: Transactions,
        *,
        app_id: int,
        first: int,
        since: Callable[[], Place],
        stored: Callable[[], Place | None],
        note: Callable[[Place], None],
        sent: int,
        given_up: Place | None = None,
    ) -> None:
        self._name = name
        self._transactions = transactions
        self._app_id = app_id
        self._first, self._since = first, since
        self._stored = stored
        self._note = note
        self._sent, self._given_up = sent, given_up

    def open(self) -> Place:
        """See the Protocol. Raises `Broken`, and `Refused` where nobody knows any more what was published."""
        try:
            found = self._transactions.open()
            place, stored = self._place(*found) if found else None, self._stored()
            if place is None:
                place = self._begin(stored)
        except (Aborted, Fenced) as error:
            raise Broken(str(error)) from error
        # Versions without rows bring no transaction; the store's place passes over them.
        return max(place, stored) if stored is not None and stored.rows == place.rows else place

    def begin(self, version: int) -> None:
        """See the Protocol."""
        self._do(self._transactions.begin)

    def add(self, rows: pa.Table) -> None:
        """See the Protocol. The columns are those of `messages.outgoing.records`."""
        keys, values = rows["key"].to_pylist(), rows["value"].to_pylist()
        named = [name for name in rows.column_names if name.startswith(HEADER)]
        if not named:
            self._do(lambda: self._transactions.add(keys, values))
            return
        columns = zip(*(rows[name].to_pylist() for name in named), strict=True)
        names = [name.removeprefix(HEADER) for name in named]
        headers = [
            [(name, value) for name, value in zip(names, each, strict=True) if value is not None] for each in columns
        ]
        self._do(lambda: self._transactions.add(keys, values, headers))

    def commit(self, place: Place) -> None:
        """See the Protocol."""
        self._do(lambda: self._transactions.commit(place.offset, self._text(place)))

    def close(self) -> None:
        """Give up what is open."""
        self._transactions.close()

    def _begin(self, stored: Place | None) -> Place:
        """The place of a sink of which Kafka has none: its beginning, or what the store knows for sure."""
        begin = self._since() if stored is None else stored
        if stored is not None and stored.rows < self._sent:
            if self._given_up is None:
                raise self._forgotten(stored)
            begin = self._given_up
        self._transactions.begin()
        self._transactions.commit(begin.offset, self._text(begin))
        self._note(begin)
        return begin

    def _forgotten(self, stored: Place) -> Refused:
        return Refused(
            f"Kafka has forgotten how far {self._name} was published: by the store at least up to v{stored.version}, "
            "and nobody knows whether the versions behind it were",
            hint="it forgets offsets after offsets.retention.minutes without a commit. --accept-loss goes on with what "
            "comes from now on; the rows in between are in the internal topic until then",
        )

    def _text(self, place: Place) -> str:
        return f"{self._app_id} v{place.version} {place.rows}"

    def _place(self, offset: int, text: str) -> Place | None:
        """What Kafka has, None where that is of another app of this name, or of an earlier sink."""
        words = text.split()
        if len(words) != 3 or words[0] != str(self._app_id):
            return None
        place = Place(int(words[1][1:]), offset, int(words[2]))
        return place if place.version >= self._first else None

    def _do(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Fenced as error:
            raise Overtaken(str(error)) from error
        except Aborted as error:
            raise Broken(str(error)) from error
