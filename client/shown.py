"""How values show themselves: as text, and as HTML in a notebook. Whatever they hold, it stays text."""

import html
from collections.abc import Iterable
from dataclasses import dataclass

from ..printable import printable


@dataclass(frozen=True, slots=True)
class View:
    """What of a value is shown: a title, a table, and notes below it."""

    title: str
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    notes: tuple[str, ...] = ()


class Shown:
    """A value with a readable `repr`, and a table in notebooks."""

    __slots__ = ()

    def _view(self) -> View:
        raise NotImplementedError

    def __repr__(self) -> str:
        view = self._view()
        table = [tuple(map(_cell, row)) for row in (view.headings, *view.rows) if row]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        aligned = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        return "\n".join((printable(view.title), *aligned, *map(printable, view.notes)))

    def _repr_html_(self) -> str:
        view = self._view()
        lines = "".join(f"<tr>{_cells('td', row)}</tr>" for row in view.rows)
        table = f"<table><thead><tr>{_cells('th', view.headings)}</tr></thead><tbody>{lines}</tbody></table>"
        notes = "".join(f"<p>{_escaped(note)}</p>" for note in view.notes)
        return f"<div><b>{_escaped(view.title)}</b>{table if view.headings else ''}{notes}</div>"


def _cell(value: object) -> str:
    return printable(f"{value:,}" if isinstance(value, int) else str(value))


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _cells(tag: str, row: Iterable[object]) -> str:
    return "".join(f"<{tag}>{html.escape(_cell(value))}</{tag}>" for value in row)
