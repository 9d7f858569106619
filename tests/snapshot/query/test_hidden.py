"""SQL with hidden values: results contain pseudonyms, and do not depend on the values themselves."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.client import Client
from slackwater.errors import SlackwaterError
from slackwater.settings import Settings
from slackwater.snapshot.query import hidden
from slackwater.snapshot.query.hidden import Pseudonyms
from slackwater.snapshot.query.sql import Bounds
from slackwater.store.objects.local import LocalStore

from tests.support.histories import START_MS, Clock, Flight, FlightsApp, Kafka

SECRET = b"of the test"
SCALE = 7
TEXTS = {"zebra": "C0", "aardvark": "C1", "mole": "C2"}
"""Carriers of the second store, each with its counterpart in the first."""
TAILS = {f"{'qwertyuiop'[n]}{n * n}": f"N{n}" for n in range(10)}
BOUNDS = Bounds(seconds=5, memory_mb=256, secret=SECRET)


def flight(number: int, *, other: bool) -> Flight:
    carriers, tails = ([*each] if other else [*each.values()] for each in (TEXTS, TAILS))
    delay = 1_000 * (1 + number % 5)
    return Flight(tails[number % 10], carriers[number % 3], delay * SCALE if other else delay)


def as_first(value: object) -> object:
    """Return the value of the first store that corresponds to a value of the second."""
    if isinstance(value, str):
        return {**TEXTS, **TAILS}.get(value, value)
    return value // SCALE if isinstance(value, int) and value >= 1_000 * SCALE else value


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    """Return two stores that differ only in their values. Values that are equal in one store are equal in the other."""
    found = []
    for other in (False, True):
        folder = tmp_path_factory.mktemp("hidden")
        app = FlightsApp(LocalStore(folder / "store"), Kafka(), clock=Clock(START_MS))
        app.run([flight(number, other=other) for number in range(30)])
        found.append(Client(Settings(store=app.store.url, cache=str(folder / "cache"), cache_max_bytes=1 << 30)))
    with found[0] as one, found[1] as another:
        yield one, another


def outcome(client: Client, sql: str) -> object:
    try:
        rows, _ = client.app("flights").at().query_rows(sql, bounds=BOUNDS, max_rows=200)
    except SlackwaterError as error:
        return type(error), error.message
    return rows.to_pydict()


def same(both: tuple[Client, Client], sql: str) -> object:
    """Return the outcome of a query. First checks that both stores give the same one, apart from their pseudonyms."""
    one, original = outcome(both[0], sql), hidden._canonical
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hidden, "_canonical", lambda value: original(as_first(value)))
        other = outcome(both[1], sql)
    assert repr(one) == repr(other), sql
    return one


def functions() -> list[tuple[str, int]]:
    """Return DuckDB's deterministic functions with their numbers of arguments."""
    found = duckdb.execute(
        "SELECT DISTINCT function_name, len(parameters) FROM duckdb_functions() WHERE stability = 'CONSISTENT' "
        "AND function_type IN ('scalar', 'aggregate') AND len(parameters) BETWEEN 1 AND 3 "
        "AND regexp_full_match(function_name, '[a-z_0-9]+') ORDER BY ALL"
    ).fetchall()
    return [(str(name), int(count)) for name, count in found]


COLUMNS = {"carriers": ("carrier", "flights", "delay"), "aircraft": ("tail", "delay")}
CONSTANTS = ("1", "2.5", "'C1'", "'a%'", "NULL", "true", "7000", "[1]", "'zebra'")
SIGNS = ("=", "<", "<>", "+", "-", "*", "||", "LIKE", "AND", "IS DISTINCT FROM")
TYPES = ("VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "BLOB", "UUID", "DATE")


def expressions(columns: tuple[str, ...]) -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        calls = st.sampled_from(functions()).flatmap(
            lambda of: st.lists(inner, min_size=of[1], max_size=of[1]).map(lambda each: f"{of[0]}({', '.join(each)})")
        )
        signs = st.tuples(inner, st.sampled_from(SIGNS), inner).map(lambda each: f"({' '.join(each)})")
        casts = st.tuples(inner, st.sampled_from(TYPES)).map(lambda each: f"TRY_CAST({each[0]} AS {each[1]})")
        return calls | signs | casts

    return st.recursive(st.sampled_from((*columns, *columns, *CONSTANTS)), larger, max_leaves=4)


@st.composite
def statements(draw: st.DrawFn) -> str:
    table = draw(st.sampled_from([*COLUMNS]))
    expression = expressions(COLUMNS[table])
    of = draw(st.sampled_from([table, f"{table} AT '~3'", f"versions('{table}')"]))
    sql = f"SELECT {', '.join(draw(st.lists(expression, min_size=1, max_size=3)))} FROM {of} AS t"
    if draw(st.booleans()):
        sql += f" WHERE {draw(expression)}"
    sql += draw(st.sampled_from(("", " GROUP BY ALL")))
    if draw(st.booleans()):
        sql += f" ORDER BY {draw(expression)}"
    return sql + draw(st.sampled_from(("", " LIMIT 2", " LIMIT 1 OFFSET 3")))


@given(statements())
def test_results_of_any_sql_do_not_depend_on_values(both: tuple[Client, Client], sql: str) -> None:
    same(both, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "FROM carriers",
        "SELECT * FROM aircraft LIMIT 3",
        "SELECT row_number() OVER (), tail FROM aircraft",
        "SELECT first(tail), list(delay) FROM aircraft",
        "SELECT count(*) FROM versions('aircraft')",
        "SELECT a.tail FROM aircraft a JOIN aircraft b ON a.delay = b.delay ORDER BY ALL",
        "SUMMARIZE aircraft",
        "SELECT tail, count(*) FROM versions('aircraft') GROUP BY ALL",
        "FROM (PIVOT carriers ON carrier USING count(*))",
    ],
)
def test_allowed_queries_give_a_result_that_does_not_depend_on_values(both: tuple[Client, Client], sql: str) -> None:
    assert isinstance(same(both, sql), dict)


@pytest.mark.parametrize(
    "value",
    [
        (1, 1.0, Decimal("1.00")),
        (0.5, Decimal("0.5")),
        ("é",),
        (b"\xff", "ff"),
        (datetime(2025, 1, 1, 12, tzinfo=UTC), datetime(2025, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_equal_values_in_sql_have_the_same_pseudonym(value: tuple[Any, ...]) -> None:
    names = Pseudonyms(SECRET)
    assert len({names.pseudonym(each) for each in value}) == 1
    assert names.pseudonym(None) is None


def test_different_values_and_secrets_give_different_pseudonyms() -> None:
    names, values = (
        Pseudonyms(SECRET),
        [0, 1, "1", "", True, False, [1], [[1]], ["1"], {"a": 1}, {"a": "1"}, float("nan")],
    )
    assert len({names.pseudonym(each) for each in values}) == len(values)
    assert Pseudonyms().pseudonym("a") != Pseudonyms().pseudonym("a")


def test_pseudonyms_are_translated_back_and_columns_with_unknown_ones_are_dropped() -> None:
    names = Pseudonyms(SECRET)
    rows = pa.table(
        {
            "a": [names.pseudonym(7), None],
            "b": [names.pseudonym("x"), Pseudonyms().pseudonym("y")],
            "c": ["plain", "text"],
        }
    )
    assert names.unmask(rows).to_pydict() == {"a": [7, None], "c": ["plain", "text"]}
