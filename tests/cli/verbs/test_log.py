"""`slackwater log` on the command line."""

import pytest

from tests.cli.verbs.calling import done, from_json, slackwater

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.mark.usefixtures("app")
def test_log_shows_the_newest_commits_first() -> None:
    heading, first, *rest = done("log", "flights", "--limit", "5").splitlines()
    assert heading.split()[:3] == ["committed", "stage", "version"]
    assert first.split()[-2:] == ["flights[1]", "26..28"] or "flights[" in first
    assert "legs" in first
    assert "v7" in first
    assert len(rest) == 4


@pytest.mark.usefixtures("app")
def test_log_of_one_stage_has_only_its_commits() -> None:
    commits = from_json("log", "flights", "--stage", "carriers")
    assert [commit["version"] for commit in commits] == [6, 5, 4, 3, 2, 1]
    assert {commit["stage"] for commit in commits} == {"carriers"}


@pytest.mark.usefixtures("app")
def test_log_of_an_unknown_stage_names_the_nearest() -> None:
    result = slackwater("log", "flights", "--stage", "carrier")
    assert result.exit_code == 1
    assert "carriers" in result.stderr
