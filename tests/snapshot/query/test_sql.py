import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from slackwater.errors import NotFound, SlackwaterError, Usage
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache

from tests.support.histories import STAGES, TABLES, FlightsApp, Kafka, flights, rows_of


@pytest.fixture(scope="module", params=["local", "memory"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app in a store that DuckDB reads directly, or in one that it reads through the cache.

    Tests only read it.
    """
    local = request.param == "local"
    store: ObjectStore = LocalStore(tmp_path_factory.mktemp("store")) if local else MemoryStore()
    app = FlightsApp(store, Kafka())
    app.run(flights(40))
    return app


def at(app: FlightsApp, text: str = "flights") -> Cut:
    return resolve(app.store, text, now_ms=app.clock.now_ms)


def rows(app: FlightsApp, cache: SstCache, sql: str, text: str = "flights") -> list[dict[str, object]]:
    with closing(connect(app.store, cache, at(app, text))) as con:
        return run_query(con, sql).to_pylist()


def objects(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list("")}


def test_every_table_is_queried_by_its_name_with_its_newest_rows(app: FlightsApp, cache: SstCache) -> None:
    found = rows(app, cache, "SELECT * FROM carriers ORDER BY carrier")
    assert found == [
        {"carrier": name, "flights": number, "delay": delay}
        for name, (number, delay, _) in sorted(app.state["carriers"].items())
    ]
    joined = "SELECT sum(a.flights) = (SELECT sum(flights) FROM carriers) AS same FROM aircraft a"
    assert rows(app, cache, joined) == [{"same": True}]


def test_an_earlier_moment_shows_the_rows_of_that_time(app: FlightsApp, cache: SstCache) -> None:
    for back in range(0, 12, 3):
        text = f"flights@~{back}"
        held = rows_of(app.store, at(app, text).stages["carriers"])
        assert rows(app, cache, "SELECT carrier, flights, delay FROM carriers ORDER BY 1", text) == [
            {"carrier": name, "flights": number, "delay": delay} for name, (number, delay, _) in sorted(held.items())
        ]


def test_compaction_changes_no_result(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(40))
    before = rows(app, cache, "FROM carriers ORDER BY ALL")
    app.compact("carriers")
    assert rows(app, cache, "FROM carriers ORDER BY ALL") == before


def test_tables_of_stages_without_a_version_can_be_shown_empty(cache: SstCache) -> None:
    app = FlightsApp(MemoryStore(), Kafka(), start=["legs", "aircraft"])
    app.send(*flights(4))
    for stage in STAGES[:2]:
        app.step(stage)
    with closing(connect(app.store, cache, at(app), empty=TABLES)) as con:
        assert run_query(con, "FROM carriers").schema.names == ["carrier", "flights", "delay"]
        assert run_query(con, "FROM carriers").num_rows == 0
        assert run_query(con, "FROM aircraft").num_rows == 4


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("FROM carrierz", "no table named 'carrierz'; the nearest: carriers"),
        ("SELECT * FROM aircraft JOIN zebra USING (tail)", "no table named 'zebra'; there are: aircraft, carriers"),
        ('FROM "no such"', "no table named 'no such'"),
        ("SELECT dealy FROM carriers", "no column named 'dealy'; the nearest: delay"),
        ("SELECT carriers.fligths FROM carriers", "no column named 'fligths'; the nearest: flights"),
        ("SELECT c.tail FROM carriers c", "no column named 'tail'"),
        ("SELECT _squares FROM carriers", "no column named '_squares'"),
        ("SELECT sum(tail) FROM carriers", "no column named 'tail'; there are: carrier, delay, flights"),
    ],
)
def test_the_error_for_an_unknown_table_or_column_suggests_the_nearest(
    app: FlightsApp, cache: SstCache, sql: str, message: str
) -> None:
    with pytest.raises(NotFound) as caught:
        rows(app, cache, sql)
    assert caught.value.message.startswith(message)
    assert sql in caught.value.hint


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nosuch(1)", "nosuch"),
        ("SELECT sum(carrier) FROM carriers", "sum(VARCHAR)"),
        ("SELECT carrier::INT FROM carriers", "Could not convert string"),
        ("SELECT flights FROM carriers GROUP BY carrier", "GROUP BY"),
        ("SELECT nope.flights FROM carriers", "nope"),
    ],
)
def test_invalid_sql_is_reported_with_duckdbs_message_and_the_query(
    app: FlightsApp, cache: SstCache, sql: str, words: str
) -> None:
    with pytest.raises(Usage) as caught:
        rows(app, cache, sql)
    assert words in caught.value.message
    assert sql in caught.value.message


@pytest.mark.parametrize(
    "sql",
    [
        "DESCRIBE carriers",
        "SUMMARIZE carriers",
        "SHOW TABLES",
        "EXPLAIN FROM carriers",
        "EXPLAIN ANALYZE FROM carriers",
        "explain (format json) FROM carriers",
        "PIVOT carriers ON carrier USING sum(flights)",
        "VALUES (1);",
        "WITH w AS (FROM carriers) SELECT count(*) FROM w -- and a comment",
        "SELECT * FROM query_table('carriers')",
        "-- first\nEXPLAIN ANALYZE FROM carriers; -- c",
        "FROM carriers; -- c",
        "FROM carriers /* c /* n */ */ ; ;",
        "WITH w AS (FROM carriers -- c\n) FROM w; -- c;",
    ],
)
def test_statements_that_only_read_are_allowed(app: FlightsApp, cache: SstCache, sql: str) -> None:
    assert rows(app, cache, sql)


def test_the_number_of_rows_can_be_limited(app: FlightsApp, cache: SstCache) -> None:
    with closing(connect(app.store, cache, at(app))) as con:
        assert run_query(con, "FROM aircraft ORDER BY tail", max_rows=2).column("tail").to_pylist() == ["N000", "N001"]
        assert run_query(con, "FROM aircraft").num_rows == 7


@pytest.mark.parametrize("sql", ["", "  ", "-- nothing", "SELECT 1; SELECT 2", "FROM carriers; DROP VIEW carriers"])
def test_only_a_single_statement_is_allowed(app: FlightsApp, cache: SstCache, sql: str) -> None:
    with pytest.raises(Usage, match="expected one SQL statement, found"):
        rows(app, cache, sql)


WRITES: tuple[Callable[[str, Path], str], ...] = (
    lambda sst, _: f"COPY (SELECT 1) TO '{sst}'",
    lambda sst, _: f"COPY (SELECT 1) TO '{sst}' (USE_TMP_FILE false)",
    lambda sst, _: f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{sst}' (FORMAT parquet, USE_TMP_FILE false)",
    lambda sst, _: f"EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{sst}' (FORMAT parquet, USE_TMP_FILE false)",
    lambda sst, _: f"EXPLAIN /* c */ ANALYZE /* ( */ COPY (SELECT 1) TO '{sst}' (FORMAT parquet, USE_TMP_FILE false)",
    lambda _, folder: f"COPY carriers TO '{folder}/out.csv'",
    lambda _, folder: f"ATTACH '{folder}/db.duckdb' AS db",
    lambda _, folder: f"EXPORT DATABASE '{folder}/out'",
    lambda _, __: "CREATE TABLE t AS SELECT 1",
    lambda _, __: "DROP VIEW carriers",
    lambda _, __: "DELETE FROM carriers",
    lambda _, __: "UPDATE carriers SET flights = 0",
    lambda _, __: "SET threads = 1",
    lambda _, __: "RESET lock_configuration",
    lambda _, __: "PRAGMA enable_profiling",
    lambda _, __: "INSTALL httpfs",
    lambda _, __: "LOAD httpfs",
    lambda _, __: "CALL pragma_version()",
    lambda _, __: "PREPARE p AS SELECT 1",
)


@pytest.mark.parametrize("write", WRITES)
def test_a_query_cannot_write_anywhere(
    app: FlightsApp, cache: SstCache, tmp_path: Path, write: Callable[[str, Path], str]
) -> None:
    run = at(app).stages["carriers"].ssts[0]
    before = objects(app.store)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with closing(connect(app.store, cache, at(app))) as con:
        path = cache.parquet_path(app.store, run)
        held = path.read_bytes()
        with pytest.raises(Usage, match=r"a query can only read|expected one SQL|Parser Error"):
            run_query(con, write(str(path), folder))
        assert path.read_bytes() == held
        assert run_query(con, "FROM carriers").num_rows == 3
    assert objects(app.store) == before
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_csv('{file}')",
        "FROM read_text('{file}')",
        "FROM '{file}'",
        "FROM glob('{folder}/*')",
        "FROM read_parquet('{folder}/*.parquet')",
    ],
)
def test_a_query_sees_no_other_files_of_the_machine(app: FlightsApp, cache: SstCache, tmp_path: Path, sql: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("password\n1234\n")
    with pytest.raises(SlackwaterError) as caught:
        rows(app, cache, sql.format(file=file, folder=tmp_path))
    assert "1234" not in caught.value.message


def test_a_query_may_spill_into_a_temporary_folder_but_not_into_the_working_folder(
    app: FlightsApp, cache: SstCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with closing(connect(app.store, cache, at(app))) as con:
        (spill,) = run_query(con, "SELECT current_setting('temp_directory') AS folder")["folder"].to_pylist()
        assert Path(spill).parent == tmp_path
        assert spill + "/" in str(run_query(con, "SELECT current_setting('allowed_directories') AS a").to_pylist())
    assert not list(tmp_path.iterdir())


def test_a_query_sees_no_python_variables(app: FlightsApp, cache: SstCache) -> None:
    secrets = pa.table({"password": ["1234"]})
    assert secrets.num_rows
    with pytest.raises(NotFound, match="no table named 'secrets'"):
        rows(app, cache, "FROM secrets")
