"""What writes that never ended have left in storage, where storage keeps such things: uploads in parts, files."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable


class Leftover(NamedTuple):
    """A write that was begun and has not ended. It may still be under way."""

    key: str
    """What it would have become, where that is known; else where it lies."""
    id: str
    """Tells writes of the same key apart; a store's own."""
    begun_ms: int
    """By storage's clock."""


@runtime_checkable
class Leftovers(Protocol):
    """A store in which writes leave something when they break off."""

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Writes of keys under `prefix` that have not ended; all of them where keys are not known."""
        ...

    def discard(self, leftover: Leftover) -> None:
        """End one for good and free what it takes; no error when it has ended."""
        ...
