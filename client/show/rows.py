"""Output of a moment's rows: query results, a key's row, tables, exports, and rejected records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...common import instants
from ...snapshot.cut.graph import Cut
from ...snapshot.query.columns import TableColumn, describe_columns
from ...store.versions.manifest import Manifest
from . import formats, values
from .document import Cell, TableBlock, Title
from .shown import BlockGenerator, Result, attributes, operation_result, result_from_blocks

if TYPE_CHECKING:
    from ...operations.exchange.export import FolderWritten
    from ...operations.exchange.iceberg.export import WrittenTable
    from ...operations.repair.rejected_listing import RejectedRecords
    from ...snapshot.diff.asof import LabelledRows
    from ...snapshot.query.export import ExportedDatabase

_MAX_ERROR_LENGTH = 60


def query_result(table: pa.Table, other_moments: Mapping[str, Cut], cut: Cut, limit: int) -> Result:
    """Return the result of a query that also read `other_moments`. As text, shows at most `limit` rows (0 for all)."""
    moments = {
        ref: {"versions": moment.versions, "thinned_out": moment.thinned} for ref, moment in other_moments.items()
    }
    about = {"app": cut.app, "versions": cut.versions, "thinned_out": cut.thinned, "moments": moments}
    return served_query_result(table, about, limit)


def served_query_result(table: pa.Table, about: Mapping[str, object], limit: int) -> Result:
    more = table.num_rows - limit if limit else 0
    notes = [f"and {formats.plural(more, 'more row')}; --limit 0 prints all"] if more > 0 else []
    return Result({**about, **values.table_data(table)}, values.grid(table, limit or None), notes=notes)


def asof_result(joined: LabelledRows, table: str, out: Path | None, limit: int) -> Result:
    """Return the result of a join with a table's history. Shows at most `limit` rows (0 for all); none with `out`."""
    counts = {"labels": joined.rows.num_rows, "present": joined.present, "absent": joined.absent}
    sentence = (
        f"{formats.plural(joined.rows.num_rows, 'label')}{f' in {out}' if out is not None else ''}: {joined.present:,} "
        f"with a row of {table}, {joined.absent:,} without one"
    )
    if joined.unknown:
        sentence += f", {joined.unknown:,} at times for which no version is stored"
    about = {**counts, "unknown": joined.unknown}
    if out is not None:
        return Result({"file": out, **about}, sentence)
    shown = served_query_result(joined.rows, about, limit)
    return Result(shown.data, *shown.blocks, notes=[*shown.notes, sentence])


def tables_data(cut: Cut) -> list[dict[str, Any]]:
    return [
        {"table": name, "version": manifest.version, "columns": columns_data(manifest), "thinned_out": cut.thinned}
        for name, manifest in cut.tables.items()
    ]


