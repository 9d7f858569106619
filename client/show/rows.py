"""Rows of a moment: what a query returns, a key's row, tables and their columns, exports, rejected records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...common import instants
from ...snapshot.cut.graph import Cut
from ...snapshot.query.columns import TableColumn, columns
from ...store.versions.manifest import Manifest
from . import formats, values
from .document import Cell, TableBlock, Title
from .shown import Result, Words, fields, operation, result

if TYPE_CHECKING:
    from ...operations.exchange.export import FolderWritten
    from ...operations.exchange.iceberg.export import WrittenTable
    from ...operations.repair.rejected_listing import RejectedRecords
    from ...snapshot.query.export import Exported

_MOST_ERROR = 60
"""Characters of an error that a table has room for."""


def rows(found: pa.Table, others: Mapping[str, Cut], cut: Cut, limit: int) -> Result:
    """Rows at a moment, for people the first `limit` (0 for all); `others` are other moments that were read."""
    moments = {ref: {"versions": each.versions, "thinned_out": each.thinned} for ref, each in others.items()}
    about = {"app": cut.app, "versions": cut.versions, "thinned_out": cut.thinned, "moments": moments}
    return rows_with(found, about, limit)


def rows_with(found: pa.Table, about: Mapping[str, object], limit: int) -> Result:
    """Rows, with what machines are told beside them."""
    more = found.num_rows - limit if limit else 0
    notes = [f"and {formats.plural(more, 'more row')}; --limit 0 prints all"] if more > 0 else []
    return Result({**about, **values.for_json(found)}, values.grid(found, limit or None), notes=notes)


def tables_data(cut: Cut) -> list[dict[str, Any]]:
    """The tables of a moment and their columns, for machines."""
    return [
        {"table": name, "version": each.version, "columns": columns_data(each), "thinned_out": cut.thinned}
        for name, each in cut.tables.items()
    ]


def columns_data(manifest: Manifest) -> list[dict[str, Any]]:
    """The columns of a table, the key first, for machines."""
    return [*map(asdict, columns(manifest))]


def tables(cut: Cut) -> Result:
    """The tables of a moment and their columns."""
    found = {name: columns(manifest) for name, manifest in cut.tables.items()}
    return Result(
        tables_data(cut), columns_table(found) if found else f"{cut.ref} has no table: none of its stages keeps state"
    )


def columns_table(found: Mapping[str, Sequence[TableColumn]]) -> TableBlock:
    """The columns of each table."""

    def role(column: TableColumn) -> str:
        return "key" if column.key else f"since v{column.since}" if column.since else ""

    lines = ((name, each.name, each.type, role(each)) for name, listed in found.items() for each in listed)
    return TableBlock.of(("table", "column", "type", ""), lines)


@result
def exported(written: Exported, cut: Cut, ref: str, file: Path) -> Words:
    """Tables in a file of their own."""
    from ...snapshot.query.export import ABOUT

    yield Title(f"{ref} in {file}, {formats.size(written.bytes)}; {ABOUT} says what it is")
    lines = ((name, f"v{written.versions[name]}", number) for name, number in written.rows.items())
    yield TableBlock.of(("table", ">version", ">rows"), lines)
    about = {"file": file, "bytes": written.bytes, "tables": written.rows, "thinned_out": cut.thinned}
    return fields(cut, "app", "versions", **about)


def exported_table(file: Path, table: str, num_rows: int, cut: Cut) -> Result:
    """One table in a file."""
    about = {"file": file, "table": table, "rows": num_rows, "thinned_out": cut.thinned}
    return Result(about, f"{formats.plural(num_rows, 'row')} of {table} in {file}")


@result
def exported_folder(written: FolderWritten, cut: Cut) -> Words:
    """An app at a moment, in a folder."""
    from ...operations.exchange.document import DOCUMENT

    export, folder = written.export, written.path
    yield Title(f"{export.ref} in {folder}, {formats.size(written.bytes)}; {DOCUMENT} says what it is")
    versions = {name: f"v{export.stages[table.stage].version}" for name, table in export.tables.items()}
    lines = (
        (name, versions[name], table.rows, formats.size(table.bytes), f"{folder}/tables/{name}")
        for name, table in export.tables.items()
    )
    yield TableBlock.of(("table", ">version", ">rows", ">size", "files in"), lines)
    in_flight = {each.channel: 0 for each in export.in_flight}
    for each in export.in_flight:
        in_flight[each.channel] += sum(each.counts)
    if rows := sum(in_flight.values()):
        yield f"{formats.plural(rows, 'row')} on the way between stages in {folder}/in-flight"
    about = {"tables": {name: each.rows for name, each in export.tables.items()}, "in_flight": in_flight}
    return fields(cut, "app", "versions", folder=folder, bytes=written.bytes, thinned_out=cut.thinned) | about


@result
def iceberg_tables(done: Sequence[WrittenTable], cut: Cut, ref: str, root: str) -> Words:
    """What each table is now, and what was written for it."""
    written = sum(each.written_bytes for each in done)
    yield Title(f"{ref} as Iceberg tables in {root}, {formats.size(written)} written")
    moved = {True: "new snapshot", False: "as it was"}
    lines = (
        (each.name, f"v{each.version}", each.rows, each.files, formats.size(each.bytes), each.hidden, moved[each.moved])
        for each in done
    )
    yield TableBlock.of(("table", ">version", ">rows", ">files", ">bytes", ">hidden", ""), lines)
    if copied := sum(each.copied for each in done):
        yield f"{formats.plural(copied, 'file')} from before a migration had to be written anew"
    if not done:
        yield f"{cut.ref} has no table: none of its stages keeps state"
    return fields(cut, "app", "versions", root=root, thinned_out=cut.thinned, tables=[asdict(each) for each in done])


def null_key(key: Sequence[str]) -> str:
    """Say what the null key means behind a key that was typed as one; empty for other keys."""
    return r" (\N is null; for the text \N write \\N)" if r"\N" in key else ""


def row(
    read: pa.Table, cut: Cut, effort: Mapping[str, int], table: str, key: Sequence[str], *, verbose: bool
) -> Result:
    """The row of a key, as it was typed, or none; `verbose` says what was read for it, as `Moment.look_up` gives it."""
    (found,) = values.rows(read) or (None,)
    lines = ((name, values.word(value)) for name, value in (found or {}).items())
    data = {"found": found is not None, "row": found, "read": effort, "thinned_out": cut.thinned}
    notes = [f"table {table} of {cut.ref} has no key {' '.join(key)}{null_key(key)}"] if found is None else []
    if verbose:
        requests = formats.plural(effort["requests"], "request")
        notes.append(f"read {formats.size(effort['bytes'])} of {formats.size(effort['table_bytes'])} in {requests}")
    return Result(
        data, *([TableBlock.of(("column", "value"), lines)] if found else []), notes=notes, failed=found is None
    )


def rejected(found: RejectedRecords, limit: int) -> Result:
    """Records that stages left out, newest first."""
    records = values.stream(map(asdict, found.records))
    data = {"app": found.app, "total": dict(found.total), "waiting": dict(found.waiting), "records": records}
    if not found.records:
        none = f"no rejected record of {found.app} waits"
        return Result(data, none if found.total else f"no stage of {found.app} rejected a record")
    rows: list[tuple[Cell, ...]] = []
    for each in found.records:
        sentence = each.message.partition("\n")[0]
        error = f"{each.error}: {sentence[:_MOST_ERROR]}{'…' * (len(sentence) > _MOST_ERROR)}"
        done = "waits" if each.retried is None else f"retried by v{each.retried}"
        rows.append((each.stage, each.address, instants.when(each.rejected_ms), str(each.attempts), error, done))
    waiting = ((name, formats.plural(found.waiting[name], "record"), total) for name, total in found.total.items())
    counts = "; ".join(f"{name}: {records} waiting of {total:,}" for name, records, total in waiting)
    is_part = len(found.records) == limit
    notes = [f"the newest {formats.plural(limit, 'record')}; --limit 0 shows all"] if is_part else []
    table = TableBlock.of(("stage", "record", "rejected", ">attempts", "error", ""), rows)
    return Result(data, table, "", counts, notes=notes)


@operation
def retries(app_name: str, waiting: Mapping[str, int], running: set[str], *, dry_run: bool) -> Words:
    """Rejected records that wait, by stage, and are to be put through again."""
    if not waiting:
        yield f"no rejected record of {app_name} waits to be retried"
    for name, count in waiting.items():
        who = "the runner puts them through within seconds" if name in running else "the next `slackwater run` does it"
        said = "would be put through again" if dry_run else "asked for"
        yield f"{app_name}/{name}: {formats.plural(count, 'rejected record')} {said}; {who}"
    return {"app": app_name, "waiting": waiting, "running": sorted(running & waiting.keys())}
