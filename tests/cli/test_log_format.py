"""`--log-format json`: a long-running verb prints one JSON object per line, with the same fields everywhere."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from slackwater.cli import main, terminal
from slackwater.cli.options import LOG_FORMAT
from slackwater.cli.reporter import reporting
from slackwater.cli.terminal import Printer
from slackwater.client.show.shown import Result
from slackwater.errors import Refused
from slackwater.pipeline.telemetry.logs import committing_version
from slackwater.pipeline.telemetry.spans import Tracing
from typer.main import get_command
from typer.testing import CliRunner

FIELDS = {"timestamp", "level", "message"}
GOES_ON = {"run", "attach", "watch", "replicate", "compact", "serve"}


@pytest.fixture
def as_json() -> Iterator[None]:
    terminal.set_log_format("json")
    yield
    terminal.set_log_format("text")


def lines(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(each.keys() >= FIELDS for each in found)
    return found


def test_an_error_is_one_json_line_if_set_by_option_or_environment() -> None:
    words = ["run", "no-such.py", "--store", "/nowhere", "--kafka", "memory://log"]
    secret = {"SLACKWATER_KAFKA_PROPERTIES_SASL_PASSWORD": "hushhush"}
    by_option = CliRunner().invoke(main.app, [*words, "--log-format", "json"], env=secret)
    by_environment = CliRunner().invoke(main.app, words, env={"SLACKWATER_LOG_FORMAT": "json", **secret})
    text = CliRunner().invoke(main.app, words, env=secret)
    for done in (by_option, by_environment):
        told = lines(done.stderr)
        assert (done.exit_code, done.stdout) == (1, "")
        assert (told[-1]["level"], told[-1]["error"]) == ("ERROR", "NotFound")
        assert told[-1]["message"].startswith("no Python file named 'no-such.py'")
        assert "hushhush" not in done.stderr
    assert text.stderr.splitlines()[-1].startswith("error: no Python file named 'no-such.py'")


def test_every_long_running_verb_has_the_option() -> None:
    group = get_command(main.app)
    verbs = {name: group.get_command(None, name) for name in group.list_commands(None)}  # type: ignore[attr-defined, arg-type]
    found = {name for name, verb in verbs.items() if any(each.name == "log_format" for each in verb.params)}
    assert found == GOES_ON
    assert LOG_FORMAT.envvar == "SLACKWATER_LOG_FORMAT"


def test_a_commit_line_has_its_version_and_trace(as_json: None, capsys: pytest.CaptureFixture[str]) -> None:
    tracing = Tracing(TracerProvider())
    commit = {"app": "shop", "stage": "countries", "version": 12, "rows_in": 3}
    with tracing.batch("shop", "countries") as batch, committing_version("shop", "countries", 12):
        Printer(as_json=False).show(Result(commit, "countries v12: 3 records"))
    context = batch.span.get_span_context()
    ids = {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
    (told,) = lines(capsys.readouterr().out)
    at = {"app": "shop", "stage": "countries", "version": 12}
    assert told.pop("timestamp").endswith("Z")
    assert told == {"level": "INFO", "message": "countries v12: 3 records", **at, **ids}


def test_a_log_record_is_one_line_with_its_logger_and_stack(as_json: None, capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("slackwater.test_log_format")
    log.propagate = False
    handler = terminal.NoteHandler(print, quoting=True)
    log.addHandler(handler)
    try:
        with committing_version("shop", "countries", 3):
            log.warning("two\nlines \x1b[2J %s", "more")
        try:
            raise ValueError("no number")
        except ValueError:
            log.exception("it failed")
    finally:
        log.removeHandler(handler)
    first, second = lines(capsys.readouterr().err)
    assert (first["level"], first["logger"], first["message"]) == ("WARNING", log.name, "two\nlines \x1b[2J more")
    assert (first["app"], first["stage"], first["version"]) == ("shop", "countries", 3)
    assert second["level"] == "ERROR"
    assert "ValueError: no number" in second["stacktrace"]


def test_notes_of_a_run_go_to_stderr_beside_json_commits_on_stdout(
    as_json: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with reporting(Printer(as_json=True)) as reporter:
        reporter.note("waiting for records")
        reporter.show({"app": "shop", "version": 1}, "shop v1")
        Printer(as_json=True).show_error(Refused("it stopped", hint="run it again"))
    said = capsys.readouterr()
    assert json.loads(said.out) == {"app": "shop", "version": 1}
    note, failure = lines(said.err)
    assert note["message"] == "waiting for records"
    assert (failure["error"], failure["hint"]) == ("Refused", "run it again")
