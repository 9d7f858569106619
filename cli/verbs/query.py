"""`slackwater query`: SQL over the state of an app, now or at any earlier moment."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import Usage
from ...settings import Settings, load
from .. import humane, options, thinned
from ..output import Output, Part, output_for
from ..tables import Grid

if TYPE_CHECKING:
    import pyarrow as pa

    from ...snapshot.cut.graph import Cut
    from ...store.objects.protocol import ObjectStore
    from ...store.versions.manifest import Manifest

__all__ = ["app"]

app = typer.Typer(add_completion=False)


@app.command(
    epilog=options.examples(
        "slackwater query flights                       # which tables there are",
        'slackwater query flights "SELECT * FROM carriers ORDER BY flights DESC"',
        'slackwater query flights@-5m "SELECT count(*) FROM aircraft"',
        'slackwater query flights@before-deploy "FROM aircraft" --out aircraft.parquet',
        "slackwater query flights@before-deploy \"FROM inflight('by-carrier')\"",
        "slackwater query flights --file report.sql --json",
    )
)
def query(
    ref: options.Ref,
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL",
            help="DuckDB SQL over the app's tables; '-' reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Read the SQL from a file."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all rows to a .parquet, .csv or .json file.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Print this many rows; 0 for all.")] = 50,
    store: options.Store = None,
    kafka: options.Kafka = None,
    as_json: options.Json = False,
) -> None:
    """Query the state with DuckDB, now or at any earlier moment.

    Every table is named after its stage; records on the way between stages are inflight('NAME'), by the name of the
    repartition topic. Without SQL the tables and their columns are listed.
    """
    settings, output, text = load(store=store, kafka=kafka), output_for(json=as_json), _sql(sql, file)
    if text is None:
        output.show(*_tables(output, settings.open_store(), ref))
        return
    from .. import values

    if out is not None:
        values.check_ending(out)
    cut, rows = _run(settings, output, ref, text)
    if out is not None:
        values.write(rows, out)
        written = {"file": str(out), "rows": rows.num_rows, "thinned_out": cut.thinned}
        output.show(written, f"{humane.plural(rows.num_rows, 'row')} in {out}")
    elif as_json:
        output.show({"app": cut.app, "versions": cut.versions, "thinned_out": cut.thinned, **values.for_json(rows)})
    else:
        output.show(None, values.grid(rows, limit or None))
        if 0 < limit < rows.num_rows:
            output.note(f"and {humane.plural(rows.num_rows - limit, 'more row')}; --limit 0 prints all")


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


def _run(settings: Settings, output: Output, ref: str, sql: str) -> "tuple[Cut, pa.Table]":
    from ...snapshot.cut.resolve import resolve_around
    from ...snapshot.query.answers import answer, later_stages
    from ...snapshot.query.channel_tables import names_channels

    store = settings.open_store()
    cut, damage = resolve_around(store, ref, now_ms=humane.now_ms())
    thinned.tell(output, ref, cut.thinned)
    if damage is not None:
        output.note(f"only {', '.join(cut.stages)} is shown, by itself: {damage.message}")
    # A stage that could not be read is none that has not begun.
    later = later_stages(store, cut) if damage is None else {}
    not_yet = [name for name, head in later.items() if head.table is not None and name.casefold() in sql.casefold()]
    reader = settings.open_channels() if names_channels(sql) else None
    with closing(settings.open_cache()) as cache:
        rows = answer(store, cache, cut, sql, later=later, reader=reader)
    for name in not_yet:
        output.note(f"note: {name} had no version yet at {ref}: it has no rows there")
    return cut, rows


def _tables(output: Output, store: "ObjectStore", ref: str) -> tuple[object, Part]:
    """The tables at a ref, for machines and for people."""
    from ...snapshot.cut.resolve import resolve

    cut = resolve(store, ref, now_ms=humane.now_ms())
    thinned.tell(output, ref, cut.thinned)
    found = [_describe(name, manifest) | {"thinned_out": cut.thinned} for name, manifest in cut.tables.items()]
    if not found:
        return found, f"{cut.ref} has no table: none of its stages keeps state"
    rows = (
        (each["table"], column["name"], column["type"], "key" if column["key"] else "")
        for each in found
        for column in each["columns"]
    )
    return found, Grid.of(("table", "column", "type", ""), rows)


def _describe(name: str, manifest: "Manifest") -> dict[str, Any]:
    from ...snapshot.query.columns import columns

    return {"table": name, "version": manifest.version, "columns": [asdict(each) for each in columns(manifest)]}
