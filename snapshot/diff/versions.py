"""The versions of one stage that are left, by their place among them, and few of them read."""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from ...store.objects.protocol import ObjectStore
from ...store.read.range_reads import at_once
from ...store.versions import history
from ...store.versions.aside import table_of
from ...store.versions.manifest import Manifest

_AHEAD = 64
"""Manifests asked for at once, when one after the other is looked at."""


class Versions:
    """Versions of a stage, ascending, counted from 0. Those that were collected are none of them.

    Args:
        store: the store of the app.
        app: the app's name.
        stage: the stage's name.
        table: one beside the stage's own, which the versions then have as theirs; empty for its own.
    """

    def __init__(self, store: ObjectStore, app: str, stage: str, table: str = "") -> None:
        self.numbers = history.versions(store, app, stage)
        """Their numbers. One listing for each 1,000."""
        self.stage = stage
        """The stage."""
        self._store, self._app, self._table = store, app, table or stage

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Manifest:
        """The version at this place.

        Raises:
            NotFound: it was collected meanwhile.
            Corruption: its manifest is not readable.
        """
        return table_of(history.read(self._store, self._app, self.stage, self.numbers[place]), self._table)

    def from_number(self, number: int) -> int:
        """The first place with this number or a larger one."""
        return bisect_left(self.numbers, number)

    def is_gap(self, place: int) -> bool:
        """Whether versions right before this place were collected."""
        return place > 0 and self.numbers[place] > self.numbers[place - 1] + 1

    def first_where(self, low: int, high: int, holds: Callable[[Manifest], bool]) -> int:
        """The first of the places `low` to `high` for which `holds`, which it does for `high` and from it on."""
        return low + bisect_left(range(low, high), True, key=lambda place: holds(self[place]))

    def backwards(self, place: int) -> Iterator[tuple[int, Manifest]]:
        """This version and those before it, newest first, each with its place."""
        for end in range(place + 1, 0, -_AHEAD):
            places = range(max(end - _AHEAD, 0), end)
            yield from reversed(list(zip(places, at_once().map(self.__getitem__, places), strict=True)))
