"""What a user's function fails for: searched for where it runs, among the rows that are there, and told."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence

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
    """Its error."""
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
    def of(cls, told: Sequence[StateFailure]) -> StateFailed:
        """What several tasks told, as one: what all failed for, and why the first did."""
        keys = tuple(key for each in told for key in each.keys)
        return cls(
            StateFailure(told[0].why, keys, {number: why for each in told for number, why in each.records.items()})
        )


def described(error: BaseException) -> Failure:
    """An error in words."""
    message = error.message if isinstance(error, SlackwaterError) else str(error)
    return Failure(type(error).__name__, message, "".join(traceback.format_exception(error))[-_MOST_STACK:])


def failing(count: int, attempts: Attempts, most: int) -> dict[int, Failure]:
    """Of items that fail together those to leave out, and why each fails; none where they pass when tried again.

    Args:
        count: How many there are, numbered from 0; at least 1.
        attempts: Tries groups of them.
        most: How many may be found. Where there are more, one more at least is returned, and not all.
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

    A state asks no store and no server: whatever is raised here is of the rows and of the function.

    Args:
        state: What merges.
        rows: Those of the batch, by key.
        groups: Which of them belong to which key.
        keys: One row a key.
        old: What is stored of each.
        hashes: The `_hash` of each key.
        records: The number of each row's record: these are told; None for telling keys.
        most: How many keys or records may be told. Where there are more, one more at least is told, and not all.
    """
    try:
        return state.merge(rows, groups, keys, old)
    except MemoryError:
        raise
    except Exception as error:
        why = described(error)
        trial = _Trial(state, rows, groups, keys, old)
        found = failing(groups.num, one_by_one(trial.of_keys), most)
        if records is None:
            # None, where it passes when it is tried again.
            told = StateFailure(why, tuple(hashes[list(found)].tolist()))
        else:
            told = StateFailure(why, (), trial.records(found, records, most))
        raise StateFailed(told) from None


class _Trial:
    """Merges parts of what a state's function failed for."""

    def __init__(self, state: Bound, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> None:
        self._state, self._rows, self._keys, self._old = state, rows, keys, old
        self._ids = groups.ids
        self._ends = np.append(groups.starts, rows.num_rows)

    def of_keys(self, chosen: Items) -> None:
        """All rows of some keys."""
        self._merge(np.concatenate([np.arange(self._ends[key], self._ends[key + 1]) for key in chosen]), chosen)

    def records(self, keys: Mapping[int, Failure], records: npt.NDArray[np.int64], most: int) -> dict[int, Failure]:
        """Of keys that fail, the records that do, and why: a key with one record has that of the key."""
        found: dict[int, Failure] = {}
        for key, why in keys.items():
            places = np.arange(self._ends[key], self._ends[key + 1])
            each = np.unique(records[places])
            if len(each) == 1:
                found.setdefault(int(each[0]), why)
            elif len(found) <= most:
                found |= self._records_of(key, places, records[places], each, most)
        return found

    def _records_of(
        self, key: int, places: npt.NDArray[np.int64], records: npt.NDArray[np.int64], each: Items, most: int
    ) -> dict[int, Failure]:
        def attempt(chosen: Items) -> None:
            self._merge(places[np.isin(records, each[chosen])], np.array([key]))

        return {int(each[item]): why for item, why in failing(len(each), one_by_one(attempt), most).items()}

    def _merge(self, places: npt.NDArray[np.int64], chosen: Items) -> None:
        ids = self._ids[places]
        begins = np.append(True, ids[1:] != ids[:-1])
        groups = Groups((np.cumsum(begins) - 1).astype(np.int32), np.flatnonzero(begins))
        keys = pa.array(chosen)
        self._state.merge(self._rows.take(pa.array(places)), groups, self._keys.take(keys), self._old.take(keys))
