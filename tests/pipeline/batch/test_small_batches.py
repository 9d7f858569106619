"""Small batches have fewer tasks than hash ranges, and write one SST per task; their rows are the same."""

from pathlib import Path

import pytest
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.pipeline.batch import task_count
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.open import open_store
from slackwater.store.sst.sorted_runs import overlapped_partitions
from slackwater.store.versions import keys

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

TASKS = 8


def declared(ledger: Ledger) -> sw.App:
    app = sw.App(ledger.app)

    @app.stage(
        reads=sw.topic(ledger.topic),
        key="seq",
        state=sw.aggregate(amount=sw.sum("amount"), times=sw.count()),
        table=sw.table(partitions=TASKS, tasks=TASKS),
    )
    def entries(raw: DataFrame) -> DataFrame:
        entry = F.from_json(F.col("value").cast("string"), "seq long, amount long")
        # Numbers repeat, so that batches change rows of earlier ones.
        return raw.select(entry.alias("e")).select((F.col("e.seq") % 300).alias("seq"), "e.amount")

    return app


def test_ten_records_write_one_sst_and_many_records_one_sst_per_task(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(task_count, "MIN_ROWS", 100)
    ledger = Ledger(kafka.bootstrap, tmp_path)
    app = declared(ledger)

    def objects(prefix: str) -> set[str]:
        return {info.key for info in open_store(ledger.store).list(prefix)}

    def put_by_a_run(records: int, **options: int) -> tuple[list[int], int]:
        """Run the app; return the number of hash ranges of each SST that was put, and the number of manifests."""
        ledger.send(records)
        of_ssts, of_manifests = keys.ssts(ledger.app, "entries"), keys.manifests(ledger.app, "entries")
        old_ssts, old_manifests = objects(of_ssts), objects(of_manifests)
        app.run(store=ledger.store, kafka=kafka.bootstrap, until_caught_up=True, **options)
        ssts = resolve(open_store(ledger.store), ledger.app, now_ms=0).stages["entries"].ssts
        new = [sst for sst in ssts if sst.object not in old_ssts]
        assert {sst.object for sst in new} == objects(of_ssts) - old_ssts
        return [len(overlapped_partitions(sst, TASKS)) for sst in new], len(objects(of_manifests) - old_manifests)

    # Each run claims the stage, by a manifest of its own.
    assert put_by_a_run(10) == ([TASKS], 2)
    assert put_by_a_run(100 * TASKS) == ([1] * TASKS, 2)
    assert put_by_a_run(250) == ([TASKS // 2] * 2, 2)
    rows = sorted(ledger.table("entries").to_pylist(), key=lambda row: row["seq"])
    assert sum(row["times"] for row in rows) == ledger.sent
    assert verify(open_store(ledger.store), ledger.app, deep=True).consistent
    # The same records in other batches give the same table.
    ledger.app += "-again"
    app = declared(ledger)
    app.run(store=ledger.store, kafka=kafka.bootstrap, until_caught_up=True, max_records=130)
    assert sorted(ledger.table("entries").to_pylist(), key=lambda row: row["seq"]) == rows
