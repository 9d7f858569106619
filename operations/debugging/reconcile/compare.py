"""Comparison of a table with external rows by key: one join of both sides, in DuckDB.

Both sides are read once. The join gives the keys that exist on one side only or have an unequal value. Only these keys
become Arrow rows, batch by batch, and `snapshot.diff.equality` decides if they differ. DuckDB writes to disk if the
data exceeds its memory limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ....common.validation import nearest_hint
from ....errors import NotFound, Refused, SlackwaterError, Usage
from ....snapshot.cut.graph import Cut
from ....snapshot.cut.resolve import report_if_collected
from ....snapshot.diff.equality import Tolerance
from ....snapshot.diff.key_changes import KeyChanges
from ....snapshot.diff.moments import ColumnMatch
from ....snapshot.query.columns import visible_schema
from ....snapshot.query.row_source import MAX_EXAMPLES, fit_columns, format_examples
from ....snapshot.query.sql import connect
from ....store.objects.protocol import ObjectStore
from ....store.read.cache import SstCache
from ....store.read.duckdb_view import quote_identifier
from ....store.sst.arrow_types import make_sql_safe
from ....store.sst.schema import arrow_schema
from ....store.versions.manifest import Table
from .theirs import Theirs, describe_theirs, open_theirs

_THEIRS, _READER, _TIME = "_theirs", "_their_rows", "_time"
_BATCH_ROWS = 1 << 17
NO_TIME = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Matching:
    """Mapping between the columns of both sides."""

    key: Mapping[str, str] = field(default_factory=dict)
    """Name of the external column, by key column of the table. A missing entry means an equal name."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Name of the external column, by value column of the table to compare.

    If empty, all value columns that both sides have under the same name are compared.
    """
    time: str = ""
    """External column with the time for which a row is valid, a timestamp or a date; empty if there is none."""
    tolerance: float = 0.0
    """Largest difference at which two numbers count as equal; 0 for the rounding tolerance of floats only."""


@dataclass(frozen=True, slots=True)
class TableComparison:
    """Numbers of equal and of differing keys, and the differing keys in key order."""

    table: str
    theirs: str
    ours_rows: int
    their_rows: int
    agree: int
    differ: int
    here_only: int
    there_only: int
    columns: tuple[ColumnMatch, ...]
    tolerance: Tolerance
    near: Mapping[str, int]
    """Number of rows, by column, that count as equal only because of the tolerance."""
    left_out: tuple[str, ...]
    """Value columns of the app's table that were not compared."""
    changes: KeyChanges
    """Differing keys, up to the requested number. `before` has the external row, `after` the app's row."""
    times_ms: npt.NDArray[np.int64] | None
    """Time of the external row (ms since 1970, or `NO_TIME`) for each key in `changes`.

    None if the external rows have no time column.
    """

    @property
    def num_different(self) -> int:
        return self.differ + self.here_only + self.there_only


def compare(
    store: ObjectStore,
    cache: SstCache,
    cut: Cut,
    table: str,
    theirs: Theirs,
    matching: Matching,
    *,
    max_keys: int | None = None,
) -> TableComparison:
    """Compare a table at a cut with external rows. The result has at most `max_keys` differing keys.

    Raises `NotFound` (no such table or column), `Usage` (the columns do not fit) and `Refused` (the source cannot be
    read, or has several rows for one key).
    """
    manifest = cut.tables.get(table)
    if manifest is None or manifest.table is None:
        raise NotFound(f"table at {cut.ref}", table, cut.tables)
    with report_if_collected(store, cut), closing(connect(store, cache, cut, only={table})) as con:
        with open_theirs(theirs) as reader:
            sides = _Sides.of(table, manifest.table, reader.schema, matching)
            sides.load(con, reader)
        sides.check_unique(con, describe_theirs(theirs))
        return _join(con, sides, describe_theirs(theirs), max_keys)


