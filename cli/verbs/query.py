"""`slackwater query`: SQL over the state of an app, now or at any earlier moment."""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from ... import instants
from ...errors import Usage
from ...results import formats
from .. import options
from ..session import Session, verb

if TYPE_CHECKING:
    pass


@verb(
    "slackwater query flights                       # which tables there are",
    'slackwater query flights "SELECT * FROM carriers ORDER BY flights DESC"',
    'slackwater query flights@-5m "SELECT count(*) FROM aircraft"',
    'slackwater query flights@before-deploy "FROM aircraft" --out aircraft.parquet',
    "slackwater query flights \"FROM carriers JOIN carriers AT '-1h' AS before USING (carrier)\"",
    "slackwater query flights \"SELECT _committed_at, sum(flights) FROM versions('carriers', '-1h') GROUP BY ALL\"",
    "slackwater query flights@before-deploy \"FROM inflight('by-carrier')\"",
    "slackwater query flights@before-deploy --ui",
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
    ui: bool = options.flag("--ui", "Open DuckDB's own page in the browser, over an export of that moment."),
) -> None:
    """Query the state with DuckDB, now or at any earlier moment.

    Every table is named after its stage; TABLE AT 'MOMENT' is one at another moment, and versions('TABLE', 'FROM',
    'TO', 'STEP') one at many of its versions. Records on the way between stages are inflight('NAME'), by the name of
    the repartition topic. Without SQL the tables and their columns are listed.
    """
    if ui:
        if sql is not None or file is not None or out is not None:
            raise Usage("--ui shows all tables of a moment", hint="leave the SQL and --out away")
        _show_page(session, ref)
        return
    text = _sql(sql, file)
    if text is None:
        from ...results.rows import tables
        from ...snapshot.cut.resolve import resolve

        cut = resolve(session.store, ref, now_ms=instants.now_ms())
        session.note_thinned(ref, cut.thinned)
        session.show(tables(cut))
        return
    from ...results import values
    from ..sql import asking

    if out is not None:
        values.check_ending(out)
    with closing(session.settings.open_cache()) as cache:
        answer = asking.ask(session, cache, ref, text, session.cut_around(ref, "shown"))
    if out is None:
        asking.show(session, answer, limit)
        return
    values.write(answer.rows, out)
    number = answer.rows.num_rows
    written = {"file": str(out), "rows": number, "thinned_out": answer.cut.thinned}
    session.show(written, f"{formats.plural(number, 'row')} in {out}")


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


def _show_page(session: Session, ref: str) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    from ...pipeline.run.stopping import stop_signals
    from ...snapshot.query.export import export
    from ...snapshot.query.ui import check_page, page

    check_page()
    cut, _ = session.cut_around(ref, "shown")
    with TemporaryDirectory(prefix="slackwater-ui-") as folder, stop_signals() as stop, stop.at_once():
        with closing(session.settings.open_cache()) as cache:
            written = export(session.store, cache, cut, ref, Path(folder) / f"{cut.app}.duckdb")
        with page(written.path) as words:
            shown = {"page": words, "app": cut.app, "versions": cut.versions, "tables": written.rows}
            session.show(shown, f"{ref}: {words}; what is changed there is gone with it, and Ctrl-C ends it")
            stop.wait()
