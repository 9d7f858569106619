"""A program that reports its branches runs as the program itself."""

from pathlib import Path

import pytest
from slackwater.errors import NotFound, Refused
from slackwater.testing import Record
from slackwater.testing.learn.files import expected_rows
from slackwater.testing.learn.runs import ProgramRuns, TopicRecord

PROGRAM = """
from pathlib import Path

import duckdb
import pyarrow as pa
import slackwater as sw
from pyspark.sql import functions as F
from rules_of_shares import SCHEMA

LEAST = int((Path(__file__).parent / "least.txt").read_text())
app = sw.App("shares")


def largest(rows, state):
    some = duckdb.from_arrow(rows).filter("x > 1").aggregate("max(x) AS most")
    return pa.table({"most": [some.fetchall()[0][0] for _ in range(state.num_rows)]})


@app.stage(reads=sw.topic("in"), key="k", state=sw.update(largest, state="most long"))
def shares(raw):
    rows = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
    share = F.when(F.col("x") == 0, 0).when(F.expr("10 div x") > 9, 1)
    rows = rows.withColumn("share", share).withColumn("of", F.transform(F.array("x"), lambda x: F.when(x > 4, x)))
    return rows.where("x <> 0").where(F.expr("10 div x") > LEAST)
"""


@pytest.mark.spark
@pytest.mark.ci
@pytest.mark.usefixtures("one_spark")
def test_conditions_see_the_rows_that_earlier_ones_leave_and_files_beside_the_program_are_there(tmp_path: Path) -> None:
    program = tmp_path / "shares.py"
    program.write_text(PROGRAM)
    (tmp_path / "rules_of_shares.py").write_text('SCHEMA = "k string, x long"')
    (tmp_path / "least.txt").write_text("2")
    runs = ProgramRuns(program, "shares", tmp_path)
    # 10 div 0 fails, so no condition may be computed for a row that an earlier one excludes.
    records = [TopicRecord("in", Record(b'{"k": "a", "x": %d}' % x)) for x in (0, 3, 5)]
    observed = runs.observe(records)
    assert expected_rows(observed.ran) == expected_rows(runs.run(records))
    assert observed.ran.rows("shares") == [{"k": "a", "most": 3}]
    outcomes = {(branch.text, branch.outcome) for branch in observed.branches}
    both = ("'x <> 0'", "F.expr('10 div x') > LEAST", "F.col('x') == 0", "x > 4")
    assert outcomes == {(text, outcome) for text in both for outcome in (True, False)} | {
        ("F.expr('10 div x') > 9", False)
    }


def test_a_file_that_is_no_program_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"absent\.py"):
        ProgramRuns(tmp_path / "absent.py", "shares", tmp_path)
    (tmp_path / "broken.py").write_text("app = (")
    with pytest.raises(Refused, match=r"broken\.py, line 1"):
        ProgramRuns(tmp_path / "broken.py", "shares", tmp_path)
