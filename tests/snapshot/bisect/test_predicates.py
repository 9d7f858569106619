"""Predicates of all forms (conditions, functions and commands), and when they are refused."""

from pathlib import Path
from unittest import SkipTest

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import NotFound, Refused, SlackwaterError, Usage
from slackwater.snapshot.bisect.predicate import Context, Predicate, parse_check, parse_where
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.session import CommandPredicate, PythonPredicate, load_python_predicate
from slackwater.snapshot.bisect.verdict import Verdict
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.models.profiles import scaled
from tests.support.histories import Flight, FlightsApp, Kafka, flights


@pytest.fixture(scope="module")
def app() -> FlightsApp:
    """Return an app in which C1 gets a negative delay in one batch."""
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(20))
    app.send(Flight("N1", "C1", -9_000))
    app.step_all()
    app.run(flights(10))
    return app


@pytest.fixture(scope="module")
def verdict(app: FlightsApp, cache: SstCache) -> Verdict:
    return find(app, cache, "FROM carriers WHERE delay < 0")


@pytest.fixture(scope="module")
def first_bad(verdict: Verdict) -> int:
    return verdict.bad_version


def tells_apart(app: FlightsApp, cache: SstCache, verdict: Verdict, predicate: Predicate) -> bool:
    """True if a predicate returns rows at the first bad commit, and none at the commit before it."""
    before, after = (predicate.rows(Context(app.store, cache, cut), 9) for cut in (verdict.good, verdict.bad))
    return before.num_rows == 0 < after.num_rows


def find(app: FlightsApp, cache: SstCache, predicate: Predicate | str) -> Verdict:
    return bisect(app.store, cache, "flights", predicate, now_ms=app.clock.now_ms)


@pytest.mark.parametrize(
    ("condition", "table"),
    [
        ("min(delay) >= 0", "carriers"),
        ("delay >= 0", "carriers"),
        ("carriers.delay >= 0 -- of each", ""),
        ("carrier <> 'C1' OR delay >= 0", ""),
        ("SELECT min(delay) >= 0 FROM carriers;", ""),
        ("SELECT min(delay) >= 0 FROM carriers -- c", ""),
        ("SELECT min(delay) >= 0 FROM carriers; -- c", ""),
        ("-- c\nWITH c AS (FROM carriers) SELECT min(delay) >= 0 FROM c /* c /* n */ */;", ""),
        ("/* c */ min(delay) >= 0 ; -- c", "carriers"),
        ("(SELECT min(delay) FROM carriers) >= 0", ""),
        ("sum(delay) OVER (PARTITION BY carrier) >= 0", "carriers"),
        ("SELECT min(c.delay) >= 0 FROM carriers c, aircraft a WHERE a.flights > 0", ""),
    ],
)
def test_a_check_holds_before_the_bad_commit_and_fails_at_it(
    app: FlightsApp, cache: SstCache, verdict: Verdict, condition: str, table: str
) -> None:
    predicate = parse_check(app.store, "flights", condition, table)
    assert tells_apart(app, cache, verdict, predicate)
    assert predicate.text == condition


def test_a_check_of_single_rows_finds_the_commit_and_names_the_keys(
    app: FlightsApp, cache: SstCache, first_bad: int
) -> None:
    found = find(app, cache, parse_check(app.store, "flights", "carrier <> 'C1' OR delay >= 0"))
    assert (found.stage, found.bad_version) == ("carriers", first_bad)
    assert found.keys is not None
    assert [change.key for change in found.keys] == [{"carrier": "C1"}]


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("min(delay) < 0", "carriers"),
        ("delay < 0", "carriers"),
        ("carriers.delay < 0 -- of each", ""),
        ("carrier = 'C1' AND delay < 0", ""),
        ("(SELECT min(delay) FROM carriers) < 0", ""),
        ("delay < (SELECT 0)", "carriers"),
        ("sum(delay) OVER (PARTITION BY carrier) < 0", "carriers"),
        ("FROM carriers WHERE delay < 0", ""),
        ("WITH low AS (FROM carriers WHERE delay < 0) FROM low;", ""),
        ("VALUES ((SELECT min(delay) FROM carriers))", ""),
    ],
)
def test_a_where_is_a_query_or_a_condition(
    app: FlightsApp, cache: SstCache, verdict: Verdict, sql: str, table: str
) -> None:
    predicate = parse_where(app.store, "flights", sql, table)
    if sql.startswith("VALUES"):  # always a row: a query, though it has no table behind a FROM
        assert predicate.sql == sql
        return
    assert tells_apart(app, cache, verdict, predicate)
    assert predicate.text == sql


