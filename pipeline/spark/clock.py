"""A stopped clock for users' code: in this process during a call, and in Spark's Python workers.

Python's `time` and `datetime` return the stopped time; so do names that users' modules have imported from them. The
stopped clock does not affect elapsed time (`time.monotonic`), or libraries that ask the machine directly, such as
pandas and numpy.
"""

import datetime
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession

from ...common.durations import DAY_MS
from .plans import analysed_plan, children, class_name, frame_of, rebuild, to_list, to_scala_seq
from .user_errors import is_user_module

STOPPED_AT = "SLACKWATER_CLOCK_STOPPED_AT_MS"
_DATE = datetime.date
_DATETIME = datetime.datetime
_TIME_FUNCTIONS = ("time", "time_ns", "strftime", "asctime", "localtime", "gmtime", "ctime")
_REAL_CLOCKS: Sequence[tuple[ModuleType, str, Any]] = (
    (datetime, "date", _DATE),
    (datetime, "datetime", _DATETIME),
    *((time, name, getattr(time, name)) for name in _TIME_FUNCTIONS),
)


class _StandInType(type):
    """Metaclass of a class that stands in for another class. Instances of the other class count as its instances."""

    stands_for: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.stands_for)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.stands_for)


@contextmanager
def stopped_clocks(at_ms: int) -> Iterator[None]:
    """Stop Python's clocks at a time (ms since 1970 UTC) during the block, for all threads."""
    undo = stop_clocks(at_ms)
    try:
        yield
    finally:
        _set_attributes(reversed(undo))


@contextmanager
def running_clocks() -> Iterator[None]:
    """Let clocks run during the block, within `stopped_clocks`: signatures of store requests need the true time."""
    stopped = [(module, name, getattr(module, name)) for module, name, _ in _REAL_CLOCKS]
    _set_attributes(_REAL_CLOCKS)
    try:
        yield
    finally:
        _set_attributes(stopped)


def _set_attributes(values: Iterable[tuple[ModuleType, str, Any]]) -> None:
    for module, name, value in values:
        setattr(module, name, value)


def stop_clocks(at_ms: int) -> list[tuple[ModuleType, str, Any]]:
    """Stop Python's clocks at a time (ms since 1970 UTC); return the replaced attributes, to restore them."""
    replaced: list[tuple[ModuleType, str, Any]] = []
    stand_ins = _stand_ins(at_ms)
    instead = {id(getattr(module, name)): value for module, name, value in stand_ins}
    imported = [
        (module, name, instead[id(value)])
        for module in list(sys.modules.values())
        if is_user_module(module)
        for name, value in list(vars(module).items())
        if id(value) in instead
    ]
    for module, name, value in (*stand_ins, *imported):
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    return replaced


def _stand_ins(at_ms: int) -> list[tuple[ModuleType, str, Any]]:
    at_s = at_ms / 1000

    class Date(_DATE, metaclass=_StandInType):
        __slots__ = ()  # libraries check that its size equals the real class's
        stands_for = _DATE

        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            return _DATE(*arguments, **named)

        @classmethod
        def today(cls) -> Any:
            return _DATE.fromtimestamp(at_s)

    class Datetime(_DATETIME, metaclass=_StandInType):
        __slots__ = ()
        stands_for = _DATETIME

        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            return _DATETIME(*arguments, **named)

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return _DATETIME.fromtimestamp(at_s, tz)

        @classmethod
        def today(cls) -> Any:
            return _DATETIME.fromtimestamp(at_s)

        @classmethod
        def utcnow(cls) -> Any:
            return _DATETIME.fromtimestamp(at_s, datetime.UTC).replace(tzinfo=None)

    def of_now(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda at=None: real(at_s if at is None else at)

    local, strftime, asctime = time.localtime, time.strftime, time.asctime
    functions: dict[str, Any] = {
        "time": lambda: at_s,
        "time_ns": lambda: at_ms * 1_000_000,
        "strftime": lambda format_text, at=None: strftime(format_text, local(at_s) if at is None else at),
        "asctime": lambda at=None: asctime(local(at_s) if at is None else at),
        **{name: of_now(getattr(time, name)) for name in ("localtime", "gmtime", "ctime")},
    }
    stand_ins: list[tuple[ModuleType, str, Any]] = [
        (datetime, "date", Date),
        (datetime, "datetime", Datetime),
        *((time, name, function) for name, function in functions.items()),
    ]
    for module, name, value in stand_ins:
        # Pickled functions refer to the stand-ins by these names. When unpickled, they get the worker's own attributes.
        value.__module__, value.__name__, value.__qualname__ = module.__name__, name, name
    return stand_ins


_CATALYST = "org.apache.spark.sql.catalyst"
_CLOCK_EXPRESSIONS: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(("CurrentTimestamp", "Now", "LocalTimestamp"), lambda at_ms: at_ms * 1000),
    "CurrentDate": lambda at_ms: at_ms // DAY_MS,
    "CurrentTime": lambda at_ms: at_ms % DAY_MS * 1_000_000,
}
"""Clock expressions, each with a function from a time (ms since 1970 UTC) to its value in Spark's representation."""


