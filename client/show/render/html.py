"""Renderer of a document as one HTML file: no script, no external resources, and a policy that forbids both.

All text goes through `_escaped`, so a payload with markup, control characters or bidirectional marks is shown as text.
"""

import html
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template

from ....common.printable import printable
from .. import document
from ..document import Block, Cell, Page, Span, TableBlock, span_text, spans
from ..picture import SearchPicture, draw_svg

_NUMBER = ("", ' class="number"')


def render(page: Page) -> str:
    """Return a page as HTML, from the template `page.html`, whose style sheet loads nothing."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    sections = ""
    for section in page.sections:
        blocks = "\n".join(map(_block, section.blocks))
        sections += f"<section>\n<h2>{_escaped(section.title)}</h2>\n{blocks}\n</section>\n"
    return template.substitute(
        title=_escaped(page.title),
        sentence=_line(page.sentence),
        facts=_block(page.facts),
        sections=sections,
        closing=_block(page.closing),
    )


def notebook(blocks: Iterable[Block]) -> str:
    """Return blocks as HTML for a notebook, without a style sheet: a notebook has its own."""
    return f"<div>{''.join(map(_block, blocks))}</div>"


def _block(block: Block) -> str:
    match block:
        case document.Title(line):
            return f"<b>{_line(line)}</b>"
        case document.Remark(line):
            return f'<p class="aside">{_line(line)}</p>'
        case TableBlock():
            return _scrollable(f"<table>{''.join(_rows(block))}</table>")
        case document.Facts(rows):
            return f"<dl>{''.join(f'<dt>{_span(name)}</dt><dd>{_line(line)}</dd>' for name, line in rows)}</dl>"
        case document.Listing(text):
            lines = "\n".join(map(_escaped, text.split("\n")))
            return f"<pre>{lines}</pre>"
        case SearchPicture():
            return _scrollable(draw_svg(block))
        case "":
            return ""
        case _:
            return f"<p>{_line(block)}</p>"


def _scrollable(markup: str) -> str:
    """Wrap an element that may be wider than the window, so that it scrolls separately and by keyboard."""
    return f'<div class="wide" tabindex="0">{markup}</div>'


def _rows(table: TableBlock) -> Iterator[str]:
    for part, tag, rows in (("thead", "th", (table.headings,)), ("tbody", "td", table.rows)):
        yield f"<{part}>"
        for row in rows:
            cells = zip(row, table.right_aligned, strict=True)
            yield "<tr>"
            yield from (f"<{tag}{_NUMBER[right]}>{_line(line)}</{tag}>" for line, right in cells)
            yield "</tr>"
        yield f"</{part}>"


def _line(line: Cell) -> str:
    return "".join(map(_span, spans(line)))


def _span(span: Span) -> str:
    match span:
        case document.Name(text):
            return f"<code>{_escaped(text)}</code>"
        case document.Value(text, hidden):
            kind = "hidden" if hidden else "value"
            return f'<code class="{kind}">{_escaped(text)}</code>'
        case document.Time():
            return f"<time>{span.text}</time>"
        case document.AnswerSpan(word):
            return f'<span class="{word}">{word}</span>'
        case _:
            return _escaped(span_text(span))


def _escaped(text: str) -> str:
    return html.escape(printable(text))
