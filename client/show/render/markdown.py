"""A document as Markdown of GitHub's kind, for a pull request. Pictures are left out; their tables say the same."""

import re
from collections.abc import Iterator

from ....common.printable import printable
from .. import document
from ..document import Block, Cell, Page, Span, TableBlock, spans, words
from ..picture import Timeline

_MARKUP = re.compile(r"[!-/:-@\[-`{-~]")
"""ASCII's punctuation: any of it may begin markup somewhere."""
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~&$@]")
"""What may begin markup within words of ours."""


def render(page: Page) -> str:
    """The file's text."""
    parts = [f"## {_line(page.sentence)}", *_block(page.facts)]
    for section in page.sections:
        parts += (f"### {_words(section.title)}", *(text for block in section.blocks for text in _block(block)))
    return "\n\n".join((*parts, *_block(page.closing))) + "\n"


def _block(block: Block) -> Iterator[str]:
    match block:
        case document.Title(line):
            yield f"**{_line(line)}**"
        case document.Remark(line):
            yield f"<sub>{_line(line)}</sub>"
        case TableBlock():
            headings, *rows = (f"| {' | '.join(map(_line, row))} |" for row in (block.headings, *block.rows))
            yield "\n".join((headings, f"|{'|'.join('--:' if right else '---' for right in block.to_right)}|", *rows))
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
        case document.Answered(word):
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
