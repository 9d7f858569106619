"""Effects of runs: rejected and late records, removed rows, and changed columns."""

import json
from pathlib import Path

import pytest
from slackwater.testing import Record, load
from slackwater.testing.learn.effects import effects_of
from slackwater.testing.learn.runs import TopicRecord, run_program

pytestmark = [pytest.mark.spark, pytest.mark.ci, pytest.mark.usefixtures("one_spark")]

PROGRAM = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("days")


@app.stage(
    reads=sw.topic("in"), key=["k", "day"], state=sw.aggregate(n=sw.sum("x"), most=sw.max("x")), on_error="reject"
)
def t(raw):
    event = F.from_json(F.col("value").cast("string"), "k string, x long, at timestamp", {"mode": "FAILFAST"})
    rows = raw.select(event.alias("r")).select("r.*").withWatermark("at", "1 hour")
    return rows.withColumn("day", F.window("at", "1 day"))
"""


def event(day: int, x: object) -> bytes:
    return json.dumps({"k": "a", "x": x, "at": f"2013-01-{day:02d}T12:00:00Z"}).encode()


@pytest.mark.parametrize(
    ("second", "effects"),
    [
        (event(5, 4), {"later records change 'n' of 't'"}),
        (event(5, 9), {"later records change 'n' of 't'", "later records change 'most' of 't'"}),
        (event(6, 9), set[str]()),
        (event(1, 9), {"a row of stage 't' is late"}),
        (event(5, "seven"), {"stage 't' rejects a record"}),
    ],
)
def test_an_effect_is_told_exactly_if_the_second_record_has_it(
    second: bytes, effects: set[str], tmp_path: Path
) -> None:
    program = tmp_path / "days.py"
    program.write_text(PROGRAM)
    records = [TopicRecord("in", Record(value)) for value in (event(5, 5), second)]
    assert effects_of(run_program(load(program), records)) == effects
