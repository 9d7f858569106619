"""`slackwater reset` on the command line and in Python."""

import json

import pytest
import slackwater as sw
from slackwater.errors import Usage

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.crash.verbs import command_line, gone_on
from tests.support.histories import STAGES, FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def late(isolated: None, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    """Return an app that continued to run after its snapshot `good`."""
    app = gone_on()
    with command_line(app, monkeypatch):
        return app


@pytest.mark.usefixtures("late")
def test_reset_sets_the_offsets_and_is_logged() -> None:
    before = rows_of("flights", "FROM carriers ORDER BY ALL")
    looked = done("reset", "flights", "--all-topics", "--to-earliest", "--dry-run")
    assert looked.startswith("flights would be reset to the earliest offset\nlegs  v")
    assert " offsets re-read: tables count their records again\n" in looked
    assert looked.endswith("nothing was changed (--dry-run)\n")
    said = done("reset", "flights", "--topic", "flights", "--to-earliest", "--message", "sent anew")
    assert said.startswith("flights reset to the earliest offset\n")
    assert "previous state: flights@before-reset-1; to return to it: slackwater rewind flights@before-reset-1\n" in said
    assert rows_of("flights", "FROM carriers ORDER BY ALL") == before
    lines = done("log", "flights", "--limit", "3").splitlines()[1:]
    assert all(" reset " in line for line in lines)
    (of_legs,) = [line for line in lines if " legs " in line]
    assert "offsets reset: flights[0] " in of_legs
    operation = from_json("log", "flights", "--operations", "--verb", "reset")[0]
    assert (operation["message"], set(operation["after"])) == ("sent anew", {*STAGES})
    assert (
        done("reset", "flights", "--topic", "flights", "--to-earliest")
        == "done already: flights continues at these offsets\n"
    )
    machine = json.loads(done("reset", "flights", "--topic", "flights:0", "--to-offset", "1", "--dry-run", "--json"))
    assert machine["stages"][0]["moved"] == [
        {"topic": "flights", "partition": 0, "before": 0, "after": 1, "another": False}
    ]
    assert (machine["stages"][0]["skipped"], machine["dry_run"], machine["reset"]) == (1, True, None)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ((), 2, "a reset takes one scenario; found 0"),
        (("--to-earliest", "--to-latest", "--all-topics"), 2, "a reset takes one scenario; found 2"),
        (("--to-earliest",), 2, "a reset needs either topics or --all-topics"),
        (("--to-earliest", "--all-topics", "--topic", "flights"), 2, "a reset needs either topics or --all-topics"),
        (("--to-earliest", "--topic", "flights:a"), 2, "--topic 'flights:a' is not NAME or NAME:PARTITION"),
        (("--to-earliest", "--topic", "flights", "--topic", "flights:1"), 2, "each topic once"),
        (("--to-offset", "-1", "--all-topics"), 2, "--to-offset is -1; expected 0 or more"),
        (("--by-duration", "soon", "--all-topics"), 2, "--by-duration 'soon' is not a span of time"),
        (("--to-datetime", "noon", "--all-topics"), 2, "--to-datetime 'noon' is not a time"),
        (("--shift-by", "-1000", "--all-topics"), 1, "flights[0] would be read from -"),
        (("--to-earliest", "--topic", "by-carrier"), 1, "'by-carrier' is a repartition topic that aircraft of flights"),
    ],
)
@pytest.mark.usefixtures("late")
def test_an_impossible_reset_is_refused_with_the_reason(words: tuple[str, ...], code: int, expected: str) -> None:
    refused = slackwater("reset", "flights", *words)
    assert (refused.exit_code, refused.stdout) == (code, "")
    assert expected in refused.stderr


@pytest.mark.usefixtures("late")
def test_python_resets_the_same_way() -> None:
    app = sw.open("memory").app("flights")
    looked = app.reset("flights", shift_by=-1, dry_run=True)
    assert [each["stage"] for each in looked.data["stages"]] == ["legs"]
    assert app.reset(all_topics=True, by_duration="1h").data["versions"].keys() == {*STAGES}
    with pytest.raises(Usage, match="one scenario"):
        app.reset("flights")
