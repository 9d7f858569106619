"""`slackwater edit` on the command line."""

import json
from pathlib import Path

import pytest
from slackwater.store.versions import history

from tests.cli.verbs.calling import done, slackwater
from tests.crash.verbs import command_line, gone_on
from tests.support.histories import FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")
NEGATIVE = "UPDATE carriers SET delay = -1 WHERE carrier = 'C0'"


@pytest.fixture
def app(isolated: None, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    app = gone_on()
    with command_line(app, monkeypatch):
        return app


def test_an_edit_is_previewed_by_key_applied_once_and_logged(app: FlightsApp) -> None:
    at = app.heads["carriers"].version
    looked = done("edit", "flights/carriers", "--sql", NEGATIVE, "--dry-run")
    assert looked.startswith("would change 1 row of flights/carriers\n")
    assert [line.split() for line in looked.splitlines()[-3:]] == [
        ["carrier", "column", "before", "after"],
        ["C0", "delay", str(app.state["carriers"]["C0"][1]), "-1"],
        ["nothing", "was", "changed", "(--dry-run)"],
    ]
    assert history.list_versions(app.store, "flights", "carriers")[-1] == at
    said = done("edit", "flights/carriers", "--sql", NEGATIVE, "--message", "sensor 12")
    assert said.startswith(f"flights/carriers v{at + 1}: changed 1 row\n")
    assert f"previous state: slackwater query flights/carriers@v{at}" in said
    again = done("edit", "flights/carriers", "--sql", NEGATIVE)
    assert again == f"done already: flights/carriers v{at + 1} has this edit; to apply it again, add --again\n"
    assert done("edit", "flights/carriers", "--sql", NEGATIVE, "--again") == (
        "no row of flights/carriers changes: nothing was done\n"
    )
    line = done("log", "flights", "--limit", "1").splitlines()[-1]
    assert line.endswith(f"edit: {NEGATIVE}")
    assert " edit " in line
    operation = json.loads(done("log", "flights", "--operations", "--json"))[0]
    assert (operation["verb"], operation["message"]) == ("edit", "sensor 12")
    assert done("query", "flights", "SELECT delay FROM carriers WHERE carrier = 'C0'").split()[-1] == "-1"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--drop", "flights[0]@01", "--replace", "flights[00]@1=value"], "flights[0]@1 is both dropped and replaced"),
        (["--drop", "flights[0]@1+0"], "flights[0]@1+0 is a row of a repartition topic"),
        (["--drop", "flights"], "'flights' is not the location of a record"),
        (["--replace", "flights[0]@1=nowhere"], "no file with a value named 'nowhere'; No such file"),
        (["--undo", "--drop", "flights[0]@1"], "a repair needs --drop, --replace or --undo"),
    ],
)
def test_records_of_a_repair_are_named_once_and_have_values(
    app: FlightsApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("value", "shop.py"):
        Path(name).write_bytes(b"")
    result = slackwater("repair", app.name, *words, "--code", "shop.py")
    assert f"error: {expected}" in result.output


def test_bisect_names_the_edit_and_no_record(app: FlightsApp) -> None:
    done("edit", "flights/carriers", "--sql", NEGATIVE)
    said = slackwater("bisect", "flights", "--where", "FROM carriers WHERE delay < 0").stdout
    assert f"carriers v{app.heads['carriers'].version + 1} is the first bad commit" in said
    head = history.head(app.store, "flights", "carriers")
    assert head is not None
    assert head.edited is not None
    assert f"carriers@v{head.version} is an edit by hand, by {head.edited.by}, at " in said
    assert NEGATIVE in said


def test_json_has_all_rows_and_can_hide_values(app: FlightsApp) -> None:
    words = ("edit", "flights/carriers", "--sql", "DELETE FROM carriers WHERE carrier <> 'C0'", "--dry-run", "--json")
    data = json.loads(done(*words))
    assert (data["removed"], data["added"], data["changed"], data["version"]) == (2, 0, 0, None)
    assert [row["key"] for row in data["rows"]] == [{"carrier": "C1"}, {"carrier": "C2"}]
    assert all(row["after"] is None for row in data["rows"])
    assert json.loads(done(*words, "--hide-values"))["rows"] is None


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("edit", "flights/carriers"), 2, "an edit needs either an SQL statement or rows"),
        (("edit", "flights", "--sql", NEGATIVE), 2, "APP/TABLE"),
        (("edit", "flights/legs", "--sql", "DELETE FROM legs"), 1, "has no table, so there is nothing to edit"),
        (("edit", "flights/nothing", "--sql", NEGATIVE), 1, "no stage of app 'flights' named 'nothing'"),
        (("edit", "flights/carriers", "--sql", "DROP TABLE carriers"), 2, "this is a DROP statement"),
    ],
)
def test_an_invalid_edit_is_refused(app: FlightsApp, words: tuple[str, ...], code: int, expected: str) -> None:
    result = slackwater(*words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr


def test_editing_a_protected_app_requires_its_name(app: FlightsApp, tmp_path: Path) -> None:
    done("protect", "flights")
    refused = slackwater("edit", "flights/carriers", "--sql", NEGATIVE)
    assert refused.exit_code == 1
    assert "to edit carriers, give its name once more: --yes-really flights" in refused.stderr
    assert done("edit", "flights/carriers", "--sql", NEGATIVE, "--yes-really", "flights").startswith(
        "flights/carriers v"
    )
