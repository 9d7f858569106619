"""What the process that plans does when Spark has hung up."""

import subprocess
import sys

import pytest

PLANNING = """
from pyspark.sql.types import StructType
from slackwater.pipeline.source.data_source import Private, SourceOptions
from slackwater.pipeline.source.readers import TopicSourceReader

class Away:
    def latest(self, start):
        raise ConnectionResetError("Kafka's")

reader = TopicSourceReader(SourceOptions(input="t", topic="t"), StructType(), Private())
try:
    {what}
finally:
    reader.stop()
"""


def planning(what: str) -> subprocess.CompletedProcess[str]:
    program = PLANNING.format(what=what)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("error", "silent"),
    [
        ("EOFError", True),
        ("BrokenPipeError", True),
        ("ConnectionResetError", True),
        ("__import__('slackwater').errors.Unavailable('Kafka is away')", False),
        ("ValueError('a bug')", False),
    ],
)
def test_a_planner_ends_without_a_word_where_spark_has_hung_up_and_only_there(error: str, silent: bool) -> None:
    done = planning(f"raise {error}")
    assert (done.returncode, done.stderr) == (0, "") if silent else done.returncode == 1


def test_a_planner_tells_of_a_broken_connection_that_is_not_sparks() -> None:
    done = planning("reader._planner = Away(); reader.latestOffset({'input': 't', 'offsets': []}, None)")
    assert done.returncode == 1
    assert "ConnectionResetError: Kafka's" in done.stderr
