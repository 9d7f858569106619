"""Fenced blocks of the documentation, and the commands in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.site import PAGES, ROOT


class Block(NamedTuple):
    """A fenced block: its page, its section's heading, and its number among the page's blocks of that language."""

    page: str
    heading: str
    language: str
    number: int
    code: str

    @property
    def name(self) -> str:
        """Block's name as a test parameter."""
        return f"{self.page}-{self.language}-{self.number}"


class Command(NamedTuple):
    """A command in a block, and the output lines below it."""

    words: str
    output: tuple[str, ...]


def blocks_of(page: Path) -> Iterator[Block]:
    name, heading, language, lines = str(page.relative_to(ROOT)), "", None, list[str]()
    counts: dict[str, int] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if language is None and line.startswith("```"):
            language, lines = line.removeprefix("```"), []
        elif line == "```" and language is not None:
            number = counts[language] = counts.get(language, -1) + 1
            yield Block(name, heading, language, number, "\n".join(lines) + "\n")
            language = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")


BLOCKS = tuple(block for page in PAGES for block in blocks_of(page))


def blocks(language: str, page: str = "") -> list[Block]:
    """Return the blocks of a language, of all pages or of one page."""
    return [block for block in BLOCKS if block.language == language and page in ("", block.page)]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block."""
    for part in f"\n{block.code}".split("\n$ ")[1:]:
        words, *output = part.rstrip("\n").split("\n")
        yield Command(words, tuple(output))


def program(page: str, begin: str = "import slackwater") -> str:
    """Return the page's first Python block that begins with this text."""
    return next(block.code for block in blocks("python", page) if block.code.startswith(begin))
