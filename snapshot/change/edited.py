"""What an edit makes of a version of a table: the rows that change, and one more sorted run with them.

Nothing is emitted for them, and they fall due and expire as those that the program writes.

An SQL statement is carried out by DuckDB on a copy, which is compared with the table. The statement sees all tables of
the moment, no file and no setting, and can change that one table alone.
"""

import re
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...errors import Refused, Usage
from ...state.event_time import Due
from ...state.kinds.kind import kind_of
from ...state.kinds.replaced import DELETED, replaced
from ...state.step import Step
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quoted
from ...store.read.multi_get import LookUps
from ...store.sst import writer
from ...store.sst.hashing import hash_keys, normalise_keys, sort_keys
from ...store.sst.types import DUE, HASH, arrow_schema
from ...store.versions.manifest import Edit, EventTime, Manifest, Sst, Table, is_internal
from ..cut.graph import Cut
from ..diff.key_changes import KeyChanges
from ..query.clauses import bare
from ..query.row_source import EXAMPLES, RowSource, check, examples, fit, reading
from ..query.sql import connect, in_words, named_tables

_CHANGING = ("UPDATE", "DELETE", "INSERT", "MERGE_INTO")
_ANOTHER_TABLE = re.compile(r"Can only (?:update|delete from|merge into) base table|is not an table")
"""How DuckDB says that a statement changes a view, as which the app's other tables are there."""
_BEFORE = "the table before"
_MEMORY = "1 GiB"
"""What the copy may take; beyond that, DuckDB goes to disk."""


def changed_rows(store: ObjectStore, cache: SstCache, cut: Cut, name: str, sql: str) -> pa.Table:
    """The rows of the table `name` that a statement changes: key, values and `DELETED`, one of each key.

    Internal columns are there as well, but for `_due_at`. Of rows that go, values are null. Takes as long as a scan of
    the table.

    Raises `Usage` where the SQL is wrong, or no single statement that changes rows, `NotFound` where it names a table
    or column that there is not, and `Refused` where two rows would have one key, or the table has values that SQL has
    none for (`sst.showable`), or a new row would have null in its key.
    """
    table = cut.tables[name].table
    assert table is not None  # noqa: S101  it is among the cut's tables
    if any(sst.unshowable for sst in cut.tables[name].ssts):
        raise Refused(
            f"{cut.app}/{name} has strings that are no UTF-8, or maps with a key twice: SQL would write others in "
            "their place",
            hint="nothing was changed; --rows FILE puts rows without SQL",
        )
    only = named_tables(sql, cut, or_all=False) | {name}
    with closing(connect(store, cache, cut, only=only, whole=name, memory=_MEMORY)) as con:
        try:
            statement = _changing(con, sql)
            con.execute(f"ALTER VIEW {quoted(name)} RENAME TO {quoted(_BEFORE)}")
            con.execute(f"CREATE TABLE {quoted(name)} AS SELECT {_columns_of(table)} FROM {quoted(_BEFORE)}")
            con.execute(statement)
            return _compared(con, table, name)
        except duckdb.Error as error:
            if _ANOTHER_TABLE.search(str(error)):
                raise Usage(
                    f"an edit of {cut.app}/{name} changes the table {name} alone, and this statement changes another",
                    quoted=f"statement: {sql.strip()}",
                    hint=f"the other one is changed by an edit of its own: slackwater edit {cut.app}/TABLE",
                ) from error
            raise in_words(con, sql, error) from error


