"""SQL over HTTP stays within its limits, and cannot access the server's machine."""

import logging
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from urllib.parse import quote

import msgspec
import psutil
import pyarrow as pa
import pytest
import urllib3
from slackwater.client import Client
from slackwater.serve.audit import AUDIT, redact_sql
from slackwater.serve.service import ServeOptions

from tests.models.profiles import SEARCHES
from tests.support.histories import FlightsApp
from tests.support.running import eventually

from .conftest import FAST, Ask, made

QUERY = "/apps/flights/at/now/query"
TIGHT = ServeOptions(poll_interval_s=0.05, sql_timeout_s=30.0, sql_memory_mb=128, sql_rows=100, sql_processes=1)
"""Strict limits of memory and rows, but not of time: a busy machine delays ordinary statements by seconds."""
HASTY = replace(TIGHT, sql_timeout_s=1.0)


@pytest.fixture(scope="module")
def tight(written: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    from .conftest import serving

    with serving(written.store.url, tmp_path_factory.mktemp("cache"), options=TIGHT) as url:
        yield Ask(url)


def test_a_query_returns_rows_and_the_moment_that_they_are_of(written: FlightsApp, tight: Ask) -> None:
    found = tight(QUERY, sql="SELECT carrier, flights FROM carriers ORDER BY 1").json
    assert found["rows"] == [
        {"carrier": each, "flights": written.state["carriers"][each][0]} for each in ("C0", "C1", "C2")
    ]
    assert found["versions"] == {stage: head.version for stage, head in written.heads.items()}
    assert found["cut_off"] is False


def test_sql_can_be_sent_in_a_body_and_returned_as_arrow(tight: Ask) -> None:
    body = msgspec.json.encode({"sql": "SELECT sum(flights) AS n FROM carriers", "format": "arrow"})
    found = urllib3.PoolManager().request("POST", tight.url + QUERY, body=body)
    assert pa.ipc.open_stream(found.data).read_all().column_names == ["n"]


def test_a_query_can_read_an_earlier_moment_and_two_at_once(written: FlightsApp, tight: Ask) -> None:
    sql = (
        "SELECT now.flights - before.flights AS more FROM carriers now JOIN carriers AT '~3' AS before USING (carrier)"
    )
    found = tight(QUERY, sql=sql).json
    assert sum(row["more"] for row in found["rows"]) > 0
    assert [*found["moments"]] == ["flights@~3"]
    assert (
        tight("/apps/flights/at/~3/query", sql="FROM carriers").json["versions"]["carriers"]
        < written.heads["carriers"].version
    )


def test_rows_beyond_the_limit_are_omitted_with_a_note(tight: Ask) -> None:
    found = tight(QUERY, sql="FROM range(1000)", limit="20").json
    assert (len(found["rows"]), found["cut_off"]) == (20, True)
    found = tight(QUERY, sql="FROM range(1000)").json
    assert (len(found["rows"]), found["cut_off"]) == (100, True)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b",
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t) SELECT count(*) FROM t",
    ],
)
def test_a_statement_beyond_its_time_limit_is_stopped(own: Callable[..., Ask], sql: str) -> None:
    hasty = own(options=HASTY)
    answer = hasty(QUERY, sql=sql)
    assert (answer.status, answer.json["error"]) == (413, "TooMuch")
    assert "more than 1 s" in answer.json["message"]
    eventually(lambda: hasty(QUERY, sql="SELECT 1").status == 200, "SQL after a statement that took too long")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT length(repeat('x', 3000000000))",  # gigabytes in one call that nothing interrupts
        "SELECT len(range(2000000000))",
        "SELECT list(range) FROM range(300000000)",
        "SELECT repeat('x', 10000000) FROM range(100)",
    ],
)
def test_a_statement_beyond_its_memory_limit_is_stopped(tight: Ask, sql: str) -> None:
    found = tight(QUERY, sql=sql)
    assert found.status in (413, 422), found.json
    assert tight(QUERY, sql="SELECT 1").status == 200


HOGS = (
    "SELECT list(i) FROM range(1000000000) t(i)",
    "SELECT string_agg(repeat('x', 1000000)) FROM range(10000)",
    "SELECT list(range) OVER () FROM range(300000000)",
    "SELECT repeat('x', 2000000000)",
)
ORDINARY = ("FROM carriers", "SUMMARIZE carriers", "SHOW TABLES", "SELECT count(*) FROM aircraft JOIN carriers ON true")


@pytest.mark.parametrize("hog", HOGS)
def test_sql_of_others_works_after_a_statement_has_run_out_of_memory(tight: Ask, hog: str) -> None:
    for _ in range(3 if SEARCHES else 1):
        answer = tight(QUERY, sql=hog)
        assert (answer.status, answer.json["error"]) == (413, "TooMuch")
        assert "memory" in answer.json["message"]
        answers = [tight(QUERY, sql=statement) for statement in ORDINARY]
        assert [answer.status for answer in answers] == [200] * len(ORDINARY), [answer.json for answer in answers]


