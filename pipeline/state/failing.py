"""Which keys a state's function fails for: found in the task, where the rows are, and told to the driver."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import SlackwaterError
from ...snapshot.bisect.poison import Passes, Ranges, Search, TooMany
from .protocol import BoundState, Groups, Merged

_MOST_KEYS = 1_000
"""Told at once: whoever fails for more is asked again."""
_MOST_STACK = 16_384


class StateFailed(Exception):
    """A state's function raised an error. Its text is JSON, for it crosses to the driver as text.

    `keys` are the `_hash` of the keys for which it fails, `kind` and `message` say what it raised, `stack` where.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        """What several tasks told, as one: the keys of all, and why the first failed."""
        told = [json.loads(text) for text in texts]
        return cls(json.dumps({**told[0], "keys": [key for each in told for key in each["keys"]]}))


def merge_or_tell(
    state: BoundState, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table, hashes: npt.NDArray[np.int64]
) -> Merged:
    """`state.merge`; where the user's part of it fails, `StateFailed` with the keys for which it does.

    A state asks no store and no server: whatever is raised here is of the rows and of the function.
    `hashes` has the `_hash` of each key. Finding the keys takes about as long as merging all rows once more.
    """
    try:
        return state.merge(rows, groups, keys, old)
    except Exception as error:
        failing = _failing(state, rows, groups, keys, old)
        kind, message, stack = described(error)
        told = {"keys": [int(hashes[at]) for at in failing], "kind": kind, "message": message, "stack": stack}
        raise StateFailed(json.dumps(told)) from None


def described(error: Exception) -> tuple[str, str, str]:
    """Its class, what it says, and where it was raised."""
    message = error.message if isinstance(error, SlackwaterError) else str(error)
    return type(error).__name__, message, "".join(traceback.format_exception(error))[-_MOST_STACK:]


def _failing(state: BoundState, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Sequence[int]:
    """The places of the keys for which it fails; of all keys, where it fails only now and then."""
    ends = np.append(groups.starts, rows.num_rows)

    def fails(choices: Sequence[Ranges]) -> int | None:
        for number, choice in enumerate(choices):
            chosen = pa.array(np.concatenate([np.arange(first, last) for first, last in choice]))
            places = np.concatenate([np.arange(ends[first], ends[last]) for first, last in choice])
            ids = groups.ids[places]
            begins = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
            some = Groups((np.cumsum(np.append(True, ids[1:] != ids[:-1])) - 1).astype(np.int32), begins)
            try:
                state.merge(rows.take(pa.array(places)), some, keys.take(chosen), old.take(chosen))
            except Exception:
                return number
        return None

    try:
        return Search(fails, 2, _MOST_KEYS).all(((0, groups.num),))
    except TooMany as error:
        return error.found
    except Passes:
        return range(groups.num)
