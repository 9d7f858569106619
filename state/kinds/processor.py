"""State of a user's class written for Spark's `transformWithState`: `processor(MyProcessor(), ...)`.

A key's row has the key's single values and timers; the parts of its lists and maps are rows of side tables. Keys are
looked up and written by batch; only the user's code runs key by key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import field
from msgspec.structs import replace as with_fields

from ...errors import NotFound, Refused, Usage
from ...store.sst.schema import DUE
from ...store.versions.keys import NAME_IN_WORDS, is_name
from ...store.versions.side_tables import REJECTED
from .. import multi_input
from .kind import (
    BoundState,
    DueBy,
    FindParts,
    Groups,
    Kind,
    MergeResult,
    check_value_names,
    field_of,
    input_and_time_of,
)
from .parts import MAP_KEY, ListState, MapState, PartState, part_columns
from .spark_code import Begin, BoundCode, Handle, Instance, PythonRows, SparkCode
from .state_variables import (
    NEVER,
    TIMERS,
    BatchKeys,
    StateColumn,
    Timers,
    ValueState,
    Variable,
    earliest_times,
    expiry_column,
    span_column,
)

TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]
_DUE_BY: Mapping[str, DueBy] = {"ProcessingTime": "clock", "EventTime": "watermark"}


@dataclass(frozen=True, slots=True)
class ProcessorCode:
    """Fields of a `processor` declaration that manifests do not store. They may change with the next release."""

    function: Callable[..., Any]
    """Method of the user's class that handles rows."""
    columns: Callable[[], tuple[StateColumn, ...]]
    """Function that returns the state variables, in the order in which the class requests them."""
    emits: Callable[[], pa.Schema]
    begin: Callable[[tuple[str, ...]], Begin]
    """Function that takes the key columns and returns a factory of instances. Called once, at binding."""
    python: PythonRows
    order_by: tuple[str, ...] = ()
    initial: str = ""


_INTERNAL_COLUMNS = (expiry_column, span_column)


class Processor(SparkCode, frozen=True, tag="processor"):
    """Declared user class for `transformWithState`."""

    time_mode: TimeMode = "None"
    variables: dict[str, Variable] = field(default_factory=dict)
    not_final: ClassVar[tuple[str, str]] = (
        "processor(...), whose class decides what to emit",
        "have the class register a timer for the end of the window",
    )
    no_late_table: ClassVar[str] = "the output of the class for late rows alone"

    def __str__(self) -> str:
        return f"processor(time_mode={self.time_mode})"

    @property
    def declaration(self) -> "Processor":
        if self.code is None:
            return self
        return Processor(self.time_mode, {column.name: column.variable for column in self.code.columns()})

    def declaration_over(self, stored: Kind) -> Kind:
        # The class declares its variables as DDL, which only Spark can parse.
        return Processor(self.time_mode, stored.variables if isinstance(stored, Processor) else {})

    @property
    def due_text(self) -> str:
        return f"timers by {self.time_mode}" if self.time_mode != "None" else ""

    @property
    def due_by(self) -> DueBy:
        return _DUE_BY.get(self.time_mode, "watermark")

    def renamed(self, names: Mapping[str, str]) -> "Processor":
        return with_fields(
            self, variables={names.get(name, name): variable for name, variable in self.variables.items()}
        )

    def internal_renames(self, names: Mapping[str, str]) -> dict[str, str]:
        renames = [(old, new) for old, new in names.items() if old in self.variables]
        return {internal(old): internal(new) for old, new in renames for internal in _INTERNAL_COLUMNS}

    def why_not_maskable(self, column: str) -> str:
        if column in self.variables and self.variables[column].form != "value":
            return f"it counts the elements of a {self.variables[column].form}, which are stored in a side table"
        return "it decides when rows fall due" if column == TIMERS else ""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """Bind the user's class to the columns of its rows.

        Raises `Refused` for a reserved name or an unsupported variable, and the errors of `Kind.bind`.
        """
        columns, emits = self.code.columns(), self.code.emits()
        names = [column.name for column in columns]
        check_value_names(names, key)
        if self.time_mode != "None" and TIMERS in (*names, *key):
            raise Refused(
                f"the class has a state variable {TIMERS!r}, but this is the name of the column of timers",
                hint="give the variable another name",
            )
        _check_side_tables([column.name for column in columns if column.variable.form != "value"])
        if timed := [
            column.name for column in columns if column.variable.ttl_ms and self.time_mode != "ProcessingTime"
        ]:
            raise Refused(
                f"state variable {timed[0]!r} has a time to live, which needs processing time, but time_mode is "
                f"{self.time_mode!r}",
                hint='set time_mode="ProcessingTime", as in Spark',
            )
        for schema in rows:
            for column in self.code.order_by:
                field_of(schema, column)
        inputs = [input_and_time_of(schema) for schema in rows]
        part = None
        if self.code.initial:
            input_names = [name for name, _ in inputs]
            if self.code.initial not in input_names:
                raise NotFound(
                    "input", self.code.initial, input_names, hint="initial_state= names one of the stage's inputs"
                )
            part = input_names.index(self.code.initial)
        if len(rows) != 1 + (part is not None):
            raise Usage(
                f"the stage's function returns {len(rows)} DataFrames, and processor(...) takes "
                f"{'two: the rows, and the initial state of keys' if part is not None else 'one'}",
                hint="return their union: flights.unionByName(weather, allowMissingColumns=True)",
            )
        late = [
            time if time in key or len(rows) == 1 else multi_input.tagged_name(position, time)
            for position, (_, time) in enumerate(inputs)
            if time and position != part and self.time_mode == "EventTime"
        ]
        return BoundProcessor(
            begin=self.code.begin(key),
            python=self.code.python,
            order_by=self.code.order_by,
            key=key,
            inputs=tuple(rows),
            columns=columns,
            emitted_schemas=(emits,),
            late=tuple(late),
            due_by=_DUE_BY.get(self.time_mode),
            initial=part,
        )


