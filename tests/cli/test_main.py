"""The command line as a whole: speed, errors, exit codes, streams."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from slackwater.cli import main
from slackwater.cli.verbs import status
from slackwater.errors import NotFound
from typer.testing import CliRunner

HEAVY = ("boto3", "confluent_kafka", "duckdb", "pandas", "pyarrow", "pyspark")
MODULE = [sys.executable, "-m", "slackwater.cli.main"]


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLACKWATER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_help_takes_less_than_four_tenths_of_a_second() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*MODULE, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    # It waits for nothing, so its duration is CPU time, regardless of other load on the machine.
    assert any(once() < 0.4 for _ in range(5))


def test_help_loads_nothing_heavy() -> None:
    """All verbs run in one process, because a loaded module stays loaded."""
    script = (
        "import sys\n"
        "from slackwater.cli.main import app\n"
        f"for verb in {[*main.VERBS]!r}:\n"
        "    app([verb, '--help'], standalone_mode=False)\n"
        f"    loaded = {{*{HEAVY!r}}} & {{*sys.modules}}\n"
        "    assert not loaded, (verb, loaded)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == len(main.VERBS)


def test_help_lists_every_verb() -> None:
    result = CliRunner().invoke(main.app, ["--help"])
    assert result.exit_code == 0
    assert all(f"  {verb} " in result.stdout for verb in main.VERBS)


def test_the_printed_version_is_the_packages() -> None:
    from slackwater import __version__

    assert CliRunner().invoke(main.app, ["--version"]).stdout == f"slackwater {__version__}\n"


def test_an_unknown_verb_names_the_nearest_and_exits_with_2() -> None:
    result = CliRunner().invoke(main.app, ["statsu"])
    assert result.exit_code == 2
    assert "slackwater status: " in result.stderr


def test_a_missing_setting_is_a_usage_error() -> None:
    result = CliRunner().invoke(main.app, ["status"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "SLACKWATER_STORE" in result.stderr


def test_the_error_for_an_unknown_app_names_the_nearest(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.app, ["status", "flights", "--store", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no app named 'flights'")


def test_with_json_an_error_is_one_object_on_stderr(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.app, ["status", "flights", "--store", str(tmp_path), "--json"])
    assert (result.exit_code, result.stdout) == (1, "")
    error = json.loads(result.stderr)
    assert error["error"] == "NotFound"
    assert error["message"].startswith("no app named 'flights'")
    assert error.keys() == {"error", "message", "hint"}


def test_with_json_a_wrong_option_is_one_object_on_stderr_too() -> None:
    result = CliRunner().invoke(main.app, ["status", "--no-such-option", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert json.loads(result.stderr)["error"] == "Usage"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `slackwater status` fail with a given exception."""

    def fail_with(error: BaseException) -> None:
        def verb() -> None:
            """Fail."""
            raise error

        broken = typer.Typer()
        broken.command()(verb)
        monkeypatch.setattr(status, "status", broken)

    return fail_with


def test_an_unexpected_exception_is_called_a_bug_without_a_traceback(failing: Callable[[BaseException], None]) -> None:
    failing(ZeroDivisionError("division by zero"))
    result = CliRunner().invoke(main.app, ["status"])
    assert result.exit_code == 1
    assert "this is a bug in slackwater" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("args", "env"), [(["--debug"], {}), ([], {"SLACKWATER_DEBUG": "1"})])
@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), NotFound("app", "flights")])
def test_debug_shows_where_an_error_comes_from(
    failing: Callable[[BaseException], None], error: Exception, args: list[str], env: dict[str, str]
) -> None:
    failing(error)
    result = CliRunner(env=env).invoke(main.app, [*args, "status"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_ctrl_c_exits_with_130_and_prints_nothing(failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    result = CliRunner().invoke(main.app, ["status"])
    assert (result.exit_code, result.output) == (130, "")


def test_a_daemon_thread_in_native_code_does_not_crash_a_verb_at_exit(tmp_path: Path) -> None:
    """A run had such a thread when a sink's function failed while writing to Delta, and crashed without the rule."""
    script = (
        "import sys, threading\n"
        "from deltalake import DeltaTable, write_deltalake\n"
        "import pyarrow as pa\n"
        "from slackwater.cli import quick\n"
        "quick.tune_for_one_verb()\n"
        "write_deltalake(sys.argv[1], pa.table({'n': [1]}))\n"
        "started = threading.Event()\n"
        "def read():\n"
        "    while True:\n"
        "        DeltaTable(sys.argv[1])\n"
        "        started.set()\n"
        "threading.Thread(target=read, daemon=True).start()\n"
        "started.wait()\n"
        "quick.exit_without_teardown(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "delta")], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")
