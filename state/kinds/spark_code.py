"""Interfaces between state kinds and user code for Spark's stateful operators: rows in Python, handle, instance."""

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
    """Conversion of rows for user code, to Spark's `Row` or to pandas frames. Sent to workers by pickle."""

    def struct(self, kind: pa.StructType) -> SparkStruct:
        """Return Spark's type of the structs that have this Arrow type."""

    def keys(self, keys: pa.Table) -> list[Any]:
        """Return each key as a tuple."""

    def groups(self, rows: pa.Table, ids: npt.NDArray[np.int32], num: int) -> Callable[[int], Iterator[Any] | None]:
        """Return a function from a key's index to its rows, or None; `ids` has each row's key, ascending."""

    def nothing(self, rows: pa.Schema) -> Iterator[Any]:
        """Return the rows to pass for a key without rows."""

    def table(self, output: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Convert the output of user code to a table. Raises `Refused` if it does not fit the schema."""


class Instance(Protocol):
    """Instance of the user's class, for one batch."""

    def rows(self, key: Any, rows: Iterator[Any]) -> Iterable[Any]:
        """Handle the rows of a key and return its output."""

    def initial(self, key: Any, rows: Iterator[Any]) -> None:
        """Pass the initial state of a key to the instance."""

    def expired(self, key: Any, at_ms: int) -> Iterable[Any]:
        """Handle an expired timer and return the output."""

    def close(self) -> None: ...


Begin: TypeAlias = "Callable[[Handle, BatchMoment], Instance]"
"""Function that creates the instance for a batch, which requests its variables. Sent to workers by pickle."""


def sort_within_keys(table: pa.Table, order_by: Sequence[str]) -> pa.Table:
    """Sort rows by key number (`_key`) and by these columns; unchanged without columns."""
    if not order_by:
        return table
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in ("_key", *order_by)]))


class Handle:
    """Handle of a user's class: variables and timers, with the method names of Spark's `StatefulProcessorHandle`."""

    def __init__(self, variables: Mapping[str, StateVariable], timers: Timers | None) -> None:
        self._variables, self._timers = variables, timers

    def getValueState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> StateVariable:
        return self._variable(stateName)

    def getListState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> StateVariable:
        return self._variable(stateName)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: object,
        valueSchema: object,
        ttlDurationMs: int | None = None,
    ) -> StateVariable:
        return self._variable(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timed.registerTimer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timed.deleteTimer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return self._timed.listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Do nothing: a migration removes variables that the class no longer requests."""

    def _variable(self, name: str) -> StateVariable:
        if name not in self._variables:
            raise Refused(
                f"the class asks for state variable {name!r}, but did not when the app was started",
                hint="init() must ask for the same state variables each time",
            )
        return self._variables[name]

    @property
    def _timed(self) -> Timers:
        if self._timers is None:
            raise Refused(
                "the class has timers, but time_mode is 'None'",
                hint='set time_mode="ProcessingTime" or "EventTime", as in Spark',
            )
        return self._timers
