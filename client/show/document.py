"""Document model of results: blocks for people, data for machines.

Text in a document is unescaped and may come from third parties; the renderers escape it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...common.instants import iso, now_ms
from . import formats
from .picture import Timeline


@dataclass(frozen=True, slots=True)
class Name:
    """Text that is typed literally: a ref, a topic, a column, a command."""

    text: str


@dataclass(frozen=True, slots=True)
class NextCommand:
    """A command for users to type next. Renderers append options that select the store, unless it has --store."""

    text: str

    def with_flags(self, flags: str) -> "NextCommand":
        """Return the command with the options in `flags` appended, unless it has --store."""
        return self if " --store " in self.text else NextCommand(self.text + flags)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the user's data, or only its type and length."""

    text: str
    hidden: bool = False
    """True if `text` is only the type and length."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer of a bisect for one moment."""

    text: Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Time:
    """A time in UTC; empty text for 0."""

    time_ms: int
    precision: Literal["seconds", "milliseconds"] = "seconds"

    @property
    def text(self) -> str:
        """Time as text in UTC."""
        return iso(self.time_ms, self.precision) if self.time_ms else ""


Span = str | int | None | Name | NextCommand | Value | Answered | Time
"""Piece of a line: a `str` is fixed text, an `int` a count, None an unknown count."""
Line = tuple[Span, ...]
"""Pieces of one line, in order; blanks between the pieces are part of them."""
Cell = Span | Line


@dataclass(frozen=True, slots=True)
class Title:
    """A highlighted line."""

    line: Cell


@dataclass(frozen=True, slots=True)
class Remark:
    """An explanatory line."""

    line: Cell


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Rows of cells under headings."""

    headings: tuple[str | Name, ...]
    to_right: tuple[bool, ...]
    """True for each right-aligned column."""
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, headings: Sequence[str | Name], rows: Iterable[Sequence[Cell]]) -> "TableBlock":
        """Return a table with these headings and rows. A heading that starts with `>` marks a right-aligned column.

        A heading that comes from users' data is a `Name`.
        """
        to_right = tuple(isinstance(heading, str) and heading.startswith(">") for heading in headings)
        names = tuple(heading.removeprefix(">") if isinstance(heading, str) else heading for heading in headings)
        return cls(names, to_right, tuple(map(tuple, rows)))


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one subject, as pairs of name and value."""

    rows: tuple[tuple[Span, Cell], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Text of several lines that keeps its line breaks: commands, a payload."""

    text: str


Block = Cell | Title | Remark | TableBlock | Facts | Listing | Timeline
"""Part of a document. A span or a `Line` is a line of text; a timeline is a picture of what other blocks say."""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A report file."""

    title: str
    """Window title."""
    sentence: Line
    """Result in one sentence."""
    facts: Facts
    """Facts about how the result was obtained."""
    sections: tuple[Section, ...]
    closing: Remark


def spans(cell: Cell) -> Line:
    """Return the pieces of a cell or line."""
    return cell if isinstance(cell, tuple) else (cell,)


def words(span: Span) -> str:
    """Return a piece as text."""
    match span:
        case str():
            return span
        case int() | None:
            return formats.count(span)
        case _:
            return span.text


def text_of(cell: Cell) -> str:
    """Return a cell or line as text."""
    return "".join(map(words, spans(cell)))


def closing(more: str = "") -> Remark:
    """Return the last line of a page: version, time, and `more`."""
    from ... import __version__

    return Remark((f"slackwater {__version__}, ", Time(now_ms()), f".{more}"))
