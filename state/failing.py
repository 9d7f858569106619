"""The keys or records that a user's function fails for: searched for where it runs, among the rows that are there."""

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
"""The column with the number of the record that a row comes of, a long."""
_MOST_STACK = 16_384


class Failure(msgspec.Struct, frozen=True):
    """An error that is the fault of records: its class, what it says, and where it was raised."""

    kind: str
    message: str
    stack: str


Attempts = Callable[[Sequence[Items]], Sequence[Failure | None]]
"""Tries groups of items, each by itself: why each fails, None where it passes."""


class StateFailure(msgspec.Struct, frozen=True):
    """What a task says of a state's function that failed in it."""

    why: Failure
    keys: tuple[int, ...] = ()
    """The `_hash` of keys for which it fails."""
    records: dict[int, Failure] = {}
    """Where rows have their records' numbers, those for which it fails instead, and why."""


class NoItems(Exception):
    """What is tried fails for a reason that is no item's fault."""


class StateFailed(Exception):
    """A state's function raised an error."""

    def __init__(self, told: StateFailure) -> None:
        super().__init__(f"{told.why.kind}: {told.why.message}")
        self.told = told

    @classmethod
    def of(cls, told: Sequence[StateFailure]) -> Self:
        """What several tasks told, as one: what all failed for, and why the first did."""
        keys = tuple(key for each in told for key in each.keys)
        records = {number: why for each in told for number, why in each.records.items()}
        return cls(StateFailure(told[0].why, keys, records))


def described(error: BaseException) -> Failure:
    """An error in words."""
    message = error.message if isinstance(error, SlackwaterError) else str(error)
    stack = "".join(traceback.format_exception(error))[-_MOST_STACK:]
    return Failure(type(error).__name__, _unicode(message), _unicode(stack))


def _unicode(text: str) -> str:
    """A text as it may be stored: Python's may have surrogates, which stand for bytes that are no text."""
    return text.encode(errors="backslashreplace").decode()


def failing(count: int, attempts: Attempts, most: int) -> dict[int, Failure]:
    """Of `count` items that fail together those to leave out, and why each fails; none where they pass now.

    They are numbered from 0. Where more than `most` fail, one more at least is returned, and not all.
    """
    why: dict[int, Failure] = {}

    def fails(groups: Sequence[Items]) -> list[bool]:
        found = attempts(groups)
        # Of a group, what its last item fails with stands until that is tried alone.
        why.update((int(group[-1]), each) for group, each in zip(groups, found, strict=True) if each is not None)
        return [each is not None for each in found]

    try:
        found = culprits(count, fails, most)
    except TooMany as error:
        found = error.found
    if untried := [np.array([item]) for item in found if item not in why]:
        fails(untried)
    return {item: why[item] for item in found if item in why}


def one_by_one(attempt: Callable[[Items], object]) -> Attempts:
    """Tries groups by a function that raises where one fails; `NoItems` ends the search."""

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
    """`state.merge`; where the user's part of it fails, `StateFailed` with what it fails for.

    A state asks no store and no server: whatever is raised here is of the rows and of the function. `hashes` has the
    `_hash` of each key, and `records` the number of each row's record: with it records are named, else keys. Where more
    than `most` fail, one more at least is named, and not all.
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

    def merge(places: npt.NDArray[np.int64], chosen: Items) -> None:
        ids = groups.ids[places]
        begins = np.append(True, ids[1:] != ids[:-1])
        some = Groups((np.cumsum(begins) - 1).astype(np.int32), np.flatnonzero(begins))
        state.merge(rows.take(pa.array(places)), some, keys.take(pa.array(chosen)), old.take(pa.array(chosen)))

    def merge_keys(chosen: Items) -> None:
        merge(np.concatenate([rows_of(key) for key in chosen]), chosen)

    # None, where it passes when it is tried again.
    found = failing(groups.num, one_by_one(merge_keys), most)
    if records is None:
        raise StateFailed(StateFailure(why, tuple(hashes[list(found)].tolist())))
    by_record: dict[int, Failure] = {}
    for key, failure in found.items():
        mine = records[rows_of(key)]
        numbers = np.unique(mine)
        if len(numbers) == 1:
            by_record.setdefault(int(numbers[0]), failure)
        elif len(by_record) <= most:

            def merge_records(
                chosen: Items, key: int = key, mine: npt.NDArray[np.int64] = mine, numbers: Items = numbers
            ) -> None:
                merge(rows_of(key)[np.isin(mine, numbers[chosen])], np.array([key]))

            each = failing(len(numbers), one_by_one(merge_records), most)
            by_record |= {int(numbers[item]): one for item, one in each.items()}
    raise StateFailed(StateFailure(why, (), by_record))
