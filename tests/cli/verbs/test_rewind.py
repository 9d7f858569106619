"""`slackwater rewind` and `slackwater protect` on the command line."""

import json

import pytest
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import history

from tests.cli.verbs.calling import done, slackwater
from tests.crash.verbs import command_line, gone_on
from tests.support.histories import STAGES, FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def late(isolated: None, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    """Return an app that continued to run after its snapshot `good`."""
    app = gone_on()
    with command_line(app, monkeypatch):
        return app


def versions(store: ObjectStore) -> dict[str, tuple[int, ...]]:
    return {stage: history.list_versions(store, "flights", stage) for stage in STAGES}


def test_a_dry_run_lists_the_rows_and_offsets_to_undo(late: FlightsApp) -> None:
    before = versions(late.store)
    said = done("rewind", "flights@good", "--dry-run")
    assert said.startswith("flights would be rewound to flights@good, ")
    assert "re-reads flights[0] " in said
    assert "carriers: 3 rows changed back" in said
    assert said.endswith("nothing was changed (--dry-run)\n")
    assert versions(late.store) == before


def test_a_rewind_commits_a_version_per_stage_and_is_logged(late: FlightsApp) -> None:
    said = done("rewind", "flights@good")
    assert "undone state: flights@before-rewind-1" in said
    assert "carriers  v" in said
    stages = json.loads(done("snapshot", "show", "flights", "good", "--json"))["snapshot"]["stages"]
    lines = done("log", "flights", "--limit", "3").splitlines()[1:]
    assert [line.split()[-3:] for line in lines] == [["state", "of", f"v{stages[s]}"] for s in reversed(STAGES)]
    assert all(" rewind " in line for line in lines)
    operation = json.loads(done("log", "flights", "--operations", "--json"))[0]
    assert (operation["verb"], operation["detail"].endswith("before it flights@before-rewind-1")) == ("rewind", True)
    assert {stage: after - operation["before"][stage] for stage, after in operation["after"].items()} == dict.fromkeys(
        STAGES, 1
    )
    data = json.loads(done("rewind", "flights@before-rewind-1", "--json"))
    assert data["rewind"] == 2
    assert data["snapshot"] == "before-rewind-2"


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("rewind", "flights"), 2, "rewind takes either a moment or --before-deploy"),
        (
            ("rewind", "flights"),
            2,
            "for example slackwater rewind flights@-1h, or slackwater rewind flights --before-deploy",
        ),
        (("rewind", "flights@good", "--before-deploy"), 2, "rewind takes either a moment or --before-deploy"),
        (("rewind", "flights@goo"), 1, "the nearest: good"),
        (("rewind", "flight@good"), 1, "flights"),
        (
            ("rewind", "flights", "--before-deploy"),
            1,
            "no earlier program of the app named 'flights'; all remaining versions are of the current program",
        ),
    ],
)
@pytest.mark.usefixtures("late")
def test_an_impossible_rewind_is_refused_with_the_reason(words: tuple[str, ...], code: int, expected: str) -> None:
    refused = slackwater(*words)
    assert (refused.exit_code, refused.stdout) == (code, "")
    assert expected in refused.stderr


def test_destructive_verbs_on_a_protected_app_require_its_name(late: FlightsApp) -> None:
    assert done("protect", "flights", "--message", "production") == (
        "flights is protected: production; rewind, reset, edit, repair, forget, retire, promote, app rm, clone rm and "
        "clone refresh require its name\n"
    )
    assert done("protect", "flights").startswith("done already: flights is protected by ")
    before = versions(late.store)
    for words in (
        ("rewind", "flights@good"),
        ("reset", "flights", "--all-topics", "--to-earliest"),
        ("retire", "flights/carriers"),
        ("app", "rm", "flights"),
        ("protect", "flights", "--off"),
    ):
        refused = slackwater(*words)
        assert refused.exit_code == 1
        assert "app 'flights' is protected, by " in refused.stderr
        assert "production" in refused.stderr
        assert "--yes-really flights" in refused.stderr
        wrong = slackwater(*words, "--yes-really", "flight")
        assert wrong.exit_code == 1
        assert "production; 'flight' is not its name" in wrong.stderr
    assert versions(late.store) == before
    done("rewind", "flights@good", "--dry-run")
    done("rewind", "flights@good", "--yes-really", "flights")
    assert done("protect", "flights", "--off", "--yes-really", "flights") == "flights is no longer protected\n"
    assert done("protect", "flights", "--off") == "done already: flights is not protected\n"
    done("retire", "flights/carriers", "--dry-run")
