"""The verbs on a believable history in a local folder, through typer's runner."""

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from slackwater.cli import formats, main
from slackwater.snapshot.cut.requests import open_requests
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.status import roster
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from typer.testing import CliRunner, Result
from ulid import ULID

from tests.support.histories import START_MS, Clock, Flight, FlightsApp, Kafka, flights

pytestmark = pytest.mark.usefixtures("isolated")


BAD = "SELECT carrier, delay FROM carriers WHERE delay > 1000"
BROKEN = Flight("N001", "C1", 5000)
MODULE = [sys.executable, "-m", "slackwater.cli.main"]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def app(store: ObjectStore) -> FlightsApp:
    """Forty good flights in four batches, a broken one in a fifth, and five flights on the way."""
    app = FlightsApp(store, Kafka(), clock=Clock())
    app.run(flights(40))
    app.run([BROKEN])
    app.send(*flights(5))
    app.step("legs")
    return app


def slackwater(*args: str, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main.app, args, input=text)


def done(*args: str) -> str:
    """What a verb that must succeed prints."""
    result = slackwater(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def from_json(*args: str) -> Any:
    return json.loads(done(*args, "--json"))


def rows_of(ref: str, *args: str) -> Any:
    """The rows that a query returns."""
    return from_json("query", ref, *args)["rows"]


def test_status_of_an_empty_store_says_how_to_begin() -> None:
    assert "slackwater run FILE" in done("status")


@pytest.mark.usefixtures("app")
def test_status_shows_every_stage_upstream_first() -> None:
    lines = done("status").splitlines()
    assert lines[0].startswith(f"flights  created {formats.moment(START_MS)} (")
    assert lines[1].split()[:4] == ["stage", "runs", "version", "epoch"]
    assert [line.split()[:2] for line in lines[2:]] == [["legs", "no"], ["aircraft", "no"], ["carriers", "no"]]
    assert re.search(r"by-aircraft 1 version, \d+ rows$", lines[3])


def test_status_says_which_stages_run(app: FlightsApp) -> None:
    """A runner's sign of life counts for the epoch that it claimed: one that was taken over runs nothing."""
    writer = str(ULID())
    roster.beat(app.store, "flights", roster.Beat(writer, "host:1", {"legs": 1, "carriers": 2}))
    (found,) = from_json("status")
    assert {stage["stage"]: stage["runner"] for stage in found["stages"]} == {
        "legs": "host:1",
        "aircraft": "",
        "carriers": "",
    }
    roster.last_beat(app.store, "flights", writer)
    assert {stage["runner"] for (found,) in [from_json("status")] for stage in found["stages"]} == {""}


def test_status_is_there_when_a_sign_of_life_is_damaged(app: FlightsApp) -> None:
    app.store.put("flights/runners/w1.json", b"{")
    result = slackwater("status")
    assert result.exit_code == 1
    assert "which stages run is not known" in result.stderr
    assert "legs      ?" in result.stdout


def test_status_counts_keys_and_lag(app: FlightsApp) -> None:
    app.compact("carriers")
    (found,) = from_json("status", "flights")
    by_stage = {stage["stage"]: stage for stage in found["stages"]}
    assert (by_stage["carriers"]["keys"], by_stage["carriers"]["keys_exact"]) == (3, True)
    assert by_stage["aircraft"]["keys"] > 7
    assert by_stage["aircraft"]["keys_exact"] is False
    assert by_stage["legs"]["keys"] is None
    assert by_stage["legs"]["version"] == 7
    (read,) = by_stage["aircraft"]["inputs"]
    assert (read["upstream"], read["lag"], read["versions"]) == ("legs", 4, 1)
    (topic,) = by_stage["legs"]["inputs"]
    assert (topic["ends"], topic["lag"], topic["records"], topic["versions"]) == (None, None, None, None)


@pytest.mark.usefixtures("app")
def test_status_goes_on_without_kafka_and_says_why() -> None:
    result = slackwater("status", "--kafka", "127.0.0.1:1")
    assert result.exit_code == 0
    assert "lag of users' topics is not known" in result.stderr
    assert "flights ?" in result.stdout


@pytest.mark.usefixtures("app")
def test_log_shows_the_newest_commits_first() -> None:
    heading, first, *rest = done("log", "flights", "--limit", "5").splitlines()
    assert heading.split()[:3] == ["committed", "stage", "version"]
    assert first.split()[-2:] == ["flights[1]", "26..28"] or "flights[" in first
    assert "legs" in first
    assert "v7" in first
    assert len(rest) == 4


@pytest.mark.usefixtures("app")
def test_log_of_one_stage_has_only_its_commits() -> None:
    commits = from_json("log", "flights", "--stage", "carriers")
    assert [commit["version"] for commit in commits] == [6, 5, 4, 3, 2, 1]
    assert {commit["stage"] for commit in commits} == {"carriers"}


@pytest.mark.usefixtures("app")
def test_log_of_an_unknown_stage_names_the_nearest() -> None:
    result = slackwater("log", "flights", "--stage", "carrier")
    assert result.exit_code == 1
    assert "carriers" in result.stderr


@pytest.mark.usefixtures("app")
def test_an_instant_snapshot_is_pinned_listed_shown_and_removed(store: ObjectStore) -> None:
    taken = from_json("snapshot", "take", "flights", "before", "--instant")
    assert taken["stages"] == {"legs": 7, "aircraft": 6, "carriers": 6}
    assert "before" in done("snapshot", "list", "flights")
    shown = done("snapshot", "show", "flights", "before")
    assert "by-aircraft" in shown
    assert "flights-by-aircraft-repartition[0] " in shown
    assert from_json("snapshot", "show", "flights", "before")["in_flight"][0]["rows"] == 5
    assert done("snapshot", "rm", "flights", "before", "--dry-run").startswith("would remove flights@before")
    assert [snapshot.name for snapshot in list_snapshots(store, "flights")] == ["before"]
    done("snapshot", "rm", "flights", "before")
    assert list_snapshots(store, "flights") == ()
    operations = from_json("log", "flights", "--operations")
    assert [operation["verb"] for operation in operations] == ["snapshot rm", "snapshot take"]


def test_a_snapshot_of_a_running_app_waits_for_every_stage(app: FlightsApp, store: ObjectStore) -> None:
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if open_requests(store, "flights"):
                app.step_all()
            stop.wait(0.01)

    runner = threading.Thread(target=run)
    runner.start()
    try:
        result = slackwater("snapshot", "take", "flights", "live")
    finally:
        stop.set()
        runner.join()
    assert result.exit_code == 0, result.output
    assert "snapshot flights@live is complete after" in result.stdout
    assert "legs recorded v" in result.stderr
    (snapshot,) = list_snapshots(store, "flights")
    assert (snapshot.name, snapshot.kind) == ("live", "markers")
    assert open_requests(store, "flights") == ()


@pytest.mark.usefixtures("app")
def test_a_snapshot_that_nobody_answers_is_withdrawn_and_names_who_was_silent(store: ObjectStore) -> None:
    result = slackwater("snapshot", "take", "flights", "never", "--timeout", "0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(r"no answer from aircraft \(.*\), carriers \(.*\), legs \(.* ago\)", result.stderr)
    assert "--instant" in result.stderr
    assert open_requests(store, "flights") == ()


@pytest.mark.usefixtures("app")
def test_a_snapshot_can_be_asked_for_without_waiting_and_withdrawn(store: ObjectStore) -> None:
    done("snapshot", "take", "flights", "later", "--no-wait")
    assert [request.name for request in open_requests(store, "flights")] == ["later"]
    assert "asked for" in done("snapshot", "list", "flights")
    assert "the request for flights@later" in done("snapshot", "rm", "flights", "later")
    assert open_requests(store, "flights") == ()


@pytest.mark.usefixtures("app")
def test_a_snapshot_without_a_name_is_named_after_the_time() -> None:
    name = from_json("snapshot", "take", "flights", "--instant")["name"]
    assert name.replace("-", "").isdigit()
    assert done("query", f"flights@{name}", "SELECT 1 AS one").split() == ["one", "1"]


@pytest.mark.usefixtures("app")
def test_get_prints_one_row_and_what_it_read() -> None:
    found = from_json("get", "flights", "carriers", "C1")
    assert found["row"]["carrier"] == "C1"
    assert found["found"] is True
    assert 0 < found["read"]["bytes"] < found["read"]["table_bytes"]
    result = slackwater("get", "flights", "carriers", "C1", "--verbose")
    assert result.stderr.startswith("read ")


@pytest.mark.usefixtures("app")
def test_get_of_a_key_that_is_not_there_exits_with_1() -> None:
    result = slackwater("get", "flights", "carriers", "ZZ")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no key ZZ" in result.stderr
    result = slackwater("get", "flights", "carriers", "ZZ", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["row"] is None


@pytest.mark.usefixtures("app")
def test_get_with_too_many_values_is_a_usage_error_that_names_the_key() -> None:
    result = slackwater("get", "flights", "carriers", "C1", "C2")
    assert result.exit_code == 2
    assert "carrier (string)" in result.stderr


@pytest.mark.usefixtures("app")
def test_query_lists_the_tables_without_sql() -> None:
    aircraft, carriers = from_json("query", "flights")
    assert (aircraft["table"], carriers["table"]) == ("aircraft", "carriers")
    assert [column["name"] for column in carriers["columns"]] == ["carrier", "flights", "delay"]
    assert [column["key"] for column in carriers["columns"]] == [True, False, False]
    assert "carrier  string  key" in done("query", "flights")


@pytest.mark.usefixtures("app")
def test_query_prints_rows_for_people_and_for_machines() -> None:
    sql = "SELECT carrier, flights, sum(delay) AS delay FROM carriers GROUP BY ALL ORDER BY carrier"
    heading, *rows = done("query", "flights", sql).splitlines()
    assert heading == "carrier  flights  delay"
    assert rows[1].split() == ["C1", "13", "5060"]
    assert rows_of("flights", sql)[1] == {"carrier": "C1", "flights": 13, "delay": 5060}


@pytest.mark.usefixtures("app")
def test_query_of_an_earlier_moment_is_as_it_was_then() -> None:
    sql = "SELECT max(delay) AS worst FROM carriers"
    assert rows_of("flights", sql) == [{"worst": 5060}]
    assert rows_of("flights/carriers@v5", sql) == [{"worst": 85}]
    assert rows_of("flights/carriers@v1", sql) == [{"worst": None}]


@pytest.mark.usefixtures("app")
def test_query_takes_sql_from_a_file_or_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "report.sql").write_text("SELECT 1 AS one")
    assert rows_of("flights", "--file", "report.sql") == [{"one": 1}]
    result = slackwater("query", "flights", "-", "--json", text="SELECT 2 AS two")
    assert json.loads(result.stdout)["rows"] == [{"two": 2}]
    result = slackwater("query", "flights", "SELECT 1", "--file", "report.sql")
    assert result.exit_code == 2


@pytest.mark.usefixtures("app")
def test_sql_that_is_not_utf8_is_refused_with_the_place_of_the_byte(tmp_path: Path) -> None:
    sql = "SELECT 'é' FROM carriers".encode("latin-1")
    (tmp_path / "report.sql").write_bytes(sql)
    for words, where in ((("--file", "report.sql"), "report.sql"), (("-",), "standard input")):
        result = slackwater("query", "flights", *words, text=sql)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"the SQL in {where} is not UTF-8: byte 8 is 0xe9" in result.stderr


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "words", [("log", "flights"), ("log", "flights", "--operations"), ("query", "flights", "FROM carriers")]
)
def test_a_limit_beyond_all_bounds_is_all(words: tuple[str, ...]) -> None:
    assert done(*words, "--limit", "1" + "0" * 30) == done(*words, "--limit", "1000")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("words", [("log", "flights"), ("log", "flights", "--operations")])
def test_a_limit_of_0_is_all(words: tuple[str, ...]) -> None:
    shown = done(*words, "--limit", "0")
    assert shown == done(*words, "--limit", "100000")
    assert "--operations" in words or len(shown.splitlines()) > len(done(*words, "--limit", "1").splitlines())


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("words", ["flights", "flights/"])
def test_a_rescale_of_no_stage_says_that_the_stage_is_missing(words: str) -> None:
    result = slackwater("rescale", words, "--partitions", "4")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{words}' names no stage; expected APP/STAGE" in result.stderr
    assert "`slackwater status flights`" in result.stderr


@pytest.mark.usefixtures("app")
def test_query_prints_as_many_rows_as_asked_and_tells_how_many_more_there_are() -> None:
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
def test_query_refuses_an_unknown_ending_before_it_runs_anything(tmp_path: Path) -> None:
    result = slackwater("query", "flights", "SELECT error('must not run')", "--out", "report.xlsx")
    assert (result.exit_code, result.stdout) == (2, "")
    assert ".parquet, .csv or .json" in result.stderr
    assert not (tmp_path / "report.xlsx").exists()


@pytest.mark.usefixtures("app")
def test_wrong_sql_is_answered_in_duckdbs_words_with_the_query() -> None:
    result = slackwater("query", "flights", "SELEKT 1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Parser Error" in result.stderr
    assert "SELEKT 1" in result.stderr


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (("query", "flight", "SELECT 1"), 1, "flights"),
        (("query", "flights@befor", "SELECT 1"), 1, "before"),
        (("query", "flights", "FROM carrier"), 1, "carriers"),
        (("query", "flights", "SELECT delai FROM carriers"), 1, "delay"),
        (("query", "flights@-5x", "SELECT 1"), 2, "flights@-5x"),
        (("get", "flights", "carrier", "C1"), 1, "carriers"),
        (("bisect", "flight", "--where", BAD), 1, "flights"),
        (("log", "flight"), 1, "flights"),
        (("snapshot", "show", "flights", "befor"), 1, "before"),
        (("status", "flight"), 1, "flights"),
    ],
)
@pytest.mark.usefixtures("app")
def test_what_does_not_exist_is_named_with_the_nearest(args: tuple[str, ...], code: int, expected: str) -> None:
    done("snapshot", "take", "flights", "before", "--instant")
    result = slackwater(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("app")
def test_bisect_names_the_commit_its_input_and_the_keys_that_turned_bad() -> None:
    verdict = from_json("bisect", "flights", "--where", BAD)
    assert verdict["stage"] == "carriers"
    assert (verdict["last_good"]["ref"], verdict["first_bad"]["ref"]) == (
        "flights/aircraft@v6",
        "flights/carriers@v6",
    )
    assert verdict["last_good"]["version"] == 5
    (window,) = verdict["source_windows"]
    assert (window["topic"], window["end"] - window["start"]) == ("flights", 1)
    (key,) = verdict["keys"]
    assert key["key"] == {"carrier": "C1"}
    assert key["after"]["delay"] - key["before"]["delay"] == BROKEN.delay


@pytest.mark.usefixtures("app")
def test_bisect_lays_out_the_verdict_and_what_to_type_next() -> None:
    result = slackwater("bisect", "flights", "--where", BAD)
    assert result.exit_code == 0
    assert result.stdout.startswith("carriers v6 is the first bad commit of flights\n")
    assert "\nlast good" in result.stdout
    assert "flights-by-carrier-repartition[" in result.stdout
    assert f"slackwater query flights/aircraft@v6 '{BAD}'" in result.stdout
    assert "slackwater clone flights/aircraft@v6 flights-staging" in result.stdout
    assert "good" in result.stderr.splitlines()[1]


@pytest.mark.usefixtures("app")
def test_a_predicate_that_finds_nothing_wrong_is_refused() -> None:
    result = slackwater("bisect", "flights", "--where", "SELECT 1 FROM carriers WHERE flights < 0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing is wrong there" in result.stderr


@pytest.fixture
def kafka(isolated: None, app: FlightsApp, monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """The app's own Kafka, in memory, behind the seam that cloning has for it."""
    from slackwater.pipeline.kafka import channels

    monkeypatch.setattr(channels, "KafkaChannels", lambda _properties: app.kafka)
    monkeypatch.setenv("SLACKWATER_KAFKA", "in-memory:9092")
    app.kafka.send("flights-corrected", flights(46))
    return app.kafka


@pytest.mark.usefixtures("kafka")
def test_a_clone_has_the_state_of_the_moment_and_runs_on_its_own(store: ObjectStore) -> None:
    text = done("clone", "flights/carriers@v5", "flights-staging", "--topic", "flights=flights-corrected")
    assert "cloned flights/carriers@v5 as flights-staging" in text
    assert "flights-corrected[0] " in text
    assert "slackwater run FILE --app flights-staging" in text
    sql = "SELECT sum(flights) AS flights FROM carriers"
    assert rows_of("flights-staging", sql) == rows_of("flights/carriers@v5", sql)
    assert "clone of flights@clone-flights-staging" in done("status", "flights-staging")
    (pinned,) = list_snapshots(store, "flights")
    assert pinned.clone == "flights-staging"
    assert slackwater("snapshot", "rm", "flights", pinned.name).exit_code == 1
    for app in ("flights", "flights-staging"):
        assert [operation["verb"] for operation in from_json("log", app, "--operations")] == ["clone"]


@pytest.mark.usefixtures("kafka")
def test_a_clone_can_go_to_another_store(tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert f"--store {other}" in done("clone", "flights", "flights-staging", "--to", other)
    sql = "SELECT sum(flights) AS flights FROM aircraft"
    assert rows_of("flights-staging", sql, "--store", other) == rows_of("flights", sql)
    assert [app["app"] for app in from_json("status")] == ["flights"]


@pytest.mark.usefixtures("kafka")
def test_a_dry_run_of_a_clone_changes_nothing(store: ObjectStore) -> None:
    before = [info.key for info in store.list("")]
    assert done("clone", "flights", "flights-staging", "--dry-run").startswith("would clone flights")
    assert [info.key for info in store.list("")] == before


@pytest.mark.usefixtures("kafka")
def test_a_clone_of_an_app_that_is_not_in_the_store_of_the_flag_says_what_store_means(tmp_path: Path) -> None:
    result = slackwater("clone", "flights", "flights-staging", "--store", str(tmp_path / "other"))
    assert result.exit_code == 1
    assert "--to says where the clone goes" in result.stderr


@pytest.mark.usefixtures("app")
def test_rescale_changes_the_number_and_nothing_that_a_query_sees() -> None:
    before = rows_of("flights", "FROM carriers")
    assert done("rescale", "flights/carriers", "--partitions", "5").splitlines() == [
        "rescaled flights/carriers from 2 to 5 state partitions with v7; 9 SSTs kept as they are",
        "a runner that is on stops now; go on with them: slackwater run FILE",
    ]
    assert sorted(rows_of("flights", "FROM carriers"), key=str) == sorted(before, key=str)
    assert from_json("log", "flights", "--stage", "carriers")[0]["kind"] == "rescale"
    (operation,) = from_json("log", "flights", "--operations")
    assert (operation["verb"], operation["detail"]) == ("rescale", "carriers to 5 state partitions, from 2")


@pytest.mark.usefixtures("app")
def test_rescale_to_the_same_number_has_nothing_to_do_and_succeeds() -> None:
    assert done("rescale", "flights/carriers", "--partitions", "2") == (
        "done already: flights/carriers has 2 state partitions\n"
    )
    assert from_json("log", "flights", "--operations") == []


@pytest.mark.usefixtures("app")
def test_a_dry_run_of_a_rescale_changes_nothing(store: ObjectStore) -> None:
    before = [info.key for info in store.list("")]
    said = done("rescale", "flights/carriers", "--partitions", "1", "--dry-run")
    assert said == "would rescale flights/carriers from 2 to 1 state partition with v7\n"
    found = from_json("rescale", "flights/carriers", "--partitions", "1", "--dry-run")
    assert (found["version"], found["before"], found["partitions"], found["dry_run"]) == (7, 2, 1, True)
    assert [info.key for info in store.list("")] == before


@pytest.mark.parametrize("seconds", ["nan", "inf"])
@pytest.mark.parametrize(
    "words",
    [
        ("compact", "flights", "--watch", "--every"),
        ("status", "flights", "--watch", "--every"),
        ("snapshot", "take", "flights", "--timeout"),
        ("run", "flights.py", "--patience"),
    ],
)
def test_seconds_that_are_no_number_are_refused(words: tuple[str, ...], seconds: str) -> None:
    result = slackwater(*words, seconds)
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in result.output


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("stage", "partitions", "code", "expected"),
    [
        ("flight/carriers", "3", 1, "flights"),
        ("flights/carrier", "3", 1, "carriers"),
        ("flights/legs", "3", 1, "keeps no table"),
        ("flights", "3", 2, "slackwater status flights"),
        ("flights/carriers", "0", 2, "--partitions"),
        ("flights/carriers", "65537", 2, "1 to 65536"),
    ],
)
def test_what_cannot_be_rescaled_is_told(stage: str, partitions: str, code: int, expected: str) -> None:
    result = slackwater("rescale", stage, "--partitions", partitions)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("pair", ["flights", "=other", "flights="])
def test_a_topic_that_is_not_a_pair_is_a_usage_error(pair: str) -> None:
    result = slackwater("clone", "flights", "other", "--topic", pair, "--kafka", "nowhere:1")
    assert result.exit_code == 2
    assert "NAME=OTHER" in result.stderr


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "args",
    [
        ("status",),
        ("log", "flights"),
        ("snapshot", "take", "flights", "--instant"),
        ("snapshot", "list", "flights"),
        ("query", "flights", "FROM carriers"),
        ("get", "flights", "carriers", "C1"),
        ("bisect", "flights", "--where", BAD),
    ],
)
def test_no_verb_loads_spark_or_kafka(args: tuple[str, ...]) -> None:
    script = (
        "import sys\n"
        "from slackwater.cli.main import app\n"
        f"app({list(args)!r}, standalone_mode=False)\n"
        "assert not {'pyspark', 'confluent_kafka', 'boto3'} & set(sys.modules), sys.modules.keys()"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.usefixtures("app")
def test_a_query_of_a_local_store_takes_less_than_a_second() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*MODULE, "query", "flights", "FROM carriers"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    # It reads local files, so its time is the processor's, whatever else this machine does meanwhile.
    assert min(once() for _ in range(3)) < 1


@contextmanager
def process(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A verb in a process of its own, which does not outlive the block."""
    with subprocess.Popen([*MODULE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.usefixtures("app")
def test_a_reader_that_goes_away_is_no_error() -> None:
    with process("query", "flights", "FROM range(200000)", "--limit", "0") as query:
        assert query.stdout is not None
        assert query.stderr is not None
        assert query.stdout.readline().strip() == "range"
        query.stdout.close()
        assert query.stderr.read() == ""
        assert query.wait(timeout=60) == 141


@pytest.mark.usefixtures("app")
def test_ctrl_c_ends_a_watch_with_130_and_no_traceback() -> None:
    with process("status", "--watch", "--every", "0.1", "--json") as watch:
        assert watch.stdout is not None
        for _ in range(2):
            assert json.loads(watch.stdout.readline())[0]["app"] == "flights"
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=60)
        assert (watch.returncode, errors) == (130, "")


@pytest.mark.usefixtures("app")
def test_ctrl_c_while_waiting_for_a_snapshot_withdraws_the_request(store: ObjectStore) -> None:
    with process("snapshot", "take", "flights", "never", "--timeout", "600") as take:
        deadline = time.monotonic() + 60
        while not open_requests(store, "flights"):
            assert time.monotonic() < deadline
            assert take.poll() is None
        take.send_signal(signal.SIGINT)
        assert take.communicate(timeout=60) == ("", "")
        assert take.returncode == 130
    assert open_requests(store, "flights") == ()


@pytest.mark.usefixtures("app")
def test_a_terminal_gets_bold_headings_and_a_pipe_does_not() -> None:
    terminal, end = pty.openpty()
    command, env = [*MODULE, "log", "flights", "--limit", "1"], os.environ | {"TERM": "xterm"}
    subprocess.run(command, stdout=end, env=env, check=True)
    assert os.read(terminal, 4096).startswith(b"\x1b[1mcommitted")
    os.close(end)
    os.close(terminal)
    assert "\x1b" not in done("log", "flights")