@dataclass(frozen=True, slots=True)
class Impurities:
    """Functions in a plan that may return different values for equal rows: distinct SQL names, by kind."""

    random: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    python: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.random or self.clocks or self.python)


def find_impurities(frame: DataFrame, feeds: Sequence[Any]) -> Impurities:
    """Find functions in a DataFrame's plan that may be nondeterministic. The plans of its inputs are excluded.

    `feeds` are the plans of the DataFrame's inputs.
    """
    names: dict[str, dict[str, None]] = {"random": {}, "clocks": {}, "python": {}}
    for expression in _expressions(analysed_plan(frame), feeds):
        if class_name(expression) in _CLOCK_EXPRESSIONS:
            names["clocks"][str(expression.prettyName())] = None
        elif _is_python(expression):
            names["python"][str(expression.name())] = None
        elif not expression.deterministic() and all(below.deterministic() for below in to_list(expression.children())):
            names["random"][str(expression.prettyName())] = None
    return Impurities(**{name: tuple(functions) for name, functions in names.items()})


def with_time_literals(frame: DataFrame, at_ms: int) -> DataFrame:
    """Replace Spark's clock expressions by their values at a time (ms since 1970 UTC)."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm

    def literal(old: Any, new: Any) -> Any:
        if (value := _CLOCK_EXPRESSIONS.get(class_name(old))) is None:
            return new
        return jvm.org.apache.spark.sql.catalyst.expressions.Literal(value(at_ms), old.dataType())

    def replace(old: Any, new: Any) -> Any:
        if not any(
            class_name(expression) in _CLOCK_EXPRESSIONS
            for root in to_list(old.expressions())
            for expression in _subexpressions(root)
        ):
            return new
        return _with_expressions(new, spark, lambda expression: rebuild(expression, spark, literal))

    plan = analysed_plan(frame)
    changed = rebuild(plan, spark, replace)
    return frame if changed is plan else frame_of(changed, spark)


_SEPARATE_WORKERS = "SLACKWATER_OTHER_WORKERS"
"""Environment variable that separates workers: Spark shares no worker between different environments."""


@contextmanager
def workers_stopped_at(frame: DataFrame, feeds: Sequence[Any], at_ms: int, *, separate: bool = False) -> Iterator[None]:
    """Stop the clocks of the workers that run the DataFrame's Python functions, during the `with` block.

    Clocks stop at a time in ms since 1970 UTC. With `separate`, Spark uses worker processes that calls without
    `separate` never use. Requires slackwater's own worker daemon (`pipeline.batch.worker_daemon`).
    """
    expressions = _expressions(analysed_plan(frame), feeds)
    environments = [expression.func().envVars() for expression in expressions if _is_python(expression)]
    for environment in environments:
        environment.put(STOPPED_AT, str(at_ms))
        if separate:
            environment.put(_SEPARATE_WORKERS, "1")
    try:
        yield
    finally:
        for environment in environments:
            environment.remove(STOPPED_AT)
            environment.remove(_SEPARATE_WORKERS)


def _is_python(expression: Any) -> bool:
    return class_name(expression).startswith("Python")


def _expressions(plan: Any, feeds: Sequence[Any]) -> Iterator[Any]:
    if any(plan.fastEquals(feed_plan) for feed_plan in feeds):
        return
    for expression in to_list(plan.expressions()):
        yield from _subexpressions(expression)
    for child in children(plan):
        yield from _expressions(child, feeds)


def _subexpressions(expression: Any) -> Iterator[Any]:
    yield expression
    for child in children(expression):
        yield from _subexpressions(child)


def _with_expressions(node: Any, spark: SparkSession, replace: Callable[[Any], Any]) -> Any:
    context: Any = spark.sparkContext
    gateway, jvm = context._gateway, context._jvm

    def replaced(argument: Any) -> Any:
        if not hasattr(argument, "getClass"):
            return argument
        if is_instance_of(gateway, argument, f"{_CATALYST}.expressions.Expression"):
            return replace(argument)
        if is_instance_of(gateway, argument, "scala.Option"):
            return jvm.scala.Option.apply(replaced(argument.get())) if argument.isDefined() else argument
        if is_instance_of(gateway, argument, "scala.collection.Seq"):
            return to_scala_seq(spark, map(replaced, to_list(argument)))
        return argument

    arguments = gateway.new_array(jvm.java.lang.Object, node.productArity())
    for at in range(node.productArity()):
        arguments[at] = replaced(node.productElement(at))
    return node.makeCopy(arguments)
