"""A release tried on an app's input: it reports exactly the differences, and the app is unchanged."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import slackwater as sw
from pyspark.sql import SparkSession
from slackwater.errors import Refused, Usage
from slackwater.operations.staging.trial_plan import Sample, restrict_to_sample, with_upstream
from slackwater.pipeline.batch.schemas import derive_schemas
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.program import load_app
from slackwater.store.objects.open import open_store
from slackwater.store.sst.hashing import KeyShare
from slackwater.store.versions import apps

from tests.support.running import SLACKWATER, TWO_STAGES, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

PROGRAM = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("till")

@app.stage(reads=sw.topic("{topic}"), key="account", state=sw.aggregate(n=sw.count(), total=sw.sum("amount")),
           writes=sw.sink("{sink}", key="account"))
def accounts(raw):
    entry = F.from_json(F.col("value").cast("string"), "seq long, account string, branch int, amount long")
    rows = raw.select(entry.alias("e")).select("e.*")
    return rows.withColumn("amount", {amount})
"""


@dataclass(frozen=True)
class Till:
    """An app, its program and a changed program. The app has read on since its snapshot `monday`.

    The changed program doubles the payments of two accounts.
    """

    ledger: Ledger
    sink: str
    old: Path
    new: Path

    def words(self, code: Path) -> tuple[str, ...]:
        return ("trial", "till", "--code", str(code), "--from", "till@monday", "--show-values", "--json")

    def tried(self, code: Path, *words: str) -> tuple[int, dict[str, Any]]:
        done = self.ledger.slackwater(*self.words(code), *words, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def objects(self) -> list[str]:
        """Return all stored objects of the app, with its log of operations."""
        return sorted(info.key for info in open_store(self.ledger.store).list("till/"))


@pytest.fixture
def till(kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Till:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    ledger = Ledger(kafka.bootstrap, tmp_path, app="till")
    sink = f"{ledger.topic}-sink"
    ledger.kafka.create_topics({sink: 1})
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(PROGRAM.format(topic=ledger.topic, sink=sink, amount="F.col('amount')"))
    doubled = "F.when(F.col('account').isin('a1', 'a2'), 2 * F.col('amount')).otherwise(F.col('amount'))"
    new.write_text(PROGRAM.format(topic=ledger.topic, sink=sink, amount=doubled))
    ledger.program = old
    ledger.send(1_000)
    ledger.catch_up()
    ledger.slackwater("snapshot", "take", "till", "monday", "--instant")
    ledger.send(1_000)
    ledger.catch_up()
    return Till(ledger, sink, old, new)


def test_a_trial_reports_the_rows_that_differ_and_leaves_nothing(till: Till) -> None:
    ledger, old, new = till.ledger, till.old, till.new
    before, topics = till.objects(), ledger.kafka.partition_counts()

    report = ledger.folder / "trial.md"
    code, data = till.tried(new, "--before", str(old), "--md", str(report))
    (table,) = data["tables"]
    assert {row["key"]["account"] for row in table["rows"]} == {"a1", "a2"}
    assert (code, data["same"], data["records"], data["beside"]) == (1, False, 1_000, True)
    (sent,) = data["sinks"]
    assert sent["added"] == sent["removed"] > 0
    assert "till: differences in accounts, " in report.read_text()
    # An intended difference does not count, nor does a new column. An invalid query is reported, too.
    added = new.with_name("added.py")
    added.write_text(new.read_text().replace("n=sw.count()", 'number=sw.count(), low=sw.min("amount")'))
    meant, wrong = (f"FROM accounts WHERE before_{name} = after_{name}" for name in ("number", "n"))
    code, data = till.tried(added, "--rename", "n=number", "--allow", meant, "--allow", wrong)
    assert (code, data["same"], data["tables"][0]["changed"], data["unknown_sinks"]) == (1, True, 0, [till.sink])
    assert (data["tables"][0]["unlike"], len(data["migrated"])) == (["column n was renamed to number"], 2)
    (told_late,) = data["not_allowed"]
    assert told_late.endswith(f"({wrong})")
    # If the user stops it, by either signal, it reports no difference.
    app = sw.open(ledger.store, kafka=ledger.bootstrap).app("till")
    for number, at in ((signal.SIGINT, "starting stage"), (signal.SIGTERM, "claiming")):
        told: list[str] = []

        def stop(doing: str, at: str = at, number: int = number, told: list[str] = told) -> None:
            told.append(doing)
            if doing.startswith(at):
                os.kill(os.getpid(), number)

        with pytest.raises(KeyboardInterrupt):
            # The same moment by another name.
            app.trial(new, start="till/accounts@v2", on_progress=stop)
        assert "comparing" not in told
    assert till.objects() == before
    assert apps.list_apps(open_store(ledger.store)) == ("till",)
    assert ledger.kafka.partition_counts() == topics


def test_a_trial_from_a_moment_with_in_flight_records_requires_the_old_program(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(300)
    ledger.catch_up(*TWO_STAGES[1::2])
    start = f"{ledger.app}/accounts@v2"
    ledger.send(300)
    ledger.catch_up("entries")
    app = sw.open(ledger.store, kafka=ledger.bootstrap).app(ledger.app)
    with pytest.raises(Refused, match="records are in flight between the stages"):
        app.trial(ledger.program, start=start)


@pytest.mark.ci  # two more trials, each with two runs
def test_the_same_program_gives_no_differences_and_a_share_of_keys_gives_a_subset(till: Till) -> None:
    assert till.tried(till.old, "--before", str(till.old))[0] == 0
    _, data = till.tried(till.new, "--keys", "50%", "--before", str(till.old))
    assert {row["key"]["account"] for row in data["tables"][0]["rows"]} <= {"a1", "a2"}


@pytest.mark.ci  # each kill is a JVM; what is left of one is dropped by the call of before each trial above
@pytest.mark.parametrize("at", ["claiming", "starting stage", "read 1,000 of 1,000 records", "comparing"])
def test_a_trial_restarts_after_a_kill_and_no_pin_stays(till: Till, at: str) -> None:
    before, environment = till.objects(), till.ledger.environment()
    command = [str(SLACKWATER), *till.words(till.new)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if at in line.decode():
                break
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    store = open_store(till.ledger.store)
    assert till.ledger.slackwater(*till.words(till.new), check=False).returncode == 1
    assert till.objects() == before
    assert apps.list_apps(store) == ("till",)


def test_a_share_of_keys_is_refused_if_a_stage_combines_keys(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    spark = SparkSession.getActiveSession()
    assert spark is not None
    app = load_app(str(ledger.program), name=ledger.app)
    known, stages = derive_schemas(app, spark), with_upstream(app, ())
    with pytest.raises(Refused, match=r"stage 'branches' has the key \(branch\), of which it would get only some"):
        restrict_to_sample(app, known, stages, Sample.parse("1%"))
    some = with_upstream(app, ["latest"])
    assert some == ("entries", "latest")
    assert restrict_to_sample(app, known, some, Sample.parse("1%"))[1] == {"latest": KeyShare(("account",), 100)}
    for wrong in ("1", "0%", "101%", "a%"):
        with pytest.raises(Usage, match="expected a share of all keys"):
            Sample.parse(wrong)
