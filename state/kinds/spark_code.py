"""Interfaces between state kinds and user code that was written for Spark's stateful operators."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Refused
from .. import multi_input
from .kind import NO_MOMENT, BatchMoment, BoundState, DueBy, Groups, Kind, OfCode
from .parts import PartState
from .state_variables import Timers, ValueState
from .structs import SparkStruct
from .update import Update


class SparkCode(OfCode, frozen=True, kw_only=True, tag=""):
    """User code for one of Spark's stateful operators."""

    def may_become(self, now: Kind) -> bool:
        return isinstance(now, type(self) | Update)

    def is_compatible_with(self, now: Kind) -> bool:
        return isinstance(now, Update) or (self.may_become(now) and self.due_text in ("", now.due_text))


class PythonRows(Protocol):
    """Conversion of rows for user code, to Spark's `Row` or to pandas frames. Pickled and sent to workers."""

    def struct(self, kind: pa.StructType) -> SparkStruct:
        """Return Spark's struct type for an Arrow struct type."""

    def keys(self, keys: pa.Table) -> list[Any]:
        """Return each key as a tuple of Python values."""

    def groups(self, rows: pa.Table, ids: npt.NDArray[np.int32], num: int) -> Callable[[int], Iterator[Any] | None]:
        """Return a function from a key's index to the key's rows. The function returns None for a key without rows.

        `ids` has the key index of each row, ascending.
        """

    def nothing(self, rows: pa.Schema) -> Iterator[Any]:
        """Return the rows to pass to user code for a key that has no rows."""

    def table(self, output: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Convert the output of user code to a table. Raises `Refused` if the output does not fit the schema."""


class Instance(Protocol):
    """Instance of the user's class, for one batch."""

    def rows(self, key: Any, rows: Iterator[Any]) -> Iterable[Any]:
        """Handle the rows of a key, and return the user code's output."""

    def initial(self, key: Any, rows: Iterator[Any]) -> None:
        """Hand the initial state of a key to the user's class."""

    def expired(self, key: Any, at_ms: int) -> Iterable[Any]:
        """Handle a timer of a key that expired at `at_ms`, and return the user code's output."""

    def close(self) -> None: ...


Begin: TypeAlias = "Callable[[Handle, BatchMoment], Instance]"
"""Function that creates the instance of the user's class for a batch. Pickled and sent to workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundCode(BoundState):
    """User code, bound to the schemas of its rows."""

    may_keep_rows: ClassVar[bool] = True
    python: PythonRows
    order_by: tuple[str, ...]
    key: tuple[str, ...]
    inputs: tuple[pa.Schema, ...]
    emitted_schemas: tuple[pa.Schema, ...]
    late: tuple[str, ...]
    due_by: DueBy | None
    moment: BatchMoment = NO_MOMENT

    @property
    def needed_columns(self) -> tuple[str, ...]:
        return multi_input.union_columns(self.inputs, self.key)

    def at_moment(self, moment: BatchMoment) -> BoundState:
        return replace(self, moment=moment)

    def lateness_columns(self, _window: str | None) -> tuple[str, ...]:
        return self.late

    def rows_by_key(self, rows: pa.Table, groups: Groups) -> list[Callable[[int], Iterator[Any] | None]]:
        """Return, for each input, a function from a key's index to the key's rows; see `PythonRows.groups`."""
        tables = multi_input.split_with_keys(rows, self.inputs, self.key, groups.ids, self.order_by)
        return [
            self.python.groups(table.select(schema.names), table["_key"].to_numpy(), groups.num)
            for schema, table in zip(self.inputs, tables, strict=True)
        ]

    def emitted(self, output: Sequence[Any]) -> tuple[pa.Table, ...]:
        return tuple(self.python.table(output, schema) for schema in self.emitted_schemas)


StateVariable: TypeAlias = ValueState | PartState


class Handle:
    """Handle of a user's class for variables and timers, with the methods of Spark's `StatefulProcessorHandle`."""

    def __init__(self, variables: Mapping[str, StateVariable], timers: Timers | None) -> None:
        self._variables, self._timers = variables, timers

    def getValueState(self, stateName: str, schema: object, ttlDurationMs: int | None = None) -> StateVariable:
        return self._variable(stateName)

    getListState = getValueState  # noqa: N815  the name in Spark

    def getMapState(
        self, stateName: str, userKeySchema: object, valueSchema: object, ttlDurationMs: int | None = None
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
