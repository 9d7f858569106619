"""A document as one HTML file: no script, nothing loaded, and a policy that tells browsers so.

All text goes through `_escaped`, and nothing else writes text. So a payload with markup, control characters, or marks
that turn the direction of writing is shown as what it is.
"""

import html
from collections.abc import Iterable, Iterator

from ..printable import printable
from .document import (
    Aside,
    Block,
    Cell,
    Facts,
    Found,
    Listing,
    Name,
    Page,
    Section,
    Span,
    Table,
    Time,
    Title,
    Value,
    spans,
    words,
)
from .report.picture import Timeline, draw

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render(document: Page) -> str:
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
{_CSS}</style>
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


def notebook(blocks: Iterable[Block]) -> str:
    """Blocks as part of somebody's page, without a style of their own."""
    return f"<div>{''.join(_block(block) for block in blocks if block != '')}</div>"


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return f"<section>\n<h2>{_escaped(section.title)}</h2>\n{blocks}\n</section>\n"


def _block(block: Block) -> str:
    match block:
        case Title(line):
            return f"<b>{_line(line)}</b>"
        case Aside(line):
            return f'<p class="aside">{_line(line)}</p>'
        case Table():
            return _wide(f"<table>{''.join(_rows(block))}</table>")
        case Facts(rows):
            return f"<dl>{''.join(f'<dt>{_span(name)}</dt><dd>{_line(line)}</dd>' for name, line in rows)}</dl>"
        case Listing(text):
            lines = "\n".join(map(_escaped, text.split("\n")))
            return f"<pre>{lines}</pre>"
        case Timeline():
            return _wide(draw(block))
        case _:
            return f"<p>{_line(block)}</p>"


def _wide(markup: str) -> str:
    """What may be wider than the window: it scrolls by itself, also by the keyboard."""
    return f'<div class="wide" tabindex="0">{markup}</div>'


def _rows(table: Table) -> Iterator[str]:
    yield "<thead>"
    yield _row("th", table, table.headings)
    yield "</thead><tbody>"
    yield from (_row("td", table, row) for row in table.rows)
    yield "</tbody>"


def _row(tag: str, table: Table, row: tuple[Cell, ...]) -> str:
    cells = zip(row, table.to_right, strict=True)
    number = ("", ' class="number"')
    markup = (f"<{tag}{number[right]}>{_line(line)}</{tag}>" for line, right in cells)
    return f"<tr>{''.join(markup)}</tr>"


def _line(line: Cell) -> str:
    return "".join(map(_span, spans(line)))


def _span(span: Span) -> str:
    match span:
        case Name(text):
            return f"<code>{_escaped(text)}</code>"
        case Value(text, hidden):
            kind = "hidden" if hidden else "value"
            return f'<code class="{kind}">{_escaped(text)}</code>'
        case Time():
            return f"<time>{span.text}</time>"
        case Found(word):
            return f'<span class="{word}">{word}</span>'
        case _:
            return _escaped(words(span))


def _escaped(text: str) -> str:
    return html.escape(printable(text))


_CSS = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #5b6570; --line: #d5dae0; --tint: #f4f6f8;
  --good: #17713b; --bad: #b3261e; --badtint: #b3261e14; --accent: #1f5fa8 }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e6e9ed; --soft: #a0a9b4; --line: #343b44;
  --tint: #1d2228; --good: #6bd092; --bad: #ff8a80; --badtint: #ff8a801c; --accent: #82b4f0 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1.25rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.45rem; line-height: 1.35; font-weight: 600; margin: 0 0 1.25rem; text-wrap: pretty }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line) }
p { margin: .6rem 0; max-width: 46rem }
.aside { color: var(--soft); font-size: .9rem }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; unicode-bidi: isolate }
code { font-size: .9em; overflow-wrap: anywhere }
.value { background: var(--tint); border-radius: .2em; padding: .05em .3em }
.hidden { color: var(--soft); font-style: italic }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: .3rem; padding: .75rem; font-size: .85rem;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: .6rem 0 }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1.25rem; margin: .6rem 0 }
dt { color: var(--soft) }
dd { margin: 0 }
.wide { overflow-x: auto; margin: .6rem 0 }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 600; color: var(--soft) }
th, td { padding: .3rem 1.1rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td:last-child:not(.number) { min-width: 7rem }
td code { display: inline-block; max-width: 34rem; min-width: min-content; overflow-wrap: break-word }
time { white-space: nowrap }
.number { text-align: right }
.good { color: var(--good); font-weight: 600 }
.bad { color: var(--bad); font-weight: 600 }
.skip { color: var(--soft) }
svg { display: block; width: 100%; min-width: 44rem; height: auto; font: 13px system-ui, sans-serif }
svg text { fill: var(--soft); font-weight: 400 }
svg .strong { fill: var(--bad); font-weight: 600 }
svg .middle { text-anchor: middle }
svg .end { text-anchor: end }
svg .after { fill: var(--badtint) }
svg .turn { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 3 }
svg .rule { stroke: var(--line) }
svg .curve { fill: none; stroke: var(--bad); stroke-width: 2 }
svg .sample { fill: var(--bad); stroke: var(--paper) }
svg .good { fill: var(--paper); stroke: var(--good); stroke-width: 2.5 }
svg .bad { fill: none; stroke: var(--bad); stroke-width: 2.5 }
svg .skip { stroke: var(--soft); stroke-width: 2.5 }
svg .commit { fill: var(--accent); stroke: none }
svg .commit.bad { fill: var(--bad) }
svg .snapshot { fill: var(--accent); stroke: var(--accent) }
footer { margin-top: 2.5rem }
@media (max-width: 34rem) { dl { grid-template-columns: minmax(0, 1fr); gap: 0 } dd { margin-bottom: .6rem }
  h1 { font-size: 1.2rem } }
@media print { :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --tint: #f4f4f4; --good: #17713b;
  --bad: #b3261e; --badtint: #b3261e14; --accent: #1f5fa8; print-color-adjust: exact }
  body { max-width: none; padding: 0; font-size: 10pt } .wide { overflow: visible } svg { min-width: 0 }
  table { font-size: 8pt } h2, tr, svg { break-inside: avoid } h2 { break-after: avoid } }
"""
"""The whole style sheet: no `url`, no `@import`, nothing of a user's."""
