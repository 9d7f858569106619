"""Links, commands, make targets and pictures of the documentation exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slackwater.cli.main import app as command_line
from typer.main import get_command

from docs.site import PAGES, README, ROOT, links, prose
from tests.documents.pages.blocks import blocks, commands
from tests.support.static import PARTS


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for _, path, anchor in links(page):
        assert path.exists(), path
        assert not anchor or anchor in anchors(path), f"{path.name}#{anchor}"


@every_page
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    if page.name != "CHANGELOG.md":
        named = set(re.findall(rf"`((?:{'|'.join(PARTS)}|tests|bench|examples)/[\w/]+\.py)`", prose(page)))
        to_come = {"pipeline/kafka/sink.py"}
        assert not [path for path in named - to_come if not (ROOT / path).exists()]
    if page.name in ("CONTRIBUTING.md", "design.md", "testing.md"):
        # Only paths of modules: pages also name programs of their readers.
        alone = set(re.findall(r"`([a-z_0-9]+\.py)`", prose(page)))
        there = [*ROOT.glob("*.py"), *(path for part in (*PARTS, "tests") for path in (ROOT / part).rglob("*.py"))]
        assert alone <= {path.name for path in there}


def test_every_page_that_the_program_or_an_alert_names_exists() -> None:
    named = re.compile(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?")
    for part in (*PARTS, "deploy", "examples"):
        for file in (path for path in (ROOT / part).rglob("*") if path.suffix in (".py", ".yaml", ".yml", ".html")):
            for name, anchor in named.findall(file.read_text(encoding="utf-8")):
                page = ROOT / "docs" / name
                assert page.exists(), f"{file.name}: {name}"
                assert not anchor or anchor in anchors(page), f"{file.name}: {name}#{anchor}"


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    new = {README}
    while new:
        seen |= new
        new = {path for page in new for _, path, _ in links(page) if path.suffix == ".md"} - seen
    assert set(PAGES) <= seen


def test_every_picture_is_used_and_loads_nothing() -> None:
    shown = {path for page in PAGES for _, path, _ in links(page)}
    pictures = set((ROOT / "docs" / "images").iterdir())
    assert pictures
    assert pictures <= shown
    for picture in (each for each in pictures if each.suffix != ".png"):
        assert not re.findall(r"url\(.?http|href=|@import|<script", picture.read_text(encoding="utf-8"))


@every_page
def test_no_page_names_a_path_of_a_developers_machine(page: Path) -> None:
    assert not re.findall(r"/(?:home|root|tmp|Users)/\S*", page.read_text(encoding="utf-8"))


def spoken(page: Path) -> Iterator[str]:
    """Yield the slackwater commands of a page, from console blocks and inline code."""
    typed = [command.words for block in blocks("console", page_id(page)) for command in commands(block)]
    for text in (*typed, *re.findall(r"`([^`\n]+)`", prose(page))):
        if found := re.search(r"\bslackwater (?=[a-z]|-)(.*)", text):
            # In `eval "$(slackwater dev up)"`, the command ends at the parenthesis.
            yield re.split(r"\)\"|\s#\s| \| ", found[1])[0]


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command or group that these words name, and the remaining words."""
    command: Any = get_command(command_line)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        found = command.get_command(None, words[0])
        if found is None and command.invoke_without_command:
            break
        assert found is not None, f"there is no verb {words[0]!r}"
        command, words = found, words[1:]
    return command, words


@every_page
def test_every_command_that_a_page_types_exists_and_has_its_options(page: Path) -> None:
    for text in spoken(page):
        command, words = resolve(shlex.split(text.replace("…", ""), comments=True))
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known | {"--help", "--"}, f"slackwater {text}"


@every_page
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"(?:`|\$ )make ([a-z]+)", text)) <= targets
