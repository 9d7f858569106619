"""What a report is made of, before it is HTML or Markdown. Text is as it came: whoever renders it makes it harmless."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..instants import iso
from .timeline import Timeline


@dataclass(frozen=True, slots=True)
class Name:
    """What is typed as it stands: a ref, a topic, a column, a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the user's, or its shape."""

    text: str
    hidden: bool = False
    """Whether it is only the shape."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a moment was found to be."""

    word: Literal["good", "bad", "skip"]


@dataclass(frozen=True, slots=True)
class Time:
    """A moment, in words; empty for none."""

    time_ms: int
    precision: Literal["seconds", "milliseconds"] = "seconds"

    @property
    def text(self) -> str:
        """In UTC."""
        return iso(self.time_ms, self.precision) if self.time_ms else ""


Span = str | Name | Value | Said | Time
"""A piece of a line; a `str` is words of ours."""
Line = tuple[Span, ...]
"""Pieces that follow each other; blanks between them are theirs."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A line of text."""

    line: Line
    aside: bool = False
    """Whether it explains rather than tells."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of lines under headings."""

    headings: tuple[Span, ...]
    to_right: tuple[bool, ...]
    """Which columns are aligned to the right."""
    rows: tuple[tuple[Line, ...], ...]

    @classmethod
    def of(cls, headings: Sequence[str | Name], rows: Iterable[Sequence[Span | Line]]) -> "Table":
        """A table of any rows. A heading in words that starts with `>` marks a column aligned to the right."""
        to_right = tuple(isinstance(heading, str) and heading.startswith(">") for heading in headings)
        names = tuple(heading.removeprefix(">") if isinstance(heading, str) else heading for heading in headings)
        lines = (tuple(cell if isinstance(cell, tuple) else (cell,) for cell in row) for row in rows)
        return cls(names, to_right, tuple(lines))


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one thing, by name."""

    rows: tuple[tuple[Span, Line], ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Text of several lines that keeps its breaks: commands, a payload."""

    text: str


Block = Paragraph | Table | Facts | Listing | Timeline
"""A timeline is a picture; what it shows is in words beside it."""


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    title: str
    """Its name, for a window."""
    sentence: Line
    """What was found."""
    facts: Facts
    """How it was found."""
    sections: tuple[Section, ...]
    closing: Paragraph
