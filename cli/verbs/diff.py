"""`slackwater diff`: the rows that differ between two moments."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import Usage
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from ...snapshot.diff.moments import TableDiff


@verb(
    "slackwater diff flights@-1h flights",
    "slackwater diff flights/carriers@v12 flights/carriers@v13 --table carriers",
    "slackwater diff flights@before-deploy flights-staging --stat",
    "slackwater diff flights@-1d flights --table carriers --out changed.parquet",
)
def diff(
    session: Session,
    before: str = options.argument("A", "A moment, as everywhere: app, app@name, app@-5m, app/stage@v42."),
    after: str = options.argument("B", "Another moment, of the same app or of another one."),
    table: str = options.option("NAME", "Only this table.", ""),
    stat: bool = options.flag("--stat", "Only how many rows differ."),
    keys: bool = options.flag("--keys", "Only the keys of the rows that differ, not their values."),
    out: Path | None = options.option("FILE", "Write all rows that differ to a .parquet, .csv or .json file."),
    to: str | None = options.option("ROOT", "Store root of B. Default: A's."),
) -> None:
    """Show which rows differ between two moments.

    For each table the rows that B added to A, removed or changed, with their values on both sides, and how far each
    column agrees. What both have is not read: versions of one app, or of an app and its clone, share most of their
    state. Exits with 1 when something differs.
    """
    from ...results import values
    from ...results.history import diff as shown
    from ...snapshot.diff.moments import StoredCut
    from ...snapshot.diff.moments import diff as differences

    if stat and keys:
        raise Usage("--stat shows no keys, so it does not go with --keys", hint="leave one of them out")
    if out is not None:
        values.check_ending(out)
    stores = session.store, session.store.at(to or "")
    sides = [
        StoredCut(store, session.cut_around(ref, "compared", store)[0])
        for store, ref in zip(stores, (before, after), strict=True)
    ]
    with closing(session.settings.open_cache()) as cache:
        found = differences(cache, *sides, table=table)
    if out is not None:
        values.write(_stacked(found), out)
    session.show(shown((before, after), sides, found, with_rows=not stat, with_values=not keys, out=out))


def _stacked(found: "Sequence[TableDiff]") -> "pa.Table":
    """The rows of all tables, with the table's name before them; columns that a table does not have are null."""
    import pyarrow as pa

    flat = ((each.table, each.changes.flat()) for each in found)
    tables = [rows.add_column(0, "table", pa.array([name] * rows.num_rows, pa.string())) for name, rows in flat]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise Usage(f"these tables do not fit into one file: {error}", hint="--table NAME writes one of them") from None
