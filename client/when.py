"""Moments as Python says them: text, datetimes, dates, and spans back from now; what an app is asked by its moments."""

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

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


@checked_methods
class HasMoments(Shown):
    """An app of a store or of a server: what is asked of its newest moment, or of two of its moments."""

    def at(self, moment: When = "now", *, stage: str = "") -> Any:
        """Return a moment of the app."""
        raise NotImplementedError

    @property
    def tables(self) -> "Tables":
        """The tables that there are now, and their columns; `at(…).tables` are those of another moment."""
        found: Tables = self.at().tables
        return found

    def query(self, sql: str) -> "duckdb.DuckDBPyRelation":
        """Query the newest tables with DuckDB's SQL, as `Moment.query`; `at(…).query` asks another moment."""
        found: duckdb.DuckDBPyRelation = self.at().query(sql)
        return found

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """Return the newest row of one key, as `Moment.get`; `at(…).get` asks another moment."""
        found: dict[str, object] | None = self.at().get(table, key)
        return found

    def diff(self, before: When, after: When | Shown = "now", **options: Unpack[DiffOptions]) -> "Difference":
        """Compare two moments, as `at` takes them and as `Moment.diff` does.

        A moment of another app, such as a clone's, is given as a `Moment`.
        """
        other = after if isinstance(after, Shown) else self.at(after)
        found: Difference = self.at(before).diff(other, **options)
        return found
