"""Rules for all verbs: limits, missing names, loaded modules, terminal output."""

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.verbs.calling import BAD, MODULE, done, slackwater

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "words", [("log", "flights"), ("log", "flights", "--operations"), ("query", "flights", "FROM carriers")]
)
def test_a_huge_limit_means_no_limit(words: tuple[str, ...]) -> None:
    assert done(*words, "--limit", "1" + "0" * 30) == done(*words, "--limit", "1000")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("words", [("log", "flights"), ("log", "flights", "--operations")])
def test_a_limit_of_0_means_no_limit(words: tuple[str, ...]) -> None:
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
        (("get", "flights/carrier", "C1"), 1, "carriers"),
        (("bisect", "flight", "--where", BAD), 1, "flights"),
        (("log", "flight"), 1, "flights"),
        (("snapshot", "show", "flights", "befor"), 1, "before"),
        (("status", "flight"), 1, "flights"),
    ],
)
@pytest.mark.usefixtures("app")
def test_the_error_for_a_missing_name_lists_the_nearest(args: tuple[str, ...], code: int, expected: str) -> None:
    done("snapshot", "take", "flights", "before", "--instant")
    result = slackwater(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


NO_APP = """
    status nosuch
    status nosuch --cost
    log nosuch
    log nosuch --operations
    verify nosuch
    verify nosuch/aircraft N1 --forgotten
    query nosuch
    export nosuch out
    export nosuch/carriers out.csv
    get nosuch/carriers C1
    history nosuch/carriers C1
    diff nosuch flights
    diff flights nosuch
    snapshot take nosuch
    snapshot take nosuch x --no-wait
    snapshot take nosuch x --instant
    snapshot list nosuch
    snapshot show nosuch x
    snapshot rm nosuch x
    bisect nosuch --where "FROM carriers"
    bisect nosuch/carriers --where "delay > 1"
    bisect start nosuch
    bisect good nosuch
    bisect log nosuch
    bisect explain nosuch
    bisect reset nosuch
    rejected nosuch
    rejected nosuch --retry
    watch nosuch --once
    clone nosuch x
    clone list nosuch
    clone refresh nosuch
    clone rm nosuch
    replicate nosuch --to elsewhere --once
    replicate nosuch --to elsewhere --end
    promote nosuch --over flights --kafka 127.0.0.1:1
    promote flights --over nosuch --kafka 127.0.0.1:1
    promote --back --over nosuch --kafka 127.0.0.1:1
    rewind nosuch@-1h
    rewind nosuch@-1h --keep-offsets
    reset nosuch --all-topics --to-latest
    edit nosuch/carriers --sql "DELETE FROM carriers"
    forget nosuch/carriers C1
    forget nosuch --give-up
    rescale nosuch/carriers --partitions 3
    retire nosuch/carriers
    protect nosuch
    protect nosuch --off
    compact nosuch
    gc nosuch
    archive nosuch
    token add t --app nosuch
    app rm nosuch
"""


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("line", [line.strip() for line in NO_APP.splitlines() if line.strip()])
def test_every_verb_refuses_an_unknown_app_before_anything_else(line: str) -> None:
    """Check for one sentence with the existing apps, before any promise or prompt."""
    result = slackwater(*shlex.split(line))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[0] == "error: no app named 'nosuch'; there are: flights"


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("get flights/carrier C1", "no table of app 'flights' named 'carrier'; the nearest: carriers"),
        ("history flights/carrier C1", "the nearest: carriers"),
        ("export flights out.csv --table carrier", "the nearest: carriers"),
        ("bisect flights/carrier --where 'delay > 1'", "the nearest: carriers"),
        ("edit flights/carrier --sql 'DELETE FROM carriers'", "the nearest: carriers"),
        ("forget flights/carrier C1", "the nearest: carriers"),
        ("log flights --stage carrier", "the nearest: carriers"),
        ("rejected flights --stage carrier", "the nearest: carriers"),
        ("rescale flights/carrier --partitions 3", "the nearest: carriers"),
        ("retire flights/carrier", "the nearest: carriers"),
        ("compact flights --stage carrier", "the nearest: carriers"),
        ("diff flights@~1 flights --table carrier", "the nearest: carriers"),
        ("token add t --app flights --table carrier", "the nearest: carriers"),
        ("snapshot show flights befor", "the nearest: before"),
        ("snapshot rm flights befor", "the nearest: before"),
        ("rewind flights@befor --keep-offsets", "the nearest: before"),
        ("clone flights@befor x", "the nearest: before"),
    ],
)
def test_errors_for_unknown_tables_stages_and_snapshots_name_the_nearest(line: str, expected: str) -> None:
    done("snapshot", "take", "flights", "before", "--instant")
    result = slackwater(*shlex.split(line))
    assert (result.exit_code, result.stdout) == (1, "")
    assert expected in result.stderr


