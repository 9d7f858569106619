"""`slackwater tour`: a recorded app whose answers must equal those computed from the raw data."""

import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import tarfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from slackwater.cli.tour import recording
from slackwater.cli.tour.recording import STEPS, unpack
from slackwater.errors import Refused

from tests.cli.verbs.calling import MODULE, Terminal

ANEW = "record the store again: .venv/bin/python -m docs.record_tour"
FAULT_FROM, FLIGHTS = 18_000, 27_004
BARE = """
import sys

class Blocked:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "confluent_kafka"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

def offline(event, args):
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] != "127.0.0.1":
        raise OSError(f"no network: {args[1]}")

sys.meta_path.insert(0, Blocked())
sys.addaudithook(offline)
"""
"""Code that each Python process of the tour runs first: it blocks Spark, Kafka clients and the network."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the environment of a machine with only Python."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(BARE)
    home = {
        "BROWSER": "true",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PATH": str(folder),
        "PYTHONPATH": str(folder),
    }
    return {**home, "SLACKWATER_STORE": "s3://another", "SLACKWATER_KAFKA": "another:9092"}


@pytest.fixture(scope="module")
def folder(bare: Mapping[str, str]) -> Path:
    return Path(bare["HOME"]) / "flights"


@pytest.fixture(scope="module")
def told(bare: Mapping[str, str], folder: Path) -> Any:
    """Return the output of the tour with `--json`."""
    return json.loads(ran(bare, "tour", "--folder", str(folder), "--json"))


def ran(environment: Mapping[str, str], *words: str) -> str:
    done = subprocess.run([*MODULE, *words], env=dict(environment), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{ANEW}"
    return done.stdout


@pytest.fixture(scope="module")
def feed() -> Any:
    """Import the feeder of the examples, which is a script."""
    spec = importlib.util.spec_from_file_location("feed", Path(__file__).parents[2] / "examples" / "feed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def truth(feed: Any) -> duckdb.DuckDBPyConnection:
    """Return totals by carrier from the raw flights of January: the tables `corrected`, and `sent` with the fault."""
    con = duckdb.connect()
    con.register("raw", feed.events().iloc[:FLIGHTS].reset_index(names="number"))
    delay = f"CASE WHEN number >= {FAULT_FROM} AND carrier = 'UA' THEN arr_delay * 60 ELSE arr_delay END"
    for name, minutes in (("corrected", "arr_delay"), ("sent", delay)):
        con.execute(f"""
            CREATE VIEW {name} AS SELECT carrier, count(*) flights, avg(m) mean_delay, sum(m) AS delay, max(m) worst
            FROM (SELECT carrier, {minutes} AS m FROM raw WHERE tailnum IS NOT NULL AND arr_delay IS NOT NULL)
            GROUP BY carrier
        """)
    return con


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    return con.sql(sql).to_arrow_table().to_pylist()


def test_the_tour_needs_no_java_spark_kafka_or_network(told: Any, folder: Path) -> None:
    assert [step["command"].split()[1] for step in told["steps"]] == [step.words[0] for step in STEPS]
    assert (Path(told["folder"]), sorted(path.name for path in folder.iterdir())) == (
        folder,
        [".slackwater", "cache", "flights.py", "slackwater.toml", "store"],
    )


def test_the_totals_equal_those_computed_from_the_flights(told: Any, truth: duckdb.DuckDBPyConnection) -> None:
    now, then, *_ = (step["result"] for step in told["steps"])
    sql = "SELECT carrier, flights, worst FROM sent ORDER BY worst DESC LIMIT 3"
    assert now["rows"] == [pytest.approx(row) for row in rows(truth, sql)]
    corrected = {row["carrier"]: row for row in rows(truth, "FROM corrected")}
    for row in then["rows"]:
        whole = corrected[row["carrier"]]
        assert 0 < row["flights"] < whole["flights"]
        assert row["worst"] <= whole["worst"] < 24 * 60


def test_the_clone_equals_the_raw_flights_and_the_app_differs_for_one_carrier(
    told: Any, truth: duckdb.DuckDBPyConnection
) -> None:
    diff, history = told["steps"][2]["result"], told["steps"][3]["result"]
    (table,) = diff["tables"]
    (row,) = table["rows"]
    (corrected,), (sent,) = (rows(truth, f"FROM {name} WHERE carrier = 'UA'") for name in ("corrected", "sent"))
    assert (row["change"], row["key"]["carrier"]) == ("changed", "UA")
    for side, expected in (("before", corrected), ("after", sent)):
        assert {name: row[side][name] for name in ("delay", "mean_delay", "worst")} == pytest.approx(
            {name: expected[name] for name in ("delay", "mean_delay", "worst")}
        )
    newest = history["changes"][0]["after"]
    assert (newest["flights"], newest["delay"]) == pytest.approx((sent["flights"], sent["delay"]))


def test_the_records_named_are_the_first_bad_ones_that_were_sent(told: Any, feed: Any) -> None:
    bad: dict[tuple[int, int], dict[str, Any]] = {}
    ends = [0] * feed.PARTITIONS
    for message in feed.flight_messages(feed.events(), "flights", 0, FLIGHTS, "UA", FAULT_FROM):
        event = json.loads(message.value)
        if event["arr_delay"] is not None and event["arr_delay"] > 24 * 60:
            bad[message.partition, ends[message.partition]] = event
        ends[message.partition] += 1
    commit, record = told["steps"][4]["result"], told["steps"][5]["result"]
    assert (commit["stage"], record["stage"], record["cause"]["proved"]) == ("carriers", "legs", True)
    for found in (commit, record):
        windows = {window["partition"]: (window["start"], window["end"]) for window in found["source_windows"]}
        inside = {place for place in bad if windows.get(place[0], (0, 0))[0] <= place[1] < windows[place[0]][1]}
        assert inside
        assert not [at for at in bad if at[0] in windows and at[1] < windows[at[0]][0]]
    assert {*record["cause"]["records"]} == {f"flights[{partition}]@{offset}" for partition, offset in inside}
    named = record["record"]
    assert json.loads(bytes.fromhex(named["value"])) == bad[named["partition"], named["offset"]]


@pytest.mark.ci
def test_a_terminal_gets_text_and_the_page_until_ctrl_c(bare: Mapping[str, str]) -> None:
    environment = {name: value for name, value in bare.items() if name != "PYTHONPATH"}
    with Terminal("tour", environment=environment) as terminal:
        url = terminal.read_until(r"the page: (http://127\S+) ").partition("#")[0]
        with urllib.request.urlopen(f"{url}apps", timeout=180) as answer:  # noqa: S310  our own server
            assert json.load(answer) == {"apps": ["flights", recording.STAGING]}
        assert (terminal.interrupt(), terminal.process.wait(30)) == ("", 0)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", terminal.text)
    assert len(re.findall(r"^\$ slackwater ", text, re.MULTILINE)) == len(STEPS)
    assert "is the first bad commit of flights" in text
    assert re.search(r"^value +\{", text, re.MULTILINE)
    folder = re.search(r"^  cd (\S+)", text, re.MULTILINE)
    assert folder is not None
    assert Path(folder[1]).parent == Path(bare["TMPDIR"])


@pytest.mark.usefixtures("told")
def test_the_commands_that_the_tour_suggests_run_and_verify_finds_no_damage(
    bare: Mapping[str, str], folder: Path
) -> None:
    environment = {name: value for name, value in bare.items() if not name.startswith("SLACKWATER_")}
    proposed = (*recording.NEXT, f"slackwater verify {recording.STAGING} --deep")
    for _, *words in map(shlex.split, proposed):
        if words != ["serve"]:
            done = subprocess.run([*MODULE, *words], cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}\n{ANEW}"


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(Refused, match="already exists"):
        unpack(tmp_path / "mine")
    with pytest.raises(Refused, match="no folder"):
        unpack(tmp_path / "none" / "mine")


@pytest.mark.parametrize("name", ["../out", "/absolute", "link"])
def test_an_archive_writes_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    if name == "link":
        entry.type, entry.linkname = tarfile.SYMTYPE, os.devnull
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        archive.addfile(entry, io.BytesIO())
    with pytest.raises(Refused, match="expected plain files"):
        unpack(tmp_path / "inside", tmp_path / "bad.tar")
    assert [*(tmp_path / "inside").iterdir()] == []
