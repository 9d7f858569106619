"""The planning process after Spark has disconnected."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLANNING = """
import json, os, sys
from pathlib import Path
from pyspark.sql.types import StructType
from slackwater.pipeline.source.data_source import PrivateOptions, SourceOptions
from slackwater.pipeline.source.readers import TopicSourceReader

class Away:
    def plan_end(self, start):
        raise ConnectionResetError("Kafka's")

ended = {}
for what in sys.argv[1:]:
    if not (planner := os.fork()):
        os.dup2(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        break
    _, status = os.waitpid(planner, 0)
    ended[what] = (os.waitstatus_to_exitcode(status), Path("said").read_text())
else:
    print(json.dumps(ended))
    sys.exit()

reader = TopicSourceReader(SourceOptions(input="t", topic="t"), StructType(), PrivateOptions())
try:
    exec(what)
finally:
    reader.stop()
"""
ERRORS = {
    "EOFError": True,
    "BrokenPipeError": True,
    "ConnectionResetError": True,
    "__import__('slackwater').errors.Unavailable('Kafka is away')": False,
    "ValueError('a bug')": False,
}
"""Errors of a planner, each with True if it is not printed."""
ASKS_KAFKA = "reader._planner = Away(); reader.latestOffset({'input': 't', 'offsets': []}, None)"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Return exit code and output of planners, each with another error. They are forked from one prepared process."""
    whats = [*(f"raise {error}" for error in ERRORS), ASKS_KAFKA]
    folder: Path = tmp_path_factory.mktemp("planners")
    done = subprocess.run(
        [sys.executable, "-c", PLANNING, *whats], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    return {what: (code, said) for what, (code, said) in json.loads(done.stdout).items()}


@pytest.mark.parametrize(("error", "silent"), ERRORS.items())
def test_a_planner_exits_silently_only_if_spark_has_disconnected(
    ended: dict[str, tuple[int, str]], error: str, silent: bool
) -> None:
    code, said = ended[f"raise {error}"]
    assert (code, said) == (0, "") if silent else code == 1


def test_a_planner_reports_a_broken_connection_to_kafka(ended: dict[str, tuple[int, str]]) -> None:
    code, said = ended[ASKS_KAFKA]
    assert code == 1
    assert "ConnectionResetError: Kafka's" in said
