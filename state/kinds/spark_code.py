"""What code for Spark's stateful operators gets from us: rows in Python, a handle, an instance for a batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...errors import Refused
from .kind import BatchMoment, Kind, OfCode
from .state_variables import StateVariable, Timers
from .structs import SparkStruct
from .update import Update


class SparkCode(OfCode, frozen=True, kw_only=True, tag=""):
    """Code for one of Spark's stateful operators."""

    def may_become(self, now: Kind) -> bool:
        return isinstance(now, type(self) | Update)


class PythonRows(Protocol):
    """How a user's code sees rows: as Spark's `Row`, or as frames of pandas. Crosses to workers by pickle."""

    def struct(self, kind: pa.StructType) -> SparkStruct:
        """Spark's type of such structs."""

    def keys(self, keys: pa.Table) -> list[Any]:
        """Each key, as a tuple."""

    def groups(self, rows: pa.Table, ids: npt.NDArray[np.int32], num: int) -> Callable[[int], Iterator[Any] | None]:
        """The rows of a key by its position, None where it has none; `ids` says whose each is, and ascends."""

    def nothing(self, rows: pa.Schema) -> Iterator[Any]:
        """What a key is called with that has no such rows."""

    def table(self, given: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """What the user's code gave. Raises `Refused` where that is something else."""


class Instance(Protocol):
    """An instance of the user's class, for one batch."""

    def rows(self, key: Any, rows: Iterator[Any]) -> Iterable[Any]:
        """What it gives for the rows of a key."""

    def initial(self, key: Any, rows: Iterator[Any]) -> None:
        """Give it what a key begins with."""

    def expired(self, key: Any, at_ms: int) -> Iterable[Any]:
        """What it gives for a timer that has passed."""

    def close(self) -> None:
        """Have it end."""


Begin: TypeAlias = "Callable[[Handle, BatchMoment], Instance]"
"""Makes the instance for a batch, and has it ask for its variables. Crosses to workers by pickle."""


def in_order(table: pa.Table, order_by: Sequence[str]) -> pa.Table:
    """Rows with the position of their key (`_key`), sorted by it and by these columns; as they are without any."""
    if not order_by:
        return table
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in ("_key", *order_by)]))


class Handle:
    """What a class gets to ask for its variables and its timers, by the names of Spark's `StatefulProcessorHandle`."""

    def __init__(self, variables: Mapping[str, StateVariable], timers: Timers | None) -> None:
        self._variables, self._timers = variables, timers

    def getValueState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> StateVariable:
        """The variable of this name."""
        return self._variable(stateName)

    def getListState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> StateVariable:
        """The variable of this name."""
        return self._variable(stateName)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: object,
        valueSchema: object,
        ttlDurationMs: int | None = None,
    ) -> StateVariable:
        """The variable of this name."""
        return self._variable(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have the key at hand called at this time."""
        self._timed.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Do not have it called then."""
        self._timed.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """The times at which it will be called."""
        return self._timed.listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Nothing: a variable that the class does not ask for leaves the table when the program is migrated."""

    def _variable(self, name: str) -> StateVariable:
        if name not in self._variables:
            raise Refused(
                f"the class asks for state variable {name!r}, and did not when the app was started",
                hint="init() asks for all of them, the same ones each time",
            )
        return self._variables[name]

    @property
    def _timed(self) -> Timers:
        if self._timers is None:
            raise Refused(
                "the class has timers, and time_mode is 'None'",
                hint='say time_mode="ProcessingTime" or "EventTime", as to Spark',
            )
        return self._timers
