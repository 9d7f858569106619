"""Blocks as text: drawn by rich for a terminal, or plain aligned columns for a pipe."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ..printable import printable
from .document import Aside, Block, Facts, Listing, Table, Title, text_of
from .report.picture import Timeline

if TYPE_CHECKING:
    from rich.console import RenderableType

_FOLDED = 20
"""Columns of the terminal that a value which does not fit shall have at least."""


def plain(block: Block) -> str:
    """Columns two spaces apart, nothing shortened, no blanks at the ends of lines."""
    if not isinstance(block, Table):
        return f"{_line(block)}\n"
    lines = _cells(block)
    widths, text = _widths(lines), ""
    for line in lines:
        blanks = [" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        padded = zip(line, blanks, block.to_right, strict=True)
        text += "  ".join(blank + cell if right else cell + blank for cell, blank, right in padded).rstrip() + "\n"
    return text


def drawn(block: Block, width: int) -> "RenderableType":
    """The same for a terminal of `width` columns: a bold heading; wide values fold, they are never cut."""
    from rich.table import Table as RichTable
    from rich.text import Text

    if not isinstance(block, Table):
        return Text(_line(block), style="bold" if isinstance(block, Title) else "")
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    headings, *rows = lines = _cells(block)
    widths = _widths(lines)
    # The columns that must not fold are the narrowest ones, while that leaves the others enough.
    fixed: set[int] = set()
    room = width - 2 * len(widths)
    for number in sorted(range(len(widths)), key=widths.__getitem__):
        room -= widths[number]
        if room < _FOLDED * (len(widths) - len(fixed) - 1):
            break
        fixed.add(number)
    for number, (name, right) in enumerate(zip(headings, block.to_right, strict=True)):
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=number in fixed)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _line(block: Block) -> str:
    match block:
        case Title(line) | Aside(line):
            return printable(text_of(line))
        case Table() | Facts() | Listing() | Timeline():
            raise TypeError(f"a {type(block).__name__} is no line of text")
        case _:
            return printable(text_of(block))


def _cells(table: Table) -> list[tuple[str, ...]]:
    """The headings, and the rows."""
    return [tuple(printable(text_of(cell)) for cell in line) for line in (table.headings, *table.rows)]


def _widths(lines: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    return tuple(max(map(_width, column)) for column in zip(*lines, strict=True))


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
