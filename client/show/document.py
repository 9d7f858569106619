"""Document model of results: blocks of text and tables for people, together with data for JSON.

Text in a document is unescaped and may come from third parties; the renderers escape it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...common.instants import format_iso, now_ms
from . import formats
from .picture import SearchPicture


@dataclass(frozen=True, slots=True)
class Name:
    """Text that is shown as code, such as a ref, a topic, a column or a command."""

    text: str


@dataclass(frozen=True, slots=True)
class NextCommand:
    """Command to suggest to the user. Renderers append the options that select the store."""

    text: str

    def with_flags(self, flags: str) -> "NextCommand":
        """Return the command with `flags` appended, unless it has --store."""
        return self if " --store " in self.text else NextCommand(self.text + flags)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the user's data. If it is hidden, its type and length are shown."""

    text: str
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """Answer of a bisect's predicate for one moment."""

    text: Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Time:
    """A point in time, shown in UTC; 0 is shown as an empty text."""

    time_ms: int
    precision: Literal["seconds", "milliseconds"] = "seconds"

    @property
    def text(self) -> str:
        return format_iso(self.time_ms, self.precision) if self.time_ms else ""


Span = str | int | None | Name | NextCommand | Value | AnswerSpan | Time
"""Inline part of a line. A `str` is fixed text, an `int` a count, and None an unknown count."""
Line = tuple[Span, ...]
"""Inline parts of one line, in order, including the blanks between them."""
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
    right_aligned: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def from_rows(cls, headings: Sequence[str | Name], rows: Iterable[Sequence[Cell]]) -> "TableBlock":
        """Build a table. A heading that starts with `>` marks a right-aligned column.

        A heading that comes from users' data is a `Name`.
        """
        to_right = tuple(isinstance(heading, str) and heading.startswith(">") for heading in headings)
        names = tuple(heading.removeprefix(">") if isinstance(heading, str) else heading for heading in headings)
        return cls(names, to_right, tuple(map(tuple, rows)))


@dataclass(frozen=True, slots=True)
class Facts:
    """Pairs of a name and a value about one subject."""

    rows: tuple[tuple[Span, Cell], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Text of several lines that keeps its line breaks, such as commands or a payload."""

    text: str


Block = Cell | Title | Remark | TableBlock | Facts | Listing | SearchPicture
"""Part of a document. A span or a `Line` is a line of text. A picture only illustrates the facts in other blocks."""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Content of a report file."""

    title: str
    sentence: Line
    facts: Facts
    sections: tuple[Section, ...]
    closing: Remark


def spans(cell: Cell) -> Line:
    return cell if isinstance(cell, tuple) else (cell,)


def span_text(span: Span) -> str:
    match span:
        case str():
            return span
        case int() | None:
            return formats.count(span)
        case _:
            return span.text


def cell_text(cell: Cell) -> str:
    return "".join(map(span_text, spans(cell)))


def closing_line(suffix: str = "") -> Remark:
    """Return the last line of a report: version, time, and `suffix`."""
    from ... import __version__

    return Remark((f"slackwater {__version__}, ", Time(now_ms()), f".{suffix}"))