def columns_data(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the columns of a table, key columns first, as data for JSON."""
    return [*map(asdict, describe_columns(manifest))]


def tables_result(cut: Cut) -> Result:
    columns_by_table = {name: describe_columns(manifest) for name, manifest in cut.tables.items()}
    return Result(
        tables_data(cut),
        columns_table(columns_by_table)
        if columns_by_table
        else f"{cut.ref} has no table: none of its stages keeps state",
    )


def columns_table(columns_by_table: Mapping[str, Sequence[TableColumn]]) -> TableBlock:
    def role(column: TableColumn) -> str:
        return "key" if column.key else f"since v{column.since}" if column.since else ""

    lines = (
        (name, column.name, column.type, role(column))
        for name, columns_of in columns_by_table.items()
        for column in columns_of
    )
    return TableBlock.from_rows(("table", "column", "type", ""), lines)


@result_from_blocks
def duckdb_export_result(written: ExportedDatabase, cut: Cut, ref: str, file: Path) -> BlockGenerator:
    from ...snapshot.query.export import DESCRIPTION_TABLE

    yield Title(f"{ref} in {file}, {formats.size(written.bytes)}; table {DESCRIPTION_TABLE} describes it")
    lines = ((name, f"v{written.versions[name]}", number) for name, number in written.rows.items())
    yield TableBlock.from_rows(("table", ">version", ">rows"), lines)
    about = {"file": file, "bytes": written.bytes, "tables": written.rows, "thinned_out": cut.thinned}
    return attributes(cut, "app", "versions", **about)


def file_export_result(file: Path, table: str, num_rows: int, cut: Cut) -> Result:
    about = {"file": file, "table": table, "rows": num_rows, "thinned_out": cut.thinned}
    return Result(about, f"{formats.plural(num_rows, 'row')} of {table} in {file}")


@result_from_blocks
def folder_export_result(written: FolderWritten, cut: Cut) -> BlockGenerator:
    from ...operations.exchange.export import DOCUMENT

    export, folder = written.export, written.path
    yield Title(f"{export.ref} in {folder}, {formats.size(written.bytes)}; {DOCUMENT} describes the files")
    versions = {name: f"v{export.stages[table.stage].version}" for name, table in export.tables.items()}
    lines = (
        (name, versions[name], table.rows, formats.size(table.bytes), f"{folder}/tables/{name}")
        for name, table in export.tables.items()
    )
    yield TableBlock.from_rows(("table", ">version", ">rows", ">size", "files in"), lines)
    in_flight = {channel_part.channel: 0 for channel_part in export.in_flight}
    for channel_part in export.in_flight:
        in_flight[channel_part.channel] += sum(channel_part.counts)
    if rows := sum(in_flight.values()):
        yield f"{formats.plural(rows, 'in-flight row')} in {folder}/in-flight"
    about = {"tables": {name: table.rows for name, table in export.tables.items()}, "in_flight": in_flight}
    return attributes(cut, "app", "versions", folder=folder, bytes=written.bytes, thinned_out=cut.thinned) | about


@result_from_blocks
def iceberg_result(done: Sequence[WrittenTable], cut: Cut, ref: str, root: str) -> BlockGenerator:
    written = sum(table.written_bytes for table in done)
    yield Title(f"{ref} as Iceberg tables in {root}, {formats.size(written)} written")
    moved = {True: "new snapshot", False: "as it was"}
    lines = ((t.name, f"v{t.version}", t.rows, t.files, formats.size(t.bytes), t.hidden, moved[t.moved]) for t in done)
    yield TableBlock.from_rows(("table", ">version", ">rows", ">files", ">bytes", ">hidden", ""), lines)
    if entries := [table.registered for table in done if table.registered]:
        yield f"registered as {', '.join(entries)}"
    if copied := sum(table.copied for table in done):
        yield f"{formats.plural(copied, 'file')} from before a migration had to be rewritten"
    if not done:
        yield f"{cut.ref} has no table: none of its stages keeps state"
    return attributes(
        cut, "app", "versions", root=root, thinned_out=cut.thinned, tables=[asdict(table) for table in done]
    )


def null_hint(key: Sequence[str]) -> str:
    """Return a hint about the spelling of null if `key` has a null; otherwise an empty text."""
    return r" (\N is null; for the text \N write \\N)" if r"\N" in key else ""


def get_result(
    read: pa.Table, cut: Cut, effort: Mapping[str, int], table: str, key: Sequence[str], *, verbose: bool
) -> Result:
    """Return the result of `get`. `key` is as the user typed it; `verbose` adds the bytes and requests in `effort`."""
    (row_values,) = values.rows_as_dicts(read) or (None,)
    lines = ((name, values.format_value(value)) for name, value in (row_values or {}).items())
    data = {"found": row_values is not None, "row": row_values, "read": effort, "thinned_out": cut.thinned}
    notes = [f"table {table} of {cut.ref} has no key {' '.join(key)}{null_hint(key)}"] if row_values is None else []
    if verbose:
        requests = formats.plural(effort["requests"], "request")
        notes.append(f"read {formats.size(effort['bytes'])} of {formats.size(effort['table_bytes'])} in {requests}")
    return Result(
        data,
        *([TableBlock.from_rows(("column", "value"), lines)] if row_values else []),
        notes=notes,
        failed=row_values is None,
    )


def rejected_records_result(listing: RejectedRecords, limit: int) -> Result:
    records = values.encode_array(map(asdict, listing.records))
    data = {"app": listing.app, "total": dict(listing.total), "waiting": dict(listing.waiting), "records": records}
    if not listing.records:
        none = f"no rejected record of {listing.app} waits for a retry"
        return Result(data, none if listing.total else f"no stage of {listing.app} rejected a record")
    rows: list[tuple[Cell, ...]] = []
    for record in listing.records:
        sentence = record.message.partition("\n")[0]
        error = f"{record.error}: {sentence[:_MAX_ERROR_LENGTH]}{'…' * (len(sentence) > _MAX_ERROR_LENGTH)}"
        done = "waits" if record.retried is None else f"retried by v{record.retried}"
        when = instants.format_with_age(record.rejected_ms)
        rows.append((record.stage, record.address, when, str(record.attempts), error, done))
    waiting = ((name, formats.plural(listing.waiting[name], "record"), total) for name, total in listing.total.items())
    counts = "; ".join(f"{name}: {records} waiting of {total:,}" for name, records, total in waiting)
    is_part = len(listing.records) == limit
    notes = [f"the newest {formats.plural(limit, 'record')}; --limit 0 shows all"] if is_part else []
    table = TableBlock.from_rows(("stage", "record", "rejected", ">attempts", "error", ""), rows)
    return Result(data, table, "", counts, notes=notes)


@operation_result
def retry_result(app_name: str, waiting: Mapping[str, int], running: set[str], *, dry_run: bool) -> BlockGenerator:
    if not waiting:
        yield f"no rejected record of {app_name} waits for a retry"
    for name, count in waiting.items():
        who = "the runner does it within seconds" if name in running else "the next `slackwater run` does it"
        action = "would be retried" if dry_run else "will be retried"
        yield f"{app_name}/{name}: {formats.plural(count, 'rejected record')} {action}; {who}"
    return {"app": app_name, "waiting": waiting, "running": sorted(running & waiting.keys())}