def _changing(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    statements, quote = con.extract_statements(sql), f"statement: {sql.strip()}"
    if len(statements) != 1:
        raise Usage(f"expected one SQL statement, found {len(statements)}", quoted=quote)
    if (kind := statements[0].type.name) not in _CHANGING:
        hint = "to see rows: slackwater query"
        raise Usage(
            f"this is a {kind} statement; an edit is an UPDATE, DELETE, INSERT or MERGE", quoted=quote, hint=hint
        )
    return bare(statements[0].query)


def _compared(con: duckdb.DuckDBPyConnection, table: Table, name: str) -> pa.Table:
    key = [column.name for column in table.key]
    keys, after = ", ".join(map(quoted, key)), quoted(name)
    con.execute(f"CREATE TABLE changed AS FROM {after} EXCEPT ALL SELECT {_columns_of(table)} FROM {quoted(_BEFORE)}")
    same = " AND ".join(f"t.{quoted(one)} IS NOT DISTINCT FROM c.{quoted(one)}" for one in key)
    twice = con.sql(
        f"SELECT {keys} FROM {after} t SEMI JOIN changed c ON {same} GROUP BY ALL HAVING count(*) > 1 LIMIT {EXAMPLES}"
    ).to_arrow_table()
    if twice.num_rows:
        raise Refused(
            f"{name} would have several rows of one key, such as {examples(twice)}",
            hint="nothing was changed; UPDATE changes rows that are there, INSERT is for keys that are not",
        )
    nameless = con.sql(
        f"SELECT {keys} FROM changed t ANTI JOIN {quoted(_BEFORE)} c ON {same} "
        f"WHERE {' OR '.join(f't.{quoted(one)} IS NULL' for one in key)} LIMIT {EXAMPLES}"
    ).to_arrow_table()
    if nameless.num_rows:
        raise Refused(
            f"{name} would have new rows without a key, such as {examples(nameless)}",
            hint="nothing was changed; give each row a value in every column of the key",
        )
    gone = f"SELECT {keys} FROM {quoted(_BEFORE)} EXCEPT SELECT {keys} FROM {after}"
    rows = con.sql(f"SELECT *, false {DELETED} FROM changed UNION ALL BY NAME SELECT *, true {DELETED} FROM ({gone})")
    wanted = arrow_schema((*table.key, *table.values))
    fields = [wanted.field(one) for one in _columns(table)]
    return rows.to_arrow_table().cast(pa.schema([*fields, (DELETED, pa.bool_())]))


def _columns(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.name != DUE]


def _columns_of(table: Table) -> str:
    return ", ".join(map(quoted, _columns(table)))


class Change(NamedTuple):
    """Rows to be changed: what a statement changes, or rows that are to be there."""

    sql: str = ""
    rows: pa.Table | None = None

    def of(self, store: ObjectStore, cache: SstCache, cut: Cut, stage: str) -> pa.Table:
        """The rows of the stage's table, key, values and `DELETED`, one of each key; errors as of `changed_rows`."""
        if self.rows is None:
            return changed_rows(store, cache, cut, stage, self.sql)
        return self.rows.append_column(DELETED, pa.array(np.zeros(self.rows.num_rows, np.bool_)))


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit makes of a version: the rows that change, and its SSTs, which no version names yet."""

    changes: KeyChanges
    """All columns that are stored, but for `_due_at`."""
    edit: Edit
    ssts: tuple[Sst, ...]
    clock_ms: int
    next_due_ms: int | None

    def onto(self, draft: Manifest) -> Manifest:
        """The version that is this edit, of an unchanged one with the number that its rows were made for."""
        known, times = self.next_due_ms, draft.event_time
        if known is not None:
            times = times or EventTime()
            earlier = known if times.next_due_ms is None else min(known, times.next_due_ms)
            times = replace(times, next_due_ms=earlier)
        ssts, clock_ms = (*draft.ssts, *self.ssts), max(draft.clock_ms, self.clock_ms)
        return replace(draft, ssts=ssts, clock_ms=clock_ms, event_time=times, edited=self.edit)


def edited(
    store: ObjectStore, cache: SstCache, cut: Cut, stage: str, change: Change, edit: Edit, *, writes: bool = True
) -> Edited | None:
    """What an edit makes of a stage's version in `cut`; None where no row changes.

    It puts one SST for each state partition with such rows, none unless it `writes`. Raises as `Change.of` and
    `replaced`, and `Refused` where a value is changed, and not what its column goes on from.
    """
    head = cut.stages[stage]
    table, clock_ms = table_of(head), cut.clock_ms(stage)
    state, key = replaced(table, stage), [column.name for column in table.key]
    rows = normalise_keys(change.of(store, cache, cut, stage), key)
    keys, stored = rows.select(key), LookUps(store, cache, table, head.ssts, clock_ms)
    hashes = hash_keys(rows, key)
    old, found, _ = stored.of_keys(hashes, keys)
    values = [name for name in rows.column_names if name not in (*key, DELETED)]
    there = ~np.asarray(rows[DELETED])
    changes = KeyChanges.between(keys, old.select(values), rows.select(values), found, there)
    mine = changes.kinds() != "same"
    if not mine.any():
        return None
    changes = changes.changed()
    _check_companions(table, stage, changes)
    if not writes:
        return Edited(changes.in_order(), edit, (), clock_ms, None)
    times = head.event_time.due_ms if head.event_time is not None else None
    due = Due(times, times, pending=False) if DUE in state.values.names else None
    step = Step(table, state, head.version + 1, clock_ms, due=due)
    made = step.made(rows.append_column(HASH, pa.array(hashes)).filter(pa.array(mine)), stored)
    new, latest_ms = step.with_expiry(made.new)
    ssts = writer.write_partitions(store, cache, app=head.app, stage=stage, table=table, rows=new)
    return Edited(changes.in_order(), edit, ssts, max(clock_ms, latest_ms or clock_ms), made.next_ms)


def table_of(head: Manifest) -> Table:
    """The table of a version. Raises `Refused` where it keeps none."""
    if head.table is None:
        raise Refused(f"stage {head.app}/{head.stage} keeps no table, so there is nothing to edit")
    return head.table


def _check_companions(table: Table, stage: str, changes: KeyChanges) -> None:
    """Refuse a changed value whose column goes on from internal ones that stayed what they were."""
    kind, names = kind_of(table.state).core, changes.after.column_names
    for name in (name for name in names if not is_internal(name)):
        behind = [each for each in kind.internal({name: name}) if each in names]
        if not behind:
            continue
        # Of a row that comes to be, all columns are new.
        new = ~changes.was & changes.is_there & np.asarray(pc.is_valid(changes.after[name]))
        for each in behind:
            alone = changes.differing[name] & ~changes.differing[each]
            alone |= new & np.asarray(pc.is_null(changes.after[each]))
            if alone.any():
                some = changes.keys.filter(pa.array(alone)).slice(0, EXAMPLES)
                raise Refused(
                    f"{name} of {stage} would change without {each}, from which it goes on with the next record, in "
                    f"{int(alone.sum()):,} rows, such as {examples(some)}",
                    hint=f"set {' and '.join(behind)} as well: they are columns of the table here",
                )


def rows_of(source: RowSource, head: Manifest) -> pa.Table:
    """Rows from elsewhere as a stage's table has them, one of each key. Raises as `check` and `fit`, and `Refused`."""
    table = table_of(head)
    shown = replace(table, values=tuple(column for column in table.values if column.name != DUE))
    with reading(source) as batches:
        check(batches.schema, shown, source)
        schema = arrow_schema(shown.columns)
        rows = pa.Table.from_batches([fit(batch, shown, source) for batch in batches], schema=schema)
    if not rows.num_rows:
        raise Refused(f"{source} has no rows: there is nothing to change")
    key = [column.name for column in table.key]
    keys = normalise_keys(rows.select(key), key)
    order, repeats = sort_keys(hash_keys(keys, key), keys)
    if repeats.any():
        some = keys.take(pa.array(order[repeats][:EXAMPLES]))
        raise Refused(f"{int(repeats.sum()):,} rows of {source} have the key of another row: {examples(some)}")
    return rows.combine_chunks()
