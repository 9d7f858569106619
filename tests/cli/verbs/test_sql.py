"""`slackwater sql`: statements from a pipe, and typed at a terminal."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from slackwater.cli.prompt import Names, prompter
from slackwater.cli.session import Session
from slackwater.cli.shell import Shell, is_finished, read, typed
from slackwater.errors import Usage

from tests.cli.verbs.calling import done, slackwater
from tests.support.histories import FlightsApp, flights

pytestmark = pytest.mark.usefixtures("isolated")

WORST = "SELECT max(delay) AS worst FROM carriers"


@pytest.fixture
def shell(app: FlightsApp, tmp_path: Path) -> Iterator[Shell]:
    with closing(Session(str(tmp_path / "store"), None, as_json=False)) as session:
        yield Shell(session, app.name, 50)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PipeInput]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with create_pipe_input() as pipe:
        yield pipe


@pytest.mark.usefixtures("app")
def test_statements_of_a_pipe_are_carried_out_one_after_the_other() -> None:
    result = slackwater("sql", "flights", text=f"{WORST};\nSELECT 'a;b' AS x, -- ;\n 2 AS y; SELECT 3 AS last")
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == ["worst", "5060", "x", "y", "a;b", "2", "last", "3"]


@pytest.mark.usefixtures("app")
def test_an_error_ends_nothing_but_is_the_exit_code_of_a_pipe() -> None:
    result = slackwater("sql", "flights", text="SELEKT 1; FROM carrierz; AT no-such; SELECT 7 AS seven; FROM nothing")
    assert result.exit_code == 1
    assert result.stdout.split() == ["seven", "7"]
    assert result.stderr.count("error: ") == 4
    assert "the nearest: carriers" in result.stderr


@pytest.mark.usefixtures("app")
def test_at_moves_all_statements_that_follow() -> None:
    text = f"AT flights/carriers@v5; {WORST}; AT 'now'; {WORST}; AT flights/carriers@v1; {WORST}; AT;"
    result = slackwater("sql", "flights", "--json", text=text)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["rows"][0]["worst"] for one in found if "rows" in one] == [85, 5060, None]
    assert [one["ref"] for one in found if "ref" in one][-1] == "flights/carriers@v1"


@pytest.mark.usefixtures("app")
def test_what_comes_after_exit_is_not_carried_out() -> None:
    assert slackwater("sql", "flights", text="SELECT 1 AS one; exit; SELECT 2").stdout.split() == ["one", "1"]


@pytest.mark.usefixtures("app")
def test_a_shell_for_an_app_that_is_not_there_does_not_begin() -> None:
    result = slackwater("sql", "flihgts", text="SELECT 1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the nearest: flights" in result.stderr


@pytest.mark.usefixtures("app")
def test_bytes_that_are_not_utf8_are_refused() -> None:
    result = slackwater("sql", "flights", text=b"SELECT 1 AS one;\nSELECT '\xe9';")
    assert (result.exit_code, result.stdout.split()) == (2, ["one", "1"])
    assert "line 2 of standard input is not UTF-8" in result.stderr


def test_a_moment_counted_from_now_stays_what_it_was_and_now_goes_on(
    shell: Shell, app: FlightsApp, capsys: pytest.CaptureFixture[str]
) -> None:
    def count() -> int:
        shell.run(["SELECT sum(flights)::INT AS n FROM aircraft"])
        return int(capsys.readouterr().out.split()[-1])

    before = count()
    shell.run(["AT ~0"])
    capsys.readouterr()
    app.run(flights(10))
    assert count() == before
    shell.run(["AT now"])
    capsys.readouterr()
    assert count() == before + 15  # five were on their way
    assert shell.run(["AT -1ms"]) == 0
    assert shell.ref.startswith("flights@2")


def test_statements_come_as_soon_as_their_end_is_there() -> None:
    lines = iter([b"SELECT 1;\n", b"SELECT\n", b"2; SELECT 3;", b" -- nothing\n"])
    found = read(lines)
    assert next(found) == "SELECT 1"
    assert next(lines) == b"SELECT\n"
    assert list(found) == ["2", "SELECT 3"]
    with pytest.raises(Usage):
        list(read([b"\xff"]))


@pytest.mark.parametrize("text", ["", "  ", "SELECT 1;", "a; b; -- c", "exit", " QUIT ", "help"])
def test_enter_carries_out_what_has_ended(text: str) -> None:
    assert is_finished(text)


@pytest.mark.parametrize("text", ["SELECT 1", "SELECT ';", "a; b", "-- ;\nSELECT", "exit now", "SELECT $$;"])
def test_enter_begins_a_line_where_nothing_has_ended(text: str) -> None:
    assert not is_finished(text)


def test_what_is_typed_is_carried_out_and_remembered(
    shell: Shell, keys: PipeInput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.send_text("SELECT 1\rAS one;\rSELEKT;\rdrop this\x03SELECT 2 AS two;\r\x04")
    assert shell.run(typed(prompter(shell, keys, DummyOutput()))) == 1
    assert capsys.readouterr().out.split() == ["one", "1", "two", "2"]
    history = tmp_path / "state" / "slackwater" / "sql_history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+SELECT 1\n+AS one;" in history.read_text()


def test_a_history_that_cannot_be_written_is_done_without(
    shell: Shell, keys: PipeInput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file")
    keys.send_text("SELECT 1 AS one;\rexit\r")
    assert shell.run(typed(prompter(shell, keys, DummyOutput()))) == 0
    assert capsys.readouterr().out.split() == ["one", "1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM car", {"carrier", "carriers"}),
        ("SELECT fli", {"flights"}),
        ("SELECT wher", {"WHERE"}),
        ("AT be", {"before-deploy"}),
        ("FROM carriers AT 'bef", {"before-deploy"}),
        ("AT ", {"before-deploy", "now"}),
        ("SELECT ", set()),
    ],
)
def test_tables_columns_words_and_moments_are_completed(shell: Shell, text: str, expected: set[str]) -> None:
    done("snapshot", "take", "flights", "before-deploy", "--instant")
    found = Names(shell).get_completions(Document(text), CompleteEvent())
    assert {completion.text for completion in found} == expected
