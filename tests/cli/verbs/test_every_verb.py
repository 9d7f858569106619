"""What holds of several verbs: limits, names that do not exist, what is loaded, what a terminal gets."""

import os
import pty
import subprocess
import sys

import pytest

from tests.cli.verbs.calling import BAD, MODULE, done, slackwater

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "words", [("log", "flights"), ("log", "flights", "--operations"), ("query", "flights", "FROM carriers")]
)
def test_a_limit_beyond_all_bounds_is_all(words: tuple[str, ...]) -> None:
    assert done(*words, "--limit", "1" + "0" * 30) == done(*words, "--limit", "1000")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("words", [("log", "flights"), ("log", "flights", "--operations")])
def test_a_limit_of_0_is_all(words: tuple[str, ...]) -> None:
    shown = done(*words, "--limit", "0")
    assert shown == done(*words, "--limit", "100000")
    assert "--operations" in words or len(shown.splitlines()) > len(done(*words, "--limit", "1").splitlines())


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (("query", "flight", "SELECT 1"), 1, "flights"),
        (("query", "flights@befor", "SELECT 1"), 1, "before"),
        (("query", "flights", "FROM carrier"), 1, "carriers"),
        (("query", "flights", "SELECT delai FROM carriers"), 1, "delay"),
        (("query", "flights@-5x", "SELECT 1"), 2, "flights@-5x"),
        (("get", "flights", "carrier", "C1"), 1, "carriers"),
        (("bisect", "flight", "--where", BAD), 1, "flights"),
        (("log", "flight"), 1, "flights"),
        (("snapshot", "show", "flights", "befor"), 1, "before"),
        (("status", "flight"), 1, "flights"),
    ],
)
@pytest.mark.usefixtures("app")
def test_what_does_not_exist_is_named_with_the_nearest(args: tuple[str, ...], code: int, expected: str) -> None:
    done("snapshot", "take", "flights", "before", "--instant")
    result = slackwater(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("seconds", ["nan", "inf"])
@pytest.mark.parametrize(
    "words",
    [
        ("compact", "flights", "--watch", "--every"),
        ("status", "flights", "--watch", "--every"),
        ("snapshot", "take", "flights", "--timeout"),
        ("run", "flights.py", "--patience"),
    ],
)
def test_seconds_that_are_no_number_are_refused(words: tuple[str, ...], seconds: str) -> None:
    result = slackwater(*words, seconds)
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in result.output


@pytest.mark.usefixtures("app")
def test_no_verb_loads_spark_or_kafka() -> None:
    verbs = [
        ("status",),
        ("log", "flights"),
        ("snapshot", "take", "flights", "--instant"),
        ("snapshot", "list", "flights"),
        ("query", "flights", "FROM carriers"),
        ("get", "flights", "carriers", "C1"),
        ("bisect", "flights", "--where", BAD),
    ]
    script = (
        "import sys\n"
        "from slackwater.cli.main import app\n"
        f"for words in {verbs!r}:\n"
        "    app(words, standalone_mode=False)\n"
        "    loaded = {'pyspark', 'confluent_kafka', 'boto3', 'botocore'} & set(sys.modules)\n"
        "    assert not loaded, (words, loaded)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.usefixtures("app")
def test_a_row_and_a_query_load_nothing_that_takes_longer_than_they_do() -> None:
    """How long they take is measured by `make bench`: pandas alone takes as long as all the rest."""
    heavy = ("pandas", "pyspark", "boto3", "confluent_kafka", "rich", "prometheus_client", "slackwater.search")
    heavy += ("slackwater.keep.verify", "slackwater.keep.transfer", "slackwater.chandy_lamport")
    verbs = {
        ("get", "flights", "carriers", "C1"): (*heavy, "duckdb"),
        ("query", "flights", "FROM carriers"): heavy,
    }
    for words, too_much in verbs.items():
        script = (
            "import sys\n"
            "from slackwater.cli.main import main\n"
            f"sys.argv[1:] = {words!r}\n"
            "try: main()\n"
            "except SystemExit as end: assert not end.code, end.code\n"
            # What a user's program does afterwards is its own.
            "import os; assert 'PYDANTIC_DISABLE_PLUGINS' not in os.environ\n"
            f"print(*sorted({{*{too_much!r}}} & sys.modules.keys()), file=sys.stderr)"
        )
        asked = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert "C1" in asked.stdout
        assert asked.stderr.strip() == "", words


def test_arrow_still_makes_frames_after_it_was_kept_from_importing_pandas() -> None:
    script = (
        "import sys\n"
        "from slackwater.cli import quick\n"
        "quick.own_process()\n"
        "quick.without_pandas()\n"
        "import pyarrow as pa\n"
        "rows = pa.table({'a': [1, None]})\n"
        "assert 'pandas' not in sys.modules\n"
        "frame = rows.to_pandas()\n"
        "assert pa.Table.from_pandas(frame, rows.schema) == rows"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.usefixtures("app")
def test_a_terminal_gets_bold_headings_and_a_pipe_does_not() -> None:
    terminal, end = pty.openpty()
    command, env = [*MODULE, "log", "flights", "--limit", "1"], os.environ | {"TERM": "xterm"}
    subprocess.run(command, stdout=end, env=env, check=True)
    assert os.read(terminal, 4096).startswith(b"\x1b[1mcommitted")
    os.close(end)
    os.close(terminal)
    assert "\x1b" not in done("log", "flights")
