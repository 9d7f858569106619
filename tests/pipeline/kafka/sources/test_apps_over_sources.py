"""Apps over folders and Delta tables: each row counts once, also over kills, and a bad row leads to its line."""

import json
import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import slackwater as sw
from deltalake import DeltaTable, write_deltalake
from slackwater import testing
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import SLACKWATER, eventually

pytestmark = [pytest.mark.ci, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

SHOP = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("shop")


@app.stage(
    reads={reads},
    key="k",
    state=sw.{state},
)
def totals(messages):
    order = F.from_json(F.col("value").cast("string"), "k string, v long, _change_type string, _commit_version long")
    return messages.select(order.alias("o")).selectExpr({columns})
"""
BAD = "SELECT k FROM totals WHERE total > 500000"


def program(folder: Path, reads: str, state: str = "", columns: str = '"o.k", "o.v"') -> Path:
    file = folder / "shop.py"
    state = state or 'aggregate(orders=sw.count(), total=sw.sum("v"))'
    file.write_text(SHOP.format(reads=reads, state=state, columns=columns))
    return file


def write_orders(folder: Path, number: int, *, bad_line: int = 0) -> Path:
    """Write a file of ten orders, complete at once, as a program must that writes for others."""
    folder.mkdir(exist_ok=True)
    rows = [{"k": f"k{n % 3}", "v": 1_000_000 if n + 1 == bad_line else n} for n in range(10)]
    file = folder / f"{number:03}.jsonl"
    (folder / f".{file.name}").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return (folder / f".{file.name}").rename(file)


def totals_of(folder: Path) -> list[tuple[object, ...]]:
    rows = duckdb.sql(f"SELECT k, count(*), sum(v)::bigint FROM read_json('{folder}/*.jsonl') GROUP BY k ORDER BY k")
    return rows.fetchall()


def test_a_bad_line_of_a_file_is_found_although_kafka_never_had_it(tmp_path: Path) -> None:
    folder = tmp_path / "orders"
    code = program(tmp_path, f"sw.read_files({str(folder)!r}, max_files_per_trigger=2)")
    write_orders(folder, 0)
    ran = testing.run(testing.load(code), {}, max_records=4)
    write_orders(folder, 1, bad_line=5)
    write_orders(folder, 2)
    ran = testing.run(testing.load(code), {}, after=ran)
    assert [(row["k"], row["orders"], row["total"]) for row in ran.rows("totals")] == totals_of(folder)
    found = ran.app.bisect(where=BAD, code=code)
    assert found.record is not None
    location = found.record.source_record.location if found.record.source_record is not None else None
    assert location is not None
    assert (str(location), location.place) == ("files:orders[0]@14", f"file://{folder}/001.jsonl line 5")
    assert f"file://{folder}/001.jsonl line 5" in str(found)
    why = ran.app.why("totals", "k1", code=code)
    places = {record.location.place for record in why.records}
    assert f"file://{folder}/001.jsonl line 5" in places
    assert len(places) == 9
    assert "001.jsonl line 5" in str(ran.app.impact(str(location), code=code))
    (folder / "001.jsonl").unlink()
    gone = ran.app.bisect(where=BAD, code=code)
    assert f"{folder}/001.jsonl does not exist any more" in str(gone)


def test_a_table_of_changes_follows_a_delta_table(tmp_path: Path) -> None:
    table = tmp_path / "accounts"
    code = program(
        tmp_path,
        f"sw.read_delta({str(table)!r}, read_change_feed=True, starting_version=0)",
        'upsert(by="seen", delete_when="gone")',
        '"o.k", "o.v", "o._commit_version AS seen", "o._change_type = \'delete\' AS gone"',
    ).read_text()
    code = code.replace(".selectExpr(", ".where(\"o._change_type <> 'update_preimage'\").selectExpr(")
    (tmp_path / "shop.py").write_text(code)
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(table, pa.table({"k": ["a", "b", "c"], "v": [1, 2, 3]}), configuration=feed)
    ran = testing.run(testing.load(tmp_path / "shop.py"), {})
    DeltaTable(table).update({"v": "v * 10"}, predicate="k = 'b'")
    DeltaTable(table).delete("k = 'a'")
    DeltaTable(table).optimize.compact()
    write_deltalake(table, pa.table({"k": ["d"], "v": [4]}), mode="append")
    ran = testing.run(testing.load(tmp_path / "shop.py"), {}, after=ran)
    expected = sorted((row["k"], row["v"]) for row in DeltaTable(table).to_pyarrow_table().to_pylist())
    assert [(row["k"], row["v"]) for row in ran.rows("totals")] == expected


@pytest.mark.kafka
def test_each_line_counts_once_although_runners_are_killed(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    folder, store = tmp_path / "orders", tmp_path / "store"
    code = program(tmp_path, f"sw.read_files({str(folder)!r})")
    words = [SLACKWATER, "run", str(code), "--master", "local[2]", "--max-records", "7"]
    environment = os.environ | {
        "SLACKWATER_STORE": str(store),
        "SLACKWATER_KAFKA": kafka.bootstrap,
        "SLACKWATER_CACHE": str(tmp_path / "cache"),
    }
    written = 0

    def versions() -> int:
        return len(list(store.glob("shop/stages/totals/manifests/*.json")))

    def has_more(than: int) -> bool:
        return versions() > than

    for _ in range(3):
        before = versions()
        runner = subprocess.Popen(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for _ in range(3):
            write_orders(folder, written)
            written += 1
        try:
            eventually(partial(has_more, before + 2), "no batch was committed")
        finally:
            os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()
    subprocess.run([*words, "--until-caught-up"], env=environment, check=True, capture_output=True)
    moment = sw.open(store=str(store)).app("shop").at()
    assert moment.query("SELECT k, orders, total FROM totals ORDER BY k").fetchall() == totals_of(folder)