def test_an_idle_sql_process_that_is_killed_is_replaced(own: Callable[..., Ask]) -> None:
    ask, me = own(), psutil.Process()
    assert ask(QUERY, sql="SELECT 1").status == 200

    # Forked from the process that has all modules: not that one, nor the servers of other tests.
    for process in me.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile, or is a zombie
            if any("multiprocessing.forkserver" in word for word in process.cmdline()) and process.ppid() != me.pid:
                process.kill()
    assert {ask(QUERY, sql="SELECT 1").status for _ in range(8)} == {200}


def test_one_client_cannot_occupy_all_sql_processes(client: Client, own: Callable[..., Ask]) -> None:
    ask = own(options=replace(FAST, sql_processes=1, sql_timeout_s=60))
    slow, quick = made(client, "slow", verbs=("sql",)), made(client, "quick", verbs=("sql",))
    endless = quote("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")
    request = f"GET {QUERY}?sql={endless} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {slow}\r\n\r\n"
    url = urllib3.util.parse_url(ask.url)
    with ExitStack() as stack:
        taking = [stack.enter_context(socket.create_connection((url.host, url.port))) for _ in range(2)]
        for connection in taking:
            connection.sendall(request.encode())
        assert ask.token(quick, QUERY, sql="SELECT 1").status == 200
        assert select.select(taking, [], [], 0)[0] == []


@pytest.mark.parametrize(
    "sql",
    [
        "FROM '/etc/passwd'",
        "FROM read_csv('/etc/passwd')",
        "FROM read_text('/etc/hostname')",
        "FROM glob('/*')",
        "FROM 'http://127.0.0.1:1/x.parquet'",
        "FROM 's3://bucket/x.parquet'",
        "FROM duckdb_settings()",
        'FROM "duckdb_views"()',
        "FROM duckdb_views",
        "SELECT current_setting('temp_directory')",
        "FROM query('FROM duckdb' || '_settings()')",
        "FROM json_execute_serialized_sql(json_serialize_sql('FROM duckdb' || '_settings()'))",
        "FROM enable_logging(storage := 'file', storage_path := '/tmp/slackwater-log')",
        "FROM arrow_scan(1, 1, 1)",
        "FROM information_schema.views",
        "FROM pg_catalog.pg_views",
        "EXPLAIN ANALYZE FROM carriers",
        "COPY carriers TO '/tmp/x.csv'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '10GB'",
        "PRAGMA database_list",
        "CREATE TABLE t AS SELECT 1",
        "SELECT getenv('HOME')",
        "SELECT filename FROM carriers",
        "SELECT 1; SELECT 2",
    ],
)
def test_sql_cannot_access_files_or_network_of_the_machine(written: FlightsApp, tight: Ask, sql: str) -> None:
    found = tight(QUERY, sql=sql)
    assert 400 <= found.status < 500, (sql, found.body[:500])
    assert written.store.url.encode() not in found.body
    assert b"root:" not in found.body


def test_an_audit_line_has_token_and_statement_and_no_values(
    own: Callable[..., Ask], caplog: pytest.LogCaptureFixture
) -> None:
    def of_audit() -> list[str]:
        return [each.getMessage() for each in list(caplog.records) if each.name == AUDIT.name]

    ask = own()
    with caplog.at_level(logging.INFO, AUDIT.name):
        ask("/apps/flights/at/now/tables/carriers", key=["C1", "C2"])
        ask("/apps/flights/tables/carriers/history", key="C1")
        ask(QUERY, sql="SELECT 'C1', 17 FROM carriers -- C2")
        # A line is written when its answer was sent, which the client may see first.
        eventually(lambda: len(of_audit()) == 3, "a line for each request")
    lines = [msgspec.json.decode(each) for each in of_audit()]
    assert [each["what"] for each in lines] == ["get", "history", "query"]
    assert [each["status"] for each in lines] == [200] * 3
    assert lines[0]["asked"]["key"] == 2
    assert lines[2]["asked"]["sql"] == "SELECT ? , ? FROM carriers"
    assert "C1" not in caplog.text


def test_literals_are_redacted_from_statements() -> None:
    sql = "SELECT $$x$$, e'y', 'it''s', 1.5 FROM \"my table\" WHERE a = 'open"
    assert redact_sql(sql) == 'SELECT ? , ? , ? , ? FROM "my table" WHERE a = ?'


_LATE = """
import _multiprocessing, os
from multiprocessing import get_context
from slackwater.serve.sql import _PRELOADED
context = get_context("forkserver")
context.set_forkserver_preload(_PRELOADED)
lock = context.Lock()
process = context.Process(target=print, args=(lock,))
_multiprocessing.sem_unlink(lock._semlock.name)
process.start()
process.join()
print(process.exitcode, flush=True)
os._exit(0)
"""


def test_a_sql_process_that_starts_after_its_server_has_gone_exits_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", _LATE], capture_output=True, text=True, check=True)
    assert (done.stdout, "Traceback" in done.stderr) == ("1\n", False), done.stderr
