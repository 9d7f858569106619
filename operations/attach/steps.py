"""Choice of the next read from a followed checkpoint: the changes of some batches, or a whole state. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import Refused

MAX_BATCHES = 16
"""Maximum number of batches in one read. A small number, so that the query removes no batch during the read."""
SMALL_BACKLOG = 2
"""Maximum number of waiting batches at which the number of batches per version is halved."""


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Step that reads the changes of batches. Every `batches_per_version` consecutive batches become one version."""

    batches: range
    batches_per_version: int = 1

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(
            min(first + self.batches_per_version - 1, self.batches[-1])
            for first in self.batches[:: self.batches_per_version]
        )


@dataclass(frozen=True, slots=True)
class ReadWholeState:
    """Step that reads the whole state of a batch, and commits the differences from the stored rows as one version."""

    batch: int


Step = ReadChanges | ReadWholeState


def adapt_batches_per_version(waiting: int, last_read: int, arrived: int, current: int) -> int:
    """Return the next number of batches per version. `current` is the number so far.

    The number is halved if at most `SMALL_BACKLOG` batches are `waiting`. It is doubled if the backlog does not shrink:
    the last read had `last_read` batches (0 for none), and at least as many batches `arrived` since. Otherwise the
    number does not change. Reading several batches at once costs little more than reading one.
    """
    if waiting <= SMALL_BACKLOG:
        return max(1, current // 2)
    return min(2 * current, MAX_BATCHES) if 0 < last_read <= arrived else current


def next_step(
    next_batch: int,
    committed: range,
    available: Callable[[], range],
    *,
    misses: int = 0,
    needs_whole_state: bool = False,
    batches_per_version: int = 1,
) -> Step | None:
    """Return the next step; None if no batch is new.

    `next_batch` is the first batch without a version. `committed` are the batches that the checkpoint has. `available`
    is a function that returns the batches with a whole state; it lists all files, so it is called only if changes
    cannot be read. `misses` is the number of consecutive reads that failed because files were deleted. After each such
    failure, a later state is chosen, and finally the newest state. The first version, and a new table, require a whole
    state.

    Raises `Refused` if versions have batches that the checkpoint lacks, because the query was rolled back.
    """
    if not committed and not next_batch:
        return None
    newest = committed[-1] if committed else -1
    if next_batch > newest + 1:
        raise _was_rolled_back(next_batch, newest)
    if next_batch > newest and not needs_whole_state:
        return None
    has_changes = next_batch in committed and not needs_whole_state
    if has_changes and not misses:
        return ReadChanges(range(next_batch, min(newest + 1, next_batch + MAX_BATCHES)), batches_per_version)
    if not (readable := available()):
        # Spark keeps the files of its newest state, so a file was lost. Reading that state raises an error with the
        # file's name.
        return ReadWholeState(newest)
    newest, first = readable[-1], min(max(next_batch, readable[0]), readable[-1])
    # The oldest state preserves most of the history, so it is tried first. Each miss halves the range that remains.
    return ReadWholeState(newest - ((newest - first) >> (misses - has_changes)))


def _was_rolled_back(next_batch: int, newest: int) -> Refused:
    return Refused(
        f"the app has the query's batches up to {next_batch - 1}, but its checkpoint ends with batch {newest}: the "
        "query was rolled back, or the checkpoint is an older copy",
        hint="attach it under another --app or --stage; or rewind the app to a version of an earlier batch",
    )
