"""An app is exported, read without slackwater, imported and continued exactly once, and reset."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.documents.pages.blocks import blocks
from tests.support.running import EXPECTED, LEDGER, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def opened(folder: Path, table: str, spark: SparkSession) -> list[list[str]]:
    """Read a table with DuckDB, pandas and Spark by the documentation's code, and return its rows."""
    names: dict[str, Any] = {"spark": spark}
    found: list[list[str]] = []
    for code in (block.code for block in blocks("python", "docs/leaving.md")):
        text = code.replace("flights-before-move", str(folder)).replace("tables/carriers", f"tables/{table}")
        if "duckdb.sql" in text:
            sql = re.findall(r'duckdb\.sql\("(.*?)"\)', text)[0]
            sql = sql.replace("SELECT carrier, flights", "SELECT *").replace("ORDER BY flights DESC", "")
            found.append(plain(duckdb.sql(sql).to_arrow_table().to_pylist()))
        elif "read_parquet" in text or "spark.read" in text:
            exec(text, names)  # noqa: S102  it is our own text that is tried
            rows = names["carriers"]
            is_pandas = isinstance(rows, pd.DataFrame)
            found.append(plain(rows.to_dict("records") if is_pandas else [row.asDict() for row in rows.collect()]))
        elif "hashlib" in text:
            exec(text, names)  # noqa: S102  it compares the checksum of each file
            assert names["offsets"]
    return found


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as sorted text, with Python's own number types."""
    return sorted(
        str({name: each if isinstance(each, str) else float(each) for name, each in row.items()}) for row in rows
    )


def test_an_exported_app_continues_elsewhere_and_counts_each_record_once(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(600)
    ledger.catch_up()
    ledger.send(300)
    ledger.catch_up("entries")  # what these send is on its way
    folder = tmp_path / "left"
    said = json.loads(ledger.slackwater("export", ledger.app, str(folder), "--json").stdout)
    assert said["in_flight"]
    for table in EXPECTED[LEDGER]:
        expected = plain(ledger.table(table).to_pylist())
        assert expected
        assert opened(folder, table, spark) == [expected] * 3, table

    moved = replace(ledger, store=str(tmp_path / "elsewhere"))
    ledger.slackwater("replicate", ledger.app, "--to", moved.store, "--once")
    moved.slackwater("recover", moved.app, "--from", moved.store)
    (tmp_path / "store").rename(tmp_path / "gone")
    moved.verify(moved.app)
    moved.send(200)
    moved.catch_up()
    moved.check_tables()
    moved.verify(moved.app)

    # Records that are read twice count twice in the tables, and the log has their offsets.
    ends = moved.kafka.offset_bounds(moved.topic)[1]
    assert sum(ends) == 1_100
    said = json.loads(moved.slackwater("reset", moved.app, "--all-topics", "--shift-by", "-40", "--json").stdout)
    assert {each["read_again"] for each in said["stages"]} == {120}
    moved.catch_up()
    assert moved.sql("SELECT sum(n)::BIGINT AS n FROM accounts").to_pylist() == [{"n": 1_220}]
    moved.verify(moved.app)
    said = moved.slackwater("log", moved.app).stdout
    assert f"offsets reset: {moved.topic}[0] {ends[0]} to {ends[0] - 40}" in said
