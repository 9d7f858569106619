"""Every verb has help with an example, and docs/cli.md is generated from the help."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from slackwater.cli.main import app
from typer.main import get_command

from docs.cli_page import MADE, NOTES, PAGE, written


def verbs(group: Any, path: str = "slackwater") -> Iterator[tuple[str, Any]]:
    """Yield every command below a group with its full name, and groups that work as commands."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            if command.invoke_without_command:
                yield f"{path} {name}", command
            yield from verbs(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


VERBS = dict(verbs(get_command(app)))


def section(words: str) -> str:
    """Return the text below a verb's heading in the documentation; empty if there is none."""
    pattern = rf"^##+ `?{re.escape(words)}`?\n(.*?)(?=^##+ |\Z)"
    found = re.search(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def test_the_list_of_verbs_is_not_empty_by_mistake() -> None:
    expected = {"run", "status", "log", "snapshot take", "query", "get", "bisect", "clone", "rescale", "dev up"}
    assert {f"slackwater {verb}" for verb in expected} <= VERBS.keys()


@pytest.mark.parametrize("words", VERBS)
def test_the_help_of_a_verb_is_a_sentence(words: str) -> None:
    first = (VERBS[words].help or "").strip().partition("\n\n")[0]
    assert first.endswith("."), f"{words}: {first!r}"


@pytest.mark.parametrize("words", VERBS)
def test_the_help_of_a_verb_has_an_example_that_calls_it(words: str) -> None:
    command = VERBS[words]
    assert words in f"{command.help}\n{command.epilog}"


@pytest.mark.parametrize("words", VERBS)
def test_every_parameter_of_a_verb_has_help(words: str) -> None:
    silent = [parameter.name for parameter in VERBS[words].params if not getattr(parameter, "help", "")]
    assert silent == []


@pytest.mark.parametrize("words", VERBS)
def test_every_verb_prints_json(words: str) -> None:
    assert any("--json" in parameter.opts for parameter in VERBS[words].params)


def test_the_cli_page_equals_its_generators_output() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: python -m docs.cli_page"


def test_notes_of_a_verb_are_kept_and_notes_of_an_unknown_verb_are_refused() -> None:
    page = f"# Top\n\n{MADE}\n\n### slackwater run\n\n{NOTES}\nBy hand.\n"
    made = written(page)
    assert made.startswith("# Top\n")
    assert f"{NOTES}\nBy hand.\n" in made[made.index("### slackwater run\n") : made.index("### slackwater init\n")]
    assert written(made) == made
    with pytest.raises(ValueError, match="slackwater fly"):
        written(page.replace("slackwater run", "slackwater fly"))


@pytest.mark.parametrize("words", VERBS)
def test_the_documentation_has_a_section_for_every_verb(words: str) -> None:
    assert section(words)


@pytest.mark.parametrize("words", VERBS)
def test_the_documentation_of_a_verb_names_its_own_options(words: str) -> None:
    shared = {"--store", "--kafka", "--json", "--message", "--help"}
    own = {
        option
        for parameter in VERBS[words].params
        for option in parameter.opts
        if option.startswith("--") and option not in shared
    }
    missing = sorted(option for option in own if option not in section(words))
    assert missing == []


def test_the_documentation_has_no_section_for_a_removed_verb() -> None:
    headings = re.findall(r"^##+ `?(slackwater [a-z ]+)`?$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) <= VERBS.keys()
