"""One document model of what verbs and methods give: blocks for people, data for machines.

Text in it is as it came, also a stranger's: whoever renders it makes it harmless.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...common.instants import iso, now_ms
from . import formats
from .picture import Timeline


@dataclass(frozen=True, slots=True)
class Name:
    """What is typed as it stands: a ref, a topic, a column, a command."""

    text: str


@dataclass(frozen=True, slots=True)
class NextCommand:
    """A command to type next; who shows it to whoever types adds what reaches the store, unless it names one."""

    text: str

    def with_flags(self, flags: str) -> "NextCommand":
        """Return the command with the options that reach the store."""
        return self if " --store " in self.text else NextCommand(self.text + flags)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the user's, or its shape."""

    text: str
    hidden: bool = False
    """Whether it is only the shape."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What a moment was found to be."""

    text: Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Time:
    """A moment, in words; empty for none."""

    time_ms: int
    precision: Literal["seconds", "milliseconds"] = "seconds"

    @property
    def text(self) -> str:
        """In UTC."""
        return iso(self.time_ms, self.precision) if self.time_ms else ""


Span = str | int | None | Name | NextCommand | Value | Answered | Time
"""A piece of a line: a `str` is words of ours, an `int` a count, None a count that is not known."""
Line = tuple[Span, ...]
"""Pieces that follow each other; blanks between them are theirs."""
Cell = Span | Line


@dataclass(frozen=True, slots=True)
class Title:
    """A line that stands out."""

    line: Cell


@dataclass(frozen=True, slots=True)
class Remark:
    """A line that explains rather than tells."""

    line: Cell


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Rows of cells under headings."""

    headings: tuple[str | Name, ...]
    to_right: tuple[bool, ...]
    """Which columns are aligned to the right."""
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, headings: Sequence[str | Name], rows: Iterable[Sequence[Cell]]) -> "TableBlock":
        """A table of any rows. A heading in words that starts with `>` marks a column aligned to the right.

        One that is not ours to choose is a `Name`.
        """
        to_right = tuple(isinstance(heading, str) and heading.startswith(">") for heading in headings)
        names = tuple(heading.removeprefix(">") if isinstance(heading, str) else heading for heading in headings)
        return cls(names, to_right, tuple(map(tuple, rows)))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one thing, by name."""

    rows: tuple[tuple[Span, Cell], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Text of several lines that keeps its breaks: commands, a payload."""

    text: str


Block = Cell | Title | Remark | TableBlock | Facts | Listing | Timeline
"""A span or a line by itself is a line of text. A timeline is a picture; what it shows is in words beside it."""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A whole file to hand on."""

    title: str
    """Its name, for a window."""
    sentence: Line
    """What was found."""
    facts: Facts
    """How it was found."""
    sections: tuple[Section, ...]
    closing: Remark


def spans(cell: Cell) -> Line:
    """The pieces of a cell or line."""
    return cell if isinstance(cell, tuple) else (cell,)


def words(span: Span) -> str:
    """A piece as text."""
    match span:
        case str():
            return span
        case int() | None:
            return formats.count(span)
        case _:
            return span.text


def text_of(cell: Cell) -> str:
    """A cell or line as text."""
    return "".join(map(words, spans(cell)))


def closing(more: str = "") -> Remark:
    """The last line of a page: who made it, when, and what else is to be said."""
    from ... import __version__

    return Remark((f"slackwater {__version__}, ", Time(now_ms()), f".{more}"))
