"""What is read of a checkpoint next: the changes of some batches, or a whole state where those are gone. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from ....errors import Refused

MOST_BATCHES = 16
"""Batches whose changes are read at once: what is read first is committed before the rest is gone."""
KEEPS_UP = 2
"""Batches that may be waiting while each still becomes a version of its own."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What these batches changed is read; so many of them, one after the other, become one version."""

    batches: range
    at_once: int = 1

    @property
    def ends(self) -> tuple[int, ...]:
        """The last batch of each version."""
        return tuple(min(first + self.at_once - 1, self.batches[-1]) for first in self.batches[:: self.at_once])


@dataclass(frozen=True, slots=True)
class Whole:
    """The state at the end of this batch is read, and compared with what there is; that becomes one version."""

    batch: int


Step = Changes | Whole


def at_once(waiting: int, took: int, came: int, so_far: int) -> int:
    """How many batches each of the next versions takes.

    Half of `so_far`, down to one, while at most `KEEPS_UP` are `waiting`. Twice as many where no fewer `came` while the
    last ones were read than it `took` (0 for none): to read several costs little more than to read one. Else as many as
    so far: a backlog that shrinks is read a version for each batch.
    """
    if waiting <= KEEPS_UP:
        return max(1, so_far // 2)
    return min(2 * so_far, MOST_BATCHES) if 0 < took <= came else so_far


def next_step(
    next_batch: int,
    committed: range,
    available: Callable[[], range],
    *,
    misses: int = 0,
    whole: bool = False,
    at_once: int = 1,
) -> Step | None:
    """What is read next; None where there is nothing new.

    `next_batch` is the first batch that no version has; `committed` and `available` are what the checkpoint says, the
    latter asked for only where changes cannot be read, as it costs a look at all files. `misses` is how often what was
    to be read since the last version was gone before it was read: then later and later states are tried, up to the
    newest. `whole` asks for a whole state: the first one, or one with a table that is new. `at_once` batches become one
    version.

    Raises `Refused` where the checkpoint lacks batches that versions have: the query was taken back.
    """
    if not committed and not next_batch:
        return None
    newest = committed[-1] if committed else -1
    if next_batch > newest + 1:
        raise _taken_back(next_batch, newest)
    if next_batch > newest and not whole:
        return None
    has_changes = next_batch in committed and not whole
    if has_changes and not misses:
        return Changes(range(next_batch, min(newest + 1, next_batch + MOST_BATCHES)), at_once)
    if not (there := available()):
        # The query never removes what its newest state is made of: to read that says what is not there.
        return Whole(newest)
    newest, first = there[-1], min(max(next_batch, there[0]), there[-1])
    # Half of what is left each time: the oldest brings most of the history, and goes first.
    return Whole(newest - ((newest - first) >> (misses - has_changes)))


def _taken_back(next_batch: int, newest: int) -> Refused:
    return Refused(
        f"versions have the query's batches up to {next_batch - 1}, and its checkpoint ends with batch {newest}: the "
        "query was taken back, or the checkpoint is an older copy",
        hint="attach it under another --app or --stage; or rewind the app to a version of an earlier batch",
    )
