"""State as a class of the user's that was written for Spark's `transformWithState`: `processor(MyProcessor(), ...)`.

Its state variables are columns of the table, so that a key's row has all that the class knows of the key. Keys are
looked up, and written, a batch at a time; only the user's own code runs once for each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import field
from msgspec.structs import replace as with_fields

from ...errors import NotFound, Refused, Usage
from ...store.sst.types import DUE
from .. import multi_input
from .kind import NO_MOMENT, BatchMoment, Bound, DueBy, Groups, Kind, Merged, check_value_names, field_of, input_of
from .spark_code import Begin, Handle, PythonRows, SparkCode, in_order
from .state_variables import NEVER, TIMERS, KeysAtHand, StateColumn, Timers, Variable, expires, least
from .update import Update

TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]
_DUE_BY: Mapping[str, DueBy] = {"ProcessingTime": "clock", "EventTime": "watermark"}
"""What passes the time of timers."""


@dataclass(frozen=True, slots=True)
class ProcessorCode:
    """What is not stored of a class: it may do something else in the next release."""

    function: Callable[..., Any]
    """What it does with rows."""
    columns: Callable[[], tuple[StateColumn, ...]]
    """The state variables that it asks for, in that order."""
    emits: Callable[[], pa.Schema]
    begin: Callable[[tuple[str, ...]], Begin]
    """What makes instances, for keys of these columns; asked for when the class is bound."""
    python: PythonRows
    order_by: tuple[str, ...] = ()
    initial: str = ""
    """The input that has what keys begin with; empty for none."""


class Processor(SparkCode, frozen=True, tag="processor"):
    """A declared class."""

    time_mode: TimeMode = "None"
    variables: dict[str, Variable] = field(default_factory=dict)
    """By name; of a class that the program declares, `code` knows them."""
    not_final: ClassVar[tuple[str, str]] = (
        "processor(...), whose class says itself what it emits",
        "have the class register a timer for the end of the window",
    )
    no_late_table: ClassVar[str] = "what the class makes of late rows alone"

    def __str__(self) -> str:
        return f"processor(time_mode={self.time_mode})"

    @property
    def declaration(self) -> "Processor":
        if self.code is None:
            return self
        return Processor(self.time_mode, {each.name: each.variable for each in self.code.columns()})

    def declaration_over(self, kept: Kind) -> Kind:
        # The class says them as DDL, which Spark reads.
        return Processor(self.time_mode, kept.variables if isinstance(kept, Processor) else {})

    @property
    def due_text(self) -> str:
        return f"timers by {self.time_mode}" if self.time_mode != "None" else ""

    @property
    def due_by(self) -> DueBy:
        return _DUE_BY.get(self.time_mode, "watermark")

    def renamed(self, names: Mapping[str, str]) -> "Processor":
        return with_fields(self, variables={names.get(name, name): each for name, each in self.variables.items()})

    def internal(self, names: Mapping[str, str]) -> dict[str, str]:
        return {expires(name): expires(names.get(name, name)) for name, each in self.variables.items() if each.ttl_ms}

    def goes_on_as(self, now: Kind) -> bool:
        """Variables come and go as columns do; timers mean the same as long as it is the same time.

        As an update, it keeps what the variables have, and nothing falls due by timers any more.
        """
        if isinstance(now, Processor):
            return self.time_mode in ("None", now.time_mode)
        return isinstance(now, Update)

    def needed_in(self, column: str) -> str:
        return "rows fall due by it" if column == TIMERS else ""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """Fix the table's columns. Raises as well `Refused` for a name, or for what cannot be kept."""
        columns, emits = self.code.columns(), self.code.emits()
        names = [each.name for each in columns]
        check_value_names(names, key)
        if self.time_mode != "None" and TIMERS in (*names, *key):
            raise Refused(
                f"the class has a state variable {TIMERS!r}, which is the column of a key's timers",
                hint="give the variable another name",
            )
        if timed := [each.name for each in columns if each.variable.ttl_ms and self.time_mode != "ProcessingTime"]:
            raise Refused(
                f"state variable {timed[0]!r} has a time to live, which goes by the processing time, and time_mode is "
                f"{self.time_mode!r}",
                hint='say time_mode="ProcessingTime", as to Spark',
            )
        for schema in rows:
            for column in self.code.order_by:
                field_of(schema, column)
        inputs = [input_of(schema) for schema in rows]
        part = None
        if self.code.initial:
            known = [name for name, _ in inputs]
            if self.code.initial not in known:
                raise NotFound("input", self.code.initial, known, hint="initial_state= names one of the stage's inputs")
            part = known.index(self.code.initial)
        if len(rows) != 1 + (part is not None):
            raise Usage(
                f"the stage's function returns {len(rows)} DataFrames, and processor(...) takes "
                f"{'one, and one with what keys begin with' if part is not None else 'one'}",
                hint="return their union: flights.unionByName(weather, allowMissingColumns=True)",
            )
        late = [
            time if time in key or len(rows) == 1 else multi_input.name_of(at, time)
            for at, (_, time) in enumerate(inputs)
            if time and at != part
        ]
        return BoundProcessor(
            self.code.begin(key),
            self.code.python,
            self.code.order_by,
            self.time_mode,
            key,
            tuple(rows),
            columns,
            (emits,),
            tuple(late),
            part,
        )


