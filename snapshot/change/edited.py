"""Effect of an edit on a table: the changed rows, and a sorted run that contains these rows.

The stage emits nothing for edited rows. Edited rows fall due and expire like rows that the program wrote.

DuckDB runs an SQL statement on a copy of the table, which is then compared with the original. The statement can read
all tables of the cut, but no files or settings, and can change only this table.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...errors import Refused, Usage
from ...state.event_time import Due
from ...state.kinds.due import BoundDue
from ...state.kinds.kind import BoundState, Groups, MergeResult, kind_of
from ...state.kinds.state_variables import expiry_column, span_column
from ...state.step import Step
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quote_identifier
from ...store.read.multi_get import TableLookUps
from ...store.read.parts import as_tombstones
from ...store.sst import writer
from ...store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ...store.sst.schema import DUE, HASH, arrow_schema
from ...store.versions.entries.ssts import Sst
from ...store.versions.manifest import Edit, EventTime, Manifest, Sink, Table, is_internal
from ...store.versions.side_tables import part_tables, stage_of, table_name, with_part_tables
from ..cut.graph import Cut
from ..diff.key_changes import KeyChanges
from ..query.clauses import strip_comments
from ..query.row_source import MAX_EXAMPLES, RowSource, check_schema, convert_rows, format_examples, open_rows
from ..query.sql import as_user_error, connect, named_tables

DELETED = "_deleted"
"""Column of an edit: True for rows to delete."""
_CHANGING = ("UPDATE", "DELETE", "INSERT", "MERGE_INTO")
_ANOTHER_TABLE = re.compile(r"Can only (?:update|delete from|merge into) base table|is not an table")
"""Pattern of DuckDB's error for a statement that changes a view. All tables except the edited table are views."""
_BEFORE = "the table before"
_MEMORY = "1 GiB"
"""Memory limit of DuckDB for the copy of the table; DuckDB spills to disk beyond this limit."""


def changed_rows(store: ObjectStore, cache: SstCache, cut: Cut, name: str, sql: str) -> pa.Table:
    """Return the rows that an SQL statement changes in the table `name`: key, values and `DELETED`, one row per key.

    Includes internal columns, except `_due_at`. Deleted rows have null values. Scans the whole table.

    Raises `Usage` if the SQL is wrong, or is not a single statement that changes rows; `NotFound` for a missing table
    or column; and `Refused` if two rows would have equal keys, if the table has values that SQL cannot represent
    (`arrow_types.make_sql_safe`), or if a new row would have null in its key.
    """
    table = cut.tables[name].table
    assert table is not None  # noqa: S101 callers pass the name of a table in the cut
    if any(sst.unshowable for sst in cut.tables[name].ssts):
        raise Refused(
            f"{cut.app}/{name} has strings that are not UTF-8, or maps with duplicate keys, which SQL would change",
            hint="nothing was changed; edit by --rows FILE instead",
        )
    only = named_tables(sql, cut, or_all=False) | {name}
    with closing(connect(store, cache, cut, only=only, table_with_internals=name, memory=_MEMORY)) as con:
        try:
            statement = _check_statement(con, sql)
            con.execute(f"ALTER VIEW {quote_identifier(name)} RENAME TO {quote_identifier(_BEFORE)}")
            con.execute(
                f"CREATE TABLE {quote_identifier(name)} AS SELECT {_columns_of(table)} FROM {quote_identifier(_BEFORE)}"
            )
            con.execute(statement)
            return _compare(con, table, name)
        except duckdb.Error as error:
            if _ANOTHER_TABLE.search(str(error)):
                raise Usage(
                    f"an edit of {cut.app}/{name} may change only the table {name}; this statement changes another one",
                    quoted=f"statement: {sql.strip()}",
                    hint=f"edit the other table separately: slackwater edit {cut.app}/TABLE",
                ) from error
            raise as_user_error(con, sql, error) from error


