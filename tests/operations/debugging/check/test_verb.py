"""`slackwater check`: replays the history of a real app with its own program and with changed ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
from slackwater.errors import Refused, Usage
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.cli.verbs.calling import slackwater
from tests.support.running import LEDGER, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark", "ledger_environment")]


@pytest.fixture(scope="module")
def ledger(kafka: EmbeddedKafka, one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Return an app that has read 400 records in two batches."""
    ledger = Ledger(kafka.bootstrap, tmp_path_factory.mktemp("check"))
    ledger.send(400)
    ledger.catch_up(max_records=200)
    return ledger


def check(ledger: Ledger, code: Path, *words: str, code_of_exit: int = 0) -> Any:
    result = slackwater("check", str(code), "--app", ledger.app, *words, "--json")
    assert result.exit_code == code_of_exit, result.output
    return json.loads(result.stdout)


def changed(before: str, after: str) -> Path:
    """Write the app's program with a replacement, and return its path."""
    text = LEDGER.read_text()
    assert text.count(before) == 1
    path = Path("changed.py")
    path.write_text(text.replace(before, after))
    return path


@pytest.mark.ci
def test_the_apps_own_program_is_deterministic(ledger: Ledger) -> None:
    found = check(ledger, LEDGER, "--versions", "1")
    assert found["same"]
    assert found["found"] == found["passed_over"] == []
    assert {each["stage"] for each in found["versions"]} == {"entries", "accounts", "latest", "branches"}
    for each in found["versions"]:
        assert each["records"] > 0
        assert {"again", "at another time", "in another order", "on other partitions", "as committed"} <= {
            *each["runs"]
        }


def test_a_use_of_the_clock_is_found_and_its_values_are_shown_only_on_request(ledger: Ledger) -> None:
    code = changed(
        'alias("at")).select(*columns)', 'alias("at")).select("e.*").withColumn("amount", F.unix_timestamp())'
    )
    words = ("--stage", "entries", "--versions", "1")
    (found,) = check(ledger, code, *words, code_of_exit=1)["found"]
    assert (found["stage"], found["reason"], found["runs"]) == ("entries", "clock", ["as it was", "at another time"])
    assert found["plan"]["clocks"] == ["current_timestamp"]
    assert found["sent"]["by-account"]["first"] == found["sent"]["by-account"]["second"] > 0
    result = slackwater("check", str(code), "--app", ledger.app, *words)
    assert result.exit_code == 1
    assert "changed.py is nondeterministic: entries" in result.stdout
    assert "its plan has current_timestamp()" in result.stdout


@pytest.mark.ci
def test_a_dependence_on_unguaranteed_order_is_found(ledger: Ledger) -> None:
    code = changed(
        'added = rows.group_by("_key", use_threads=False).aggregate([("amount", "sum")])["amount_sum"]',
        'added = rows.group_by("_key", use_threads=False).aggregate([("amount", "last")])["amount_last"]',
    )
    code.write_text(code.read_text().replace('        order_by="seq",\n', ""))
    words = ("--stage", "accounts")
    found = check(ledger, code, *words, code_of_exit=1)
    assert {each["reason"] for each in found["found"]} == {"order"}
    assert found["found"][0]["num_keys"] > 0
    hidden, shown = (
        check(ledger, code, *words, *more, code_of_exit=1)["found"][0]["keys"][0] for more in ((), ("--show-values",))
    )
    assert "••••" in hidden["key"]["account"]
    assert shown["key"]["account"].startswith("a")
    assert shown["first"] != shown["second"]


def test_python_skips_a_version_of_another_table_and_says_so(ledger: Ledger) -> None:
    code = changed(
        'state="n long, balance long, newest long"\n        if MIGRATED',
        'state="n long, balance double"\n        if True',
    )
    with sw.open() as client:
        app = client.app(ledger.app)
        found = app.check(code, stages=["accounts"], versions=1)
        assert found.failed
        assert "is not the one that the stage had then" in repr(found)
        assert not app.check(LEDGER, stages=["latest"], versions=1).failed
        with pytest.raises(Usage, match="expected 1 or more"):
            app.check(LEDGER, versions=0)


def test_checking_an_app_without_batches_is_refused(ledger: Ledger) -> None:
    ledger.slackwater("clone", ledger.app, f"{ledger.app}-new")
    with sw.open() as client, pytest.raises(Refused, match="nothing to replay"):
        client.app(f"{ledger.app}-new").check(LEDGER)
