"""`App.run()` in a script: the app runs in the script's process, on a real broker and Spark."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.listener import BatchReport
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.open import open_store

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def newest(rows: pa.Table, state: pa.Table) -> pa.Table:
    """Keep the largest `seq`; workers cannot import this module."""
    last = rows.group_by("_key", use_threads=False).aggregate([("seq", "max")])["seq_max"]
    return pa.table({"seq": pc.max_element_wise(state["seq"], last)})


def declared(ledger: Ledger) -> sw.App:
    app = sw.App(ledger.app)

    @app.stage(reads=sw.topic(ledger.topic), writes=sw.repartition("by-branch", "branch", partitions=2))
    def entries(raw: DataFrame) -> DataFrame:
        entry = F.from_json(F.col("value").cast("string"), "seq long, branch int")
        return raw.select(entry.alias("e")).select("e.*")

    @app.stage(reads="by-branch", state=sw.update(newest, state="seq long", order_by="seq"))
    def branches(rows: DataFrame) -> DataFrame:
        return rows

    return app


def test_until_caught_up_ends_after_the_records_that_existed_at_the_start_are_flushed(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(2_000)
    reports: list[BatchReport] = []
    app = declared(ledger)

    def run(until: int) -> None:
        app.run(
            store=ledger.store,
            kafka=kafka.bootstrap,
            until_caught_up=True,
            max_records=500,
            max_unflushed=2,
            on_commit=reports.append,
        )
        heads = resolve(open_store(ledger.store), ledger.app, now_ms=0).stages
        assert sum(heads["entries"].inputs[ledger.topic].offsets) >= until
        assert sum(heads["branches"].inputs["by-branch"].consumed) >= until

    with ledger.fed(rows=10):
        run(2_000)
    assert {report.stage for report in reports} == {"entries", "branches"}
    assert len([report for report in reports if report.stage == "entries"]) >= 4
    run(ledger.sent)
    assert ledger.has_caught_up()
    seqs = ledger.table("branches")["seq"].to_pylist()
    assert len(seqs) == 7
    assert max(seqs) == ledger.sent - 1
    committed = len(reports)
    run(ledger.sent)
    assert len(reports) == committed, "nothing was left to read"


KEY, SEQ, AMOUNT, PAID = 'the.`key` "k"', "s.e.q", "am`ount, é: <x>", "pa id"


def named_badly(ledger: Ledger) -> sw.App:
    app = sw.App(ledger.app)

    @app.stage(reads=sw.topic(ledger.topic), writes=sw.repartition("by-key", KEY, partitions=2))
    def entries(raw: DataFrame) -> DataFrame:
        entry = F.from_json(F.col("value").cast("string"), "seq long, branch int, amount long").alias("e")
        paid = F.struct(F.col("e.seq").alias("in.ner"), F.struct(F.col("e.amount").alias("b`c, d:e")).alias("<x>"))
        return raw.select(entry).select(
            F.col("e.branch").alias(KEY), F.col("e.seq").alias(SEQ), F.col("e.amount").alias(AMOUNT), paid.alias(PAID)
        )

    sums = {"to.tal": sw.sum(AMOUNT), "la`st": sw.last(AMOUNT, by=SEQ), "m.ean": sw.mean(AMOUNT)}

    @app.stage(reads="by-key", state=sw.aggregate(**sums))
    def added(rows: DataFrame) -> DataFrame:
        return rows

    @app.stage(reads="by-key", state=sw.upsert(by=SEQ))
    def newest_rows(rows: DataFrame) -> DataFrame:
        return rows

    @app.stage(reads="by-key", state=sw.update(counted, state="`n.` long", order_by=SEQ))
    def counts(rows: DataFrame) -> DataFrame:
        return rows

    return app


def counted(rows: pa.Table, state: pa.Table) -> pa.Table:
    counts = rows.group_by("_key", use_threads=False).aggregate([("_key", "count")])["_key_count"]
    return pa.table({"n.": pc.add(pc.fill_null(state["n."], 0), counts)})


@pytest.mark.ci
def test_columns_may_have_any_name_that_a_table_takes(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    ledger = Ledger(kafka.bootstrap, tmp_path)
    app = named_badly(ledger)
    ledger.send(600)
    app.run(store=ledger.store, kafka=kafka.bootstrap, until_caught_up=True, max_records=200)
    entries: dict[int, dict[int, int]] = {}
    for entry in ledger.raw().to_pylist():
        entries.setdefault(entry["branch"], {})[entry["seq"]] = entry["amount"]
    last = {branch: max(some) for branch, some in entries.items()}
    added = {row[KEY]: row for row in ledger.table("added").to_pylist()}
    assert {key: (row["to.tal"], row["m.ean"]) for key, row in added.items()} == {
        key: (sum(some.values()), sum(some.values()) / len(some)) for key, some in entries.items()
    }
    assert {key: row["la`st"] for key, row in added.items()} == {key: entries[key][seq] for key, seq in last.items()}
    newest_rows = {row[KEY]: (row[SEQ], row[PAID]) for row in ledger.table("newest_rows").to_pylist()}
    assert newest_rows == {
        key: (seq, {"in.ner": seq, "<x>": {"b`c, d:e": entries[key][seq]}}) for key, seq in last.items()
    }
    counts = {row[KEY]: row["n."] for row in ledger.table("counts").to_pylist()}
    assert counts == {key: len(some) for key, some in entries.items()}
    ledger.verify(ledger.app)
