"""Search for the keys or records that make a user's function fail, within the task where it fails.

The search is group testing, with many groups at a time: adaptive splitting (Dorfman 1943; Hwang 1972) for items that
fail by themselves. For items that fail only together, it is a binary search for the item that makes a prefix fail. It
assumes that a failing group still fails when items are added. Delta debugging finds a minimal failing set (Zeller and
Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002: `ddmin`).
"""

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from math import comb
from typing import Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import SlackwaterError
from .kinds.kind import BoundState, Groups, MergeResult

Items = npt.NDArray[np.int64]

Item = TypeVar("Item")

Fails = Callable[[Sequence[Items]], Sequence[bool]]
"""Function that tests each group of items; returns True for each group that fails."""


class TooManyFailing(Exception):
    """More items fail than allowed. `items` has one item of each known failing group, ascending."""

    def __init__(self, failing: Sequence[int]) -> None:
        super().__init__(f"at least {len(failing)} items fail")
        self.items = tuple(sorted(failing))


def find_culprits(count: int, fails: Fails, max_failing: int) -> tuple[int, ...]:
    """Return the items to leave out so that the remaining items pass. Every returned item must be left out.

    The items are numbered from 0 to `count` - 1, and fail together. Returns at most `max_failing` numbers, ascending;
    an empty tuple if all items pass now. Raises `TooManyFailing` if more items must be left out.

    Cost: for p items that fail by themselves, at most 2 * p * log2(count) + 1 groups are tested (logarithm rounded up),
    and at most 2 * `max_failing` at once. Each item that fails only together with other items costs log2(count) + 2
    more tests.
    """
    items = np.arange(count, dtype=np.int64)
    alone = find_failing_alone(items, fails, max_failing)
    remaining = np.setdiff1d(items, alone)
    together: list[int] = []
    while remaining.size and fails([remaining])[0]:
        candidates = remaining
        at = find_turning_point(remaining.size, lambda size: fails([candidates[:size]])[0])  # noqa: B023  called at once
        together.append(int(remaining[at]))
        remaining = np.delete(remaining, at)
        if len(alone) + len(together) > max_failing:
            raise TooManyFailing([*alone, *together])
    for item in tuple(together):
        # The items with which it failed may have been left out since.
        restored = np.sort(np.append(remaining, item))
        if not fails([restored])[0]:
            together.remove(item)
            remaining = restored
    return tuple(sorted([*alone, *together]))


def find_failing_alone(items: Items, fails: Fails, max_failing: int) -> list[int]:
    """Return the items that fail by themselves, ascending. Each step halves all failing groups at once.

    Raises `TooManyFailing` if more than `max_failing` items fail.
    """
    alone: list[int] = []
    failing = [items]
    while failing:
        alone += [int(group[0]) for group in failing if group.size == 1]
        halves = [half for group in failing if group.size > 1 for half in np.array_split(group, 2)]
        failing = [half for half, bad in zip(halves, fails(halves), strict=True) if bad] if halves else []
        if len(alone) + len(failing) > max_failing:
            raise TooManyFailing([*alone, *(int(group[-1]) for group in failing)])
    return sorted(alone)


def find_early_turning_point(
    count: int, is_bad: Callable[[int], bool], *, scan: int = 0, suspects: Sequence[int] = (), max_suspects: int = 8
) -> int:
    """Return the index of an item, near the start, at which a sequence turns from good to bad.

    `is_bad(n)` tests the first n items, and need not be monotonic. If `count` is at most `scan`, all prefixes are
    tested, and the result is the first item that turns the sequence bad. In a longer sequence, prefixes that end at one
    of the first `max_suspects` of the `suspects` (indices, ascending) are tested first. The result is then at or before
    the first suspect with a bad prefix. See `find_turning_point`.
    """
    if count <= scan:
        return next((size - 1 for size in range(1, count) if is_bad(size)), count - 1)
    good, bad = 0, count
    for suspect in suspects[:max_suspects]:
        if suspect + 1 >= count or is_bad(suspect + 1):
            bad = min(bad, suspect + 1)
            break
        good = suspect + 1
    if good < bad - 1 and bad < count:
        if not is_bad(bad - 1):
            return bad - 1
        bad -= 1
    return good + find_turning_point(bad - good, lambda size: is_bad(good + size))


def find_late_turning_point(count: int, is_bad: Callable[[int], bool]) -> int:
    """Return the index of an item, near the end, at which a sequence turns from good to bad.

    Prefixes without the last item, the last two items, the last four items and so on are tested until a prefix is good.
    See `find_turning_point`.
    """
    lacking, bad = 1, count
    while lacking < count and is_bad(count - lacking):
        bad, lacking = count - lacking, 2 * lacking
    good = max(count - lacking, 0)
    return good + find_turning_point(bad - good, lambda size: is_bad(good + size))