@dataclass(frozen=True, slots=True)
class _Sides:
    """Columns of both sides that are joined and compared."""

    table: str
    key: pa.Schema
    values: pa.Schema
    matching: Matching
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, table: str, declared: Table, theirs: pa.Schema, matching: Matching) -> _Sides:
        key = arrow_schema(declared.key)
        shown = [column for column in visible_schema(declared) if column.name not in key.names]
        names = [column.name for column in shown]
        for option, given, known in (("--on", matching.key, key.names), ("--columns", matching.columns, names)):
            if unknown := sorted(given.keys() - {*known}):
                kind = "key" if option == "--on" else "value"
                raise Usage(
                    f"table {table!r} has no {kind} column {unknown[0]!r}{nearest_hint(unknown[0], known)}",
                    hint=f"{option} names one of: {', '.join(known) or 'none'}",
                )
        chosen = matching.columns or [name for name in names if name in theirs.names]
        if not chosen and names:
            raise Usage(
                f"their rows have none of the value columns of {table!r}: {', '.join(names)}",
                hint=f"name the column that has one: --columns {names[0]}=COLUMN",
            )
        if matching.time and matching.time not in theirs.names:
            near = nearest_hint(matching.time, theirs.names)
            raise Usage(f"their rows have no column {matching.time!r} for the time{near}")
        compared = pa.schema([column for column in shown if column.name in chosen])
        left_out = tuple(name for name in names if name not in compared.names)
        return cls(table, key, compared, matching, left_out)

    @property
    def has_time(self) -> bool:
        return bool(self.matching.time)

    def _their_batch(self, rows: pa.Table) -> pa.Table:
        key = fit_columns(
            rows, self.key, self.matching.key, noun="their rows", role=f"the key of {self.table!r}", option="--on"
        )
        values = fit_columns(
            rows, self.values, self.matching.columns, noun="their rows", role=f"{self.table!r}", option="--columns"
        )
        columns = [*key.columns, *values.columns]
        if self.has_time:
            times = rows.column(self.matching.time)
            if not (pa.types.is_timestamp(times.type) or pa.types.is_date(times.type)):
                raise Usage(
                    f"their column {self.matching.time!r} is {times.type}; expected a timestamp or a date",
                    hint=f"SELECT * REPLACE (epoch_ms({self.matching.time}) AS {self.matching.time}) converts ms",
                )
            columns.append(times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()))
        return make_sql_safe(pa.table(columns, names=[*self.key_names, *self.value_names, *self.time_names]))

    @property
    def key_names(self) -> list[str]:
        return [f"k{number}" for number in range(len(self.key))]

    @property
    def value_names(self) -> list[str]:
        return [f"v{number}" for number in range(len(self.values))]

    @property
    def time_names(self) -> list[str]:
        return [_TIME] * self.has_time

    def load(self, con: duckdb.DuckDBPyConnection, reader: pa.RecordBatchReader) -> None:
        """Read the external rows into a table of the database. Raises the errors of `fit_columns` and of the source."""
        empty = self._their_batch(reader.schema.empty_table())
        failed: list[Exception] = []

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for batch in reader:
                    yield from self._their_batch(pa.Table.from_batches([batch])).to_batches()
            except (SlackwaterError, duckdb.Error, pa.ArrowException) as error:
                failed.append(error)  # DuckDB's own error has only its text
                raise

        con.register(_READER, pa.RecordBatchReader.from_batches(empty.schema, batches()))
        try:
            con.execute(f"CREATE TEMP TABLE {_THEIRS} AS FROM {_READER}")
        except duckdb.Error as error:
            raise (failed or [error])[0] from None
        con.unregister(_READER)

    def check_unique(self, con: duckdb.DuckDBPyConnection, source: str) -> None:
        keys = ", ".join(self.key_names)
        several = f"SELECT {keys} FROM {_THEIRS} GROUP BY {keys} HAVING count(*) > 1"
        # Counting the groups is cheaper than listing them, and normally there are none.
        ((count,),) = con.sql(f"SELECT count(*) FROM ({several})").fetchall()
        if count:
            some = con.sql(f"{several} LIMIT {MAX_EXAMPLES}").to_arrow_table().rename_columns(self.key.names)
            raise Refused(
                f"{source} has several rows for one key ({count:,} times), such as {format_examples(some)}",
                hint=f'give one row a key: --with "SELECT {", ".join(self.key.names)}, … FROM … GROUP BY ALL"',
            )

    def largest(self, con: duckdb.DuckDBPyConnection) -> dict[str, float]:
        """Return the largest absolute finite value of each float column, on both sides."""
        floats = [
            (column.name, name)
            for column, name in zip(self.values, self.value_names, strict=True)
            if pa.types.is_floating(column.type)
        ]
        if not floats:
            return {}
        sides = ((self.table, [ours for ours, _ in floats]), (_THEIRS, [name for _, name in floats]))
        tops = []
        for table, names in sides:
            columns = (f"max(abs({name})) FILTER (isfinite({name}))" for name in map(quote_identifier, names))
            tops += con.sql(f"SELECT {', '.join(columns)} FROM {quote_identifier(table)}").fetchall()
        pairs = zip(floats, *tops, strict=True)
        return {ours: float(max(first or 0.0, second or 0.0)) for (ours, _), first, second in pairs}

    def unequal(self) -> str:
        """Return an SQL query for the keys that are on one side only or have unequal values, in order of the key."""
        keys, values = self.key_names, self.value_names
        own = [f"{quote_identifier(ours)} AS {name}" for ours, name in zip(self.key.names, keys, strict=True)]
        own += [f"{quote_identifier(ours)} AS {name}" for ours, name in zip(self.values.names, values, strict=True)]
        tests = ["o._is IS NULL", "t._is IS NULL", *(f"o.{name} IS DISTINCT FROM t.{name}" for name in values)]
        shown = [f"CASE WHEN o._is THEN o.{name} ELSE t.{name} END AS {name}" for name in keys]
        shown += [f"t.{name} AS before_{name}" for name in values] + [f"o.{name} AS after_{name}" for name in values]
        shown += ["t._is IS NOT NULL AS had_row", "o._is IS NOT NULL AS has_row"]
        shown += [f"t.{name} AS {name}" for name in self.time_names]
        return (
            f"SELECT {', '.join(shown)} FROM (SELECT {', '.join(own)}, true AS _is FROM {quote_identifier(self.table)})"
            f" o FULL JOIN (SELECT *, true AS _is FROM {_THEIRS}) t "
            f"ON {' AND '.join(f'o.{name} IS NOT DISTINCT FROM t.{name}' for name in keys)} "
            f"WHERE {' OR '.join(tests)} ORDER BY {', '.join(keys)}"
        )

    def changes(self, rows: pa.Table, tolerance: Tolerance) -> KeyChanges:
        def columns(names: Sequence[str], schema: pa.Schema) -> pa.Table:
            return pa.table([rows.column(name) for name in names], names=schema.names).cast(schema)

        before, after = ([f"{side}_{name}" for name in self.value_names] for side in ("before", "after"))
        had, has = (np.asarray(rows.column(name).to_numpy(), np.bool_) for name in ("had_row", "has_row"))
        keys = columns(self.key_names, self.key)
        sides = columns(before, self.values), columns(after, self.values)
        return KeyChanges.compare(keys, *sides, had, has, tolerance=tolerance)


