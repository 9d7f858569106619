"""Row-local queries, which decide on each row of one table by itself, and comparison of rows of two tables.

DuckDB compares values of any type. NaN equals NaN, null equals null, and -0.0 equals 0.0.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import NotFound, Refused, Usage
from ...store.read.duckdb_view import quoted
from ...store.sst.arrow_types import showable

_AGGREGATES = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
ROW = "_slackwater_row"
"""Column with the row numbers."""


def row_local(sql: str, tables: Collection[str]) -> tuple[str, str]:
    """Return the table that a query reads, and a query for the number (`ROW`) of each row that it returns.

    Raises `Refused` (the result for a row depends on other rows; says why), `NotFound` (no such table) and `Usage` (the
    SQL is malformed).
    """
    with duckdb.connect() as con:
        parsed = json.loads(con.execute("SELECT json_serialize_sql($sql::VARCHAR)", {"sql": sql}).fetchall()[0][0])
        if parsed["error"] or len(parsed["statements"]) != 1:
            raise Usage(f"the predicate is not a single query: {parsed.get('error_message', sql)}")
        node = parsed["statements"][0]["node"]
        aggregates = {name for (name,) in con.execute(_AGGREGATES).fetchall()} | {"count_star"}
        if reason := next(_reasons(node, aggregates), ""):
            raise Refused(f"the query does not decide row by row: it has {reason}")
        name = node["from_table"]["table_name"].casefold()
        stage = next((stage for stage in tables if stage.casefold() == name), None)
        if stage is None:
            raise NotFound("table", node["from_table"]["table_name"], tables)
        node["modifiers"] = []
        number = con.execute(f"SELECT json_serialize_sql('SELECT {ROW}')").fetchall()[0][0]
        node["select_list"] += json.loads(number)["statements"][0]["node"]["select_list"]
        tree = json.dumps(parsed)
        numbers: str = con.execute("SELECT json_deserialize_sql($tree::JSON)", {"tree": tree}).fetchall()[0][0]
    return stage, numbers


def numbers_of(sql: str, stage: str, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows that a query of `row_local` returns, each once, ascending.

    `rows` has the columns of the table and `ROW`. Raises `Usage` (DuckDB cannot run the query).
    """
    with duckdb.connect(config={"python_enable_replacements": "false", "enable_external_access": "false"}) as con:
        con.register(stage, showable(rows))
        try:
            numbers = con.sql(f"SELECT DISTINCT {ROW} FROM ({sql}) ORDER BY 1").to_arrow_table()
        except duckdb.Error as error:
            raise Usage(str(error).partition("\n")[0], quoted=f"query: {sql}") from error
    return np.asarray(numbers.column(0).to_numpy(), np.int64)


def _reasons(node: dict[str, Any], aggregates: Collection[str]) -> Iterator[str]:
    """Yield the reasons why a query does not decide on each row of one table by itself."""
    if node["type"] != "SELECT_NODE":
        yield "a set operation"
        return
    source = node["from_table"]["type"]
    if source != "BASE_TABLE":
        yield {"JOIN": "a join", "SUBQUERY": "a subquery", "EMPTY": "no table"}.get(source, f"a {source.lower()}")
    named = {"GROUP BY": node["group_expressions"], "HAVING": node["having"], "QUALIFY": node["qualify"]}
    named |= {"a sample": node["sample"], "WITH": node["cte_map"]["map"]}
    yield from (name for name, is_used in named.items() if is_used)
    for modifier in node["modifiers"]:
        if modifier["type"] != "ORDER_MODIFIER":
            yield modifier["type"].partition("_")[0]
    yield from _in_expressions([node["select_list"], node["where_clause"]], aggregates)


def _in_expressions(node: Any, aggregates: Collection[str]) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("class") in ("WINDOW", "SUBQUERY"):
            yield "a window function" if node["class"] == "WINDOW" else "a subquery"
        elif node.get("class") == "FUNCTION" and node["function_name"] in aggregates:
            yield f"the aggregate {node['function_name'].removesuffix('_star')}"
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _in_expressions(child, aggregates)


def only_in(ours: pa.Table, theirs: pa.Table) -> pa.Table:
    """Return the rows that `ours` has more often than `theirs`, in any order. Both have the same columns."""
    with duckdb.connect() as con:
        con.register("ours", showable(ours))
        con.register("theirs", showable(theirs.select(ours.column_names)))
        return con.sql("FROM ours EXCEPT ALL FROM theirs").to_arrow_table().cast(ours.schema)


def places_of(wanted: pa.Table, rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the positions in `rows` of the rows in `wanted`, ascending. Only the columns of `wanted` are compared."""
    tests = [f"r.{quoted(name)} IS NOT DISTINCT FROM o.{quoted(name)}" for name in wanted.column_names]
    with duckdb.connect() as con:
        con.register("o", showable(wanted))
        con.register("r", showable(rows.append_column("_place", pa.array(np.arange(rows.num_rows)))))
        positions = con.sql(
            f"SELECT DISTINCT r._place FROM r, o WHERE {' AND '.join(tests)} ORDER BY 1"
        ).to_arrow_table()
    return np.asarray(positions["_place"].to_numpy(), np.int64)


def pairs(ours: pa.Table, theirs: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return pairs of equal rows of two tables, as their positions in each, ascending in `ours`.

    Duplicate rows are paired in order: the first of one table with the first of the other, and so on. Only the columns
    of `theirs` are compared.
    """
    names = [quoted(name) for name in theirs.column_names]
    numbered = f"SELECT *, row_number() OVER (PARTITION BY {', '.join(names)} ORDER BY _place) AS _nth FROM"
    tests = " AND ".join(f"o.{name} IS NOT DISTINCT FROM t.{name}" for name in (*names, "_nth"))
    with duckdb.connect() as con:
        for name, rows in (("ours", ours.select(theirs.column_names)), ("theirs", theirs)):
            con.register(name, rows.append_column("_place", pa.array(np.arange(rows.num_rows))))
        matches = con.sql(
            f"SELECT o._place AS mine, t._place AS other FROM ({numbered} ours) o JOIN ({numbered} theirs) t "
            f"ON {tests} ORDER BY 1"
        ).to_arrow_table()
    return np.asarray(matches["mine"].to_numpy(), np.int64), np.asarray(matches["other"].to_numpy(), np.int64)
