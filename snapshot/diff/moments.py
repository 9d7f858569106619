"""Difference between two moments, of one app or of two apps: table by table, key by key.

A user's SQL query over the differences of a table can mark keys as expected: the keys that it returns are not reported.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import NotFound, SlackwaterError, Usage
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.duckdb_view import quote_identifier
from ...store.sst.arrow_types import make_sql_safe, to_arrow
from ...store.sst.hashing import SHARE_GRANULARITY, KeyShare
from ...store.sst.schema import arrow_schema, describe_schema
from ...store.versions.manifest import Column, Manifest, Table, is_internal
from ...store.versions.side_tables import stage_of
from ..cut.graph import Cut
from ..cut.resolve import apply_known_forgets, report_if_collected, retry_if_forgotten
from ..query.columns import visible_schema
from ..query.sql import as_user_error, parse_reading_statement, run_query, sandboxed_database
from .candidates import Ancestry, changes_between, find_ancestry
from .key_changes import KeyChanges
from .stored_rows import TableSide

_COUNTED_BYTES = 1 << 20
"""Maximum size of a table that is read to count its rows; rows of larger tables are estimated."""


@dataclass(frozen=True, slots=True)
class ColumnMatch:
    """Match rate of one value column, over the keys that have a row at both moments."""

    column: str
    differing: int
    rate: float
    """Share of the rows whose values in the column are equal, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class TableDiff:
    """Difference of one table between two moments."""

    table: str
    changes: KeyChanges
    added: int
    removed: int
    changed: int
    columns: tuple[ColumnMatch, ...]
    rows_in_both: int
    about: bool
    """True if `rows_in_both` is estimated from the row counts of SSTs, which include overwritten rows.

    The rows of a large or unchanged table are not read just to count them.
    """
    unlike: tuple[str, ...]
    """Sentences on columns whose declarations differ between the two moments."""
    near: Mapping[str, int] = field(default_factory=dict)
    """Number of rows that count as equal only because of the tolerance of `equality`, by float column.

    Two moments of one app are compared exactly.
    """
    formerly: str = ""

    @property
    def is_equal(self) -> bool:
        return not len(self.changes) and not self.unlike

    def with_keys_at(self, positions: npt.NDArray[np.int64]) -> "TableDiff":
        """Return a copy with only the keys at these positions of `changes`; `rows_in_both` is unchanged."""
        changes = self.changes.take(positions)
        added, removed, changed = _count_kinds(changes)
        columns = tuple(
            replace(column, differing=int(changes.differing[column.column].sum())) for column in self.columns
        )
        return replace(self, changes=changes, columns=columns, added=added, removed=removed, changed=changed)


@dataclass(frozen=True, slots=True)
class StoredCut:
    """Cut with the store of its app."""

    store: ObjectStore
    cut: Cut


def diff(
    cache: SstCache,
    first: StoredCut,
    second: StoredCut,
    *,
    table: str = "",
    tables: Mapping[str, KeyShare | None] | None = None,
    ignore_new: bool = False,
) -> tuple[TableDiff, ...]:
    """Return the differences of all tables between two moments, upstream first. A missing table counts as empty.

    Rows that only `second` has count as added. `table` is the only table to compare; empty for all. `tables` maps the
    tables to compare to the share of their keys to compare, or to None for all keys. `ignore_new` ignores new columns
    and tables of new stages, which only `second` has. Without `ignore_new`, rows from before a migration are compared
    in the migrated columns. Reads manifests, and the SSTs written since the two moments diverged; all SSTs if they have
    nothing in common. Raises `NotFound` (neither moment has such a table, or a moment was collected meanwhile).
    """

    def compare() -> tuple[TableDiff, ...]:
        then, now = (
            StoredCut(moment.store, apply_known_forgets(moment.store, moment.cut)) for moment in (first, second)
        )
        return _diff(cache, then, now, table, tables, ignore_new=ignore_new)

    compare_retrying_first = partial(retry_if_forgotten, first.store, first.cut.app, compare)
    return retry_if_forgotten(second.store, second.cut.app, compare_retrying_first)