@dataclass
class _Tally:
    """Number of differing keys so far, and the first differing keys."""

    sides: _Sides
    tolerance: Tolerance
    room: int | None
    """Number of further keys to keep; None for no limit."""
    kinds: Counter[str] = field(default_factory=Counter)
    near: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    kept: list[KeyChanges] = field(default_factory=list)
    times: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        compared = self.sides.changes(rows, self.tolerance)
        kinds = compared.kinds()
        self.kinds.update(dict(zip(*np.unique(kinds.astype(str), return_counts=True), strict=True)))
        self.near.update({name: int(flags.sum()) for name, flags in compared.near_equal.items()})
        self.differing.update({name: int(flags.sum()) for name, flags in compared.differing.items()})
        places = np.flatnonzero(kinds != "same")[: self.room]
        if len(places) or not self.kept:
            self.room = None if self.room is None else self.room - len(places)
            self.kept.append(compared.take(places))
            if self.sides.has_time:
                self.times.append(rows.column(_TIME).fill_null(NO_TIME).to_numpy()[places])


def _join(con: duckdb.DuckDBPyConnection, sides: _Sides, source: str, max_keys: int | None) -> TableComparison:
    tables = f"(SELECT count(*) FROM {quote_identifier(sides.table)}), (SELECT count(*) FROM {_THEIRS})"
    ((ours_rows, their_rows),) = con.sql(f"SELECT {tables}").fetchall()
    tally = _Tally(sides, Tolerance(sides.matching.tolerance, sides.largest(con)), max_keys)
    reader = con.sql(sides.unequal()).to_arrow_reader(_BATCH_ROWS)
    tally.add(reader.schema.empty_table())
    for batch in reader:
        tally.add(pa.Table.from_batches([batch]))
    differ, here_only, there_only = (int(tally.kinds[kind]) for kind in ("changed", "added", "removed"))
    in_both = ours_rows - here_only
    numbers = ((name, tally.differing[name]) for name in sides.values.names)
    return TableComparison(
        table=sides.table,
        theirs=source,
        ours_rows=ours_rows,
        their_rows=their_rows,
        agree=in_both - differ,
        differ=differ,
        here_only=here_only,
        there_only=there_only,
        columns=tuple(ColumnMatch(name, count, 1 - count / in_both if in_both else 1.0) for name, count in numbers),
        tolerance=tally.tolerance,
        near={name: count for name, count in tally.near.items() if count},
        left_out=sides.left_out,
        changes=KeyChanges.concat(tally.kept),
        times_ms=np.concatenate(tally.times) if sides.has_time else None,
    )
