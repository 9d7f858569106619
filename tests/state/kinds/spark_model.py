"""Models of Spark's `transformWithState` and `applyInPandasWithState`, by their documentation, and user code for both.

`Commanded` and `commanded` execute commands in their rows, and report everything that they see, so that the outputs of
two implementations can be compared row by row.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

VALUE_OPS = ("value", "value-null", "value-clear")
LIST_OPS = ("append", "extend", "put", "list-clear")
MAP_OPS = ("map", "map-remove", "map-clear")
TIMER_OPS = ("timer", "timer-delete", "timer-past")
OPS = (*VALUE_OPS, *LIST_OPS, *MAP_OPS, "rich", "look", "nothing")


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


OUTPUT = struct(k=StringType(), n=LongType(), seen=StringType())
INTEGERS = struct(n=IntegerType())
VALUE, MAP_KEY, MAP_VALUE = struct(n=LongType(), s=StringType()), struct(k=StringType(), j=IntegerType()), INTEGERS
STATE = struct(n=LongType(), s=StringType())
RICH = struct(
    at=TimestampType(),
    day=DateType(),
    words=ArrayType(StringType()),
    inner=struct(x=IntegerType(), f=DoubleType()),
    counts=MapType(StringType(), LongType()),
)


class Commanded(StatefulProcessor):
    """Processor that executes each row's commands and reports what it sees.

    Timers are `n` ms after the row's time or after now.
    """

    def __init__(self, time_mode: str, ttl_ms: int | None = None) -> None:
        self._time_mode, self._ttl_ms = time_mode, ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._value = handle.getValueState("last", VALUE, self._ttl_ms)
        self._list = handle.getListState("every", INTEGERS, self._ttl_ms)
        self._map = handle.getMapState("by_name", MAP_KEY, MAP_VALUE, self._ttl_ms)
        self._kept = handle.getValueState("kept", INTEGERS)
        self._rich = handle.getValueState("rich", RICH)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        for row in rows:
            yield self._row(key, row.n, self._done(row, timerValues))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield self._row(key, at_ms, "fired " + self._seen(timerValues))
        match at_ms % 5:
            case 0:
                for each in (self._value, self._list, self._map, self._kept):
                    each.clear()
            case 1:
                passed_ms = (
                    timerValues.getCurrentProcessingTimeInMs()
                    if self._time_mode == "ProcessingTime"
                    else timerValues.getCurrentWatermarkInMs()
                )
                self._handle.registerTimer(max(at_ms, passed_ms) + 1_500)
            case 2:
                for other in sorted(self._handle.listTimers())[1:2]:
                    self._handle.deleteTimer(other)
            case 3:
                self._list.appendValue((at_ms % 1_000,))
        yield self._row(key, at_ms, "then " + self._seen(timerValues))

    def close(self) -> None: ...

    def _done(self, row: Any, times: TimerValues) -> str:
        n, answer = row.n, None
        from_ms = times.getCurrentProcessingTimeInMs() if self._time_mode == "ProcessingTime" else row.at_ms
        match row.op:
            case "value":
                self._value.update((n, f"s{n}"))
                self._kept.update((n,))
            case "value-null":
                self._value.update((None, None))
            case "value-clear":
                self._value.clear()
            case "append":
                self._list.appendValue((n,))
            case "extend":
                self._list.appendList([(n,), (n + 1,)])
            case "put":
                self._list.put([(n,), (None,)])
            case "list-clear":
                self._list.clear()
            case "map":
                self._map.updateValue((f"k{n % 3}", n % 2 or None), (n,))
            case "map-remove":
                self._map.removeKey((f"k{n % 3}", n % 2 or None))
            case "map-clear":
                self._map.clear()
            case "timer":
                self._handle.registerTimer(from_ms + n)
            case "timer-past":
                self._handle.registerTimer(from_ms - 100_000)
            case "timer-delete":
                for timer in sorted(self._handle.listTimers())[:1]:
                    self._handle.deleteTimer(timer)
            case "rich":
                at = datetime.fromtimestamp(n, UTC)
                self._rich.update((at, at.date(), [f"w{n}", None], (n, n / 2), {"n": n}))
            case "look":
                name = (f"k{n % 3}", n % 2 or None)
                found = self._map.getValue(name)
                answer = self._map.containsKey(name), found and tuple(found)
        return f"{row.op} {answer} {self._seen(times)}"

    def _seen(self, times: TimerValues) -> str:
        timers = sorted(self._handle.listTimers()) if self._time_mode != "None" else []
        maps = sorted(((*key, *value) for key, value in self._map.iterator()), key=str)
        exist = [int(each.exists()) for each in (self._value, self._list, self._map, self._kept)]
        clocks = times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs()
        if (rich := self._rich.get()) is not None:
            rich = (*rich[:3], tuple(rich[3]), rich[4])
        return (
            f"{rich} {self._value.get()} {list(self._list.get())} {maps} {self._kept.get()} {exist} {timers} {clocks}"
        )

    def _row(self, key: Any, n: int, seen: str) -> Any:
        return Row(k=key[0], n=n, seen=seen)


class CommandedFrames(Commanded):
    """The same processor for `transformWithStateInPandas`."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        for frame in rows:
            for row in frame.itertuples():
                yield self._row(key, row.n, self._done(row, timerValues))

    def _row(self, key: Any, n: int, seen: str) -> Any:
        return pd.DataFrame({"k": [key[0]], "n": [n], "seen": [seen]})