def _check_side_tables(variables: Sequence[str]) -> None:
    """Raise `Refused` if no side table can have the name of a variable, or if two have the same name."""
    names = [side_table_name(variable) for variable in variables]
    for variable, name in zip(variables, names, strict=True):
        if not is_name(name) or name == REJECTED:
            raise Refused(
                f"state variable {variable!r} is a list or map, which needs a side table of its name; expected "
                f"{NAME_IN_WORDS}, and not {REJECTED!r}",
                hint="give the variable another name",
            )
        if names.count(name) > 1:
            raise Refused(f"two state variables need a side table named {name!r}", hint="give one of them another name")


def side_table_name(variable: str) -> str:
    """Return the name of the side table with a variable's parts."""
    return variable.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundProcessor(BoundCode):
    """User's class, bound to the schemas of its rows."""

    begin: Begin
    columns: tuple[StateColumn, ...]
    initial: int | None
    find_parts: FindParts | None = None

    @property
    def side_tables(self) -> Mapping[str, tuple[pa.Schema, pa.Schema]]:
        key = pa.schema([self._key_field(name) for name in self.key])
        by_column = {column.name: part_columns(column) for column in self.columns}
        return {
            side_table_name(name): (key.append(parts.key), pa.schema(parts.values))
            for name, parts in by_column.items()
            if parts is not None
        }

    def with_parts(self, find: FindParts) -> BoundState:
        return replace(self, find_parts=find)

    def _key_field(self, name: str) -> pa.Field:
        return next(schema.field(name) for schema in self.inputs if name in schema.names)

    @property
    def values(self) -> pa.Schema:
        fields = [field for column in self.columns for field in column.columns]
        timers = [pa.field(TIMERS, pa.list_(pa.int64())), pa.field(DUE, pa.int64())]
        return pa.schema([*fields, *(timers if self.due_by else [])])

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        at_hand = BatchKeys(groups.num, self.moment.until_ms or 0)
        variables = {column.name: self._variable(column, at_hand, keys, old) for column in self.columns}
        timers = Timers(at_hand, old) if self.due_by else None
        instance = self.begin(Handle(variables, timers), self.moment)
        names = self.python.keys(keys)
        emitted_rows = self._handle(instance, at_hand, names, rows, groups) if rows.num_rows else []
        if timers is not None and self.moment.until_ms is not None:
            for at_ms, at_hand.current in timers.expired(self.moment.until_ms):
                emitted_rows += instance.expired(names[at_hand.current], at_ms)
                timers.deleteTimer(at_ms)
        instance.close()
        state, is_empty = self._state([variable.arrays for variable in variables.values()], timers, groups.num)
        parts = {
            side_table_name(name): written
            for name, variable in variables.items()
            if isinstance(variable, PartState) and (written := variable.written_parts(keys)) is not None
        }
        return MergeResult(state, is_empty, at_hand.changed, self.emitted(emitted_rows), parts)

    def _variable(
        self, column: StateColumn, at_hand: BatchKeys, keys: pa.Table, old: pa.Table
    ) -> ValueState | PartState:
        if column.variable.form == "value":
            return ValueState(column, at_hand, old, self.python.struct)

        def find(
            chosen: npt.NDArray[np.int64], parts: pa.Array | None = None
        ) -> tuple[npt.NDArray[np.int64], pa.Table]:
            assert self.find_parts is not None  # noqa: S101  each step sets it
            part_keys = keys.take(pa.array(chosen))
            part_keys = part_keys if parts is None else part_keys.append_column(MAP_KEY, parts)
            owners, rows = self.find_parts(side_table_name(column.name), part_keys)
            return chosen[owners], rows

        kind = ListState if column.variable.form == "list" else MapState
        return kind(column, at_hand, old, self.python.struct, find)

    def _handle(
        self, instance: Instance, at_hand: BatchKeys, names: Sequence[Any], rows: pa.Table, groups: Groups
    ) -> list[Any]:
        emitted_rows: list[Any] = []
        parts = self.rows_by_key(rows, groups)
        initial = parts.pop(self.initial) if self.initial is not None else None
        for at_hand.current, key in enumerate(names):
            if initial is not None and (key_rows := initial(at_hand.current)) is not None:
                instance.initial(key, key_rows)
            if (key_rows := parts[0](at_hand.current)) is not None:
                emitted_rows += instance.rows(key, key_rows)
        return emitted_rows

    def _state(
        self, arrays_by_variable: Sequence[Sequence[pa.Array]], timers: Timers | None, num: int
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        columns = [array for arrays in arrays_by_variable for array in arrays]
        is_empty = reduce(
            np.logical_and, (np.asarray(array.is_null()) for array, *_ in arrays_by_variable), np.ones(num, bool)
        )
        if timers is not None:
            columns.append(timers.array)
            first_timer = earliest_times(columns[-1])
            expiry_times = (
                earliest_times(arrays[-1])
                for column, arrays in zip(self.columns, arrays_by_variable, strict=True)
                if column.variable.ttl_ms
            )
            due = reduce(np.minimum, expiry_times, first_timer)
            is_empty &= first_timer == NEVER
            until_ms = self.moment.until_ms
            # Timers set to a time that has already passed fall due with the next batch.
            due_ms = np.maximum(due, until_ms + 1) if until_ms is not None else due
            columns.append(pa.array(due_ms, mask=due == NEVER))
        return pa.table(columns, schema=self.values), is_empty
