"""`slackwater watch` on the command line."""

import json
import signal
from pathlib import Path

import pytest
from slackwater.store.objects.open import open_store

from tests.cli.verbs.calling import BAD, BROKEN, done, from_json, process, rows_of, slackwater
from tests.support.histories import Clock, FlightsApp, Kafka, flights

pytestmark = pytest.mark.usefixtures("isolated")

LATE = f'[invariants.no-flight-is-late]\nwhere = "{BAD}"\nevery = "100ms"\n'
ADDS_UP = '[invariants.adds-up]\ncheck = "min(flights) > 0"\ntable = "carriers"\n'


def write(*tables: str) -> None:
    Path("slackwater.toml").write_text("".join(tables), encoding="utf-8")


@pytest.fixture
def young(tmp_path: Path) -> FlightsApp:
    """Return an app with forty good flights."""
    app = FlightsApp(open_store(str(tmp_path / "store")), Kafka(), clock=Clock())
    app.run(flights(40))
    return app


def test_once_evaluates_all_invariants_and_names_the_moment(young: FlightsApp) -> None:
    write(LATE, ADDS_UP)
    assert "2 hold" in done("watch", "flights", "--once")
    then = rows_of("flights", "FROM carriers ORDER BY ALL")
    assert rows_of("flights@last-good", "FROM carriers ORDER BY ALL") == then
    assert "slackwater watch by" in done("snapshot", "list", "flights")


def test_once_fails_and_names_the_commit_that_broke_an_invariant(young: FlightsApp) -> None:
    write(LATE, f'on_failure = "env | grep ^SLACKWATER_ | sort > called"\n{ADDS_UP}')
    assert from_json("watch", "flights", "--once")["last_good"] == "flights@last-good"
    good = young.heads["carriers"].version
    young.run([BROKEN])
    young.run(flights(10))
    result = slackwater("watch", "flights", "--once")
    assert result.exit_code == 1
    assert "no-flight-is-late does not hold at flights/carriers@v" in result.stdout
    assert f"carriers v{good + 1} broke no-flight-is-late" in result.stdout
    assert "it read flights[" in result.stdout
    called = dict(line.split("=", 1) for line in Path("called").read_text().splitlines())
    assert called["SLACKWATER_INVARIANT"] == "no-flight-is-late"
    assert called["SLACKWATER_APP"] == "flights"
    assert called["SLACKWATER_LAST_GOOD"] == "flights@last-good"
    assert rows_of(called["SLACKWATER_REF"], BAD)
    assert called["SLACKWATER_FIRST_BAD"] == f"flights/carriers@v{good + 1}"
    report = Path(called["SLACKWATER_REPORT"])
    assert report.parent == Path("slackwater-reports").absolute()
    assert f"the report is in {report}" in result.stderr
    assert "carriers" in report.read_text(encoding="utf-8")
    assert rows_of("flights@last-good", BAD) == []


def test_json_is_one_document_with_everything(young: FlightsApp) -> None:
    write(LATE, ADDS_UP, '[invariants.wrong]\nwhere = "FROM carrierz"\n')
    young.run([BROKEN])
    result = slackwater("watch", "flights", "--once", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    by_name = {each["name"]: each for each in found["invariants"]}
    assert {name: each["state"] for name, each in by_name.items()} == {
        "no-flight-is-late": "fails",
        "adds-up": "holds",
        "wrong": "unknown",
    }
    assert by_name["no-flight-is-late"]["first_bad"] == f"flights/carriers@v{young.heads['carriers'].version}"
    assert by_name["no-flight-is-late"]["rows"][0]["carrier"] == "C1"
    assert "carrierz" in by_name["wrong"]["error"]
    assert Path(by_name["no-flight-is-late"]["report"]).is_file()
    assert by_name["adds-up"]["report"] is None
    assert found["last_good"] is None


def test_without_bisect_only_the_violating_rows_are_shown(young: FlightsApp) -> None:
    write(LATE)
    young.run([BROKEN])
    result = slackwater("watch", "flights", "--once", "--on-fail", "nothing")
    assert result.exit_code == 1
    assert "broke" not in result.stdout
    assert not Path("slackwater-reports").exists()


def test_an_unwritable_report_is_reported(young: FlightsApp) -> None:
    write(LATE)
    young.run([BROKEN])
    Path("taken").touch()
    result = slackwater("watch", "flights", "--once", "--reports", "taken")
    assert (result.exit_code, "choose another --reports" in result.stderr) == (1, True)


@pytest.mark.usefixtures("young")
def test_a_failed_command_and_an_impossible_search_are_reported_and_watch_continues() -> None:
    write('[invariants.impossible]\nwhere = "SELECT 1"\non_failure = "exit 3"\n')
    result = slackwater("watch", "flights", "--once")
    assert result.exit_code == 1
    assert "on_failure failed with exit code 3" in result.stderr
    assert "the commit that broke impossible was not found: the predicate returns rows already" in result.stderr


@pytest.mark.usefixtures("young")
def test_invariants_of_other_apps_are_ignored() -> None:
    for tables in ((), (LATE, 'app = "others"\n')):
        write(*tables)
        result = slackwater("watch", "flights", "--once")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "no invariants configured for flights" in result.stderr


def test_watch_runs_until_it_is_stopped(young: FlightsApp) -> None:
    write(LATE)
    with process("watch", "flights", "--json") as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["invariants"][0]["state"] == "holds"
        young.run([BROKEN])
        found = json.loads(watching.stdout.readline())
        while not found["invariants"][0]["first_bad"]:  # it may have looked before all stages had committed
            found = json.loads(watching.stdout.readline())
        assert found["invariants"][0]["state"] == "fails"
        watching.send_signal(signal.SIGTERM)
        assert watching.wait(timeout=180) == 0
    assert "watch" in done("log", "flights", "--operations")