@dataclass(frozen=True)
class CommandedFunction:
    """A function that executes each row's commands and reports what it sees.

    When it times out, it drops or restarts a key.
    """

    timeout: str

    def __call__(self, key: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            yield self._row(key, sum(map(len, frames)), f"timed out {state.getOption}", state)
            if state.exists and (state.get[0] or 0) % 2:
                state.update((state.get[0] + 1, "again"))
            else:
                state.remove()
            return
        for frame in frames:
            for row in frame.itertuples():
                match row.op:
                    case "value":
                        state.update((row.n, f"s{row.n}"))
                    case "value-null":
                        state.update((None, None))
                    case "value-clear":
                        state.remove()
                    case "timer" if self.timeout == "ProcessingTimeTimeout":
                        state.setTimeoutDuration(row.n)
                    case "timer" if self.timeout == "EventTimeTimeout":
                        state.setTimeoutTimestamp(max(row.at_ms, state.getCurrentWatermarkMs()) + row.n)
                yield self._row(key, row.n, f"{row.op} {state.getOption}", state)

    def _row(self, key: Any, n: int, seen: str, state: GroupState) -> pd.DataFrame:
        seen = f"{seen} {state.getCurrentProcessingTimeMs()}"
        if self.timeout == "EventTimeTimeout":
            seen = f"{seen} {state.getCurrentWatermarkMs()}"
        return pd.DataFrame({"k": [key[0]], "n": [n], "seen": [seen]})


Entry = tuple[Any, Any, float]
"""The user's key (for a map), a value, and its expiry."""


class PlainVariable:
    """A state variable of the current key, as a list of entries."""

    def __init__(self, plain: "PlainSpark", name: str, schema: StructType, ttl_ms: int | None) -> None:
        self.plain, self.name, self.schema, self.ttl_ms = plain, name, schema, ttl_ms

    @property
    def entries(self) -> list[Entry]:
        mine = self.plain.state.get(self.plain.key, {}).get(self.name, [])
        return [each for each in mine if each[2] > self.plain.now_ms]

    def write(self, entries: list[Entry]) -> None:
        self.plain.state.setdefault(self.plain.key, {})[self.name] = entries

    def entry(self, value: Any, name: Any = None) -> Entry:
        return (
            name,
            self.schema.toInternal(tuple(value)),
            self.plain.now_ms + self.ttl_ms if self.ttl_ms else float("inf"),
        )

    def exists(self) -> bool:
        return bool(self.entries)

    def clear(self) -> None:
        self.write([])

    def _of(self, name: Any) -> list[Any]:
        return [value for known, value, _ in self.entries if known == name]

    def update(self, value: Any) -> None:
        self.write([self.entry(value)])

    def appendValue(self, value: Any) -> None:
        self.appendList([value])

    def appendList(self, values: list[Any]) -> None:
        self.write([*self.entries, *map(self.entry, values)])

    def put(self, values: list[Any]) -> None:
        self.write([*map(self.entry, values)])

    def getValue(self, name: Any) -> Any:
        return next(iter(self._of(name)), None)

    def containsKey(self, name: Any) -> bool:
        return bool(self._of(name))

    def updateValue(self, name: Any, value: Any) -> None:
        self.removeKey(name)
        self.write([*self.entries, self.entry(value, name)])

    def removeKey(self, name: Any) -> None:
        self.write([each for each in self.entries if each[0] != name])

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return iter([(name, value) for name, value, _ in self.entries])


class PlainValue(PlainVariable):
    def get(self) -> Any:
        found = [tuple(self.schema.fromInternal(value)) for _, value, _ in self.entries]
        return found[0] if found else None


class PlainList(PlainVariable):
    def get(self) -> Iterator[Any]:
        return iter([value for _, value, _ in self.entries])


class PlainSpark:
    """A model of `transformWithState` with dictionaries. It processes rows, then expired timers in order."""

    def __init__(self, time_mode: str, delay_ms: int = 0) -> None:
        self.time_mode, self.delay_ms = time_mode, delay_ms
        self.state: dict[Any, dict[str, list[Entry]]] = {}
        self.timers: dict[Any, set[int]] = {}
        self.key: Any = None
        self.now_ms = self.watermark_ms = 0

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> PlainVariable:
        return PlainValue(self, stateName, schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> PlainVariable:
        return PlainList(self, stateName, schema, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> PlainVariable:
        return PlainVariable(self, stateName, valueSchema, ttlDurationMs)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self.timers.setdefault(self.key, set()).add(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self.timers.get(self.key, set()).discard(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        return iter(self.timers.get(self.key, set()))

    def batch(self, processor: StatefulProcessor, rows: list[dict[str, Any]], now_ms: int) -> list[Row]:
        """Return the output of a batch of rows, each with its time as `at_ms`."""
        self.now_ms, given = now_ms, []
        processor.init(self)  # type: ignore[arg-type]
        no_time = self.time_mode == "None"
        times = TimerValues(-1, -1) if no_time else TimerValues(now_ms, self.watermark_ms)
        in_time = [row for row in rows if self.time_mode != "EventTime" or row["at_ms"] > self.watermark_ms]
        for name in dict.fromkeys(row["k"] for row in in_time):
            self.key = (name,)
            mine = iter([Row(**row) for row in in_time if row["k"] == name])
            given += processor.handleInputRows(self.key, mine, times)
        passed_ms = {"None": -1, "ProcessingTime": now_ms, "EventTime": self.watermark_ms}[self.time_mode]
        due = [(at, key) for key, each in self.timers.items() for at in each if at <= passed_ms]
        for at_ms, self.key in sorted(due):
            given += processor.handleExpiredTimer(self.key, times, ExpiredTimerInfo(at_ms))
            self.deleteTimer(at_ms)
        self.watermark_ms = max([self.watermark_ms, *(row["at_ms"] - self.delay_ms for row in rows)])
        return given  # type: ignore[return-value]

    @property
    def table(self) -> Mapping[str, dict[str, Any]]:
        """Return the state of each key that has one."""
        found: dict[str, dict[str, Any]] = {}
        for name in {*self.state, *self.timers}:
            mine = {
                variable: [(known, value) for known, value, until in entries if until > self.now_ms]
                for variable, entries in self.state.get(name, {}).items()
            }
            if "by_name" in mine:
                mine["by_name"].sort(key=str)
            kept = {variable: entries for variable, entries in mine.items() if entries}
            if self.timers.get(name):
                kept["timers"] = sorted(self.timers[name])
            if kept:
                found[name[0]] = kept
        return found


class PlainPandasState:
    """A model of `applyInPandasWithState` with dictionaries. It processes rows, then keys that have timed out."""

    def __init__(self, timeout: str, delay_ms: int = 0) -> None:
        self.timeout, self.delay_ms = timeout, delay_ms
        self.state: dict[str, Any] = {}
        self.timeouts: dict[str, int] = {}
        self.watermark_ms = 0

    def batch(self, function: CommandedFunction, rows: list[dict[str, Any]], now_ms: int) -> list[dict[str, Any]]:
        """Return the output of a batch of rows, each with its time as `at_ms`."""
        given: list[pd.DataFrame] = []
        by_event = self.timeout == "EventTimeTimeout"
        in_time = [row for row in rows if not by_event or row["at_ms"] > self.watermark_ms]
        for key in dict.fromkeys(row["k"] for row in in_time):
            frame = pd.DataFrame([row for row in in_time if row["k"] == key])
            given += self._called(function, key, [frame], now_ms, timed_out=False)
        passed_ms = {"NoTimeout": -1, "EventTimeTimeout": self.watermark_ms}.get(self.timeout, now_ms)
        for key in [key for key, at_ms in self.timeouts.items() if at_ms < passed_ms]:
            given += self._called(function, key, [pd.DataFrame(columns=["k", "op", "n"])], now_ms, timed_out=True)
        self.watermark_ms = max([self.watermark_ms, *(row["at_ms"] - self.delay_ms for row in rows)])
        return [row for frame in given for row in frame.to_dict("records")]

    def _called(
        self, function: CommandedFunction, key: str, frames: list[pd.DataFrame], now_ms: int, *, timed_out: bool
    ) -> list[pd.DataFrame]:
        known = self.state.get(key)
        state = GroupState(
            Row(*known) if known else None, now_ms, self.watermark_ms, self.timeout, timed_out, True, known is not None,
            False, False, -1, b"", STATE,
        )  # fmt: skip
        given = list(function((key,), frames, state))
        if state._updated or state._removed or state._timeout_timestamp != -1 or timed_out:
            self.state.pop(key, None)
            self.timeouts.pop(key, None)
            if state.exists:
                self.state[key] = state.get
            if state._timeout_timestamp != -1:
                self.timeouts[key] = state._timeout_timestamp
        return given
