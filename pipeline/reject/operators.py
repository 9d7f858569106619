"""The records for which an operator of Spark's plan fails: one job for all of them, for each operator that may fail.

Operators are tried from below, each over the records for which those below pass. Spark's own expressions are computed
in `TryEval`, which is null where they raise; then each record that failed is computed by itself, for what it fails of.
A Python function is replaced by what tries it in the task that has its rows (`functions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructType, _parse_datatype_string

from ...common.learned import learned
from ...state.culprit import TooMany
from ...state.failing import Failure
from ..spark.plans import children, frame_of, kind, listed, nodes, number_of, numbered, optimised, plan_of, sequence
from ..spark.session import COMMON_PARTS, part_by_part
from .blame import blamed_of_java, raised
from .functions import RECORDS, STANDS_IN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXPRESSIONS = frozenset({"Project", "Filter", "Generate"})
_ROW_FUNCTIONS = frozenset({"ArrowEvalPython", "BatchEvalPython"})
_BATCH_FUNCTIONS = frozenset({"MapInPandas", "MapInArrow"})
_CANNOT_FAIL = frozenset(
    {"Alias", "And", "AttributeReference", "EqualTo", "GetStructField", "GreaterThan", "IsNotNull", "IsNull"}
    | {"LessThan", "Literal", "Not", "Or", "XxHash64"}
)
"""Expressions that raise nothing by themselves."""
Failures = dict[int, Failure]


@dataclass
class Operators:
    """Finds the records for which a plan fails.

    Attributes:
        spark: The session of the plan.
        most: How many records there may be.
        on_found: Called with how many are found.
        found: By number, why each fails.
    """

    spark: SparkSession
    most: int
    on_found: Callable[[int], None]
    found: Failures = field(default_factory=dict)

    def __post_init__(self) -> None:
        jvm: Any = self.spark._jvm
        self._jvm = jvm
        self._types = self._jvm.org.apache.spark.sql.types.DataTypes
        self._expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        self._logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical

    @cached_property
    def _session(self) -> SparkSession:
        return part_by_part(self.spark)

    def search(self, frame: DataFrame) -> None:
        """Find the records for which computing a DataFrame fails. Raises `TooMany`, and what none is to blame for."""
        tried: set[str] = set()
        for node in reversed([*nodes(optimised(frame))]):
            if (name := kind(node)) in _EXPRESSIONS | _ROW_FUNCTIONS | _BATCH_FUNCTIONS:
                for more in self._of_node(node, name, tried):
                    self.found |= {number: why for number, why in more.items() if number not in self.found}
                    self.on_found(len(self.found))
                    if len(self.found) > self.most:
                        raise TooMany(list(self.found))

    def _of_node(self, node: Any, name: str, tried: set[str]) -> Iterator[Failures]:
        """What fails in one operator, part by part; what was found before is left out of each."""
        if name in _BATCH_FUNCTIONS:
            yield self._of_batches(node, self._below(node))
            return
        functions = (
            [each for one in listed(node.expressions()) for each in _functions(one)] if name in _ROW_FUNCTIONS else []
        )
        inputs = [_value(one) for each in functions for one in listed(each.children()) if not _functions(one)]
        expressions = self._new(inputs if functions else _evaluated(node, name), tried)
        if expressions:
            yield self._of_expressions(expressions, self._below(node))
        for function in functions:
            yield self._of_rows(function, self._below(node))

    def _new(self, expressions: Sequence[Any], tried: set[str]) -> list[Any]:
        """Those that may fail, and were not tried further below already."""
        new = []
        for each in expressions:
            text = str(each.canonicalized().toString())
            if text not in tried and self._may_fail(each):
                tried.add(text)
                new.append(each)
        return new

    def _may_fail(self, expression: Any) -> bool:
        harmless = kind(expression) in _CANNOT_FAIL or (
            kind(expression) == "Cast"
            and self._expressions.Cast.canUpCast(expression.child().dataType(), expression.dataType())
        )
        return not harmless or any(self._may_fail(each) for each in listed(expression.children()))

    def _below(self, node: Any) -> Any:
        """What an operator gets, with the records' numbers, of all records but those that were found."""
        left_out = self._sequence(self.found)

        def but_found(feed: Any) -> Any:
            if not self.found:
                return feed
            known = self._expressions.InSet(number_of(feed), left_out.toSet())
            return self._logical.Filter(self._expressions.Not(known), feed)

        def is_kept(node: Any) -> bool:
            """Whether a node is what Spark keeps of an input."""
            return not children(node) and number_of(node) is not None

        return numbered(children(node)[0], self.spark, is_kept, but_found)

    def _of_expressions(self, expressions: Sequence[Any], below: Any) -> Failures:
        """The records for which one of Spark's own expressions raises."""
        if below is None:
            return {}
        make = self._expressions
        names = [make.Literal.create(str(at), self._types.StringType) for at in range(len(expressions))]
        fields = [part for pair in zip(names, expressions, strict=True) for part in pair]
        raises = make.IsNull(make.TryEval(make.CreateNamedStruct(self._sequence(fields))))
        rows = self._collected(self._at_most(self._logical.Filter(raises, below)))
        place = [int(each.exprId().id()) for each in listed(below.output())].index(int(number_of(below).exprId().id()))
        numbers = [int(row.getLong(place)) for row in rows]
        if len({*numbers}) > self.most:
            raise TooMany([*{*numbers}])
        return self._one_by_one(expressions, below.output(), rows, numbers) if rows else {}

    def _collected(self, plan: Any) -> list[Any]:
        """A plan's rows, as Spark's own objects."""
        context = self.spark.sparkContext
        before = context.getLocalProperty(COMMON_PARTS)
        # A task takes this setting from here, where no action of a DataFrame's puts it.
        context.setLocalProperty(COMMON_PARTS, "false")
        try:
            return list(frame_of(plan, self._session)._jdf.queryExecution().executedPlan().executeCollect())
        finally:
            context.setLocalProperty(COMMON_PARTS, before)  # type: ignore[arg-type]  # None takes it away

    def _one_by_one(
        self, expressions: Sequence[Any], columns: Any, rows: Sequence[Any], numbers: Sequence[int]
    ) -> Failures:
        """Why each of these rows fails, by its record's number: Spark evaluates the expressions here, row by row."""
        make = self._expressions
        attributes = getattr(make, "package$AttributeSeq")(columns)
        # One that is not deterministic has a state, which Spark gives it in a task.
        plain = [each for each in expressions if each.deterministic()]
        bound = [make.BindReferences.bindReference(each, attributes, False) for each in plain]
        found: Failures = {}
        for row, number in zip(rows, numbers, strict=True):
            self.on_found(len(self.found) + len(found))
            errors = (raised(each, "eval", row) for each in bound)
            if number not in found and (error := next((one for one in errors if one is not None), None)) is not None:
                found[number] = blamed_of_java(self.spark, error)
        return found

    def _of_rows(self, function: Any, below: Any) -> Failures:
        """The records for which a Python function of rows or columns raises."""
        if below is None or (tries := STANDS_IN.get(function.evalType())) is None:
            return {}
        why = self._replaced(function, tries, StringType(), listed(function.children()))
        nothing, new_id = self._sequence([]), self._expressions.NamedExpression.newExprId()
        named = self._expressions.Alias(why, "why", new_id, nothing, self._jvm.scala.Option.empty(), nothing)
        return self._told(self._logical.Project(self._sequence([number_of(below), named]), below))

    def _of_batches(self, node: Any, below: Any) -> Failures:
        """The records for which a Python function of batches raises."""
        function = next(each for each in listed(node.expressions()) if kind(each) == "PythonUDF")
        if below is None or (tries := STANDS_IN.get(function.evalType())) is None:
            return {}
        columns = listed(children(node)[0].output())
        below = self._logical.Project(self._sequence([*columns, number_of(below)]), below)
        schema = _parse_datatype_string(RECORDS)
        assert isinstance(schema, StructType)  # noqa: S101  it has columns
        replaced = self._replaced(function, tries, schema, listed(below.output()))
        output = self._jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(replaced.dataType())
        made = getattr(self._logical, kind(node))
        return self._told(made(replaced, output, below, node.isBarrier(), node.profile()))

    def _told(self, plan: Any) -> Failures:
        """What a function's stand-in gives, of a plan of numbers and texts."""
        failed = plan_of(frame_of(plan, self._session).where("why IS NOT NULL"))
        rows = frame_of(self._at_most(failed), self._session).collect()
        return {row[0]: msgspec.json.decode(row[1], type=learned(Failure)) for row in rows}

    def _at_most(self, plan: Any) -> Any:
        """So many rows of each of a plan's tasks that there are more than may fail, if there are."""
        enough = self._expressions.Literal.create(self.most + 1, self._types.IntegerType)
        return self._logical.LocalLimit(enough, plan)

    def _replaced(self, function: Any, tries: Any, returns: Any, inputs: Sequence[Any]) -> Any:
        """An expression that tries a Python function, with all that Spark hands to workers beside it."""
        of = function.func()
        command = bytes(of.command().toArray(self._jvm.scala.reflect.ClassTag.Byte()))
        tried = CloudPickleSerializer().dumps((tries(command, self.most), returns))  # type: ignore[no-untyped-call]
        made = self._jvm.org.apache.spark.api.python.SimplePythonFunction(
            bytearray(tried),
            of.envVars(),
            of.pythonIncludes(),
            of.pythonExec(),
            of.pythonVer(),
            of.broadcastVars(),
            of.accumulator(),
        )
        type_of_result = self.spark._jsparkSession.parseDataType(returns.json())
        new_id = self._expressions.NamedExpression.newExprId()
        return self._expressions.PythonUDF(
            function.name(), made, type_of_result, self._sequence(inputs), function.evalType(), True, new_id
        )

    def _sequence(self, items: Any) -> Any:
        return sequence(self.spark, items)


def _evaluated(node: Any, name: str) -> list[Any]:
    """What an operator evaluates for each row. A generator's own work is no expression: what it gets is."""
    found = listed(node.generator().children()) if name == "Generate" else listed(node.expressions())
    return [each.child() if kind(each) == "Alias" else each for each in found]


def _functions(expression: Any) -> list[Any]:
    """The Python functions in an expression, those that others get their values from first."""
    below = [each for one in listed(expression.children()) for each in _functions(one)]
    return [*below, expression] if kind(expression) == "PythonUDF" else below


def _value(argument: Any) -> Any:
    """What a Python function gets by position, or by name."""
    return argument.children().head() if kind(argument) == "NamedArgumentExpression" else argument