@dataclass(frozen=True, slots=True)
class BoundProcessor(Bound):
    """A class over rows of a known schema."""

    begin: Begin
    python: PythonRows
    order_by: tuple[str, ...]
    time_mode: TimeMode
    key: tuple[str, ...]
    inputs: tuple[pa.Schema, ...]
    columns: tuple[StateColumn, ...]
    emits: tuple[pa.Schema, ...]
    times: tuple[str, ...]
    """The column of the batch's rows that is their time, where they have one."""
    initial: int | None = None
    """The position of the DataFrame with what keys begin with; None where there is none."""
    moment: BatchMoment = NO_MOMENT

    @property
    def due_by(self) -> DueBy | None:  # type: ignore[override]
        return _DUE_BY.get(self.time_mode)

    @property
    def values(self) -> pa.Schema:
        mine = [field for each in self.columns for field in each.columns]
        timers = [pa.field(TIMERS, pa.list_(pa.int64())), pa.field(DUE, pa.int64())]
        return pa.schema([*mine, *(timers if self.due_by else [])])

    @property
    def needs(self) -> tuple[str, ...]:
        return multi_input.columns(self.inputs, self.key)

    def at_moment(self, moment: BatchMoment) -> Bound:
        return replace(self, moment=moment)

    def late_by(self, _window: str | None) -> tuple[str, ...]:
        """As in Spark, no row is late where timers do not go by the watermark."""
        return self.times if self.time_mode == "EventTime" else ()

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """All rows first, key by key; then the timers that have passed, in their order."""
        until_ms, python = self.moment.until_ms, self.python
        at_hand = KeysAtHand(groups.num, until_ms or 0)
        variables = {each.name: each.of(at_hand, old, python.struct) for each in self.columns}
        timers = Timers(at_hand, old) if self.due_by else None
        instance = self.begin(Handle(variables, timers), self.moment)
        given: list[Any] = []
        names: list[Any] = []
        if rows.num_rows:
            names = python.keys(keys)
            parts = [python.groups(*each, groups.num) for each in self._parts(rows, groups)]
            initial = parts.pop(self.initial) if self.initial is not None else None
            for at_hand.at, key in enumerate(names):
                if initial is not None and (mine := initial(at_hand.at)) is not None:
                    instance.initial(key, mine)
                if (mine := parts[0](at_hand.at)) is not None:
                    given += instance.rows(key, mine)
        if timers is not None and until_ms is not None and (passed := timers.expired(until_ms)):
            names = names or python.keys(keys)
            for at_ms, at_hand.at in passed:
                given += instance.expired(names[at_hand.at], at_ms)
                timers.deleteTimer(at_ms)
        instance.close()
        made = [each.arrays for each in variables.values()]
        columns = [one for each in made for one in each]
        is_empty = reduce(np.logical_and, (np.asarray(kept.is_null()) for kept, *_ in made), np.ones(groups.num, bool))
        if timers is not None:
            columns.append(timers.array)
            first = least(columns[-1])
            due = reduce(np.minimum, (least(times) for _, *each in made for times in each), first)
            is_empty &= first == NEVER
            # What has passed by now and was not there in time falls due with the next batch.
            due_ms = np.maximum(due, until_ms + 1) if until_ms is not None else due
            columns.append(pa.array(due_ms, mask=due == NEVER))
        emitted = tuple(python.table(given, schema) for schema in self.emits)
        return Merged(pa.table(columns, schema=self.values), is_empty, at_hand.changed, emitted)

    def _parts(self, rows: pa.Table, groups: Groups) -> Iterator[tuple[pa.Table, npt.NDArray[np.int32]]]:
        """The rows of each DataFrame, with its own columns, and the positions of their keys."""
        for schema, table in zip(self.inputs, multi_input.untag(rows, self.inputs, self.key, groups.ids), strict=True):
            yield in_order(table, self.order_by).select(schema.names), table["_key"].to_numpy()
