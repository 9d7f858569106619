"""Renderer of a document as GitHub Markdown, for a pull request. Pictures are omitted: tables repeat them."""

import re
from collections.abc import Iterator

from ....common.printable import printable
from .. import document
from ..document import Block, Cell, Page, Span, TableBlock, span_text, spans
from .picture import SearchPicture

_MARKUP = re.compile(r"[!-/:-@\[-`{-~]")
"""ASCII punctuation, which may begin markup."""
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~&$@]")
"""Characters that may begin markup within plain words."""


def render(page: Page) -> str:
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
            yield "\n".join(
                (headings, f"|{'|'.join('--:' if right else '---' for right in block.right_aligned)}|", *rows)
            )
        case document.Facts(rows):
            yield "\n".join(f"- {_span(name)}: {_line(line)}" for name, line in rows)
        case document.Listing(text):
            lines = [*map(printable, text.split("\n"))]
            # The fence must be longer than any run of backticks in the text.
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            yield "\n".join((fence, *lines, fence))
        case SearchPicture() | "":
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
        case document.AnswerSpan(word):
            return f"**{word}**"
        case _:
            return _words(span_text(span))


def _code(text: str) -> str:
    """Format text as code; characters that would end the code or a table cell become HTML entities."""
    text = printable(text)
    if text and text == text.strip() and not re.search(r"[`|\\]", text):
        return f"`{text}`"
    return f"<code>{_MARKUP.sub(_html_entity, text)}</code>"


def _words(text: str) -> str:
    return _SPECIAL.sub(_html_entity, printable(text))


def _html_entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"
