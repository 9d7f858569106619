"""`processor(...)` and `pandas_state(...)`: tables updated by existing code for Spark's stateful operators.

Rows are converted from Arrow to `Row` objects or pandas frames. Results of the code are converted back to Arrow.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import StructType

from ...common.arguments import check_arguments
from ...errors import Refused, Usage
from ...state.kinds.kind import BatchMoment
from ...state.kinds.pandas_state import CallResult, FunctionCode, PandasState, Timeout
from ...state.kinds.processor import Processor, ProcessorCode, TimeMode
from ...state.kinds.spark_code import Handle
from ...state.kinds.state_variables import Form, StateColumn, Variable
from ...state.kinds.structs import Fields
from ...store.sst.arrow_types import from_arrow, to_arrow
from .update import DeclaredColumns, schema_of

TIME_MODES: dict[str, TimeMode] = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}


@check_arguments
def processor(
    processor: StatefulProcessor,
    output: DeclaredColumns,
    *,
    time_mode: str = "None",
    output_mode: Literal["Append", "Update"] = "Update",
    in_pandas: bool = False,
    order_by: Sequence[str] | str = (),
    initial_state: str = "",
) -> Processor:
    """Declare a table that is updated by an unchanged class written for Spark's `transformWithState`.

    `df.groupBy("user").transformWithState(MyProcessor(), output, "Update", "EventTime")` becomes a stage with
    `key="user"`, `state=sw.processor(MyProcessor(), output, time_mode="EventTime")`, whose function returns `df`. Each
    state variable that `init` requests becomes a table column with the variable's name: a value state is a struct, a
    list state is a list of structs, a map state is a map from structs to structs. Unless `time_mode` is `"None"`, the
    column `timers` has the timers of a key, in milliseconds since 1970 UTC. Rows that the class returns are sent to the
    stage's outputs.

    The rows of a key come in the order of the topic's or channel's partition; rows of one key from several partitions
    come in no fixed order, unless `order_by` sorts them. Maps iterate in the order of their keys, timers are ascending.

    Args:
        processor: An instance of the class. Each batch begins with a copy of it.
        output: Columns of the returned rows, as a DDL string, Spark's type, or an Arrow schema.
        time_mode: As in Spark, the clock of timers: `"None"`; `"ProcessingTime"` (the wall clock at the batch's start);
            or `"EventTime"` (the stage's watermark).
        output_mode: Spark's output mode. As in Spark, rows are emitted as they are returned in both modes.
        in_pandas: True for a class written for `transformWithStateInPandas`, which takes and returns frames; False for
            a class that takes and returns `Row`s.
        order_by: Columns that sort a key's rows.
        initial_state: Name of the stage's second input. In each batch, its rows are passed to `handleInitialState`
            before the rows of the first input are processed. The stage's function must then return a DataFrame for each
            input.

    Raises `Usage` for an unknown mode.
    """
    mode = TIME_MODES.get(time_mode.casefold())
    if mode is None:
        raise Usage(f"processor: time_mode is {time_mode!r}; expected 'None', 'ProcessingTime' or 'EventTime'")
    if output_mode.casefold() not in ("append", "update"):
        raise Usage(
            f"processor: output_mode is {output_mode!r}; expected 'Update' or 'Append'",
            hint="for the complete table, use `slackwater query`",
        )

    @cache
    def pickled() -> bytes:
        # Pickled at the first bind, because the program's module is registered for pickling by value only by then.
        return cloudpickle.dumps(processor)  # type: ignore[no-untyped-call, no-any-return]

    @cache
    def columns() -> tuple[StateColumn, ...]:
        recorder, instance = _VariableRecorder(), cloudpickle.loads(pickled())
        instance.init(recorder)
        instance.close()
        return tuple(recorder.columns.values())

    def begin(key: tuple[str, ...]) -> _InstanceFactory:
        return _InstanceFactory(pickled(), mode, key)

    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    python = FrameConverter() if in_pandas else RowConverter()
    code = ProcessorCode(
        type(processor).handleInputRows, columns, lambda: schema_of(output), begin, python, order, initial_state
    )
    return Processor(mode, code=code)


@dataclass(slots=True)
class _VariableRecorder:
    """Stand-in for Spark's handle while `init` is called outside a batch. Records the requested state variables."""

    columns: dict[str, StateColumn] = field(default_factory=dict)

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> object:
        return self._record("value", stateName, schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> object:
        return self._record("list", stateName, schema, ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> object:
        return self._record("map", stateName, valueSchema, ttlDurationMs, userKeySchema)

    def deleteIfExists(self, stateName: str) -> None:
        self.columns.pop(stateName, None)

    def __getattr__(self, name: str) -> Any:
        raise Refused(
            f"init() uses {name} of its handle; expected only requests for state variables: there is no key yet"
        )

    def _record(self, form: Form, name: str, fields: Any, ttl_ms: int | None, key: Any = None) -> object:
        label = f"{form} state {name!r}"
        if name in self.columns:
            raise Refused(f"init() asks for {label} twice", hint="give the other one another name")
        if ttl_ms is not None and ttl_ms <= 0:
            raise Refused(f"{label} has a time to live of {ttl_ms} ms; expected a positive one")
        of_key = _storable_struct(label, key) if key is not None else None
        if of_key is not None and (nested := [field.name for field in of_key if pa.types.is_nested(field.type)]):
            raise Refused(f"the key of {label} has the field {nested[0]!r}, which is {of_key.field(nested[0]).type}")
        self.columns[name] = StateColumn(name, Variable(form, ttl_ms or 0), _storable_struct(label, fields), of_key)
        return _UnusableVariable(label)


class _UnusableVariable:
    """State variable that `init` gets outside a batch. Any method call raises `Refused`."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __getattr__(self, name: str) -> Any:
        raise Refused(f"init() uses {self._label}, and there is no key yet", hint="use it in handleInputRows()")


def _storable_struct(label: str, columns: Any) -> pa.StructType:
    """Return the Arrow type with which a table stores a state variable, or raise `Refused` if no table can store it."""
    try:
        return to_arrow(from_arrow(pa.struct(list(schema_of(columns)))))
    except Usage as error:
        raise Refused(f"{label} cannot be kept: {error.message}", hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class _InstanceFactory:
    pickled: bytes
    mode: TimeMode
    key: tuple[str, ...]

    def __call__(self, handle: Handle, moment: BatchMoment) -> "_Instance":
        instance: StatefulProcessor = cloudpickle.loads(self.pickled)
        instance.init(handle)  # type: ignore[arg-type]
        # As in Spark: a class without timers gets no times, and a watermark is at least 0.
        now_ms = moment.until_ms if self.mode == "ProcessingTime" else moment.wall_ms
        watermark_ms = moment.until_ms if self.mode == "EventTime" else moment.watermark_ms
        values = TimerValues(-1, -1) if self.mode == "None" else TimerValues(now_ms or 0, max(0, watermark_ms or 0))
        return _Instance(instance, values, self.key)


@dataclass(frozen=True, slots=True)
class _Instance:
    """The instance of the user's class that processes one batch."""

    instance: StatefulProcessor
    timer_values: Any
    key: tuple[str, ...]

    def rows(self, key: Any, rows: Iterator[Any]) -> Iterable[Any]:
        return self.instance.handleInputRows(key, rows, self.timer_values)

    def initial(self, key: Any, rows: Iterator[Any]) -> None:
        for row in rows:
            self.instance.handleInitialState(key, row, self.timer_values)

    def expired(self, key: Any, at_ms: int) -> Iterable[Any]:
        # As in Spark, only this method gets a key with named fields.
        return self.instance.handleExpiredTimer(Row(*self.key)(*key), self.timer_values, ExpiredTimerInfo(at_ms))

    def close(self) -> None:
        self.instance.close()


KeyIndices = npt.NDArray[np.int32]


class _PythonConverter:
    def struct(self, kind: pa.StructType) -> StructType:
        return from_arrow_schema(pa.schema(list(kind)))


class RowConverter(_PythonConverter):
    """Converts between Arrow tables and Spark `Row` objects."""

    def keys(self, keys: pa.Table) -> list[Any]:
        return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))

    def groups(self, rows: pa.Table, ids: KeyIndices, num: int) -> Callable[[int], Iterator[Any] | None]:
        python_rows = list(map(Row(*rows.column_names), *(column.to_pylist() for column in rows.columns)))
        ends = np.searchsorted(ids, np.arange(num + 1)).tolist()
        return lambda key: iter(python_rows[ends[key] : ends[key + 1]]) if ends[key] < ends[key + 1] else None

    def nothing(self, _rows: pa.Schema) -> Iterator[Any]:
        return iter(())

    def table(self, output: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Convert returned `Row`s to an Arrow table. Fields are matched by name; missing fields are null."""
        names, nested = schema.names, any(pa.types.is_nested(kind) for kind in schema.types)
        tuples: list[tuple[Any, ...]] = []
        for row in output:
            if not isinstance(row, Row):
                raise Refused(
                    f"the class returned {type(row).__name__}; expected Row", hint="in_pandas=True for frames"
                )
            fields = getattr(row, "__fields__", None)
            if fields is None:
                raise Refused(
                    "the class returned a Row without names", hint=f"Row({', '.join(f'{n}=…' for n in names)})"
                )
            if fields == names and not nested:
                tuples.append(row)
            else:
                values = row.asDict(recursive=True)
                tuples.append(tuple(values.get(name) for name in names))
        return _table(list(zip(*tuples, strict=True)) or [()] * len(names), schema, nan_is_null=False)


class FrameConverter(_PythonConverter):
    """Converts between Arrow tables and pandas frames; the rows of a key are one frame."""

    def keys(self, keys: pa.Table) -> list[Any]:
        return list(_frame(keys).itertuples(index=False, name=None))

    def groups(self, rows: pa.Table, ids: KeyIndices, num: int) -> Callable[[int], Iterator[Any] | None]:
        frame = _frame(rows)
        ends = np.searchsorted(ids, np.arange(num + 1)).tolist()

        def group(key: int) -> Iterator[Any] | None:
            if ends[key] == ends[key + 1]:
                return None
            return iter([frame.iloc[ends[key] : ends[key + 1]].reset_index(drop=True)])

        return group

    def nothing(self, rows: pa.Schema) -> Iterator[Any]:
        return iter([pd.DataFrame(columns=rows.names)])

    def table(self, output: Sequence[Any], schema: pa.Schema) -> pa.Table:
        """Convert returned frames to an Arrow table. Columns are matched by name, or by position if names differ."""
        names, rows = schema.names, []
        for frame in output:
            if not isinstance(frame, pd.DataFrame):
                raise Refused(f"the code returned {type(frame).__name__}; expected a pandas DataFrame")
            if not len(frame):
                continue
            columns = frame.columns.tolist()
            if any(isinstance(name, str) for name in columns):
                if missing := [name for name in names if name not in columns]:
                    raise Refused(f"a frame lacks the column {missing[0]!r}; it has {', '.join(map(str, columns))}")
                frame = frame if columns == names else frame[names]
            elif len(columns) != len(names):
                raise Refused(f"a frame has {len(columns)} columns; expected {len(names)}: {', '.join(names)}")
            # Convert all columns at once: most frames have few rows, and converting each column costs more.
            rows += frame.to_numpy(dtype=object).tolist()
        return _table(list(zip(*rows, strict=True)) or [()] * len(names), schema, nan_is_null=True)


def _frame(rows: pa.Table) -> pd.DataFrame:
    """Convert rows to a frame as Spark does: times in UTC without a zone, integers as int64, floats as float64."""
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us"))
        elif pa.types.is_integer(kind):
            column = column.cast(pa.int64())
        elif pa.types.is_floating(kind):
            column = column.cast(pa.float64())
        columns[name] = column.to_pandas(date_as_object=True, coerce_temporal_nanoseconds=True, maps_as_pydicts="lossy")
    return pd.DataFrame(columns)


def _table(columns: Sequence[Sequence[Any]], schema: pa.Schema, *, nan_is_null: bool) -> pa.Table:
    """Convert Python values to an Arrow table. Raises `Refused` with the column's name if a value does not fit."""
    arrays = []
    for column, values in zip(schema, columns, strict=True):
        try:
            arrays.append(pa.array(values, column.type, from_pandas=nan_is_null))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Refused(f"column {column.name!r} of the returned rows does not fit {column.type}: {error}") from error
    return pa.table(arrays, schema=schema)


_NO_TIMESTAMP = GroupState.NO_TIMESTAMP


@check_arguments
def pandas_state(
    function: Callable[..., Any],
    output: DeclaredColumns,
    state: DeclaredColumns,
    timeout: Timeout = "NoTimeout",
    *,
    order_by: Sequence[str] | str = (),
) -> PandasState:
    """Declare a table that is updated by an unchanged function written for `applyInPandasWithState`.

    `df.groupBy("user").applyInPandasWithState(fn, output, state, "append", timeout)` becomes a stage with `key="user"`,
    `state=sw.pandas_state(fn, output, state, timeout)`, whose function returns `df`. The fields of the state are
    columns of the table. Frames that the function returns are sent to the stage's outputs.

    Args:
        function: `function(key, frames, state)`, with Spark's `GroupState`.
        output: Columns of the returned frames, as a DDL string, Spark's type, or an Arrow schema.
        state: Columns of a key's state, in the same forms.
        timeout: As in Spark (`GroupStateTimeout`): `"NoTimeout"`, `"ProcessingTimeTimeout"`, by the wall clock, or
            `"EventTimeTimeout"`, by the stage's watermark. If the function changes nothing when it is called for a
            timeout, the key keeps its state, without a timeout.
        order_by: Columns that sort a key's rows; default the order in the topic's partition.

    Raises `Usage` for an unknown timeout.
    """
    if timeout not in get_args(Timeout):
        raise Usage(f"pandas_state: timeout is {timeout!r}; expected one of {', '.join(get_args(Timeout))}")
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    code = FunctionCode(
        function,
        lambda: schema_of(state),
        lambda: schema_of(output),
        _CallFactory(function, timeout),
        FrameConverter(),
        order,
    )
    return PandasState(timeout, code=code)


@dataclass(frozen=True, slots=True)
class _CallFactory:
    """Creates, for each batch, the function that calls the user's function for one key."""

    function: Callable[..., Any]
    timeout: Timeout

    def __call__(self, moment: BatchMoment) -> Callable[..., CallResult]:
        now_ms, watermark_ms = moment.wall_ms or 0, moment.watermark_ms
        if self.timeout == "EventTimeTimeout":
            watermark_ms = moment.until_ms
        elif moment.until_ms is not None:
            now_ms = moment.until_ms

        def call(key: Any, frames: Iterator[Any], value: Fields | None, timed_out: bool) -> CallResult:
            state = GroupState(
                optionalValue=Row(*value) if value is not None else None,  # type: ignore[arg-type]
                batchProcessingTimeMs=now_ms,
                eventTimeWatermarkMs=max(0, watermark_ms or 0),
                timeoutConf=self.timeout,
                hasTimedOut=timed_out,
                watermarkPresent=watermark_ms is not None or self.timeout == "EventTimeTimeout",
                defined=value is not None,
                updated=False,
                removed=False,
                timeoutTimestamp=_NO_TIMESTAMP,
                keyAsUnsafe=b"",
                valueSchema=None,  # type: ignore[arg-type]
            )
            frames_out = list(self.function(key, frames, state))
            # Spark's own worker reads these fields from the state's JSON.
            at_ms, changed = state._timeout_timestamp, state._updated or state._removed
            return CallResult(frames_out, state.getOption, None if at_ms == _NO_TIMESTAMP else int(at_ms), changed)

        return call
