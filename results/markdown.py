"""A document as Markdown of GitHub's kind, for a pull request. Pictures are left out; their tables say the same."""

import re
from collections.abc import Iterator

from ..printable import printable
from . import document
from .document import Block, Cell, Page, Section, Span, Table, spans, words
from .report.picture import Timeline

_MARKUP = re.compile(r"[!-/:-@\[-`{-~]")
"""ASCII's punctuation: any of it may begin markup somewhere."""
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~&$@]")
"""What may begin markup within words of ours."""


def render(page: Page) -> str:
    """The file's text."""
    facts = "\n\n".join(_block(page.facts))
    parts = (f"## {_line(page.sentence)}", facts, *map(_section, page.sections), *_block(page.closing))
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    return "\n\n".join((f"### {_words(section.title)}", *(text for block in section.blocks for text in _block(block))))


def _block(block: Block) -> Iterator[str]:
    match block:
        case document.Title(line):
            yield f"**{_line(line)}**"
        case document.Aside(line):
            yield f"<sub>{_line(line)}</sub>"
        case Table():
            yield "\n".join(_rows(block))
        case document.Facts(rows):
            yield "\n".join(f"- {_span(name)}: {_line(line)}" for name, line in rows)
        case document.Listing(text):
            lines = [*map(printable, text.split("\n"))]
            # A fence ends a listing when it is as long as the one that began it.
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            yield "\n".join((fence, *lines, fence))
        case Timeline() | "":
            return
        case _:
            yield _line(block)


def _rows(table: Table) -> Iterator[str]:
    yield _row(table.headings)
    yield f"|{'|'.join('--:' if right else '---' for right in table.to_right)}|"
    yield from map(_row, table.rows)


def _row(row: tuple[Cell, ...]) -> str:
    return f"| {' | '.join(map(_line, row))} |"


def _line(line: Cell) -> str:
    return "".join(map(_span, spans(line)))


def _span(span: Span) -> str:
    match span:
        case document.Name(text) | document.Value(text, False):
            return _code(text)
        case document.Value(text, _):
            return f"*{_words(text)}*"
        case document.Time():
            return span.text
        case document.Found(word):
            return f"**{word}**"
        case _:
            return _words(words(span))


def _code(text: str) -> str:
    """In the font of code. What would end it, or a table's cell, is written as HTML writes it."""
    text = printable(text)
    if text and text == text.strip() and not re.search(r"[`|\\]", text):
        return f"`{text}`"
    return f"<code>{_MARKUP.sub(_reference, text)}</code>"


def _words(text: str) -> str:
    return _SPECIAL.sub(_reference, printable(text))


def _reference(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"
