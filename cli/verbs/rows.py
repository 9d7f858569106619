"""Verbs that return rows of a moment, or of many: query, get, asof, export, rejected."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Unpack

import typer

from ...client.backends import split_table_ref
from ...client.declared.questions import RejectedOptions
from ...client.show import formats
from ...client.show.shown import Result
from ...common import instants
from ...common.whole_file import check_folder_name
from ...errors import Usage
from ..options import (
    APP,
    DRY_RUN,
    KEY,
    REF,
    TABLE_AT,
    Repeated,
    argument,
    duration_option,
    flag,
    option,
    parse_key_words,
    parse_pairs,
)
from ..quick import skip_user_code_setup
from ..session import Session, check_names_table, repeat_when_due, verb


@verb(
    "slackwater query flights                       # which tables there are",
    'slackwater query flights "SELECT * FROM carriers ORDER BY flights DESC"',
    'slackwater query flights@-5m "SELECT count(*) FROM aircraft"',
    'slackwater query flights@before-deploy "FROM aircraft" --out aircraft.parquet',
    "slackwater query flights \"FROM carriers JOIN carriers AT '-1h' AS before USING (carrier)\"",
    "slackwater query flights \"FROM versions('carriers', '-1h') WHERE carrier = 'UA'\"",
    "slackwater query flights@before-deploy \"FROM inflight('by-carrier')\"",
    "slackwater query flights@before-deploy --ui",
    "slackwater query flights - --json < report.sql",
    'slackwater query flights "FROM carriers" --server http://10.0.0.7:8350',
    kafka=True,
)
def query(
    session: Session,
    ref: str = REF,
    sql: str | None = argument("SQL", "DuckDB SQL over the app's tables; '-' reads it from stdin.", None),
    out: Path | None = option("FILE", "Write all rows to a .parquet, .csv or .json file."),
    limit: int = option("N", "Maximum rows printed; 0 prints all.", 50, min=0),
    ui: bool = flag("--ui", "Open DuckDB's UI in the browser on an export of that moment."),
    server: str = option("URL", "Query a `slackwater serve` instance instead of the store.", ""),
) -> None:
    """Query the tables with DuckDB SQL, now or at any earlier moment.

    Tables are named like stages. TABLE AT 'MOMENT' is a table at another moment, versions('TABLE', 'FROM', 'TO',
    'STEP') its rows at each version in a time range, inflight('NAME') the in-flight records of a repartition topic.
    Without SQL, lists tables and columns.
    """
    if ui:
        if sql is not None or out is not None:
            raise Usage("--ui shows all tables of a moment", hint="omit the SQL and --out")
        _serve_duckdb_ui(session, ref)
        return
    skip_user_code_setup()
    from ...client.show import rows, values

    if sql == "-":
        data = typer.get_binary_stream("stdin").read()
        try:
            sql = data.decode()
        except UnicodeDecodeError as error:
            wrong = f"byte {error.start} is 0x{data[error.start]:02x}"
            raise Usage(f"the SQL in standard input is not UTF-8: {wrong}", hint="save it as UTF-8") from None
    if out is not None:
        values.check_ending(out)
        if sql is None:
            raise Usage(f"--out {out} needs a query", hint=f'such as "FROM TABLE"; or slackwater export {ref} {out}')
    if server:
        _query_server(session, server, ref, sql, out, limit)
        return
    moment = session.client.moment(ref, "shown")
    if sql is None:
        session.show(rows.tables_result(moment.cut))
        return
    table, other_cuts = moment.query_rows(sql)
    if out is None:
        session.show(rows.query_result(table, other_cuts, moment.cut, limit))
        return
    values.write_table(table, out)
    written = {"file": out, "rows": table.num_rows, "thinned_out": moment.thinned_out}
    session.show(Result(written, f"{formats.plural(table.num_rows, 'row')} in {out}"))


def _query_server(session: Session, server: str, ref: str, sql: str | None, out: Path | None, limit: int) -> None:
    from ...client import open as opened
    from ...client.show import rows, values

    with opened(server) as connection:
        moment: Any = connection.moment(ref, "shown")  # a ServedMoment, whose answer has metadata
        if sql is None:
            tables = [{"table": name, "columns": columns} for name, columns in moment.tables.items()]
            session.show(Result(tables, rows.columns_table(moment.tables)))
            return
        table, about = moment.query_rows(sql, limit=limit if limit and out is None else 10_000)
        if about["cut_off"] and (out is not None or not limit):
            raise Usage(f"the query returns more than {table.num_rows:,} rows, the server's limit", hint="add a LIMIT")
    if out is None:
        session.show(rows.served_query_result(table, about, 0))
    else:
        values.write_table(table, out)
        session.show(Result({"file": out, "rows": table.num_rows}, f"{formats.plural(table.num_rows, 'row')} in {out}"))


def _serve_duckdb_ui(session: Session, ref: str) -> None:
    """Serve DuckDB's UI on an export of the moment, until Ctrl-C or SIGTERM."""
    from ...pipeline.run.stopping import stop_signals
    from ...snapshot.query.export import check_ui_available, serve_ui

    check_ui_available()
    moment = session.client.moment(ref, "shown")
    with TemporaryDirectory(prefix="slackwater-ui-") as folder, stop_signals() as stop, stop.interruptible():
        written = moment.write_duckdb(Path(folder) / f"{moment.cut.app}.duckdb")
        with serve_ui(written.path) as url:
            shown = {"page": url, "app": moment.cut.app, "versions": moment.versions, "tables": written.rows}
            session.show(Result(shown, f"{ref}: {url}; changes made there are discarded, and Ctrl-C ends it"))
            stop.wait()


