"""Search for the keys or records for which a user's function fails, in the task where it fails."""

import traceback
from collections.abc import Callable, Sequence
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import SlackwaterError
from .culprit import Items, TooMany, culprits
from .kinds.kind import Bound, Groups, Merged

RECORD = "_slackwater_record"
"""Column with the number of the record from which a row was made, a long."""
_MOST_STACK = 16_384


class Failure(msgspec.Struct, frozen=True):
    """An error that a record caused: its class, its message and its stack trace."""

    kind: str
    message: str
    stack: str


Attempts = Callable[[Sequence[Items]], Sequence[Failure | None]]
"""Tries groups of items, each by itself. Returns for each group its failure, or None if it passes."""


class StateFailure(msgspec.Struct, frozen=True):
    """A task's report of a user's state function that failed."""

    why: Failure
    keys: tuple[int, ...] = ()
    """`_hash` of the keys for which the function fails."""
    records: dict[int, Failure] = {}
    """Failures by record number, instead of `keys`, where rows have the numbers of their records."""


class NoItems(Exception):
    """An attempt failed for a reason other than its items."""


class StateFailed(Exception):
    """A state's function raised an error."""

    def __init__(self, failure: StateFailure) -> None:
        super().__init__(f"{failure.why.kind}: {failure.why.message}")
        self.told = failure

    @classmethod
    def of(cls, failures: Sequence[StateFailure]) -> Self:
        """Merge the failures of several tasks into one error: all keys and records, and the first task's cause."""
        keys = tuple(key for failure in failures for key in failure.keys)
        records = {number: why for failure in failures for number, why in failure.records.items()}
        return cls(StateFailure(failures[0].why, keys, records))


def described(error: BaseException) -> Failure:
    """Return the class, message and stack trace of an error."""
    message = error.message if isinstance(error, SlackwaterError) else str(error)
    stack = "".join(traceback.format_exception(error))[-_MOST_STACK:]
    return Failure(type(error).__name__, _unicode(message), _unicode(stack))


def _unicode(text: str) -> str:
    """Escape surrogates (bytes that are not UTF-8), which Python's strings may have and the store may not."""
    return text.encode(errors="backslashreplace").decode()


def failing(count: int, attempts: Attempts, most: int) -> dict[int, Failure]:
    """Return the items to leave out of `count` items that fail together, with their failures; none if they pass now.

    Items are numbered from 0. If more than `most` fail, more than `most` are returned, but not all.
    """
    why: dict[int, Failure] = {}

    def fails(groups: Sequence[Items]) -> list[bool]:
        failures = attempts(groups)
        # A group's failure is attributed to its last item, until that item is tried alone.
        why.update(
            (int(group[-1]), failure) for group, failure in zip(groups, failures, strict=True) if failure is not None
        )
        return [failure is not None for failure in failures]

    try:
        failing_items = culprits(count, fails, most)
    except TooMany as error:
        failing_items = error.found
    if untried := [np.array([item]) for item in failing_items if item not in why]:
        fails(untried)
    return {item: why[item] for item in failing_items if item in why}


def one_by_one(attempt: Callable[[Items], object]) -> Attempts:
    """Return a function that tries groups with `attempt`, which raises if a group fails. `NoItems` ends the search."""

    def tried(items: Items) -> Failure | None:
        try:
            attempt(items)
        except MemoryError as error:
            raise NoItems from error
        except NoItems:
            raise
        except Exception as error:
            return described(error)
        return None

    return lambda groups: [tried(group) for group in groups]


def merge_or_tell(
    state: Bound,
    rows: pa.Table,
    groups: Groups,
    keys: pa.Table,
    old: pa.Table,
    hashes: npt.NDArray[np.int64],
    *,
    records: npt.NDArray[np.int64] | None = None,
    most: int,
) -> Merged:
    """Call `state.merge`. If the user's function fails, raise `StateFailed` with the keys or records that cause it.

    A state calls no store and no server, so any error comes from the rows or the function. `hashes` has the `_hash` of
    each key, and `records` the number of each row's record: with it records are reported, else keys. If more than
    `most` fail, more than `most` are reported, but not all.
    """
    try:
        return state.merge(rows, groups, keys, old)
    except MemoryError:
        raise
    except Exception as error:
        why = described(error)
    ends = np.append(groups.starts, rows.num_rows)

    def rows_of(key: int) -> npt.NDArray[np.int64]:
        return np.arange(ends[key], ends[key + 1])

    def merge(positions: npt.NDArray[np.int64], chosen: Items) -> None:
        ids = groups.ids[positions]
        begins = np.append(True, ids[1:] != ids[:-1])
        chosen_groups = Groups((np.cumsum(begins) - 1).astype(np.int32), np.flatnonzero(begins))
        state.merge(
            rows.take(pa.array(positions)), chosen_groups, keys.take(pa.array(chosen)), old.take(pa.array(chosen))
        )

    def merge_keys(chosen: Items) -> None:
        merge(np.concatenate([rows_of(key) for key in chosen]), chosen)

    # Empty if the function passes when tried again.
    failures_by_key = failing(groups.num, one_by_one(merge_keys), most)
    if records is None:
        raise StateFailed(StateFailure(why, tuple(hashes[list(failures_by_key)].tolist())))
    by_record: dict[int, Failure] = {}
    for key, failure in failures_by_key.items():
        key_records = records[rows_of(key)]
        numbers = np.unique(key_records)
        if len(numbers) == 1:
            by_record.setdefault(int(numbers[0]), failure)
        elif len(by_record) <= most:

            def merge_records(
                chosen: Items,
                key: int = key,
                key_records: npt.NDArray[np.int64] = key_records,
                numbers: Items = numbers,
            ) -> None:
                merge(rows_of(key)[np.isin(key_records, numbers[chosen])], np.array([key]))

            failures = failing(len(numbers), one_by_one(merge_records), most)
            by_record |= {int(numbers[item]): failure for item, failure in failures.items()}
    raise StateFailed(StateFailure(why, (), by_record))
