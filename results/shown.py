"""Values that show themselves: in words where Python prints them, as a table in notebooks."""

from collections.abc import Iterable

from .document import Block
from .text import plain


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