@verb(
    "slackwater get flights/carriers UA",
    "slackwater get flights/aircraft@-1h N14228 --verbose",
    """slackwater get shop/baskets '{"country": "DE", "number": 17}'""",
)
def get(
    session: Session,
    ref: str = TABLE_AT,
    key: list[str] = KEY,
    verbose: bool = flag("--verbose", "Also show bytes read and requests.", "-v"),
) -> None:
    """Print the row of one key.

    Reads only the parts of the state that can hold the key. Exits with 1 if there is no row.
    """
    skip_user_code_setup()
    from ...client.show.rows import get_result

    check_names_table(ref, key)
    moment, table = session.client.moment_of_table(ref, "read")
    lookup = moment.look_up(table, parse_key_words(key))
    session.show(get_result(*lookup, table, key, verbose=verbose))


@verb(
    "slackwater asof labels.parquet --table flights/carriers --on carrier --time decided_at --out training.parquet",
    "slackwater asof labels.csv --table flights/aircraft --on tail=tail_number --time at --by watermark",
)
def asof(
    session: Session,
    labels: str = argument("LABELS", "File with one row per label: Parquet, CSV or JSON."),
    table: str = option("APP/TABLE", "The table to read.", ...),
    time: str = option("COLUMN", "The labels' column with the time: a timestamp (UTC without a zone) or a date.", ...),
    on: Repeated = option(
        "KEY[=COLUMN]",
        "Key column KEY of the table equals column COLUMN of the labels. Default: the same names. May be repeated.",
    ),
    by: Literal["commit", "watermark"] = option(None, "Choose versions by commit time, or by watermark.", "commit"),
    out: Path | None = option("FILE", "Write all rows to a .parquet, .csv or .json file."),
    limit: int = option("N", "Maximum rows printed; 0 prints all.", 50, min=0),
) -> None:
    """Join labels with the rows as known at each label's time.

    For training sets without leaks. Each label gets its key's row in the newest version committed up to the label's
    time. asof_version names the version: 0 before the first version, null if the version was deleted or is older than
    the clone. --by watermark chooses the newest version whose watermark is not past the label's time; this version may
    have read events that are later than the label's time, by up to the watermark's delay.
    """
    from ...client.show import rows, values

    if out is not None:
        values.check_ending(out)
    app, name, moment = split_table_ref(table)
    if moment:
        raise Usage(
            f"--table {table} has a moment, but each row is read at its label's time", hint=f"omit the moment {moment}"
        )
    columns = parse_pairs("--on", on, "KEY[=COLUMN]", "carrier=code")
    joined = session.app(app).asof(labels, name, time=time, on=columns, by=by)
    if out is not None:
        values.write_table(joined.rows, out)
    session.show(rows.asof_result(joined, table, out, limit))


