"""Which columns of what a query returns have no values in them: counts, and where records lie.

DuckDB's own parser says what each column is. One that is not plainly such a column is taken for one with values.
"""

import json
from typing import Any

import duckdb

from ...errors import Refused
from ...moments.query.clauses import InputOf, Statement, TableAt, understand, words

_PIVOTS = ("pivot", "pivot_wider")
_COUNTS = ("count", "count_star", "count_if")
_PLACES = ("partition", "offset", "timestamp")
"""Of a record of an input archive."""
_VERSIONS = ("_version", "_committed_at")
"""Of a row of `versions('TABLE')`."""


def countable(sql: str) -> frozenset[int]:
    """The columns, by number from 0. Raises `Refused` where names of columns would be values: for a PIVOT."""
    if any(word.says(each) for word in words(sql) for each in _PIVOTS):
        raise Refused("PIVOT makes columns of values, which are hidden", hint="GROUP BY gives the same as rows")
    statement = understand(sql)
    with duckdb.connect(config={"enable_external_access": "false"}) as con:
        found = con.execute("SELECT json_serialize_sql(?)", [statement.sql]).fetchone()
    try:
        parsed = json.loads(found[0]) if found else {}
    except (ValueError, RecursionError):  # too deep
        return frozenset()
    node: dict[str, Any] = {} if parsed.get("error") else parsed["statements"][0]["node"]
    chosen = node.get("select_list", []) if node.get("type") == "SELECT_NODE" else []
    if any(each["class"] == "STAR" for each in chosen):
        return frozenset()
    known = _known_columns(statement, node.get("from_table") or {})
    return frozenset(
        number
        for number, each in enumerate(chosen)
        if (each["class"] == "FUNCTION" and each["function_name"] in _COUNTS)
        or (each["class"] == "COLUMN_REF" and each["column_names"][-1].casefold() in known)
    )


def _known_columns(statement: Statement, source: dict[str, Any]) -> tuple[str, ...]:
    """The columns without values of what a query reads, where that is one view of a clause under its own names."""
    if len(statement.clauses) != 1 or source.get("type") != "BASE_TABLE" or source["column_name_alias"]:
        return ()
    (clause,) = statement.clauses
    if (source["schema_name"], source["table_name"]) != clause.view or isinstance(clause, TableAt):
        return ()
    return _PLACES if isinstance(clause, InputOf) else _VERSIONS
