"""What verbs show and methods give: in words where Python prints it, a table in notebooks, data for machines.

And blocks as text: drawn by rich for a terminal, or plain aligned columns for a pipe.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec

from ...common.printable import printable
from .document import Block, Facts, Listing, NextCommand, Remark, TableBlock, Title, spans, text_of
from .picture import Timeline

if TYPE_CHECKING:
    import msgspec
    from rich.console import RenderableType

_Params = ParamSpec("_Params")
Words = Generator[Block, None, object]
"""Yields blocks for people, and returns the data for machines."""
_FOLDED = 20
"""Columns of the terminal that a value which does not fit shall have at least."""


class Shown:
    """A value of the Python API: a readable `repr`, and a table in notebooks. Whatever it holds, it stays text."""

    __slots__ = ()

    _inner: ClassVar[frozenset[str]] = frozenset()
    """What other modules of ours use of it, and programs do not: `dir` and completion leave it out."""

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name not in self._inner]

    def _blocks(self) -> Iterable[Block]:
        """What is shown of it, a title first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "".join(map(plain, self._blocks())).removesuffix("\n")

    def _repr_html_(self) -> str:
        from .render.html import notebook

        return notebook(self._blocks())


class Result(Shown):
    """What a verb shows and a method gives.

    Args:
        data: for machines: builtins, structs and dataclasses.
        blocks: for people.
        notes: lines worth knowing beside it; machines find what they say in the data.
        failed: whether what was asked does not hold, so that the exit code is 1.
    """

    def __init__(self, data: object, *blocks: Block, notes: Iterable[str] = (), failed: bool = False) -> None:
        self.data = data
        self.blocks = blocks
        self.notes = tuple(notes)
        self.failed = failed

    def _blocks(self) -> Iterable[Block]:
        return *self.blocks, *self.notes

    def with_flags(self, flags: str) -> "Result":
        """Return the result for whoever types: its commands have the options that reach the store."""

        def typed(span: Any) -> Any:
            return span.with_flags(flags) if isinstance(span, NextCommand) else span

        blocks = (tuple(map(typed, block)) if isinstance(block, tuple) else typed(block) for block in self.blocks)
        return Result(self.data, *blocks, notes=self.notes, failed=self.failed)


def result(words_of: Callable[_Params, Words]) -> Callable[_Params, Result]:
    """Makes a function that gives a `Result` of one that gives its `Words`."""

    @wraps(words_of)
    def made(*args: _Params.args, **kwargs: _Params.kwargs) -> Result:
        blocks, words = [], words_of(*args, **kwargs)
        while True:
            try:
                blocks.append(next(words))
            except StopIteration as end:
                return Result(end.value, *blocks)

    return made


class Already(Title):
    """A title of an operation that was done already and changed nothing."""


def operation(words_of: Callable[_Params, Words]) -> Callable[_Params, Result]:
    """Make a function that gives the `Result` of an operation of one that gives its `Words`.

    What was done `Already` is told so, and a dry run ends with the line that nothing was changed. Machines get
    `done_already` and `dry_run` in the data, which is a dict.
    """
    told = result(words_of)

    @wraps(words_of)
    def made(*args: _Params.args, **kwargs: _Params.kwargs) -> Result:
        found, dry_run = told(*args, **kwargs), bool(kwargs.get("dry_run"))
        blocks = [("done already: ", *spans(b.line)) if isinstance(b, Already) else b for b in found.blocks]
        done_already = any(isinstance(block, Already) for block in found.blocks)
        if dry_run and not done_already:
            blocks.append("nothing was changed (--dry-run)")
        data: Any = found.data
        return Result({**data, "done_already": done_already, "dry_run": dry_run}, *blocks)

    return made


def fields(value: object, *names: str, **others: object) -> dict[str, Any]:
    """These attributes of a value, and `others` besides, for machines."""
    return {name: getattr(value, name) for name in names} | others


def encoded(data: object) -> bytes:
    """What machines get of a result, as JSON."""
    found: bytes = _encoder().encode(data)
    return found


@cache
def _encoder() -> "msgspec.json.Encoder":
    import msgspec

    # Sums of integers come as decimals from DuckDB: numbers all the same.
    return msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def plain(block: Block) -> str:
    """Columns two spaces apart, nothing shortened, no blanks at the ends of lines."""
    if not isinstance(block, TableBlock):
        return f"{_line(block)}\n"
    lines = _cells(block)
    columns = list(zip(_widths(lines), block.to_right, strict=True))

    def padded(cell: str, width: int, right: bool) -> str:
        blank = " " * (width - _width(cell))
        return blank + cell if right else cell + blank

    return "".join(
        "  ".join(padded(cell, *column) for cell, column in zip(line, columns, strict=True)).rstrip() + "\n"
        for line in lines
    )


def drawn(block: Block, width: int) -> "RenderableType":
    """The same for a terminal of `width` columns: a bold heading; wide values fold, they are never cut."""
    from rich.table import Table as RichTable
    from rich.text import Text

    if not isinstance(block, TableBlock):
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
        case Title(line) | Remark(line):
            return printable(text_of(line))
        case TableBlock() | Facts() | Listing() | Timeline():
            raise TypeError(f"a {type(block).__name__} is no line of text")
        case _:
            return printable(text_of(block))


def _cells(table: TableBlock) -> list[tuple[str, ...]]:
    """The headings, and the rows."""
    return [tuple(printable(text_of(cell)) for cell in line) for line in (table.headings, *table.rows)]


def _widths(lines: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    return tuple(max(map(_width, column)) for column in zip(*lines, strict=True))


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
