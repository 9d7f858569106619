"""Tables read through a Spark Connect server, by a client that has no JVM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import slackwater as sw
from slackwater.store.objects.local import LocalStore

from tests.support.histories import START_MS, Clock, FlightsApp, Kafka, flights

_CLIENT = """
import json, sys
import slackwater as sw
from pyspark.sql import SparkSession

root = sys.argv[1]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert "connect" in type(spark).__module__
moment = sw.open(root).app("flights").at("~1")
frames = {
    "format": spark.read.format("slackwater").option("at", "~1").option("store", root).load("flights/aircraft"),
    "method": moment.spark_table(spark, "aircraft"),
    "query": moment.spark_query(spark, "SELECT * FROM aircraft WHERE flights > 1"),
}
print(json.dumps({name: sorted(map(list, frame.collect())) for name, frame in frames.items()}))
spark.stop()
"""


@pytest.mark.ci
@pytest.mark.spark
def test_a_connect_client_reads_the_rows_of_a_query(tmp_path: Path) -> None:
    app = FlightsApp(LocalStore(tmp_path / "store"), Kafka(), clock=Clock(START_MS))
    app.run(flights(60, aircraft=40))
    app.run(flights(60, aircraft=50))
    command = [sys.executable, "-c", _CLIENT, app.store.url]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    with sw.open(app.store.url) as client:
        expected = sorted(map(list, client.app("flights").at("~1").query("FROM aircraft").fetchall()))
    assert rows["format"] == rows["method"] == expected
    assert rows["query"] == [row for row in expected if row[1] > 1]
