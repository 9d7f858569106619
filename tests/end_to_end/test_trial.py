"""A release tried on an app's own input: what comes out different is named, exactly; the app is as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import slackwater as sw
from slackwater.errors import Refused, Usage
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps

from tests.support.running import TWO_STAGES, Ledger

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


def test_it_names_the_rows_that_differ_and_leaves_nothing(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    before = sorted(info.key for info in open_store(ledger.store).list("till/"))
    topics = ledger.kafka.partition_counts()
    app = sw.open(ledger.store, kafka=ledger.bootstrap).app("till")

    def tried(code: Path, *words: str) -> tuple[int, dict[str, Any]]:
        start = ("--from", "till@monday", "--show-values", "--json")
        done = ledger.slackwater("trial", "till", "--code", str(code), *start, *words, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    report = tmp_path / "trial.md"
    code, data = tried(new, "--before", str(old), "--md", str(report))
    (table,) = data["tables"]
    assert {row["key"]["account"] for row in table["rows"]} == {"a1", "a2"}
    assert (code, data["same"], data["records"], data["beside"]) == (1, False, 1_000, True)
    (sent,) = data["sinks"]
    assert sent["added"] == sent["removed"] > 0
    assert "till: accounts, " in report.read_text()
    # The same program gives the same, and a difference that is meant is none.
    assert tried(old, "--before", str(old))[0] == 0
    code, data = tried(new, "--allow", "FROM accounts WHERE before_n = after_n")
    assert (code, data["tables"][0]["changed"], data["unknown_sinks"]) == (0, 0, [sink])
    with pytest.raises(Usage, match="is not after"):
        app.trial(new, start="now")
    left = sorted(info.key for info in open_store(ledger.store).list("till/"))
    assert [key for key in left if "/log/" not in key] == [key for key in before if "/log/" not in key]
    assert apps.list_apps(open_store(ledger.store)) == ("till",)
    assert ledger.kafka.partition_counts() == topics


def test_records_on_the_way_ask_for_the_program_of_before(
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
    with pytest.raises(Refused, match="records are on the way between the stages"):
        app.trial(ledger.program, start=start)
