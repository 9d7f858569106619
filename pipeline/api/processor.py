"""`processor(...)`: state as a class written for Spark's `transformWithState`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from ...common.arguments import checked
from ...errors import Refused, Usage
from ...state.kinds.kind import BatchMoment
from ...state.kinds.processor import Processor, ProcessorCode, TimeMode
from ...state.kinds.spark_code import Handle
from ...state.kinds.state_variables import Form, StateColumn, Variable
from ...store.sst.arrow_types import from_arrow, to_arrow
from .python_rows import AsFrames, AsRows
from .update import Columns, schema_of

TIME_MODES: dict[str, TimeMode] = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}


@checked
def processor(
    processor: StatefulProcessor,
    output: Columns,
    *,
    time_mode: str = "None",
    output_mode: Literal["Append", "Update"] = "Update",
    in_pandas: bool = False,
    order_by: Sequence[str] | str = (),
    initial_state: str = "",
) -> Processor:
    """Declare a table kept by an unchanged class written for Spark's `transformWithState`.

    `df.groupBy("user").transformWithState(MyProcessor(), output, "Update", "EventTime")` becomes a stage with
    `key="user"`, `state=sw.processor(MyProcessor(), output, time_mode="EventTime")`, whose function returns `df`. Each
    state variable that `init` requests is a column of the table with the variable's name: a value is a struct, a list a
    list of structs, a map a map of structs to structs. With a time mode, the column `timers` has a key's timers,
    milliseconds since 1970 UTC. Rows that the class returns are sent to the stage's outputs.

    The rows of a key come in the order of the topic's or channel's partition; rows of one key from several partitions
    come in no fixed order, unless `order_by` sorts them. Maps iterate in the order of their keys, timers are ascending.

    Args:
        processor: An instance of the class. Each batch begins with a copy of it.
        output: Columns of the returned rows, as a DDL string, Spark's type, or an Arrow schema.
        time_mode: As in Spark, the time of timers: `"None"`, `"ProcessingTime"`, the wall clock at the batch's start,
            or `"EventTime"`, the stage's watermark.
        output_mode: As in Spark, which emits rows as they are returned in both modes.
        in_pandas: True for a class written for `transformWithStateInPandas`, which takes and returns frames; otherwise
            `Row`s.
        order_by: Columns that sort a key's rows.
        initial_state: Name of the stage's second input, whose rows are passed to `handleInitialState` before the rows
            of the first input in the same batch; the stage's function then returns a DataFrame for each input.

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
        # Pickled when first bound: only then is the program's module registered for pickling by value.
        return cloudpickle.dumps(processor)  # type: ignore[no-untyped-call, no-any-return]

    @cache
    def columns() -> tuple[StateColumn, ...]:
        recorder, instance = _VariableRecorder(), cloudpickle.loads(pickled())
        instance.init(recorder)
        instance.close()
        return tuple(recorder.columns.values())

    def begin(key: tuple[str, ...]) -> _Begin:
        return _Begin(pickled(), mode, key)

    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    python = AsFrames() if in_pandas else AsRows()
    code = ProcessorCode(
        type(processor).handleInputRows, columns, lambda: schema_of(output), begin, python, order, initial_state
    )
    return Processor(mode, code=code)


@dataclass(slots=True)
class _VariableRecorder:
    """Handle for `init` outside a batch: records the requested state variables."""

    columns: dict[str, StateColumn] = field(default_factory=dict)

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> object:
        return self._note("value", stateName, schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> object:
        return self._note("list", stateName, schema, ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> object:
        return self._note("map", stateName, valueSchema, ttlDurationMs, userKeySchema)

    def deleteIfExists(self, stateName: str) -> None:
        self.columns.pop(stateName, None)

    def __getattr__(self, name: str) -> Any:
        raise Refused(
            f"init() uses {name} of its handle; expected only requests for state variables: there is no key yet"
        )

    def _note(self, form: Form, name: str, fields: Any, ttl_ms: int | None, key: Any = None) -> object:
        label = f"{form} state {name!r}"
        if name in self.columns:
            raise Refused(f"init() asks for {label} twice", hint="give the other one another name")
        if ttl_ms is not None and ttl_ms <= 0:
            raise Refused(f"{label} has a time to live of {ttl_ms} ms; expected a positive one")
        of_key = _struct(label, key) if key is not None else None
        if of_key is not None and (nested := [field.name for field in of_key if pa.types.is_nested(field.type)]):
            raise Refused(f"the key of {label} has the field {nested[0]!r}, which is {of_key.field(nested[0]).type}")
        self.columns[name] = StateColumn(name, Variable(form, ttl_ms or 0), _struct(label, fields), of_key)
        return _UnusableVariable(label)


class _UnusableVariable:
    """A state variable outside a batch; any use raises `Refused`."""

    def __init__(self, label: str) -> None:
        self._what = label

    def __getattr__(self, name: str) -> Any:
        raise Refused(f"init() uses {self._what}, and there is no key yet", hint="use it in handleInputRows()")


def _struct(label: str, columns: Any) -> pa.StructType:
    """Return the fields of a state variable as tables store them. Raises `Refused` if no table can."""
    try:
        return to_arrow(from_arrow(pa.struct(list(schema_of(columns)))))
    except Usage as error:
        raise Refused(f"{label} cannot be kept: {error.message}", hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class _Begin:
    """Creates the instance for a batch."""

    pickled: bytes
    mode: TimeMode
    key: tuple[str, ...]

    def __call__(self, handle: Handle, moment: BatchMoment) -> "_Instance":
        instance: StatefulProcessor = cloudpickle.loads(self.pickled)
        instance.init(handle)  # type: ignore[arg-type]
        # As in Spark: no times without timers, and a watermark of at least 0.
        now_ms = moment.until_ms if self.mode == "ProcessingTime" else moment.wall_ms
        watermark_ms = moment.until_ms if self.mode == "EventTime" else moment.watermark_ms
        values = TimerValues(-1, -1) if self.mode == "None" else TimerValues(now_ms or 0, max(0, watermark_ms or 0))
        return _Instance(instance, values, self.key)


@dataclass(frozen=True, slots=True)
class _Instance:
    """An instance of the user's class, for one batch."""

    instance: StatefulProcessor
    times: Any
    key: tuple[str, ...]

    def rows(self, key: Any, rows: Iterator[Any]) -> Iterable[Any]:
        return self.instance.handleInputRows(key, rows, self.times)

    def initial(self, key: Any, rows: Iterator[Any]) -> None:
        for row in rows:
            self.instance.handleInitialState(key, row, self.times)

    def expired(self, key: Any, at_ms: int) -> Iterable[Any]:
        # As in Spark, only this method gets a key with named fields.
        return self.instance.handleExpiredTimer(Row(*self.key)(*key), self.times, ExpiredTimerInfo(at_ms))

    def close(self) -> None:
        self.instance.close()