def test_a_where_over_rows_finds_the_commit_and_names_the_keys(
    app: FlightsApp, cache: SstCache, first_bad: int
) -> None:
    found = find(app, cache, parse_where(app.store, "flights", "delay < 0", "carriers"))
    assert (found.stage, found.bad_version) == ("carriers", first_bad)
    assert found.keys is not None
    assert [change.key for change in found.keys] == [{"carrier": "C1"}]


@scaled(50)
@given(
    column=st.sampled_from(["flights", "delay"]),
    sign=st.sampled_from(["<", "<=", "=", ">=", ">"]),
    number=st.integers(-6_000, 6_000),
)
def test_a_where_and_its_negated_check_find_the_same_rows(
    app: FlightsApp, cache: SstCache, column: str, sign: str, number: int
) -> None:
    condition = f"{column} {sign} {number}"
    at = Context(app.store, cache, resolve(app.store, "flights", now_ms=app.clock.now_ms))
    of_where = parse_where(app.store, "flights", condition, "carriers").rows(at, 100)
    of_check = parse_check(app.store, "flights", f"NOT ({condition})", "carriers").rows(at, 100)
    of_query = parse_where(app.store, "flights", f"FROM carriers WHERE {condition}").rows(at, 100)
    assert of_where.sort_by("carrier") == of_check.sort_by("carrier") == of_query.sort_by("carrier")


