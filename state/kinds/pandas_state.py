"""State of a user's function written for Spark's `applyInPandasWithState`: `pandas_state(fn, ...)`.

The fields of the function's state are columns of the table. A key's timeout is the due time of its row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...store.sst.schema import DUE
from .kind import (
    BatchMoment,
    BoundState,
    DueBy,
    Groups,
    MergeResult,
    check_value_names,
    field_of,
    input_and_time_of,
    single_schema,
)
from .spark_code import BoundCode, PythonRows, SparkCode
from .structs import Fields, Structs

Timeout: TypeAlias = Literal["NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"]
_DEFINED = "_defined"


class CallResult(NamedTuple):
    """Result of one call of the user's function: output frames, state and timeout."""

    frames: Sequence[Any]
    value: Fields | None
    timeout_ms: int | None
    changed: bool


FunctionCall: TypeAlias = Callable[[Any, Iterator[Any], Fields | None, bool], CallResult]
"""Function that calls the user's function for one key, with frames, state, and True after a timeout."""


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """Fields of a `pandas_state` declaration that manifests do not store."""

    function: Callable[..., Any]
    state: Callable[[], pa.Schema]
    emits: Callable[[], pa.Schema]
    begin: Callable[[BatchMoment], FunctionCall]
    frames: PythonRows
    order_by: tuple[str, ...] = ()


class PandasState(SparkCode, frozen=True, tag="pandas_state"):
    """Declared user function for `applyInPandasWithState`."""

    timeout: Timeout = "NoTimeout"
    not_final: ClassVar[tuple[str, str]] = (
        "pandas_state(...), whose function decides what to emit",
        "have the function set a timeout for the end of the window",
    )
    no_late_table: ClassVar[str] = "the output of the function for late rows alone"

    def __str__(self) -> str:
        return f"pandas_state({self.timeout})"

    @property
    def declaration(self) -> "PandasState":
        return PandasState(self.timeout)

    @property
    def due_text(self) -> str:
        return f"timeouts by {self.timeout}" if self.timeout != "NoTimeout" else ""

    @property
    def due_by(self) -> DueBy:
        return "watermark" if self.timeout == "EventTimeTimeout" else "clock"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        schema, state = single_schema(rows, "pandas_state(...)"), self.code.state()
        check_value_names(state.names, key)
        for column in self.code.order_by:
            field_of(schema, column)
        late = (time,) if (time := input_and_time_of(schema)[1]) and self.timeout == "EventTimeTimeout" else ()
        return BoundPandasState(
            begin=self.code.begin,
            python=self.code.frames,
            order_by=self.code.order_by,
            key=key,
            inputs=(schema,),
            state=state,
            emitted_schemas=(self.code.emits(),),
            late=late,
            due_by=self.due_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPandasState(BoundCode):
    """User's function, bound to the schema of its rows."""

    begin: Callable[[BatchMoment], FunctionCall]
    state: pa.Schema

    @property
    def values(self) -> pa.Schema:
        return pa.schema([*self.state, pa.field(_DEFINED, pa.bool_()), pa.field(DUE, pa.int64())])

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        """Call the user's function for each key with rows, then for each key that has timed out."""
        structs = Structs("state", pa.struct(list(self.state)), self.python.struct)
        defined = old[_DEFINED].combine_chunks().fill_null(False)
        columns_of_state = [old[name].combine_chunks() for name in self.state.names]
        values = structs.to_python(
            pa.StructArray.from_arrays(columns_of_state, fields=list(self.state), mask=pc.invert(defined))
        )
        due_ms: list[int | None] = old[DUE].to_pylist()
        changed = np.zeros(groups.num, bool)
        call, names = self.begin(self.moment), self.python.keys(keys)
        frames_out: list[Any] = []

        def called(index: int, frames: Iterator[Any], *, timed_out: bool) -> None:
            value = values[index]
            result = call(names[index], frames, None if value is None else structs.to_user(value), timed_out)
            frames_out.extend(result.frames)
            # As in Spark, a call with rows that changes neither state nor timeout keeps the timeout.
            if result.changed or result.timeout_ms is not None or timed_out:
                values[index] = result.value if result.value is None else structs.from_user(result.value)
                due_ms[index] = None if result.timeout_ms is None else result.timeout_ms + 1
                changed[index] = True

        if rows.num_rows:
            (frames_of,) = self.rows_by_key(rows, groups)
            for index in range(groups.num):
                if (frames := frames_of(index)) is not None:
                    called(index, frames, timed_out=False)
        if (until_ms := self.moment.until_ms) is not None:
            for index, at_ms in enumerate(due_ms):
                if at_ms is not None and at_ms <= until_ms:
                    called(index, self.python.nothing(rows.schema), timed_out=True)
        (states,) = structs.to_arrays(values)
        due = pa.array(due_ms, pa.int64())
        columns = [*states.flatten(), states.is_valid(), due]
        is_empty = np.asarray(pc.and_(states.is_null(), due.is_null()))
        return MergeResult(pa.table(columns, schema=self.values), is_empty, changed, self.emitted(frames_out))
