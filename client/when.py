"""Moments as Python values (text, datetimes, dates, spans), and methods that read the newest moment."""

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack

from ..common.arguments import check_method_arguments
from ..common.durations import format_ms
from .declared.questions import DiffOptions, When
from .show.shown import Displayable

if TYPE_CHECKING:
    import duckdb

    from .moment import Tables
    from .results import Difference


def moment_text(moment: When) -> str:
    """Return a moment as the text that follows the `@` of a ref.

    A `timedelta` is a span before now, regardless of its sign.
    """
    if isinstance(moment, timedelta):
        # Less than a millisecond is now.
        span_ms = round(abs(moment) / timedelta(milliseconds=1))
        return f"-{format_ms(span_ms)}" if span_ms else "now"
    return moment.isoformat() if isinstance(moment, datetime | date) else moment


@check_method_arguments
class NewestMomentMethods(Displayable):
    """Base of an app of a store or a server: methods that query its newest moment, and compare two moments."""

    def at(self, moment: When = "now", *, stage: str = "") -> Any:
        """Return a moment of the app."""
        raise NotImplementedError

    @property
    def tables(self) -> "Tables":
        """Newest tables with their columns. For an earlier moment, use `at(…).tables`."""
        tables: Tables = self.at().tables
        return tables

    def query(self, sql: str) -> "duckdb.DuckDBPyRelation":
        """Query the newest tables with DuckDB SQL. For an earlier moment, use `at(…).query`. See `Moment.query`."""
        relation: duckdb.DuckDBPyRelation = self.at().query(sql)
        return relation

    def get(self, table: str, key: object) -> dict[str, object] | None:
        """Return the newest row of one key. For an earlier moment, use `at(…).get`. See `Moment.get`."""
        row: dict[str, object] | None = self.at().get(table, key)
        return row

    def diff(self, before: When, after: When | Displayable = "now", **options: Unpack[DiffOptions]) -> "Difference":
        """Compare the tables of two moments. See `Moment.diff`.

        Both moments have the forms that `at` takes. To compare with a different app, such as a clone, pass a `Moment`
        of that app.
        """
        other = after if isinstance(after, Displayable) else self.at(after)
        difference: Difference = self.at(before).diff(other, **options)
        return difference