def _diff(
    cache: SstCache,
    first: StoredCut,
    second: StoredCut,
    table: str,
    tables: Mapping[str, KeyShare | None] | None,
    *,
    ignore_new: bool,
) -> tuple[TableDiff, ...]:
    declared = {
        name: manifest.table
        for moment in (second, first)
        for name, manifest in moment.cut.tables.items()
        if manifest.table is not None
    }
    pairs = _renamed_tables(first.cut, second.cut)
    # The order is that of the moment with more tables, so that a new stage comes after the stages that it reads.
    most, least = sorted((second.cut.tables, first.cut.tables), key=len, reverse=True)
    names = tuple(dict.fromkeys(pairs.get(name, name) for name in (*most, *least)))
    if table and table not in (*names, *pairs):
        raise NotFound(f"table at {first.cut.ref} or {second.cut.ref}", table, names)
    former = {new: old for old, new in pairs.items()}
    added_tables = new_tables(first.cut, second.cut)

    def side(moment: StoredCut, name: str) -> TableSide:
        name_then = name if name in moment.cut.tables else former.get(name, name)
        manifest = moment.cut.tables.get(name_then)
        if manifest is None or manifest.table is None:
            return TableSide(moment.store, cache, declared[name], None)
        share = tables[name] if tables is not None else None
        return TableSide(moment.store, cache, manifest.table, manifest, moment.cut.clock_ms(name_then), share)

    with report_if_collected(first.store, first.cut), report_if_collected(second.store, second.cut):
        return tuple(
            replace(
                diff_table(name, side(first, name), side(second, name), ignore_new=ignore_new),
                formerly=former.get(name, ""),
            )
            for name in ((pairs.get(table, table),) if table else names)
            if (tables is None or name in tables) and not (ignore_new and name in added_tables)
        )


def new_tables(first: Cut, second: Cut) -> dict[str, Manifest]:
    return {
        name: manifest
        for name, manifest in second.tables.items()
        if stage_of(manifest) not in first.stages and not manifest.formerly
    }


def _renamed_tables(first: Cut, second: Cut) -> dict[str, str]:
    renamed = {}
    for old_cut, new_cut in ((first, second), (second, first)):
        for new, manifest in new_cut.tables.items():
            names = [former.stage for former in manifest.formerly if former.stage in old_cut.tables]
            if new not in old_cut.tables and names and names[-1] not in new_cut.tables:
                renamed[names[-1]] = new
    return renamed


@dataclass(frozen=True, slots=True)
class _SharedHistory:
    """Common history of two sides of a table, which decides which rows and columns are comparable."""

    shared: Ancestry
    is_one_app: bool
    common_ids: int
    """Lower bound of the column ids that may denote different columns on the two sides; 0 without common ids."""

    @classmethod
    def of_sides(cls, before: TableSide, after: TableSide) -> "_SharedHistory":
        if before.manifest is None or after.manifest is None:
            return cls(Ancestry(), False, 0)
        shared = find_ancestry((before.store, before.manifest), (after.store, after.manifest))
        is_one_app = before.manifest.app == after.manifest.app and before.store.url == after.store.url
        next_ids = (table.next_id or len(table.columns) + 1 for table in (before.table, after.table))
        return cls(shared, is_one_app, max(next_ids) if is_one_app else shared.next_id)

    def independently_added_columns(self, tables: Iterable[Table]) -> set[str]:
        """Return columns that both sides added independently, so that values differ even for rows in shared SSTs."""
        if not self.shared.fork_seq:
            return set()
        new_names = (
            {column.name for id_, column in zip(table.column_ids, table.columns, strict=True) if id_ >= self.common_ids}
            for table in tables
        )
        return set.intersection(*new_names)

    def in_newest_columns(self, before: TableSide, after: TableSide) -> tuple[TableSide, TableSide]:
        """Return both sides with the columns of the newer table, if the older rows can be read with these columns.

        Otherwise returns the sides unchanged.
        """
        # A clone migrates independently. If only one side has migrated since the fork, its columns derive from the
        # other side's.
        tables, at_fork = (before.table, after.table), self.shared.table
        schemas = [table.schema for table in tables]
        is_parent = bool(self.shared.fork_seq) and at_fork is not None and at_fork.schema in schemas
        if schemas[0] == schemas[1] or not (self.is_one_app or is_parent):
            return before, after
        newest = max(tables, key=lambda table: table.schema)
        return replace(before, table=newest), replace(after, table=newest)