def find_turning_point(count: int, is_bad: Callable[[int], bool]) -> int:
    """Return the index of an item at which a sequence of `count` items turns from good to bad, by binary search.

    `is_bad(n)` tests the first n items, and is called at most log2(count) times, rounded up. The whole sequence is
    assumed bad, and the empty sequence good; neither is tested. If `is_bad` is not monotonic, the result is any index
    at which the sequence turns bad.
    """
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(middle):
            bad = middle
        else:
            good = middle
    return good


def minimize_failing(
    items: Sequence[Item], is_bad: Callable[[Sequence[Item]], bool], *, max_tries: int
) -> tuple[Sequence[Item], bool]:
    """Return a small subset of items that is bad, and True if it is proved minimal (delta debugging).

    `is_bad` tests a subset, in the order of the items. After `max_tries` calls, returns the smallest bad subset so far,
    and False.
    """
    tries, parts = 0, 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        chunks = [items[at : at + size] for at in range(0, len(items), size)]
        complements = [[item for other in chunks if other is not chunk for item in other] for chunk in chunks]
        # With two chunks, each chunk is the complement of the other.
        candidates = [*chunks, *(complements if len(chunks) > 2 else ())]
        for number, candidate in enumerate(candidates):
            if tries == max_tries:
                return items, False
            tries += 1
            if is_bad(candidate):
                items, parts = candidate, 2 if number < len(chunks) else max(len(chunks) - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), 2 * parts)
    return items, True


def find_smallest_failing(
    items: Sequence[Item], is_bad: Callable[[Sequence[Item]], bool], *, max_tries: int
) -> tuple[Sequence[Item], bool, bool]:
    """Return a small bad subset; True if no smaller subset is bad; and True if each item in the subset is needed.

    All items together are assumed bad. Subsets are tested by size. The empty subset is always tested. The subsets of a
    larger size are tested only if the number of tests stays within `max_tries`. After that, delta debugging
    (`minimize_failing`) makes up to `max_tries` more tests.
    """
    tries, newest_first = 0, items[::-1]
    for size in range(len(items)):
        tries += comb(len(items), size)
        if size and tries > max_tries:
            break
        for subset in combinations(newest_first, size):
            if is_bad(subset[::-1]):
                return subset[::-1], True, True
    else:
        return items, True, True
    minimal, is_minimal = minimize_failing(items, is_bad, max_tries=max_tries)
    return minimal, len(minimal) == size, is_minimal


RECORD = "_slackwater_record"
"""Column with the number of the record from which a row was made: int64."""
_MAX_STACK_CHARS = 16_384


class Failure(msgspec.Struct, frozen=True):
    """Error that a record caused: its class, message and stack trace."""

    kind: str
    message: str
    stack: str


Attempts = Callable[[Sequence[Items]], Sequence[Failure | None]]
"""Function that tries each group of items. Returns a failure for each group that fails, and None for the others."""


class StateFailure(msgspec.Struct, frozen=True):
    """Report of a task in which a user's state function failed: the cause, and the keys or records."""

    why: Failure
    keys: tuple[int, ...] = ()
    records: dict[int, Failure] = {}
    """Failures by record number, if the rows have record numbers. `keys` is then empty."""


class UnrelatedFailure(Exception):
    """An attempt failed for a reason unrelated to its items, such as a lack of memory."""


class StateFailed(Exception):
    """A user's state function raised an error."""

    def __init__(self, failure: StateFailure) -> None:
        super().__init__(f"{failure.why.kind}: {failure.why.message}")
        self.reported = failure

    @classmethod
    def from_reports(cls, failures: Sequence[StateFailure]) -> Self:
        """Merge the reports of several tasks into one error with all keys and records, and the first task's cause."""
        keys = tuple(key for failure in failures for key in failure.keys)
        records = {number: why for failure in failures for number, why in failure.records.items()}
        return cls(StateFailure(failures[0].why, keys, records))


def describe_error(error: BaseException) -> Failure:
    message = error.message if isinstance(error, SlackwaterError) else str(error)
    stack = "".join(traceback.format_exception(error))[-_MAX_STACK_CHARS:]
    return Failure(type(error).__name__, _unicode(message), _unicode(stack))


