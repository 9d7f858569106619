"""Base classes of results, which are shown as text in Python, as tables in notebooks, and as JSON.

Also renders blocks as text: with rich for a terminal, or as plain aligned columns for a pipe.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec

from ...common.printable import printable
from .document import Block, Facts, Listing, NextCommand, Remark, TableBlock, Title, cell_text, spans
from .picture import SearchPicture

if TYPE_CHECKING:
    import msgspec
    from rich.console import RenderableType

_Params = ParamSpec("_Params")
BlockGenerator = Generator[Block, None, object]
"""Generator that yields blocks for people and returns the data for JSON."""
_MIN_FOLDED_WIDTH = 20


class Displayable:
    """Base of values of the Python API with a readable `repr` and a table in notebooks; their text is escaped."""

    __slots__ = ()

    _internal_names: ClassVar[frozenset[str]] = frozenset()
    """Internal attributes, which `dir` and completion omit."""

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name not in self._internal_names]

    def _blocks(self) -> Iterable[Block]:
        """Return the blocks to show, a title first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "".join(map(format_plain, self._blocks())).removesuffix("\n")

    def _repr_html_(self) -> str:
        from .render.html import notebook

        return notebook(self._blocks())


class Result(Displayable):
    """Result of a verb or method.

    Args:
        data: data for JSON: builtins, structs and dataclasses.
        blocks: blocks for people.
        notes: further lines for people. The data also has the facts in these lines.
        failed: True if a check failed or the result differs, so that the exit code is 1.
    """

    def __init__(self, data: Any, *blocks: Block, notes: Iterable[str] = (), failed: bool = False) -> None:
        self.data = data
        self.blocks = blocks
        self.notes = tuple(notes)
        self.failed = failed

    def _blocks(self) -> Iterable[Block]:
        return *self.blocks, *self.notes

    def with_flags(self, flags: str) -> "Result":
        """Return the result with the options in `flags` added to the commands that it suggests."""

        def typed(span: Any) -> Any:
            return span.with_flags(flags) if isinstance(span, NextCommand) else span

        blocks = (tuple(map(typed, block)) if isinstance(block, tuple) else typed(block) for block in self.blocks)
        return Result(self.data, *blocks, notes=self.notes, failed=self.failed)


def result_from_blocks(generate: Callable[_Params, BlockGenerator]) -> Callable[_Params, Result]:
    """Decorate a generator of blocks, so that a call returns a `Result`."""

    @wraps(generate)
    def made(*args: _Params.args, **kwargs: _Params.kwargs) -> Result:
        blocks, generator = [], generate(*args, **kwargs)
        while True:
            try:
                blocks.append(next(generator))
            except StopIteration as end:
                return Result(end.value, *blocks)

    return made


class AlreadyDone(Title):
    """Title of the result of an operation that changed nothing, because an earlier call had already done it."""


def operation_result(generate: Callable[_Params, BlockGenerator]) -> Callable[_Params, Result]:
    """Decorate a generator of blocks, so that a call returns the `Result` of an operation.

    An `AlreadyDone` block gets the prefix "done already". A dry run without such a block ends with the line "nothing
    was changed". The data, a dict, gets `done_already` and `dry_run`.
    """
    as_result = result_from_blocks(generate)

    @wraps(generate)
    def made(*args: _Params.args, **kwargs: _Params.kwargs) -> Result:
        base, dry_run = as_result(*args, **kwargs), bool(kwargs.get("dry_run"))
        blocks = [("done already: ", *spans(b.line)) if isinstance(b, AlreadyDone) else b for b in base.blocks]
        done_already = any(isinstance(block, AlreadyDone) for block in base.blocks)
        if dry_run and not done_already:
            blocks.append("nothing was changed (--dry-run)")
        data: Any = base.data
        return Result({**data, "done_already": done_already, "dry_run": dry_run}, *blocks)

    return made


def attributes(value: object, *names: str, **more: object) -> dict[str, Any]:
    """Return the attributes `names` of a value as a dict for JSON, with `more` added."""
    return {name: getattr(value, name) for name in names} | more


def encode_json(data: object) -> bytes:
    document: bytes = _encoder().encode(data)
    return document


@cache
def _encoder() -> "msgspec.json.Encoder":
    import msgspec

    # DuckDB returns sums of integers as decimals; JSON gets numbers.
    return msgspec.json.Encoder(decimal_format="number", enc_hook=str)


def format_plain(block: Block) -> str:
    """Return a block as plain text: table columns separated by two spaces, no value shortened, no trailing blanks."""
    if not isinstance(block, TableBlock):
        return f"{_line(block)}\n"
    lines = _cells(block)
    columns = list(zip(_widths(lines), block.right_aligned, strict=True))

    def padded(cell: str, width: int, right: bool) -> str:
        blank = " " * (width - _width(cell))
        return blank + cell if right else cell + blank

    return "".join(
        "  ".join(padded(cell, *column) for cell, column in zip(line, columns, strict=True)).rstrip() + "\n"
        for line in lines
    )


def render_for_terminal(block: Block, width: int) -> "RenderableType":
    """Return a block for a terminal of `width` columns: bold headings; wide values are wrapped, not cut off."""
    from rich.table import Table as RichTable
    from rich.text import Text

    if not isinstance(block, TableBlock):
        return Text(_line(block), style="bold" if isinstance(block, Title) else "")
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    headings, *rows = lines = _cells(block)
    widths = _widths(lines)
    # The narrowest columns are not wrapped as long as the other columns keep enough room.
    fixed: set[int] = set()
    room = width - 2 * len(widths)
    for number in sorted(range(len(widths)), key=widths.__getitem__):
        room -= widths[number]
        if room < _MIN_FOLDED_WIDTH * (len(widths) - len(fixed) - 1):
            break
        fixed.add(number)
    for number, (name, right) in enumerate(zip(headings, block.right_aligned, strict=True)):
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(Text(name), justify=justify, overflow="fold", no_wrap=number in fixed)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _line(block: Block) -> str:
    match block:
        case Title(line) | Remark(line):
            return printable(cell_text(line))
        case TableBlock() | Facts() | Listing() | SearchPicture():
            raise TypeError(f"a {type(block).__name__} is no line of text")
        case _:
            return printable(cell_text(block))


def _cells(table: TableBlock) -> list[tuple[str, ...]]:
    return [tuple(printable(cell_text(cell)) for cell in line) for line in (table.headings, *table.rows)]


def _widths(lines: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    return tuple(max(map(_width, column)) for column in zip(*lines, strict=True))


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
