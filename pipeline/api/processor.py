"""`processor(...)`: state as a class that was written for Spark's `transformWithState`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from ...common.argument_types import checked
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
    """Declare a table that a class keeps which was written for Spark's `transformWithState`, as it is.

    `df.groupBy("user").transformWithState(MyProcessor(), output, "Update", "EventTime")` becomes a stage with
    `key="user"`, `state=sw.processor(MyProcessor(), output, time_mode="EventTime")`, whose function gives `df`. Each
    state variable that `init` asks for is a column of the table, by its name: a value is a struct, a list a list of
    structs, a map one of structs to structs. With a time mode, the column `timers` has a key's timers, milliseconds
    since 1970 UTC. What the class gives is sent to the stage's outputs.

    The rows of a key come in the order in which the topic's partition, or the channel's, has them; rows of one key from
    several partitions in none: then say `order_by`. Maps come in the order of their keys, timers ascending.

    Args:
        processor: An instance of the class. Each batch begins with one as it is here.
        output: The columns of the rows that it gives, as a DDL string, Spark's type, or an Arrow schema.
        time_mode: As to Spark, what passes the time of timers: `"None"`, `"ProcessingTime"`, the wall clock at the
            batch's start, or `"EventTime"`, the stage's watermark.
        output_mode: As to Spark, for which both mean that rows are emitted as they are given.
        in_pandas: Whether the class was written for `transformWithStateInPandas`: it takes and gives frames. Else it
            takes and gives `Row`.
        order_by: Columns that sort a key's rows.
        initial_state: The name of the stage's second input, whose rows `handleInitialState` gets, before those of the
            first that come with them; then the stage's function gives a DataFrame for each.

    Raises `Usage` where a mode is none.
    """
    mode = TIME_MODES.get(time_mode.casefold())
    if mode is None:
        raise Usage(f"processor: time_mode is {time_mode!r}; expected 'None', 'ProcessingTime' or 'EventTime'")
    if output_mode.casefold() not in ("append", "update"):
        raise Usage(
            f"processor: output_mode is {output_mode!r}; expected 'Update' or 'Append'",
            hint="all rows of the table are in it at any moment: `slackwater query`",
        )

    @cache
    def pickled() -> bytes:
        # Not before it is bound: only then it is known that the program travels by value.
        return cloudpickle.dumps(processor)  # type: ignore[no-untyped-call, no-any-return]

    @cache
    def columns() -> tuple[StateColumn, ...]:
        asked, mine = _Asked(), cloudpickle.loads(pickled())
        mine.init(asked)
        mine.close()
        return tuple(asked.columns.values())

    def begin(key: tuple[str, ...]) -> _Begin:
        return _Begin(pickled(), mode, key)

    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    python = AsFrames() if in_pandas else AsRows()
    code = ProcessorCode(
        type(processor).handleInputRows, columns, lambda: schema_of(output), begin, python, order, initial_state
    )
    return Processor(mode, code=code)


@dataclass(slots=True)
class _Asked:
    """What a class gets to ask for its variables before there is a batch: it notes them."""

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
        raise Refused(f"init() asks its handle for {name}; expected only state variables: there is no key yet")

    def _note(self, form: Form, name: str, fields: Any, ttl_ms: int | None, key: Any = None) -> object:
        what = f"{form} state {name!r}"
        if name in self.columns:
            raise Refused(f"init() asks for {what} twice", hint="give the other one another name")
        if ttl_ms is not None and ttl_ms <= 0:
            raise Refused(f"{what} has a time to live of {ttl_ms} ms; expected a positive one")
        of_key = _struct(what, key) if key is not None else None
        if of_key is not None and (nested := [each.name for each in of_key if pa.types.is_nested(each.type)]):
            raise Refused(f"the key of {what} has the field {nested[0]!r}, which is {of_key.field(nested[0]).type}")
        self.columns[name] = StateColumn(name, Variable(form, ttl_ms or 0), _struct(what, fields), of_key)
        return _NotYet(what)


class _NotYet:
    """A state variable before there is a batch."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise Refused(f"init() uses {self._what}, and there is no key yet", hint="use it in handleInputRows()")


def _struct(what: str, columns: Any) -> pa.StructType:
    """The fields of a state variable, as tables have them. Raises `Refused` where no table can."""
    try:
        return to_arrow(from_arrow(pa.struct(list(schema_of(columns)))))
    except Usage as error:
        raise Refused(f"{what} cannot be kept: {error.message}", hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class _Begin:
    """Makes the instance for a batch."""

    pickled: bytes
    mode: TimeMode
    key: tuple[str, ...]

    def __call__(self, handle: Handle, moment: BatchMoment) -> "_Instance":
        made: StatefulProcessor = cloudpickle.loads(self.pickled)
        made.init(handle)  # type: ignore[arg-type]
        # Without timers, Spark says no time; a watermark is 0 at first, and never below.
        now_ms = moment.until_ms if self.mode == "ProcessingTime" else moment.wall_ms
        watermark_ms = moment.until_ms if self.mode == "EventTime" else moment.watermark_ms
        values = TimerValues(-1, -1) if self.mode == "None" else TimerValues(now_ms or 0, max(0, watermark_ms or 0))
        return _Instance(made, values, self.key)


@dataclass(frozen=True, slots=True)
class _Instance:
    """An instance of the user's class, for one batch."""

    made: StatefulProcessor
    times: Any
    key: tuple[str, ...]

    def rows(self, key: Any, rows: Iterator[Any]) -> Iterable[Any]:
        return self.made.handleInputRows(key, rows, self.times)

    def initial(self, key: Any, rows: Iterator[Any]) -> None:
        for each in rows:
            self.made.handleInitialState(key, each, self.times)

    def expired(self, key: Any, at_ms: int) -> Iterable[Any]:
        # Spark tells the names of a key here, and nowhere else.
        return self.made.handleExpiredTimer(Row(*self.key)(*key), self.times, ExpiredTimerInfo(at_ms))

    def close(self) -> None:
        self.made.close()