def _check_statement(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    statements, quote = con.extract_statements(sql), f"statement: {sql.strip()}"
    if len(statements) != 1:
        raise Usage(f"expected one SQL statement, found {len(statements)}", quoted=quote)
    if (kind := statements[0].type.name) not in _CHANGING:
        hint = "to see rows: slackwater query"
        raise Usage(
            f"this is a {kind} statement; an edit is an UPDATE, DELETE, INSERT or MERGE", quoted=quote, hint=hint
        )
    return strip_comments(statements[0].query)


def _compare(con: duckdb.DuckDBPyConnection, table: Table, name: str) -> pa.Table:
    key = [column.name for column in table.key]
    keys, after = ", ".join(map(quote_identifier, key)), quote_identifier(name)
    con.execute(
        f"CREATE TABLE changed AS FROM {after} EXCEPT ALL SELECT {_columns_of(table)} FROM {quote_identifier(_BEFORE)}"
    )
    same = " AND ".join(
        f"t.{quote_identifier(column)} IS NOT DISTINCT FROM c.{quote_identifier(column)}" for column in key
    )
    twice = con.sql(
        f"SELECT {keys} FROM {after} t SEMI JOIN changed c ON {same} GROUP BY ALL HAVING count(*) > 1 LIMIT "
        f"{MAX_EXAMPLES}"
    ).to_arrow_table()
    if twice.num_rows:
        raise Refused(
            f"{name} would have several rows with the same key, such as {format_examples(twice)}",
            hint="nothing was changed; use UPDATE for existing keys, INSERT for new ones",
        )
    nameless = con.sql(
        f"SELECT {keys} FROM changed t ANTI JOIN {quote_identifier(_BEFORE)} c ON {same} "
        f"WHERE {' OR '.join(f't.{quote_identifier(column)} IS NULL' for column in key)} LIMIT {MAX_EXAMPLES}"
    ).to_arrow_table()
    if nameless.num_rows:
        raise Refused(
            f"{name} would have new rows with null in the key, such as {format_examples(nameless)}",
            hint="nothing was changed; give each row a value for every key column",
        )
    gone = f"SELECT {keys} FROM {quote_identifier(_BEFORE)} EXCEPT SELECT {keys} FROM {after}"
    rows = con.sql(f"SELECT *, false {DELETED} FROM changed UNION ALL BY NAME SELECT *, true {DELETED} FROM ({gone})")
    schema = arrow_schema((*table.key, *table.values))
    fields = [schema.field(column) for column in _columns(table)]
    return rows.to_arrow_table().cast(pa.schema([*fields, (DELETED, pa.bool_())]))


def _columns(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.name != DUE]


def _columns_of(table: Table) -> str:
    return ", ".join(map(quote_identifier, _columns(table)))


class Change(NamedTuple):
    """Requested change: an SQL statement, or rows to put into the table; with `DELETED`, also rows to remove."""

    sql: str = ""
    rows: pa.Table | None = None
    records: Mapping[str, pa.Table] = MappingProxyType({})
    """Encoded records for the consumers of sinks, by sink."""

    @property
    def is_computed(self) -> bool:
        """True if a replay computed the rows, so that internal columns match the other columns."""
        return self.rows is not None and DELETED in self.rows.column_names

    def compute_rows(self, store: ObjectStore, cache: SstCache, cut: Cut, stage: str) -> pa.Table:
        """Return the changed rows: key, values and `DELETED`, one row per key. Raises the errors of `changed_rows`."""
        if self.rows is None:
            return changed_rows(store, cache, cut, stage, self.sql)
        if self.is_computed:
            return self.rows
        return self.rows.append_column(DELETED, pa.array(np.zeros(self.rows.num_rows, np.bool_)))


@dataclass(frozen=True, slots=True)
class EditEffect:
    """Effect of an edit on a version: the changed rows, and SSTs that no version names yet."""

    changes: KeyChanges
    edit: Edit
    ssts: tuple[Sst, ...]
    clock_ms: int
    next_due_ms: int | None
    parts: Mapping[str, tuple[Sst, ...]] = field(default_factory=dict)
    """SSTs of tables of parts, by side-table name: the parts of deleted keys are deleted, too."""
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    """Sinks to which records were sent, in their state after these records."""

    def apply_to(self, draft: Manifest) -> Manifest:
        next_due_ms, times = self.next_due_ms, draft.event_time
        if next_due_ms is not None:
            times = times or EventTime()
            earlier = next_due_ms if times.next_due_ms is None else min(next_due_ms, times.next_due_ms)
            times = replace(times, next_due_ms=earlier)
        ssts, clock_ms = draft.ssts.plus(self.ssts), max(draft.clock_ms, self.clock_ms)
        parts = {
            name: replace(side, ssts=side.ssts.plus(self.parts.get(name, ())))
            for name, side in part_tables(draft).items()
        }
        edited = replace(
            draft,
            ssts=ssts,
            clock_ms=clock_ms,
            event_time=times,
            edited=self.edit,
            sinks={**draft.sinks, **self.sinks},
        )
        return with_part_tables(edited, parts)


def compute_edit(
    store: ObjectStore, cache: SstCache, cut: Cut, stage: str, change: Change, edit: Edit, *, writes: bool = True
) -> EditEffect | None:
    """Compute the effect of an edit on a stage's version in `cut`; None if no row changes.

    Writes one SST for each state partition with changed rows, unless `writes` is False. Raises the errors of
    `Change.compute_rows` and `bind_replacement`. Also raises `Refused` if the edit changes a derived value, such as a
    mean, but not the internal columns from which it is derived, such as sum and count. The key's next record would
    overwrite such an edit.
    """
    head = cut.stages[stage]
    table, clock_ms = require_table(head), cut.clock_ms(stage)
    state, key = bind_replacement(table, stage), [column.name for column in table.key]
    rows = normalise_keys(change.compute_rows(store, cache, cut, stage), key)
    keys, stored = rows.select(key), TableLookUps(store, cache, table, head.ssts, clock_ms)
    hashes = hash_keys(rows, key)
    old, is_stored, _ = stored.get_rows(hashes, keys)
    values = [name for name in rows.column_names if name not in (*key, DELETED)]
    is_kept = ~np.asarray(rows[DELETED])
    changes = KeyChanges.compare(keys, old.select(values), rows.select(values), is_stored, is_kept)
    is_changed = changes.kinds() != "same"
    if not is_changed.any():
        return None
    changes = changes.changed()
    if not change.is_computed:
        _check_parts(head, changes)
        _check_companions(table, stage, changes)
    if not writes:
        return EditEffect(changes.sorted_by_key(), edit, (), clock_ms, None)
    times = head.event_time.due_ms if head.event_time is not None else None
    due = Due(times, after_ms=times) if DUE in state.values.names else None
    step = Step(table, state, head.version + 1, clock_ms, due=due)
    effect = step.apply(rows.append_column(HASH, pa.array(hashes)).filter(pa.array(is_changed)), stored)
    new, latest_ms = step.with_expiry(effect.new)
    ssts = writer.write_partitions(store, cache, app=head.app, stage=stage, table=table, rows=new)
    deleted = changes.keys.filter(pa.array(changes.had_row & ~changes.has_row))
    parts = _delete_parts(store, cache, head, deleted) if deleted.num_rows else {}
    clock_ms = max(clock_ms, latest_ms or clock_ms)
    return EditEffect(changes.sorted_by_key(), edit, ssts, clock_ms, effect.next_ms, parts)


def _delete_parts(store: ObjectStore, cache: SstCache, head: Manifest, keys: pa.Table) -> dict[str, tuple[Sst, ...]]:
    ssts = {}
    for name, side in part_tables(head).items():
        rows = TableLookUps(store, cache, side.table, side.ssts, 0).get_parts(keys)[1]
        if rows.num_rows:
            new = as_tombstones(rows, side.table, head.version + 1)
            ssts[name] = writer.write_partitions(
                store, cache, app=head.app, stage=stage_of(head), table=side.table, rows=new
            )
    return ssts


def _check_parts(head: Manifest, changes: KeyChanges) -> None:
    names = changes.after.column_names
    for side, parts in part_tables(head).items():
        variable = parts.table.values[0].name
        counts = [name for name in (variable, span_column(variable), expiry_column(variable)) if name in names]
        for name in counts:
            is_new = ~changes.had_row & changes.has_row
            changed = changes.differing[name] | (is_new & np.asarray(pc.is_valid(changes.after[name])))
            if changed.any():
                examples = changes.keys.filter(pa.array(changed)).slice(0, MAX_EXAMPLES)
                raise Refused(
                    f"in {int(changed.sum()):,} rows, such as {format_examples(examples)}, the edit changes {name} of "
                    f"{head.stage}, which must agree with the rows of {table_name(head.stage, side)}",
                    hint="leave the column as it is (null in a new row); a deleted key loses its parts, too",
                )


@dataclass(frozen=True, slots=True)
class BoundReplacement(BoundState):
    """State of an edit: replaces the stored row of a key by the new row, or deletes it if `DELETED` is True."""

    values: pa.Schema

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return (*self.values.names, DELETED)

    @property
    def emitted_schemas(self) -> tuple[pa.Schema, ...]:
        return ()

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        return MergeResult(rows.select(self.values.names), np.asarray(pc.fill_null(rows[DELETED], False), np.bool_))


def bind_replacement(table: Table, name: str) -> BoundState:
    """Return the state that applies an edit to a table. Edited rows fall due like rows that the program wrote.

    Raises `Refused` in three cases: the rows belong to a Spark query outside of slackwater; the table stores lists of
    waiting rows or sessions; or only the program knows when rows fall due.
    """
    kind, values = kind_of(table.state), arrow_schema(table.values)
    if kind.external_owner:
        raise Refused(
            f"cannot edit {name}: its rows are {kind.external_owner}",
            hint="slackwater adopt turns them into the state of a stage, which can be edited",
        )
    if kind.waiting_rows:
        raise Refused(
            f"cannot edit {name}: its rows hold {kind.waiting_rows}",
            hint="reject or correct the records that they come from, and rewind to before these records",
        )
    if DUE not in values.names:
        return BoundReplacement(values)
    if not (column := kind.due_column(arrow_schema(table.key))):
        raise Refused(
            f"cannot edit {name} while its app is stopped: only its program knows when rows fall due",
            hint="start a runner of the app, which then applies the edit, and repeat this command",
        )
    return BoundDue(
        BoundReplacement(values.remove(values.get_field_index(DUE))), column, kind.due_by, final=kind.emits_once
    )


def require_table(head: Manifest) -> Table:
    if head.table is None:
        raise Refused(f"stage {head.app}/{head.stage} has no table, so there is nothing to edit")
    return head.table


def _check_companions(table: Table, stage: str, changes: KeyChanges) -> None:
    kind, names = kind_of(table.state).core, changes.after.column_names
    for name in (name for name in names if not is_internal(name)):
        companions = [companion for companion in kind.internal_renames({name: name}) if companion in names]
        if not companions:
            continue
        # In an added row, all columns are new.
        new = ~changes.had_row & changes.has_row & np.asarray(pc.is_valid(changes.after[name]))
        for companion in companions:
            unmatched = changes.differing[name] & ~changes.differing[companion]
            unmatched |= new & np.asarray(pc.is_null(changes.after[companion]))
            if unmatched.any():
                some = changes.keys.filter(pa.array(unmatched)).slice(0, MAX_EXAMPLES)
                raise Refused(
                    f"in {int(unmatched.sum()):,} rows, such as {format_examples(some)}, the edit changes {name} of "
                    f"{stage} but not {companion}, from which the next record computes {name}",
                    hint=f"set {' and '.join(companions)} as well: an edit sees them as columns of the table",
                )


def read_rows(source: RowSource, head: Manifest) -> pa.Table:
    """Read the rows of a source, one per key, with the columns of the stage's table.

    Raises `Refused` if there are no rows or several rows of one key, and the errors of `check_schema` and
    `convert_rows`.
    """
    table = require_table(head)
    shown = replace(table, values=tuple(column for column in table.values if column.name != DUE))
    with open_rows(source) as batches:
        check_schema(batches.schema, shown, source)
        schema = arrow_schema(shown.columns)
        rows = pa.Table.from_batches([convert_rows(batch, shown, source) for batch in batches], schema=schema)
    if not rows.num_rows:
        raise Refused(f"{source} has no rows: there is nothing to change")
    key = [column.name for column in table.key]
    keys = normalise_keys(rows.select(key), key)
    order, repeats = sort_keys(hash_keys(keys, key), keys)
    if repeats.any():
        some = keys.take(pa.array(order[repeats][:MAX_EXAMPLES]))
        raise Refused(f"{int(repeats.sum()):,} rows of {source} repeat the key of another row: {format_examples(some)}")
    return rows.combine_chunks()
