"""A sink that is a user's function: it gets each version's rows, in order and at least once."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from ...errors import SlackwaterError
from ...store.versions.published import Place
from ..api.sink import VersionFunction
from ..spark.user_errors import as_user_error
from .core import Broken


class ToFunction:
    """A target for `core.Publisher`. What is done twice, after a crash, has the same version both times.

    Args:
        name: The sink's, as messages name it.
        function: The user's.
        app, stage: What it is told.
        since: Says where the sink began.
        stored: The place that the store has, None before the first start.
        note: Puts a place into the store.
    """

    max_rows = 0

    def __init__(
        self,
        name: str,
        function: VersionFunction,
        *,
        app: str,
        stage: str,
        since: Callable[[], Place],
        stored: Callable[[], Place | None],
        note: Callable[[Place], None],
    ) -> None:
        self._name, self._function, self._app, self._stage = name, function, app, stage
        self._since = since
        self._stored = stored
        self._note = note
        self._rows: list[pa.Table] = []

    def open(self) -> Place:
        """See the Protocol. Raises `Unavailable`."""
        self._rows.clear()
        place = self._stored()
        if place is None:
            self._note(place := self._since())
        return place

    def begin(self, version: int) -> None:
        """See the Protocol."""
        self._rows.clear()

    def add(self, rows: pa.Table) -> None:
        """See the Protocol."""
        self._rows.append(rows)

    def commit(self, place: Place) -> None:
        """See the Protocol. Raises `Broken` for whatever the function raises, and `Unavailable`."""
        try:
            if self._rows:  # else they are given up
                with as_user_error(f"{self._name}, at v{place.version}", self._function):
                    # Tasks of one version have the same columns.
                    self._function(self._app, self._stage, place.version, pa.concat_tables(self._rows))
        except SlackwaterError as error:
            # What it writes to may be away for a moment.
            raise Broken(error.message, error) from error
        self._note(place)

    def close(self) -> None:
        """Nothing is open."""
