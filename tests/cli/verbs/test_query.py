"""`slackwater query` on the command line."""

import json
from pathlib import Path

import duckdb
import pytest

from tests.cli.verbs.calling import done, from_json, process, rows_of, slackwater

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.mark.usefixtures("app")
def test_query_without_sql_lists_the_tables() -> None:
    aircraft, carriers = from_json("query", "flights")
    assert (aircraft["table"], carriers["table"]) == ("aircraft", "carriers")
    assert [column["name"] for column in carriers["columns"]] == ["carrier", "flights", "delay"]
    assert [column["key"] for column in carriers["columns"]] == [True, False, False]
    assert "carrier  string  key" in done("query", "flights")


@pytest.mark.usefixtures("app")
def test_query_prints_rows_as_text_and_as_json() -> None:
    sql = "SELECT carrier, flights, sum(delay) AS delay FROM carriers GROUP BY ALL ORDER BY carrier"
    heading, *rows = done("query", "flights", sql).splitlines()
    assert heading == "carrier  flights  delay"
    assert rows[1].split() == ["C1", "13", "5060"]
    assert rows_of("flights", sql)[1] == {"carrier": "C1", "flights": 13, "delay": 5060}


@pytest.mark.usefixtures("app")
def test_query_of_an_earlier_moment_returns_the_rows_of_that_time() -> None:
    sql = "SELECT max(delay) AS worst FROM carriers"
    assert rows_of("flights", sql) == [{"worst": 5060}]
    assert rows_of("flights/carriers@v5", sql) == [{"worst": 85}]
    assert rows_of("flights/carriers@v1", sql) == [{"worst": None}]


@pytest.mark.usefixtures("app")
def test_query_takes_sql_from_standard_input() -> None:
    result = slackwater("query", "flights", "-", "--json", text="SELECT 2 AS two")
    assert json.loads(result.stdout)["rows"] == [{"two": 2}]


@pytest.mark.usefixtures("app")
def test_the_error_for_sql_that_is_not_utf8_names_the_bad_byte() -> None:
    result = slackwater("query", "flights", "-", text="SELECT 'é' FROM carriers".encode("latin-1"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the SQL in standard input is not UTF-8: byte 8 is 0xe9" in result.stderr


@pytest.mark.usefixtures("app")
def test_query_prints_as_many_rows_as_requested_and_says_how_many_remain() -> None:
    result = slackwater("query", "flights", "FROM range(1200)", "--limit", "10")
    assert len(result.stdout.splitlines()) == 11
    assert result.stderr == "and 1,190 more rows; --limit 0 prints all\n"
    result = slackwater("query", "flights", "FROM range(1200)", "--limit", "0")
    assert (len(result.stdout.splitlines()), result.stderr) == (1201, "")
    assert len(rows_of("flights", "FROM range(1200)", "--limit", "10")) == 1200


@pytest.mark.usefixtures("app")
def test_query_writes_all_rows_to_a_file(tmp_path: Path) -> None:
    assert done("query", "flights", "FROM aircraft", "--out", "aircraft.parquet") == "7 rows in aircraft.parquet\n"
    written = duckdb.sql(f"SELECT count(*), sum(flights) FROM '{tmp_path}/aircraft.parquet'").fetchall()
    assert written == [(7, 41)]


@pytest.mark.usefixtures("app")
def test_query_refuses_an_unknown_file_ending_before_running(tmp_path: Path) -> None:
    result = slackwater("query", "flights", "SELECT error('must not run')", "--out", "report.xlsx")
    assert (result.exit_code, result.stdout) == (2, "")
    assert ".parquet, .csv or .json" in result.stderr
    assert not (tmp_path / "report.xlsx").exists()


@pytest.mark.usefixtures("app")
def test_query_lists_the_other_moments_that_it_reads() -> None:
    sql = "SELECT max(now.delay) - max(was.delay) AS more FROM carriers now, carriers AT 'v5' was"
    found = from_json("query", "flights", sql)
    assert found["rows"] == [{"more": 4975}]
    assert found["moments"]["flights/carriers@v5"]["versions"]["carriers"] == 5
    assert done("query", "flights@~9", "SELECT max(delay) AS worst FROM carriers AT 'v5'").split() == ["worst", "85"]


@pytest.mark.usefixtures("app")
def test_the_page_shows_only_moments_of_all_tables() -> None:
    result = slackwater("query", "flights", "SELECT 1", "--ui")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--ui shows all tables of a moment" in result.stderr


@pytest.mark.usefixtures("app")
def test_wrong_sql_gets_duckdbs_message_with_the_query() -> None:
    result = slackwater("query", "flights", "SELEKT 1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Parser Error" in result.stderr
    assert "SELEKT 1" in result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.usefixtures("app")
def test_a_closed_pipe_is_no_error(unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with process("query", "flights", "FROM range(20000)", "--limit", "0") as query:
        assert query.stdout is not None
        assert query.stderr is not None
        assert query.stdout.readline().strip() == "range"
        query.stdout.close()
        assert query.stderr.read() == ""
        assert query.wait(timeout=180) == 141
