"""What the expressions of a plan say: which give another value each time, which are a clock, which are Python's.

And the same plan at another time: where it has an expression of the clock, a literal stands instead, and daemons of
Spark's Python workers are told the time by a variable of their environment. A function with another environment has
workers of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession

from ...common.durations import DAY_MS
from .clock import STOPPED_AT
from .plans import children, frame_of, kind, listed, plan_of, rebuilt, sequence

_CATALYST = "org.apache.spark.sql.catalyst"
_CLOCKS: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(("CurrentTimestamp", "Now", "LocalTimestamp"), lambda at_ms: at_ms * 1000),
    "CurrentDate": lambda at_ms: at_ms // DAY_MS,
    "CurrentTime": lambda at_ms: at_ms % DAY_MS * 1_000_000,
}
"""Expressions of the clock, and the value of each at a time in ms since 1970 UTC, as Spark has it."""


@dataclass(frozen=True, slots=True)
class Impurities:
    """What a plan has that may give another value for the same row, by the names of functions in SQL; each once."""

    random: tuple[str, ...] = ()
    """Of Spark's own: numbers, ids, and what depends on where a row is."""
    clocks: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    """Functions of Python, of which nobody knows."""

    def __bool__(self) -> bool:
        return bool(self.random or self.clocks or self.python)


def impurities(frame: DataFrame, feeds: Sequence[Any]) -> Impurities:
    """Those of a DataFrame above the plans of its feeds."""
    found: dict[str, dict[str, None]] = {"random": {}, "clocks": {}, "python": {}}
    for each in _expressions(plan_of(frame), feeds):
        if kind(each) in _CLOCKS:
            found["clocks"][str(each.prettyName())] = None
        elif _is_python(each):
            found["python"][str(each.name())] = None
        elif not each.deterministic() and all(below.deterministic() for below in listed(each.children())):
            found["random"][str(each.prettyName())] = None
    return Impurities(**{name: tuple(each) for name, each in found.items()})


def at_time(frame: DataFrame, at_ms: int) -> DataFrame:
    """The same rows as they are at a time, milliseconds since 1970 UTC, as far as Spark's own expressions go."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm

    def literal(before: Any, after: Any) -> Any:
        if (value := _CLOCKS.get(kind(before))) is None:
            return after
        return jvm.org.apache.spark.sql.catalyst.expressions.Literal(value(at_ms), before.dataType())

    def replace(before: Any, after: Any) -> Any:
        if not any(kind(each) in _CLOCKS for one in listed(before.expressions()) for each in _below(one)):
            return after
        return _with_expressions(after, spark, lambda each: rebuilt(each, spark, literal))

    plan = plan_of(frame)
    made = rebuilt(plan, spark, replace)
    return frame if made is plan else frame_of(made, spark)


_OTHERS = "SLACKWATER_OTHER_WORKERS"
"""A variable that nobody reads: workers that have it are other processes than those that have not."""


@contextmanager
def workers_at(frame: DataFrame, feeds: Sequence[Any], at_ms: int, *, others: bool = False) -> Iterator[None]:
    """While this lasts, the frame's Python functions run in workers whose clocks stand at a time.

    With `others`, in other processes than without it. It needs slackwater's own daemon of workers
    (`pipeline.batch.worker_daemon`).
    """
    environments = [each.func().envVars() for each in _expressions(plan_of(frame), feeds) if _is_python(each)]
    for each in environments:
        each.put(STOPPED_AT, str(at_ms))
        if others:
            each.put(_OTHERS, "1")
    try:
        yield
    finally:
        for each in environments:
            each.remove(STOPPED_AT)
            each.remove(_OTHERS)


def _is_python(expression: Any) -> bool:
    return kind(expression).startswith("Python")


def _expressions(plan: Any, feeds: Sequence[Any]) -> Iterator[Any]:
    """All expressions of a plan, without those of its feeds."""
    if any(plan.fastEquals(feed) for feed in feeds):
        return
    for each in listed(plan.expressions()):
        yield from _below(each)
    for child in children(plan):
        yield from _expressions(child, feeds)


def _below(expression: Any) -> Iterator[Any]:
    yield expression
    for child in children(expression):
        yield from _below(child)


def _with_expressions(node: Any, spark: SparkSession, replace: Callable[[Any], Any]) -> Any:
    """A node of a plan with each of its expressions replaced, wherever they stand among its arguments."""
    context: Any = spark.sparkContext
    gateway, jvm = context._gateway, context._jvm

    def replaced(given: Any) -> Any:
        if not hasattr(given, "getClass"):
            return given
        if is_instance_of(gateway, given, f"{_CATALYST}.expressions.Expression"):
            return replace(given)
        if is_instance_of(gateway, given, "scala.Option"):
            return jvm.scala.Option.apply(replaced(given.get())) if given.isDefined() else given
        if is_instance_of(gateway, given, "scala.collection.Seq"):
            return sequence(spark, map(replaced, listed(given)))
        return given

    arguments = gateway.new_array(jvm.java.lang.Object, node.productArity())
    for at in range(node.productArity()):
        arguments[at] = replaced(node.productElement(at))
    return node.makeCopy(arguments)