def diff_table(name: str, before: TableSide, after: TableSide, *, ignore_new: bool = False) -> TableDiff:
    """Return the difference of a table between two sides. `ignore_new` ignores columns that only `after` has."""
    relation, tables = _SharedHistory.of_sides(before, after), (before.table, after.table)
    had, has = (_value_columns(table, relation.common_ids) for table in tables)
    left_out = relation.independently_added_columns(tables)
    if ignore_new:
        left_out |= {column.name for number, column in has.items() if number not in had}
        has = {number: column for number, column in has.items() if number in had}
    is_migrated = tables[0].schema != tables[1].schema
    unlike = tuple(_declaration_differences(had, has, is_migrated=is_migrated, by_id=bool(relation.common_ids)))
    before, after = relation.in_newest_columns(before, after)
    if arrow_schema(before.table.key) != arrow_schema(after.table.key):
        return _diff_of_different_keys(name, before, after, unlike)
    columns_before, columns_after = visible_schema(before.table), visible_schema(after.table)
    left_out |= {*before.key, *after.key}
    common = [field.name for field in columns_before if field in columns_after and field.name not in left_out]
    # Within one app, values are stored once. Two apps may have added floats in a different order.
    compared = changes_between(before, after, relation.shared, common, tolerant=not relation.is_one_app)
    near = {column: int(flags.sum()) for column, flags in compared.near_equal.items() if flags.any()}
    changes = compared.changed().sorted_by_key()
    added, removed, changed = _count_kinds(changes)
    num_before, about = _count_rows(before, is_changed=changed > 0)
    # At least as many rows as differ, even if the estimate is smaller.
    in_both = max(num_before - removed, changed)
    columns = tuple(
        ColumnMatch(column, number := int(differs.sum()), 1 - number / in_both if in_both else 1.0)
        for column, differs in changes.differing.items()
    )
    return TableDiff(name, changes, added, removed, changed, columns, in_both, about, unlike, near)


def _diff_of_different_keys(name: str, before: TableSide, after: TableSide, unlike: tuple[str, ...]) -> TableDiff:
    was, is_now = (describe_schema(arrow_schema(side.table.key)) for side in (before, after))
    sentence = f"the key is {was} before and {is_now} after: rows cannot be compared"
    nothing = np.zeros(0, np.bool_)
    keys = arrow_schema(before.table.key).empty_table()
    changes = KeyChanges.compare(keys, pa.table({}), pa.table({}), nothing, nothing)
    return TableDiff(name, changes, 0, 0, 0, (), 0, True, (sentence, *unlike))


def _count_kinds(changes: KeyChanges) -> tuple[int, int, int]:
    kinds = changes.kinds()
    added, removed, changed = (int((kinds == kind).sum()) for kind in ("added", "removed", "changed"))
    return added, removed, changed