@pytest.mark.parametrize(
    ("sql", "table", "error", "words"),
    [
        ("delay < 0", "", Usage, "the where 'delay < 0' is ambiguous: its columns are in aircraft and carriers"),
        ("dealy < 0", "", NotFound, "no column named 'dealy'; the nearest: delay"),
        ("dealy < 0", "carriers", NotFound, "no column named 'dealy'; the nearest: delay"),
        ("tail < carrier", "", Usage, "fits no table"),
        ("delay < 0 AND", "carriers", Usage, r"Parser Error: syntax error at or near \"\)\""),
        ("delay < 0", "carrierz", NotFound, "carriers"),
        ("delay", "carriers", Usage, "expected one BOOLEAN"),
        ("FROM carriers", "carriers", Usage, "with a whole query"),
    ],
)
def test_an_invalid_where_is_an_error_at_once(
    app: FlightsApp, sql: str, table: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        parse_where(app.store, "flights", sql, table)


def test_a_where_cannot_inject_other_statements(app: FlightsApp, cache: SstCache) -> None:
    with pytest.raises(Usage, match="Parser Error"):
        find(app, cache, parse_where(app.store, "flights", "true); DROP TABLE carriers; SELECT (true", "carriers"))


def test_a_check_of_an_empty_table_holds(app: FlightsApp, cache: SstCache) -> None:
    with pytest.raises(Refused, match="nothing is wrong there"):
        find(app, cache, parse_check(app.store, "flights", "min(delay) FILTER (carrier = 'none') >= 0", "carriers"))


@pytest.mark.parametrize(
    ("condition", "table", "error", "words"),
    [
        ("min(delay) >= 0", "", Usage, "its columns are in aircraft and carriers"),
        ("min(delay)", "carriers", Usage, "returns BIGINT|returns HUGEINT|expected one BOOLEAN"),
        ("min(dealy) >= 0", "", NotFound, "no column named 'dealy'; the nearest: delay"),
        ("min(delay) >= 0", "carrierz", NotFound, "carriers"),
        ("DELETE FROM carriers", "", Usage, "only reads"),
        ("true); DROP TABLE carriers; --", "carriers", Usage, "only reads|fits no table"),
        ("SELECT 1, 2", "", Usage, "expected one BOOLEAN"),
    ],
)
def test_an_invalid_check_is_an_error_at_once(
    app: FlightsApp, condition: str, table: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        parse_check(app.store, "flights", condition, table)


def asserts(con: duckdb.DuckDBPyConnection) -> None:
    lowest = con.sql("SELECT min(delay) FROM carriers").fetchall()[0][0]
    assert lowest is None or lowest >= 0, f"{lowest} is below zero"


def test_a_function_answers_by_its_result_or_by_assert(app: FlightsApp, cache: SstCache, first_bad: int) -> None:
    def returns(con: duckdb.DuckDBPyConnection) -> bool:
        return not con.sql("FROM carriers WHERE delay < 0").fetchall()

    for function in (asserts, returns):
        verdict = find(app, cache, PythonPredicate("mine", function))
        assert (verdict.stage, verdict.bad_version) == ("carriers", first_bad)
    (wrong,) = find(app, cache, PythonPredicate("mine", asserts)).rows.to_pylist()
    assert "is below zero" in wrong["wrong"]


def test_a_function_that_skips_leaves_candidates(app: FlightsApp, cache: SstCache, first_bad: int) -> None:
    good = find(app, cache, "FROM carriers WHERE delay < 0").good.stages["carriers"]

    def skips(con: duckdb.DuckDBPyConnection) -> None:
        if con.sql("SELECT sum(flights) FROM carriers").fetchall()[0][0] == 20:
            raise SkipTest("twenty")
        asserts(con)

    verdict = find(app, cache, PythonPredicate("mine", skips))
    stretch = {each.stage: (each.first, each.last) for each in verdict.candidates}
    assert stretch["carriers"][0] <= good.version < first_bad == stretch["carriers"][1]
    assert "twenty" in {step.why for step in verdict.steps}


def test_another_exception_of_a_function_stops_the_search_with_its_traceback(app: FlightsApp, cache: SstCache) -> None:
    def fails(con: duckdb.DuckDBPyConnection) -> None:
        raise ZeroDivisionError("by zero")

    with pytest.raises(SlackwaterError, match="mine raised ZeroDivisionError: by zero") as raised:
        find(app, cache, PythonPredicate("mine", fails))
    assert "in fails" in raised.value.quoted
    assert "session.py" not in raised.value.quoted


def test_a_function_cannot_write_tables_or_files(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    def writes(con: duckdb.DuckDBPyConnection) -> None:
        con.execute("CREATE TABLE mine AS FROM carriers")
        con.execute(f"COPY mine TO '{tmp_path}/mine.csv'")

    with pytest.raises(SlackwaterError, match="PermissionException"):
        find(app, cache, PythonPredicate("mine", writes))
    assert not list(tmp_path.iterdir())


def test_a_function_is_loaded_from_a_file_and_can_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("WORD = 'ok'\n")
    (tmp_path / "mine.py").write_text("from beside_it import WORD\n\ndef ok(con):\n    return WORD\n")
    assert load_python_predicate(f"{tmp_path}/mine.py:ok").function(duckdb.connect()) == "ok"
    for text, words in (
        ("mine.py", "FILE:function"),
        (f"{tmp_path}/no.py:ok", "no file"),
        (f"{tmp_path}/mine.py:x", "no"),
    ):
        with pytest.raises(Usage, match=words):
            load_python_predicate(text)
    (tmp_path / "mine.py").write_text("1 / 0\n")
    with pytest.raises(SlackwaterError, match="ZeroDivisionError"):
        load_python_predicate(f"{tmp_path}/mine.py:ok")


SCRIPT = """
import os, sys, duckdb
con = duckdb.connect(os.environ["SLACKWATER_DB"], read_only=True)
assert os.environ["SLACKWATER_APP"] == "flights"
bad, = con.sql("SELECT count(*) FROM carriers WHERE delay < 0").fetchall()[0]
print(os.environ["SLACKWATER_REF"])
sys.exit(1 if bad else 0)
"""


def test_a_command_gets_the_moment_as_a_file(
    app: FlightsApp, cache: SstCache, first_bad: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import sys

    (tmp_path / "look.py").write_text(SCRIPT)
    verdict = find(app, cache, CommandPredicate(f"{sys.executable} {tmp_path}/look.py"))
    assert (verdict.stage, verdict.bad_version) == ("carriers", first_bad)
    said = capfd.readouterr()
    assert said.out == ""
    assert f"flights/carriers@v{first_bad}" in said.err.split()


@pytest.mark.parametrize(("command", "words"), [("exit 128", "exit code 128"), ("kill -9 $$", "signal 9")])
def test_a_command_with_another_exit_code_stops_the_search(
    app: FlightsApp, cache: SstCache, command: str, words: str
) -> None:
    with pytest.raises(SlackwaterError, match=words):
        find(app, cache, CommandPredicate(command))


def test_a_command_that_cannot_judge_the_bad_end_is_reported_at_once(app: FlightsApp, cache: SstCache) -> None:
    with pytest.raises(Refused, match="the bad end flights@now cannot be judged: exit code 125"):
        find(app, cache, CommandPredicate("exit 125"))
    with pytest.raises(Refused, match="something is wrong already at the beginning"):
        find(app, cache, CommandPredicate("exit 127"))


@pytest.mark.parametrize("sql", ["DELETE FROM carriers", "CREATE TABLE x AS FROM carriers", "COPY carriers TO 'x.csv'"])
def test_a_query_that_writes_is_refused(app: FlightsApp, cache: SstCache, sql: str) -> None:
    with pytest.raises(Usage, match="a query can only read"):
        find(app, cache, sql)
