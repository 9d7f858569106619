"""Moments as Python says them: text, datetimes, dates, and spans back from now; what an app is asked by its moments."""

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack

from ..common.argument_types import checked_methods
from ..common.durations import format_ms
from .declared.questions import DiffOptions, When
from .show.shown import Shown

if TYPE_CHECKING:
    import duckdb

    from .moment import Tables
    from .results import Difference


def in_words(moment: When) -> str:
    """What stands behind the `@` of a ref for that moment.

    Nothing is known of the future, so a `timedelta` is so long ago whatever its sign.
    """
    if isinstance(moment, timedelta):
        # Of a thousandth of a second or more: less is now.
        span_ms = round(abs(moment) / timedelta(milliseconds=1))
        return f"-{format_ms(span_ms)}" if span_ms else "now"
    return moment.isoformat() if isinstance(moment, datetime | date) else moment


class ReadableMoment(Protocol):
    """What the moments of a store and of a server have in common."""

    @property
    def tables(self) -> "Tables": ...  # noqa: D102
    def query(self, sql: str, /) -> "duckdb.DuckDBPyRelation": ...  # noqa: D102
    def get(self, table: str, key: object, /) -> dict[str, object] | None: ...  # noqa: D102
    def diff(self, other: Any, /, **options: Unpack[DiffOptions]) -> "Difference": ...  # noqa: D102


M = TypeVar("M", bound=ReadableMoment)


@checked_methods
class HasMoments(Shown, Generic[M]):
    """An app of a store or of a server: what is asked of its newest moment, or of two of its moments."""

    def at(self, moment: When = "now", *, stage: str = "") -> M:
        """Return a moment of the app."""
        raise NotImplementedError

    @property
    def tables(self) -> "Tables":
        """The tables that there are now, and their columns; `at(…).tables` are those of another moment."""
        return self.at().tables

    def query(self, sql: str) -> "duckdb.DuckDBPyRelation":
        """Query the newest tables with DuckDB's SQL, as `Moment.query`; `at(…).query` asks another moment."""
        return self.at().query(sql)

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """Return the newest row of one key, as `Moment.get`; `at(…).get` asks another moment."""
        return self.at().get(table, key)

    def diff(self, before: When, after: "When | M" = "now", **options: Unpack[DiffOptions]) -> "Difference":
        """Compare two moments, as `at` takes them and as `Moment.diff` does.

        A moment of another app, such as a clone's, is given as a `Moment`.
        """
        other = self.at(after) if isinstance(after, str | date | timedelta) else after
        return self.at(before).diff(other, **options)
