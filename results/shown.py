"""What verbs show and methods give: in words where Python prints it, as a table in notebooks, as data for machines."""

from collections.abc import Callable, Generator, Iterable
from functools import wraps
from typing import Any, ParamSpec

from .document import Block
from .text import plain

_Params = ParamSpec("_Params")
Words = Generator[Block, None, object]
"""Yields blocks for people, and returns the data for machines."""


class Shown:
    """A value of the Python API: a readable `repr`, and a table in notebooks. Whatever it holds, it stays text."""

    __slots__ = ()

    def _blocks(self) -> Iterable[Block]:
        """What is shown of it, a title first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "".join(map(plain, self._blocks())).removesuffix("\n")

    def _repr_html_(self) -> str:
        from .html import notebook

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


def fields(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a value, for machines."""
    return {name: getattr(value, name) for name in names}