@pytest.mark.usefixtures("app")
def test_a_token_may_name_a_side_table_that_does_not_exist_yet() -> None:
    assert "carriers_rejected" in done("token", "add", "t", "--app", "flights", "--table", "carriers_rejected")


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
def test_a_non_numeric_number_of_seconds_is_refused(words: tuple[str, ...], seconds: str) -> None:
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
        ("get", "flights/carriers", "C1"),
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
def test_get_query_and_log_load_no_slow_modules() -> None:
    """`make bench` measures their duration; pandas alone would double it."""
    Path("slackwater.toml").write_text('[invariants.few]\napp = "flights"\ncheck = "min(flights) >= 0"\n')
    heavy = (
        "pandas",
        "pyspark",
        "boto3",
        "confluent_kafka",
        "rich",
        "prometheus_client",
        "slackwater.operations.staging",
    )
    heavy += (
        "slackwater.snapshot.bisect.predicate",
        "slackwater.snapshot.bisect.watcher",
        "slackwater.snapshot.bisect.verdict",
    )
    heavy += (
        "slackwater.snapshot.verify.verify",
        "slackwater.operations.exchange",
        "slackwater.chandy_lamport",
        "pydantic",
        "pydoc",  # which parses the documentation of Arrow's functions
        "ulid",
    )
    verbs = (
        (("get", "flights/carriers", "C1"), (*heavy, "duckdb"), "C1"),
        (("query", "flights", "FROM carriers"), heavy, "C1"),
        (("log", "flights"), (*heavy, "duckdb", "pyarrow._compute"), "carriers"),
    )
    for words, too_much, expected in verbs:
        # Actions at the end of the process are done, although the process ends before Python has freed everything.
        script = (
            "import atexit, os, sys\n"
            f"heavy = {{*{too_much!r}}}\n"
            "atexit.register(lambda: print('loaded', *sorted(heavy & sys.modules.keys()), file=sys.stderr))\n"
            # After that, the process runs a user's program.
            "atexit.register(lambda: print([n for n in os.environ if n.startswith('PYDANTIC')], file=sys.stderr))\n"
            "from slackwater.cli.main import main\n"
            f"sys.argv[1:] = {words!r}\n"
            "main()"
        )
        asked = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert expected in asked.stdout
        assert asked.stderr.splitlines() == ["[]", "loaded"], words


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("get", "flights/carriers", "C1"), 0),
        (("get", "flights/carriers", "nobody"), 1),
        (("query", "flights", "FROM nothing"), 1),
        (("query", "flights", "FROM carriers", "--limit", "many"), 2),
        (("query", "flights", "FROM carriers", "--limit", "1"), 0),
        (("diff", "flights@~2", "flights"), 1),
        (("get", "flights/carriers"), 2),
    ],
)
def test_a_verb_that_skips_cleanup_at_exit_prints_the_same_with_the_same_exit_code(
    words: tuple[str, ...], code: int
) -> None:
    """Compare a run in its own process with a run by typer's runner in this process, which cleans up normally."""
    ran = subprocess.run([*MODULE, *words], capture_output=True, text=True, check=False)
    within = slackwater(*words)
    assert (ran.returncode, within.exit_code) == (code, code)
    assert (ran.stdout, ran.stderr) == (within.stdout, within.stderr.replace("root ", "slackwater "))


@pytest.mark.usefixtures("app")
def test_a_large_result_is_complete_even_if_the_process_skips_cleanup_at_exit() -> None:
    words = ("query", "flights", "SELECT i FROM range(200000) t(i) ORDER BY i", "--limit", "0", "--json")
    ran = subprocess.run([*MODULE, *words], capture_output=True, text=True, check=True)
    assert len(json.loads(ran.stdout)["rows"]) == 200_000


def test_arrow_can_still_convert_to_pandas_after_its_import_was_deferred() -> None:
    script = (
        "import sys\n"
        "from slackwater.cli import quick\n"
        "quick.tune_for_one_verb()\n"
        "quick.skip_user_code_setup()\n"
        "import pyarrow as pa, pyarrow.compute as pc\n"
        "rows = pa.table({'a': [1, None]})\n"
        "assert 'pyarrow._compute' not in sys.modules\n"  # which its functions import
        "assert pc.sum(rows['a']).as_py() == 1 and pc.sum is pa.compute.sum\n"
        "assert 'pandas' not in sys.modules\n"
        "frame = rows.to_pandas()\n"
        "assert pa.Table.from_pandas(frame, rows.schema) == rows"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.usefixtures("app")
def test_headings_are_bold_on_a_terminal_and_not_in_a_pipe() -> None:
    terminal, end = pty.openpty()
    command, env = [*MODULE, "log", "flights", "--limit", "1"], os.environ | {"TERM": "xterm"}
    subprocess.run(command, stdout=end, env=env, check=True)
    assert os.read(terminal, 4096).startswith(b"\x1b[1mcommitted")
    os.close(end)
    os.close(terminal)
    assert "\x1b" not in done("log", "flights")


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    "words",
    [
        ("snapshot", "take", "flights", "latest", "--instant"),
        ("snapshot", "take", "flights", "5m", "--no-wait"),
        ("clone", "flights", "yesterday"),
    ],
)
def test_a_name_that_reads_as_a_moment_is_refused_for_new_objects(words: tuple[str, ...]) -> None:
    result = slackwater(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "could be mistaken for a moment of an app" in result.stderr
