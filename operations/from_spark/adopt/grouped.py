"""Rows of a table that are made of several of a query's: lists of sessions, of rows that wait, all variables of a key.

A query's change is one of them; the table's is the whole row. So the query's rows are kept beside, in a database that
goes to disk where they are many, and of each batch the keys that it touched are put together again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field

import duckdb
import pyarrow as pa

from ....store.sst.types import arrow_schema
from ....store.versions.manifest import Table
from ...exchange.initialise import MEMORY
from ..attach.tables import fitting
from ..checkpoint.protocol import DELETED, ReadableTable
from .columns import Array, MadeColumn, with_gone

_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class KeyPart:
    """What one of the query's tables gives."""

    state: ReadableTable
    made: tuple[MadeColumn, ...]
    """The table's key, what tells rows of one key apart, and what is kept of each row: columns of the database's."""
    ids: tuple[str, ...]
    """Those that tell the rows of one key apart."""
    per_key: tuple[tuple[str, str], ...]
    """What is made of all rows of a key: columns, and aggregates in DuckDB's SQL."""

    def flat(self, state: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Rows with these of its columns."""
        makers = {each.column: each for each in self.made}
        return pa.table([_chunked(makers[name].make(state)) for name in columns], names=list(columns))


@dataclass(slots=True)
class Grouped:
    """Rows of a table, each made of the rows of its key in the query's tables. See `adoption.AdoptedRows`.

    `values` are the table's value columns in DuckDB's SQL, over what `KeyPart.per_key` gives.
    """

    parts: tuple[KeyPart, ...]
    table: Table
    values: tuple[tuple[str, str], ...]
    made: tuple[MadeColumn, ...]
    """For people."""
    key: tuple[str, ...] = field(init=False)
    _con: duckdb.DuckDBPyConnection | None = field(default=None, init=False)
    _: InitVar[None] = None

    def __post_init__(self, _: None) -> None:
        self.key = tuple(column.name for column in self.table.key)

    @property
    def states(self) -> tuple[ReadableTable, ...]:
        """The query's tables."""
        return tuple(each.state for each in self.parts)

    def whole(self, states: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.Table]:
        """All rows of the table at the end of a batch."""
        self.recall(states)
        yield from self._rows("")

    def recall(self, states: Sequence[Iterable[pa.RecordBatch]]) -> None:
        """Begin with what the query's tables had at the end of a batch."""
        # Here, and not above: who only wants to know the mapping needs no database.
        from ....snapshot.query.sql import empty_database

        con = self._con = empty_database()
        con.execute(f"SET TimeZone = 'UTC'; SET preserve_insertion_order = false; SET memory_limit = '{MEMORY}'")
        for number, (part, rows) in enumerate(zip(self.parts, states, strict=True)):
            columns = [each.column for each in part.made]
            there = False
            for batch in (part.flat(pa.Table.from_batches([each]), columns) for each in rows):
                con.register("came", batch)
                con.execute(f"INSERT INTO t{number} FROM came" if there else f"CREATE TABLE t{number} AS FROM came")
                there = True
            if not there:
                state = pa.schema([*part.state.key, *part.state.values]).empty_table()
                con.register("came", part.flat(state, columns))
                con.execute(f"CREATE TABLE t{number} AS FROM came")

    def changes(self, states: Sequence[pa.Table]) -> pa.Table:
        """What a batch changed, with `DELETED`."""
        con = self._con
        assert con is not None  # noqa: S101  it begins with a whole state
        keys = _listed(self.key)
        touched = []
        for number, (part, state) in enumerate(zip(self.parts, states, strict=True)):
            known, columns = [*self.key, *part.ids], [each.column for each in part.made]
            con.register(f"gone{number}", part.flat(state, known))
            con.register(f"came{number}", part.flat(state.filter(pa.compute.invert(state[DELETED])), columns))
            con.execute(f"DELETE FROM t{number} USING gone{number} g WHERE {_equal(f't{number}', 'g', known)}")
            con.execute(f"INSERT INTO t{number} FROM came{number}")
            touched.append(f"SELECT DISTINCT {keys} FROM gone{number}")
        con.execute(f"CREATE OR REPLACE TEMP TABLE touched AS {' UNION '.join(touched)}")
        there = pa.concat_tables([self._empty(), *self._rows("touched")])
        con.register("found", there.select(list(self.key)))
        gone = con.sql(f"SELECT t.* FROM touched t ANTI JOIN found f ON {_equal('t', 'f', self.key)}").to_arrow_table()
        return with_gone(there, fitting(gone, self.table.key), self.table)

    def _rows(self, touched: str) -> Iterator[pa.Table]:
        con = self._con
        assert con is not None  # noqa: S101
        keys, with_parts, joins = _listed(self.key), [], []
        for number, part in enumerate(self.parts):
            of = f"t{number}"
            if touched:
                of = f"(SELECT t.* FROM t{number} t SEMI JOIN {touched} k ON {_equal('t', 'k', self.key)})"
            made = ", ".join(f"{made} AS {_quoted(name)}" for name, made in part.per_key)
            with_parts.append(f"p{number} AS (SELECT {keys}, {made} FROM {of} GROUP BY {keys})")
            joins.append(f"LEFT JOIN p{number} ON {_equal('k', f'p{number}', self.key)}")
        every = " UNION ".join(f"SELECT {keys} FROM p{number}" for number in range(len(self.parts)))
        mine = ", ".join(f"k.{_quoted(name)}" for name in self.key)
        values = ", ".join(f"{made} AS {_quoted(name)}" for name, made in self.values)
        query = f"WITH {', '.join(with_parts)} SELECT {mine}, {values} FROM ({every}) k {' '.join(joins)}"
        for batch in con.sql(query).to_arrow_reader(_BATCH_ROWS):
            yield fitting(batch, self.table.columns)

    def _empty(self) -> pa.Table:
        return arrow_schema(self.table.columns).empty_table()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _equal(left: str, right: str, names: Iterable[str]) -> str:
    return " AND ".join(f"{left}.{_quoted(name)} IS NOT DISTINCT FROM {right}.{_quoted(name)}" for name in names)


def struct(fields: Sequence[str]) -> str:
    """A struct of columns of these names, in DuckDB's SQL."""
    return "struct_pack(" + ", ".join(f"{_quoted(name)} := {_quoted(name)}" for name in fields) + ")"


def listed(fields: Sequence[str], order: Sequence[str]) -> str:
    """A list of structs of columns of these names, in the order of others."""
    return f"list({struct(fields)} ORDER BY {_listed(order)})"


def quoted(name: str) -> str:
    """A column in DuckDB's SQL."""
    return _quoted(name)


def _chunked(column: Array) -> Array:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