def _unicode(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def find_failures(count: int, attempts: Attempts, max_failing: int) -> dict[int, Failure]:
    """Return the failure of each item that must be left out so that all other items pass, by item.

    Items are numbered from 0 to `count` - 1. Returns an empty mapping if all items pass now. If more than `max_failing`
    items fail, more than `max_failing` failures are returned, but perhaps not all.
    """
    why: dict[int, Failure] = {}

    def fails(groups: Sequence[Items]) -> list[bool]:
        failures = attempts(groups)
        # A group's failure is attributed to the group's last item, until that item is tried alone.
        why.update(
            (int(group[-1]), failure) for group, failure in zip(groups, failures, strict=True) if failure is not None
        )
        return [failure is not None for failure in failures]

    try:
        failing_items = find_culprits(count, fails, max_failing)
    except TooManyFailing as error:
        failing_items = error.items
    if untried := [np.array([item]) for item in failing_items if item not in why]:
        fails(untried)
    return {item: why[item] for item in failing_items if item in why}


def try_one_by_one(attempt: Callable[[Items], object]) -> Attempts:
    """Return a function that tries groups in turn with `attempt`, which raises an error for a failing group.

    `UnrelatedFailure` from `attempt` ends the search.
    """

    def tried(items: Items) -> Failure | None:
        try:
            attempt(items)
        except MemoryError as error:
            raise UnrelatedFailure from error
        except UnrelatedFailure:
            raise
        except Exception as error:
            return describe_error(error)
        return None

    return lambda groups: [tried(group) for group in groups]


def merge_reporting_failures(
    state: BoundState,
    rows: pa.Table,
    groups: Groups,
    keys: pa.Table,
    old: pa.Table,
    hashes: npt.NDArray[np.int64],
    *,
    records: npt.NDArray[np.int64] | None = None,
    max_reported: int,
) -> MergeResult:
    """Merge a batch's rows. If the user's function fails, raise `StateFailed` with the keys or records that cause it.

    Any error except `UnrelatedFailure` comes from the rows or the function: a state calls no server, and a failed
    look-up in the store raises `UnrelatedFailure`. `hashes` has the `_hash` of each key. `records` has the record
    number of each row. With `records`, failing records are reported, otherwise failing keys. If more than
    `max_reported` keys or records fail, the error has more than `max_reported` of them, but perhaps not all.
    """
    try:
        return state.merge(rows, groups, keys, old)
    except (MemoryError, UnrelatedFailure):
        raise
    except Exception as error:
        why = describe_error(error)
    failed = _FailedMerge(state, rows, groups, keys, old)
    # Empty if the function passes when tried again.
    failures_by_key = find_failures(groups.num, try_one_by_one(failed.merge_keys), max_reported)
    if records is None:
        raise StateFailed(StateFailure(why, tuple(hashes[list(failures_by_key)].tolist())))
    raise StateFailed(StateFailure(why, (), failed.by_record(failures_by_key, records, max_reported)))


class _FailedMerge:
    """A failed merge, which is repeated for fewer keys or records.

    The repeated merge raises the error of the user's function.
    """

    def __init__(self, state: BoundState, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> None:
        self._state, self._rows, self._groups, self._keys, self._old = state, rows, groups, keys, old
        self._ends = np.append(groups.starts, rows.num_rows)

    def merge_keys(self, keys: Items) -> None:
        self._merge(np.concatenate([self._rows_of(key) for key in keys]), keys)

    def by_record(
        self, failures_by_key: dict[int, Failure], records: npt.NDArray[np.int64], max_reported: int
    ) -> dict[int, Failure]:
        by_record: dict[int, Failure] = {}
        for key, failure in failures_by_key.items():
            numbers = np.unique(records[self._rows_of(key)])
            if len(numbers) == 1:
                by_record.setdefault(int(numbers[0]), failure)
            elif len(by_record) <= max_reported:
                merge_records = partial(self._merge_records, key, records, numbers)
                failures = find_failures(len(numbers), try_one_by_one(merge_records), max_reported)
                by_record |= {int(numbers[item]): failure for item, failure in failures.items()}
        return by_record

    def _merge_records(self, key: int, records: npt.NDArray[np.int64], numbers: Items, chosen: Items) -> None:
        positions = self._rows_of(key)
        self._merge(positions[np.isin(records[positions], numbers[chosen])], np.array([key]))

    def _rows_of(self, key: int) -> npt.NDArray[np.int64]:
        return np.arange(self._ends[key], self._ends[key + 1])

    def _merge(self, positions: npt.NDArray[np.int64], keys: Items) -> None:
        ids = self._groups.ids[positions]
        begins = np.append(True, ids[1:] != ids[:-1])
        groups = Groups((np.cumsum(begins) - 1).astype(np.int32), np.flatnonzero(begins))
        key_numbers = pa.array(keys)
        self._state.merge(
            self._rows.take(pa.array(positions)), groups, self._keys.take(key_numbers), self._old.take(key_numbers)
        )
