"""`slackwater query`: SQL over the state of an app, now or at any earlier moment."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ... import instants
from ...errors import Usage
from .. import formats, options
from ..session import Session, verb
from ..tables import Grid
from ..terminal import Part

if TYPE_CHECKING:
    import pyarrow as pa

    from ...snapshot.cut.graph import Cut


@verb(
    "slackwater query flights                       # which tables there are",
    'slackwater query flights "SELECT * FROM carriers ORDER BY flights DESC"',
    'slackwater query flights@-5m "SELECT count(*) FROM aircraft"',
    'slackwater query flights@before-deploy "FROM aircraft" --out aircraft.parquet',
    "slackwater query flights@before-deploy \"FROM inflight('by-carrier')\"",
    "slackwater query flights --file report.sql --json",
    kafka=True,
)
def query(
    session: Session,
    ref: options.Ref,
    sql: str | None = options.argument(
        "SQL", "DuckDB SQL over the app's tables; '-' reads it from standard input.", None
    ),
    file: Path | None = options.option("FILE", "Read the SQL from a file.", exists=True, dir_okay=False),
    out: Path | None = options.option("FILE", "Write all rows to a .parquet, .csv or .json file."),
    limit: int = options.option("N", "Print this many rows; 0 for all.", 50, min=0),
) -> None:
    """Query the state with DuckDB, now or at any earlier moment.

    Every table is named after its stage; records on the way between stages are inflight('NAME'), by the name of the
    repartition topic. Without SQL the tables and their columns are listed.
    """
    text = _sql(sql, file)
    if text is None:
        session.show(*_tables(session, ref))
        return
    from .. import values

    if out is not None:
        values.check_ending(out)
    cut, rows = _run(session, ref, text)
    if out is not None:
        values.write(rows, out)
        written = {"file": str(out), "rows": rows.num_rows, "thinned_out": cut.thinned}
        session.show(written, f"{formats.plural(rows.num_rows, 'row')} in {out}")
    elif session.as_json:
        session.show({"app": cut.app, "versions": cut.versions, "thinned_out": cut.thinned, **values.for_json(rows)})
    else:
        session.show(None, values.grid(rows, limit or None))
        if 0 < limit < rows.num_rows:
            session.note(f"and {formats.plural(rows.num_rows - limit, 'more row')}; --limit 0 prints all")


def _sql(sql: str | None, file: Path | None) -> str | None:
    if sql is not None and file is not None:
        raise Usage("the query is given twice: as an argument and with --file", hint="give one of them")
    if file is not None:
        return _decoded(file.read_bytes(), str(file))
    return _decoded(typer.get_binary_stream("stdin").read(), "standard input") if sql == "-" else sql


def _decoded(text: bytes, where: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Usage(
            f"the SQL in {where} is not UTF-8: byte {error.start} is 0x{text[error.start]:02x}",
            hint="save it as UTF-8",
        ) from None


def _run(session: Session, ref: str, sql: str) -> "tuple[Cut, pa.Table]":
    from ...snapshot.query.answers import answer, later_stages
    from ...snapshot.query.channel_tables import names_channels

    store = session.store
    cut, is_whole = session.cut_around(ref, "shown")
    # A stage that could not be read is none that has not begun.
    later = later_stages(store, cut) if is_whole else {}
    not_yet = [name for name, head in later.items() if head.table is not None and name.casefold() in sql.casefold()]
    reader = session.settings.open_channels() if names_channels(sql) else None
    with closing(session.settings.open_cache()) as cache:
        rows = answer(store, cache, cut, sql, later=later, reader=reader)
    for name in not_yet:
        session.note(f"note: {name} had no version yet at {ref}: it has no rows there")
    return cut, rows


def _tables(session: Session, ref: str) -> tuple[object, Part]:
    """The tables at a ref, for machines and for people."""
    from ...snapshot.cut.resolve import resolve
    from ...snapshot.query.columns import columns

    cut = resolve(session.store, ref, now_ms=instants.now_ms())
    session.note_thinned(ref, cut.thinned)
    found, rows = [], []
    for name, manifest in cut.tables.items():
        listed = columns(manifest)
        described = {"table": name, "version": manifest.version, "columns": [asdict(each) for each in listed]}
        found.append(described | {"thinned_out": cut.thinned})
        rows += [(name, each.name, each.type, "key" if each.key else "") for each in listed]
    if not found:
        return found, f"{cut.ref} has no table: none of its stages keeps state"
    return found, Grid.of(("table", "column", "type", ""), rows)
