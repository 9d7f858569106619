"""What the process that plans does when Spark has hung up."""

import subprocess
import sys

import pytest

PLANNING = """
from pyspark.sql.types import StructType
from slackwater.pipeline.source.data_source import Private, SourceOptions
from slackwater.pipeline.source.readers import TopicReader

reader = TopicReader(SourceOptions(input="t", topic="t"), StructType(), Private())
try:
    raise {error}
finally:
    reader.stop()
"""


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
    program = PLANNING.format(error=error)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") if silent else done.returncode == 1
