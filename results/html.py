"""A document as one HTML file: no script, nothing loaded, and a policy that tells browsers so.

All text goes through `_escaped`, and nothing else writes text. So a payload with markup, control characters, or marks
that turn the direction of writing is shown as what it is.
"""

import html
from collections.abc import Iterator

from ..printable import printable
from .document import Block, Document, Facts, Line, Listing, Name, Paragraph, Said, Section, Span, Table, Time, Value
from .drawing import draw
from .style import CSS

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(document: Document) -> str:
    """The file's text."""
    sections = "".join(map(_section, document.sections))
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{_escaped(document.title)}</title>
<style>
{CSS}</style>
</head>
<body>
<main>
<h1>{_line(document.sentence)}</h1>
{_block(document.facts)}
{sections}</main>
<footer>{_block(document.closing)}</footer>
</body>
</html>
"""


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return f"<section>\n<h2>{_escaped(section.title)}</h2>\n{blocks}\n</section>\n"


def _block(block: Block) -> str:
    match block:
        case Paragraph(line, aside):
            return f"<p{_class('aside', aside)}>{_line(line)}</p>"
        case Table():
            return _wide(f"<table>{''.join(_rows(block))}</table>")
        case Facts(rows):
            return f"<dl>{''.join(f'<dt>{_span(name)}</dt><dd>{_line(line)}</dd>' for name, line in rows)}</dl>"
        case Listing(text):
            lines = "\n".join(map(_escaped, text.split("\n")))
            return f"<pre>{lines}</pre>"
        case _:
            return _wide(draw(block))


def _wide(markup: str) -> str:
    """What may be wider than the window: it scrolls by itself, also by the keyboard."""
    return f'<div class="wide" tabindex="0">{markup}</div>'


def _rows(table: Table) -> Iterator[str]:
    yield "<thead>"
    yield _row("th", table, tuple((heading,) for heading in table.headings))
    yield "</thead><tbody>"
    yield from (_row("td", table, row) for row in table.rows)
    yield "</tbody>"


def _row(tag: str, table: Table, row: tuple[Line, ...]) -> str:
    cells = zip(row, table.to_right, strict=True)
    markup = (f"<{tag}{_class('number', right)}>{_line(line)}</{tag}>" for line, right in cells)
    return f"<tr>{''.join(markup)}</tr>"


def _class(name: str, is_so: bool) -> str:
    return f' class="{name}"' if is_so else ""


def _line(line: Line) -> str:
    return "".join(map(_span, line))


def _span(span: Span) -> str:
    match span:
        case Name(text):
            return f"<code>{_escaped(text)}</code>"
        case Value(text, hidden):
            kind = "hidden" if hidden else "value"
            return f'<code class="{kind}">{_escaped(text)}</code>'
        case Time():
            return f"<time>{span.text}</time>"
        case Said(word):
            return f'<span class="{word}">{word}</span>'
        case _:
            return _escaped(span)


def _escaped(text: str) -> str:
    return html.escape(printable(text))
