"""Tables of words, drawn for a terminal by rich or as plain aligned columns for a pipe."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from ..printable import printable

if TYPE_CHECKING:
    from rich.table import Table

_Item = TypeVar("_Item")

_FOLDED = 20
"""Columns of the terminal that a value which does not fit shall have at least."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of words under headings, all of them printable (`of` makes them so).

    A heading that starts with `>` marks a column aligned to the right. One that is not ours to choose starts with `<`
    or `>`, whatever follows.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> "Grid":
        """A grid of any rows."""
        return cls(tuple(map(printable, headings)), tuple(tuple(printable(cell) for cell in row) for row in rows))

    @classmethod
    def each(cls, items: Iterable[_Item], columns: Mapping[str, Callable[[_Item], str]]) -> "Grid":
        """A row for each item, a column for each heading."""
        return cls.of(tuple(columns), ([cell(item) for cell in columns.values()] for item in items))

    @property
    def names(self) -> tuple[str, ...]:
        """The headings without their marks."""
        return tuple(heading[1:] if heading.startswith((">", "<")) else heading for heading in self.headings)

    @property
    def to_right(self) -> tuple[bool, ...]:
        """Which columns are aligned to the right."""
        return tuple(heading.startswith(">") for heading in self.headings)


@dataclass(frozen=True, slots=True)
class Title:
    """A line that stands out on a terminal."""

    text: str


def as_plain(grid: Grid) -> str:
    """Columns two spaces apart, nothing shortened, no blanks at the ends of lines."""
    widths = _widths(grid)
    cells = (zip(line, widths, grid.to_right, strict=True) for line in (grid.names, *grid.rows))
    return "".join("  ".join(_pad(*cell) for cell in line).rstrip() + "\n" for line in cells)


def as_rich(grid: Grid, width: int) -> "Table":
    """The same for a terminal of `width` columns: a bold heading; wide values fold, they are never cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    fixed = _fixed(_widths(grid), width)
    for number, (name, right) in enumerate(zip(grid.names, grid.to_right, strict=True)):
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=number in fixed)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def _widths(grid: Grid) -> tuple[int, ...]:
    return tuple(max(map(_width, column)) for column in zip(grid.names, *grid.rows, strict=True))


def _fixed(widths: Sequence[int], width: int) -> frozenset[int]:
    """The columns that must not fold: the narrowest ones, while that leaves the others enough."""
    narrowest = sorted(range(len(widths)), key=lambda number: widths[number])
    room = width - 2 * len(widths)
    for taken, number in enumerate(narrowest):
        room -= widths[number]
        if room < _FOLDED * (len(widths) - taken - 1):
            return frozenset(narrowest[:taken])
    return frozenset(narrowest)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _pad(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - _width(text))
    return blanks + text if right else text + blanks
