"""Choice of the next read from a checkpoint: the changes of some batches, or a whole state. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from ....errors import Refused

MOST_BATCHES = 16
"""Maximum number of batches in one read: few enough to commit the first before the query removes the last."""
KEEPS_UP = 2
"""Maximum number of waiting batches at which the number of batches per version is halved."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Step that reads the changes of batches. Every `batches_per_version` consecutive batches become one version."""

    batches: range
    at_once: int = 1

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(min(first + self.at_once - 1, self.batches[-1]) for first in self.batches[:: self.at_once])


@dataclass(frozen=True, slots=True)
class Whole:
    """Step that compares the whole state at the end of a batch with the stored rows, as one version."""

    batch: int


Step = Changes | Whole


def at_once(waiting: int, took: int, came: int, so_far: int) -> int:
    """Return the number of batches for each of the next versions.

    With a small backlog the number is halved. It is doubled if as many batches `arrived` during the last read as that
    read had (`last_read`, 0 for none), because reading several batches costs little more than reading one. Otherwise
    the backlog shrinks, and the number does not change.
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
    """Return the next step; None if no batch is new.

    `next_batch` is the first batch without a version. `committed` and `available` are batches of the checkpoint;
    `available` lists all files, so it is only called if changes cannot be read. `misses` counts reads since the last
    version that failed because files were deleted: each tries a later state, up to the newest. A whole state is
    required for the first version, and for a new table.

    Raises `Refused` if versions have batches that the checkpoint lacks, because the query was rolled back.
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
