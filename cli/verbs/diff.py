"""`slackwater diff`: the rows that differ between two moments."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...errors import Usage
from ...results import formats
from ...results.document import Block, Name, Table, Title
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    import pyarrow as pa

    from ...snapshot.diff.key_changes import KeyChange
    from ...snapshot.diff.moments import ColumnMatch, TableDiff


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
    equal = all(each.equal for each in found)
    described = zip("ab", (before, after), (side.cut for side in sides), strict=True)
    session.show(
        {
            **{side: {"ref": ref, "cut": cut.versions, "thinned_out": cut.thinned} for side, ref, cut in described},
            "equal": equal,
            "tables": [_data(each, with_rows=not stat, with_values=not keys) for each in found],
            "file": str(out) if out is not None else None,
        },
        *_parts(found, with_rows=not stat, with_values=not keys, out=out),
    )
    if not equal:
        raise typer.Exit(1)


def _stacked(found: "Sequence[TableDiff]") -> "pa.Table":
    """The rows of all tables, with the table's name before them; columns that a table does not have are null."""
    import pyarrow as pa

    flat = ((each.table, each.changes.flat()) for each in found)
    tables = [rows.add_column(0, "table", pa.array([name] * rows.num_rows, pa.string())) for name, rows in flat]
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise Usage(f"these tables do not fit into one file: {error}", hint="--table NAME writes one of them") from None


def _data(each: "TableDiff", *, with_rows: bool, with_values: bool) -> dict[str, Any]:
    from ...results import values

    def row(change: "KeyChange") -> dict[str, Any]:
        sides = {"before": change.before, "after": change.after} if with_values else {}
        return {"key": change.key, "change": change.kind, **sides}

    return {
        "table": each.table,
        "added": each.added,
        "removed": each.removed,
        "changed": each.changed,
        "rows_in_both": each.rows_in_both,
        "about": each.about,
        "columns": each.columns,
        "unlike": each.unlike,
        "rows": values.stream(map(row, each.changes)) if with_rows else None,
    }


def _parts(found: "Sequence[TableDiff]", *, with_rows: bool, with_values: bool, out: Path | None) -> Iterator[Block]:
    for number, each in enumerate(found):
        if number:
            yield ""
        counts = ((each.added, "added"), (each.removed, "removed"), (each.changed, "changed"))
        told = ", ".join(f"{formats.count(many)} {what}" for many, what in counts if many)
        yield Title(f"{each.table}: {told or 'no row differs'}")
        yield from each.unlike
        if each.changed and each.columns:
            about = f"of {'about ' if each.about else ''}{formats.plural(each.rows_in_both, 'row')}"
            yield Table.of(("column", ">differ", f">{about} equal"), (_match(one, each) for one in each.columns))
        if with_rows and len(each.changes):
            yield ""
            yield from _rows(each, with_values=with_values, out=out)


def _match(column: "ColumnMatch", of: "TableDiff") -> tuple[str, str, str]:
    # Rounded down: all are equal only where all are.
    parts = (of.rows_in_both - column.differing) * 1_000_000 // of.rows_in_both
    return column.column, formats.count(column.differing), f"{parts / 10_000:g} %"


def _rows(each: "TableDiff", *, with_values: bool, out: Path | None) -> Iterator[Block]:
    changes = each.changes
    headings: tuple[str | Name, ...] = ("", *(Name(name) for name in changes.keys.column_names))
    some = changes.head(formats.MOST_SHOWN)
    if with_values:
        yield Table.of((*headings, "column", ">before", ">after"), (line for one in some for line in _lines(one)))
    else:
        yield Table.of(headings, map(_key, some))
    if len(changes) > formats.MOST_SHOWN:
        more = formats.count(len(changes) - formats.MOST_SHOWN)
        yield f"and {more} more; {f'all are in {out}' if out else '--json and --out FILE give all'}"
    elif out is not None:
        yield f"{formats.plural(len(changes), 'row')} in {out}"


def _key(change: "KeyChange") -> tuple[str, ...]:
    from ...results.values import word

    return change.kind, *map(word, change.key.values())


def _lines(change: "KeyChange") -> Iterator[tuple[str, ...]]:
    """A line for each value that differs; of a row that one side has, for each that it has."""
    from ...results.values import differing

    return ((*_key(change), *line) for line in differing(change.before, change.after))
