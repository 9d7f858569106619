"""Help at 80 columns, and unknown verbs."""

import json
import re
import shlex

import pytest
import typer
from slackwater.cli import main
from slackwater.cli.main import app
from slackwater.cli.options import examples
from slackwater.cli.synonyms import SYNONYMS
from slackwater.cli.verbs import SECTIONS, VERBS
from typer.main import get_command
from typer.testing import CliRunner

from tests.cli.verbs.calling import slackwater
from tests.documents.test_help import VERBS as COMMANDS

WIDTH = 80


def help_of(*words: str) -> list[str]:
    result = CliRunner().invoke(main.app, [*words, "--help"], env={"COLUMNS": str(WIDTH)}, prog_name="slackwater")
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.parametrize(
    "words", ["slackwater", "slackwater dev", "slackwater snapshot", "slackwater token", *COMMANDS]
)
def test_no_line_of_a_help_is_cut_or_longer_than_80_columns(words: str) -> None:
    lines = help_of(*words.split()[1:])
    assert [line for line in lines if len(line) > WIDTH] == []
    assert [line for line in lines if re.search(r"[a-z,]\.\.\.$", line) and not line.startswith("Usage:")] == []


def test_the_help_groups_the_verbs_and_gives_each_one_line() -> None:
    lines = help_of()
    headings = [line for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line) and line != "Options:"]
    assert (
        headings
        == [f"{title}:" for title in SECTIONS]
        == [*("Start:", "Look:", "Find what is wrong:", "Stage a change:", "Repair:", "Operate:")]
    )
    assert sorted(verb for verbs in SECTIONS.values() for verb in verbs) == sorted(VERBS)
    shown = {match[1]: match[2] for line in lines if (match := re.fullmatch(r"  ([a-z][a-z-]*) {2,}([A-Z].*\.)", line))}
    assert [*shown] == [*VERBS]
    for verb, sentence in shown.items():
        assert " ".join(help_of(verb)).count(sentence) or sentence in re.sub(r"\s+", " ", " ".join(help_of(verb))), verb


def test_a_group_lists_whole_sentences_even_on_a_narrow_terminal() -> None:
    result = CliRunner().invoke(main.app, ["bisect", "--help"], env={"COLUMNS": "50"}, prog_name="slackwater")
    words = re.sub(r"\s+", " ", result.stdout)
    assert "explain Show the answer, duration and reason of each moment of the search." in words


def test_a_long_example_continues_after_a_backslash() -> None:
    """Check that a shell reads the intended command from it."""
    line = "slackwater query flights \"SELECT a, 'b' FROM c\" --out " + "x" * 40 + ".csv --limit 3    # all of it"
    _, _, comment, *parts = examples(line).splitlines()
    assert comment == "  # all of it"
    assert len(parts) == 2
    assert all(len(part) <= WIDTH - 2 for part in parts)
    assert shlex.split("\n".join(parts).replace("\\\n", "")) == shlex.split(line, comments=True)


@pytest.mark.parametrize("word", SYNONYMS)
def test_a_synonym_is_no_verb_but_the_error_names_commands_that_exist(word: str) -> None:
    assert word not in VERBS
    for words in SYNONYMS[word]:
        command, root = get_command(app), get_command(app)
        for each in words.split():
            if each.startswith("-"):
                assert any(each in parameter.opts for parameter in command.params) or each == "--help", words
            else:
                command = command.get_command(typer.Context(root), each)  # type: ignore[attr-defined]
                assert command is not None, words


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("list", "slackwater status or slackwater snapshot list or slackwater clone list"),
        ("ls", "slackwater status or"),
        ("version", "slackwater --version"),
        ("help query", "slackwater --help"),
        ("rollback flights", "slackwater rewind: roll an app back to an earlier moment"),
        ("undo", "slackwater rewind: "),
        ("restore", "slackwater rewind or slackwater recover"),
        ("show", "slackwater status or slackwater snapshot show"),
        ("describe", "slackwater status or"),
        ("delete", "slackwater app rm or slackwater snapshot rm or slackwater clone rm"),
        ("delte", "slackwater app rm or"),
        ("DELETE", "slackwater app rm or"),
        ("checkpoint", "slackwater snapshot take or"),
        ("statsu", "slackwater status: "),
        ("snapshot create x", "slackwater snapshot take: "),
        ("snapshot delete x", "slackwater snapshot rm: "),
        ("snapshot restore", "slackwater rewind: "),
        ("snapshot diff a b", "slackwater diff: "),
        ("snapshot tkae", "slackwater snapshot take: "),
        ("app list", "slackwater status: "),
        ("app delete x", "slackwater app rm: "),
        ("app log", "slackwater log: "),
        ("dev start", "slackwater dev up: start Kafka and S3"),
        ("dev stop", "slackwater dev down: "),
        ("dev logs", "slackwater dev status: "),
        ("token revoke x", "slackwater token rm: "),
        ("token create x", "slackwater token add: "),
        ("xyzzy", "`slackwater --help` lists them"),
        ("snapshot xyzzy", "`slackwater snapshot --help` lists them"),
    ],
)
def test_the_error_for_an_unknown_verb_names_the_right_one(words: str, hint: str) -> None:
    result = CliRunner().invoke(main.app, words.split(), prog_name="slackwater")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"hint: {hint}" in result.stderr
    assert "has no verb" in result.stderr.splitlines()[0]
    document = json.loads(slackwater(*words.split(), "--json").stderr)
    assert document["error"] == "Usage"


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("clone", "delete", "x"), "you may mean slackwater clone rm: "),
        (("clone", "ls"), "Missing argument 'DST'"),
        (("clone", "create", "x"), "you may mean slackwater clone: "),
        (("bisect", "abort"), "you may mean slackwater bisect reset: "),
    ],
)
def test_an_unknown_app_that_is_named_like_a_verb_gets_a_hint(words: tuple[str, ...], hint: str) -> None:
    result = slackwater(*words)
    assert result.exit_code in (1, 2)
    assert hint in result.stderr


@pytest.mark.usefixtures("isolated")
def test_an_existing_app_that_is_named_like_a_verb_gets_no_hint() -> None:
    result = slackwater("bisect", "flights", "--where", "delay > 1")
    assert "you may mean" not in result.stderr