@verb(
    "slackwater export flights@before-deploy flights-before-deploy    # a folder of Parquet",
    "slackwater export flights@before-deploy out.duckdb",
    "slackwater export flights/carriers@-5m carriers.csv",
    "slackwater export flights@-5m carriers.duckdb --table carriers --force",
    "slackwater export flights --iceberg s3://lake/flights --every 1m --register glue.flights",
    kafka=True,
    changes=True,
)
def export(
    session: Session,
    ref: str = REF,
    to: str | None = argument(
        "DIR|FILE",
        "Folder to write, or file: .duckdb, .ddb or .db for all tables, .csv, .parquet or .json for one.",
        None,
    ),
    table: Repeated = option("NAME", "Only this table, in a file or with --iceberg. Default: all. May be repeated."),
    force: bool = flag("--force", "Overwrite an existing file."),
    iceberg: str = option(
        "ROOT", "Write Apache Iceberg metadata over the SSTs instead, under s3://bucket/prefix or a folder.", ""
    ),
    every: int | None = duration_option("With --iceberg: export again this often.", min_ms=1_000),
    keep: int = duration_option(
        "With --iceberg: how long a replaced Iceberg snapshot stays readable. Default: 1h.", 3_600_000
    ),
    register: str = option("CATALOG", "With --iceberg: an Iceberg catalog, or CATALOG.NAMESPACE, to register in.", ""),
) -> None:
    """Write a moment to a folder of Parquet, or its tables to a file.

    A folder holds the whole app: tables, in-flight records, offsets, and a document that describes each file. A DuckDB
    file holds all tables; a .csv, .parquet or .json file holds one table, of APP/TABLE or --table. Output appears
    whole or not at all. A folder's name has no extension, or ends in a slash.

    --iceberg copies no rows: Iceberg metadata points at the SSTs, and a snapshot of the app keeps them.
    """
    if iceberg:
        if to is not None or force:
            raise Usage("--iceberg writes to its own root, not to a file", hint="omit DIR, FILE and --force")
        _export_iceberg(session, ref, iceberg, table or (), every, keep, register)
        return
    if to is None or every is not None or register:
        usage_hint = "name the folder or the file to write, or write Iceberg tables: --iceberg ROOT"
        needed = f"{'--every' if every is not None else '--register'} needs --iceberg"
        raise Usage("missing argument DIR or FILE" if to is None else needed, hint=usage_hint)

    moment = session.client.moment(ref, "exported")
    with session.progress() as progress:

        def on_progress(done: int, total: int) -> None:
            progress("", f"{done:,} of {total:,} state partitions")

        written = moment.export_tables(to, table or (), force=force, on_progress=on_progress)
    session.show(written)


def _export_iceberg(
    session: Session, ref: str, root: str, tables: Sequence[str], every_ms: int | None, keep_ms: int, catalog: str
) -> None:
    """Write Iceberg tables; with `every_ms`, repeatedly until Ctrl-C or SIGTERM, printing only changes."""
    from ...client.iceberg import check_ref_is_relative, open_export, record_export
    from ...client.show.rows import iceberg_result
    from ...pipeline.run.stopping import stop_signals

    check_folder_name(root, "--iceberg")
    client = session.client
    to = open_export(client, root, keep_ms, catalog)
    if every_ms is not None:
        check_ref_is_relative(client, ref)

    def write(*, first: bool) -> None:
        cut = client.moment(ref, "exported").cut
        done = to.write(cut, instants.now_ms(), only=tables)
        if first:
            record_export(client, cut.app, ref, to.target.url, tables)
        if first or any(table.moved for table in done):
            session.show(iceberg_result(done, cut, ref, to.target.url))

    if every_ms is None:
        write(first=True)
        return
    with stop_signals() as stop, stop.interruptible():
        write(first=True)
        due_ms = instants.now_ms() + every_ms

        def again() -> None:
            nonlocal due_ms
            write(first=False)
            due_ms = max(due_ms + every_ms, instants.now_ms())

        repeat_when_due(session, stop, lambda: due_ms, again, fatal_errors=(Usage,))


@verb(
    "slackwater rejected flights",
    "slackwater rejected flights --stage legs --limit 0 --json | jq '.records[].stack'",
    "slackwater rejected flights --retry --dry-run",
    "slackwater rejected flights --retry      # once the program, or its data, is fixed",
    changes=True,
)
def rejected(
    session: Session,
    app_name: str = APP,
    limit: int = option("N", "Maximum number shown; 0 shows all.", 20, min=0),
    retry: bool = flag("--retry", "Process the waiting records with the current program."),
    dry_run: bool = DRY_RUN,
    **options: Unpack[RejectedOptions],
) -> None:
    if dry_run and not retry:
        raise Usage("--dry-run needs --retry")
    app = session.app(app_name)
    if retry:
        session.show(app.retry(options["stage"], dry_run=dry_run))
    else:
        from ...client.show.rows import rejected_records_result as shown

        session.show(shown(app.rejected(limit=limit, **options), limit))