def _count_rows(side: TableSide, *, is_changed: bool) -> tuple[int, bool]:
    if is_changed and sum(sst.bytes for sst in side.ssts) <= _COUNTED_BYTES:
        return int((~side.flag_hidden(side.read_newest(side.ssts, 0))).sum()), False
    most_rows = sum(sst.rows - sst.tombstones for sst in side.ssts)
    return (most_rows if side.share is None else most_rows * side.share.parts // SHARE_GRANULARITY), True


def _declaration_differences(
    had: Mapping[int | str, Column], has: Mapping[int | str, Column], *, is_migrated: bool, by_id: bool
) -> Iterator[str]:
    """Yield sentences on columns whose declarations differ between the two sides.

    With `by_id`, columns are matched by their ids, so a renamed column is recognised; columns without a common id are
    matched by name.
    """
    for number in dict.fromkeys((*had, *has)):
        was, now = had.get(number), has.get(number)
        if was is None or now is None:
            column = was or now
            assert column is not None  # noqa: S101  it is one of both
            yield f"column {column.name} exists only {'before' if was else 'after'}"
            continue
        if was.name != now.name:
            yield f"column {was.name} was renamed to {now.name}"
        if was.type != now.type:
            types = f"column {now.name} is {to_arrow(was.type)} before and {to_arrow(now.type)} after"
            yield types if is_migrated else f"{types}: not compared"
        elif isinstance(number, str) and by_id:
            yield f"column {number} was added by separate migrations: not compared"


def _value_columns(table: Table, common_ids: int) -> dict[int | str, Column]:
    """Return the visible value columns of a table, by column id if it is below `common_ids`, else by name."""
    numbered = zip(table.column_ids, table.columns, strict=True)
    values = (
        (number, column) for number, column in numbered if column in table.values and not is_internal(column.name)
    )
    return {number if number < common_ids else column.name: column for number, column in values}


def check_expected_queries(queries: Iterable[str], tables: Mapping[str, Table | None]) -> None:
    """Check that each query reads the differences of exactly one of these tables and returns its key columns.

    Called before any difference exists. If a table is None, its columns are not known yet, and `without_expected`
    checks its queries later. Raises `Usage` (a query is wrong, or does not read exactly one table) and `NotFound` (no
    such column).
    """
    declared = {name: table for name, table in tables.items() if table is not None}
    with closing(
        sandboxed_database({name: _no_differences(table).to_table() for name, table in declared.items()})
    ) as con:
        for sql in queries:
            queried = _tables_read(sql, tables)
            if len(queried) != 1:
                reason = f"this one reads {' and '.join(queried)}" if queried else "this one reads none of them"
                raise Usage(
                    f"a query for expected differences must read exactly one table, of {', '.join(tables)}; {reason}",
                    quoted=f"query: {sql.strip()}",
                )
            if (table := declared.get(queried[0])) is not None:
                _expected_keys(con, queried[0], sql, [column.name for column in table.key])


def without_all_expected(
    diffs: tuple[TableDiff, ...], queries: Iterable[str]
) -> tuple[tuple[TableDiff, ...], tuple[str, ...]]:
    """Return the differences without the keys that the queries return, and the errors of failed queries.

    A failed query, such as one over a dropped column, removes no keys.
    """
    wrong = []
    for sql in queries:
        try:
            diffs = tuple(without_expected(table_diff, sql) for table_diff in diffs)
        except SlackwaterError as error:
            wrong.append(f"{error.sentence} ({sql.strip()})")
    return diffs, tuple(wrong)


def without_expected(table_diff: TableDiff, sql: str) -> TableDiff:
    """Return the differences without the keys that a query returns; unchanged if it does not read this table.

    The query reads the differences as a table of the same name: the key columns, `change` (added, removed or changed)
    and each value column as `before_…` and `after_…`. Raises `Usage` (the query is wrong, or does not return the key),
    `NotFound` (no such column) and `SlackwaterError` (the query failed).
    """
    if not _tables_read(sql, [table_diff.table]):
        return table_diff
    key = table_diff.changes.keys.column_names
    # The position identifies a key of any type.
    with closing(sandboxed_database({table_diff.table: table_diff.changes.to_table()})) as con:
        con.register("_meant", _expected_keys(con, table_diff.table, sql, key))
        con.register(
            "_all",
            make_sql_safe(table_diff.changes.keys).append_column(
                "_place", pa.array(np.arange(len(table_diff.changes)))
            ),
        )
        same = " AND ".join(
            f"a.{quote_identifier(name)} IS NOT DISTINCT FROM m.{quote_identifier(name)}" for name in key
        )
        unexpected = con.sql(f"SELECT _place FROM _all a ANTI JOIN _meant m ON {same} ORDER BY _place").to_arrow_table()
    return table_diff.with_keys_at(unexpected["_place"].to_numpy())


def _tables_read(sql: str, tables: Iterable[str]) -> list[str]:
    # DuckDB lists only tables that the connection does not have.
    with closing(sandboxed_database({})) as con:
        try:
            named = {name.casefold() for name in con.get_table_names(parse_reading_statement(con, sql, hint=""))}
        except duckdb.Error as error:
            raise as_user_error(con, sql, error) from error
    return [name for name in tables if name.casefold() in named]


def _expected_keys(con: duckdb.DuckDBPyConnection, table: str, sql: str, key: list[str]) -> pa.Table:
    rows = run_query(con, sql, hint="")
    if missing := [name for name in key if name not in rows.column_names]:
        raise Usage(
            f"a query for expected differences of {table} must return its key: {', '.join(missing)} is not among the "
            "columns of this query",
            quoted=f"query: {sql.strip()}",
        )
    return rows.select(key)


def _no_differences(table: Table) -> KeyChanges:
    keys = arrow_schema(table.key).empty_table()
    values = visible_schema(table).empty_table().drop_columns(keys.column_names)
    nothing = np.zeros(0, np.bool_)
    return KeyChanges.compare(keys, values, values, nothing, nothing)
