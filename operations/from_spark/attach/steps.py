"""Choice of what to read from a checkpoint next: changes of some batches, or a whole state if these are gone. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from ....errors import Refused

MOST_BATCHES = 16
"""Maximum number of batches in one read: few enough to commit the first before the query removes the last."""
KEEPS_UP = 2
"""Maximum number of waiting batches at which `at_once` halves the number of batches in a version."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Step that reads the changes of batches; every `at_once` consecutive batches become one version."""

    batches: range
    at_once: int = 1

    @property
    def ends(self) -> tuple[int, ...]:
        """Last batch of each version."""
        return tuple(min(first + self.at_once - 1, self.batches[-1]) for first in self.batches[:: self.at_once])


@dataclass(frozen=True, slots=True)
class Whole:
    """Step that reads the whole state at the end of a batch and compares it with the stored rows, as one version."""

    batch: int


Step = Changes | Whole


def at_once(waiting: int, took: int, came: int, so_far: int) -> int:
    """Return the number of batches for each of the next versions.

    If at most `KEEPS_UP` batches are `waiting`, the result is half of `so_far`, but at least one. Otherwise it is twice
    `so_far` if at least as many batches `came` during the last read as that read `took` (0 if there was none), because
    reading several batches costs little more than reading one. In all other cases the backlog shrinks, and the result
    is `so_far`.
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
    """Return what to read next; None if nothing is new.

    `next_batch` is the first batch without a version. `committed` and `available` describe the checkpoint; `available`
    lists all files, so it is only called if changes cannot be read. `misses` counts reads since the last version whose
    files were gone: each miss tries a later state, up to the newest. `whole` requires a whole state: for the first
    version, or for a new table. `at_once` batches become one version.

    Raises `Refused` if versions have batches that the checkpoint lacks: the query was rolled back.
    """
    if not committed and not next_batch:
        return None
    newest = committed[-1] if committed else -1
    if next_batch > newest + 1:
        raise _was_rolled_back(next_batch, newest)
    if next_batch > newest and not whole:
        return None
    has_changes = next_batch in committed and not whole
    if has_changes and not misses:
        return Changes(range(next_batch, min(newest + 1, next_batch + MOST_BATCHES)), at_once)
    if not (readable := available()):
        # Spark keeps the files of its newest state, so a file was lost: reading it raises an error with its name.
        return Whole(newest)
    newest, first = readable[-1], min(max(next_batch, readable[0]), readable[-1])
    # The oldest state preserves most of the history, so it is tried first; each miss halves the remaining range.
    return Whole(newest - ((newest - first) >> (misses - has_changes)))


def _was_rolled_back(next_batch: int, newest: int) -> Refused:
    return Refused(
        f"the app has the query's batches up to {next_batch - 1}, but its checkpoint ends with batch {newest}: the "
        "query was rolled back, or the checkpoint is an older copy",
        hint="attach it under another --app or --stage; or rewind the app to a version of an earlier batch",
    )
