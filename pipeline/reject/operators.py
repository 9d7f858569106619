"""Searches for the records that make an operator of Spark's plan fail, with one job for each operator.

Operators are tried from the bottom of the plan upwards, each on the records that pass the operators below. Spark's own
expressions are wrapped in `TryEval`, which returns null if they raise an error; each failing record is then evaluated
alone to get the error. A Python function is replaced by a trial that runs in the task with the rows (`functions.py`).
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

from ...state.failing import Failure, TooManyFailing
from ...store.versions.codec import register_type
from ..spark.plans import (
    add_record_numbers,
    analysed_plan,
    children,
    class_name,
    frame_of,
    nodes,
    optimised_plan,
    record_number_attribute,
    to_list,
    to_scala_seq,
)
from ..spark.session import SUBEXPRESSION_ELIMINATION, without_subexpression_elimination
from .blame import java_error_of_call, java_record_failure
from .functions import FAILURE_COLUMNS, TRIAL_BY_EVAL_TYPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXPRESSIONS = frozenset({"Project", "Filter", "Generate"})
_ROW_FUNCTIONS = frozenset({"ArrowEvalPython", "BatchEvalPython"})
_BATCH_FUNCTIONS = frozenset({"MapInPandas", "MapInArrow"})
_CANNOT_FAIL = frozenset(
    {"Alias", "And", "AttributeReference", "EqualTo", "GetStructField", "GreaterThan", "IsNotNull", "IsNull"}
    | {"LessThan", "Literal", "Not", "Or", "XxHash64"}
)
Failures = dict[int, Failure]


@dataclass
class OperatorSearch:
    """Finds the records for which a plan fails.

    Attributes:
        spark: The session of the plan.
        max_failures: Maximum number of failing records; one more raises `TooManyFailing`.
        on_found: Called with the number of failing records found so far.
        failures: Failures by record number.
    """

    spark: SparkSession
    max_failures: int
    on_found: Callable[[int], None]
    failures: Failures = field(default_factory=dict)

    def __post_init__(self) -> None:
        jvm: Any = self.spark._jvm
        self._jvm = jvm
        self._types = self._jvm.org.apache.spark.sql.types.DataTypes
        self._expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        self._logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical

    @cached_property
    def _session(self) -> SparkSession:
        return without_subexpression_elimination(self.spark)

    def search(self, frame: DataFrame) -> None:
        """Find the records for which computing a DataFrame fails.

        Raises `TooManyFailing`, and any error that is not caused by a record.
        """
        tried: set[str] = set()
        for node in reversed([*nodes(optimised_plan(frame))]):
            if (name := class_name(node)) in _EXPRESSIONS | _ROW_FUNCTIONS | _BATCH_FUNCTIONS:
                for new in self._search_node(node, name, tried):
                    self.failures |= {number: why for number, why in new.items() if number not in self.failures}
                    self.on_found(len(self.failures))
                    if len(self.failures) > self.max_failures:
                        raise TooManyFailing(list(self.failures))

    def _search_node(self, node: Any, name: str, tried: set[str]) -> Iterator[Failures]:
        if name in _BATCH_FUNCTIONS:
            yield self._batch_function_failures(node, self._input_plan(node))
            return
        expressions = to_list(node.expressions()) if name in _ROW_FUNCTIONS else []
        functions = [function for expression in expressions for function in _python_functions(expression)]
        arguments = [argument for function in functions for argument in to_list(function.children())]
        inputs = [_argument_value(argument) for argument in arguments if not _python_functions(argument)]
        expressions = self._untried(inputs if functions else _evaluated_expressions(node, name), tried)
        if expressions:
            yield self._expression_failures(expressions, self._input_plan(node))
        for function in functions:
            yield self._row_function_failures(function, self._input_plan(node))

    def _untried(self, expressions: Sequence[Any], tried: set[str]) -> list[Any]:
        new = []
        for expression in expressions:
            text = str(expression.canonicalized().toString())
            if text not in tried and self._may_fail(expression):
                tried.add(text)
                new.append(expression)
        return new

    def _may_fail(self, expression: Any) -> bool:
        harmless = class_name(expression) in _CANNOT_FAIL or (
            class_name(expression) == "Cast"
            and self._expressions.Cast.canUpCast(expression.child().dataType(), expression.dataType())
        )
        return not harmless or any(self._may_fail(child) for child in to_list(expression.children()))

    def _input_plan(self, node: Any) -> Any:
        excluded = self._sequence(self.failures)

        def exclude(leaf: Any) -> Any:
            if not self.failures:
                return leaf
            is_excluded = self._expressions.InSet(record_number_attribute(leaf), excluded.toSet())
            return self._logical.Filter(self._expressions.Not(is_excluded), leaf)

        def is_kept(node: Any) -> bool:
            return not children(node) and record_number_attribute(node) is not None

        return add_record_numbers(children(node)[0], self.spark, is_kept, exclude)

    def _expression_failures(self, expressions: Sequence[Any], input_plan: Any) -> Failures:
        if input_plan is None:
            return {}
        catalyst = self._expressions
        names = [catalyst.Literal.create(str(index), self._types.StringType) for index in range(len(expressions))]
        fields = [part for pair in zip(names, expressions, strict=True) for part in pair]
        raises = catalyst.IsNull(catalyst.TryEval(catalyst.CreateNamedStruct(self._sequence(fields))))
        rows = self._collect_rows(self._limited(self._logical.Filter(raises, input_plan)))
        ids = [int(column.exprId().id()) for column in to_list(input_plan.output())]
        position = ids.index(int(record_number_attribute(input_plan).exprId().id()))
        numbers = [int(row.getLong(position)) for row in rows]
        if len({*numbers}) > self.max_failures:
            raise TooManyFailing([*{*numbers}])
        return self._evaluate_rows(expressions, input_plan.output(), rows, numbers) if rows else {}

    def _collect_rows(self, plan: Any) -> list[Any]:
        context = self.spark.sparkContext
        previous = context.getLocalProperty(SUBEXPRESSION_ELIMINATION)
        # `executeCollect` runs without a DataFrame action. An action would set this property for its tasks.
        context.setLocalProperty(SUBEXPRESSION_ELIMINATION, "false")
        try:
            return list(frame_of(plan, self._session)._jdf.queryExecution().executedPlan().executeCollect())
        finally:
            context.setLocalProperty(SUBEXPRESSION_ELIMINATION, previous)  # type: ignore[arg-type]  # None removes the property

    def _evaluate_rows(
        self, expressions: Sequence[Any], columns: Any, rows: Sequence[Any], numbers: Sequence[int]
    ) -> Failures:
        catalyst = self._expressions
        attributes = getattr(catalyst, "package$AttributeSeq")(columns)
        # Nondeterministic expressions need state that only a task initializes.
        deterministic = [expression for expression in expressions if expression.deterministic()]
        bound = [catalyst.BindReferences.bindReference(expression, attributes, False) for expression in deterministic]
        failures: Failures = {}
        for row, number in zip(rows, numbers, strict=True):
            self.on_found(len(self.failures) + len(failures))
            errors = (
                error for expression in bound if (error := java_error_of_call(expression, "eval", row)) is not None
            )
            if number not in failures and (first := next(errors, None)) is not None:
                failures[number] = java_record_failure(self.spark, first)
        return failures

    def _row_function_failures(self, function: Any, input_plan: Any) -> Failures:
        if input_plan is None or (trial := TRIAL_BY_EVAL_TYPE.get(function.evalType())) is None:
            return {}
        tried = self._trial_expression(function, trial, StringType(), to_list(function.children()))
        nothing, new_id = self._sequence([]), self._expressions.NamedExpression.newExprId()
        alias = self._expressions.Alias(tried, "why", new_id, nothing, self._jvm.scala.Option.empty(), nothing)
        return self._trial_failures(
            self._logical.Project(self._sequence([record_number_attribute(input_plan), alias]), input_plan)
        )

    def _batch_function_failures(self, node: Any, input_plan: Any) -> Failures:
        function = next(
            expression for expression in to_list(node.expressions()) if class_name(expression) == "PythonUDF"
        )
        if input_plan is None or (trial := TRIAL_BY_EVAL_TYPE.get(function.evalType())) is None:
            return {}
        columns = to_list(children(node)[0].output())
        input_plan = self._logical.Project(self._sequence([*columns, record_number_attribute(input_plan)]), input_plan)
        schema = _parse_datatype_string(FAILURE_COLUMNS)
        assert isinstance(schema, StructType)  # noqa: S101  it has columns
        replaced = self._trial_expression(function, trial, schema, to_list(input_plan.output()))
        output = self._jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(replaced.dataType())
        operator = getattr(self._logical, class_name(node))
        return self._trial_failures(operator(replaced, output, input_plan, node.isBarrier(), node.profile()))

    def _trial_failures(self, plan: Any) -> Failures:
        failed = analysed_plan(frame_of(plan, self._session).where("why IS NOT NULL"))
        rows = frame_of(self._limited(failed), self._session).collect()
        return {row[0]: msgspec.json.decode(row[1], type=register_type(Failure)) for row in rows}

    def _limited(self, plan: Any) -> Any:
        limit = self._expressions.Literal.create(self.max_failures + 1, self._types.IntegerType)
        return self._logical.LocalLimit(limit, plan)

    def _trial_expression(self, function: Any, trial: Any, returns: Any, inputs: Sequence[Any]) -> Any:
        original = function.func()
        command = bytes(original.command().toArray(self._jvm.scala.reflect.ClassTag.Byte()))
        new_command = CloudPickleSerializer().dumps((trial(command, self.max_failures), returns))  # type: ignore[no-untyped-call]
        replacement = self._jvm.org.apache.spark.api.python.SimplePythonFunction(
            bytearray(new_command),
            original.envVars(),
            original.pythonIncludes(),
            original.pythonExec(),
            original.pythonVer(),
            original.broadcastVars(),
            original.accumulator(),
        )
        type_of_result = self.spark._jsparkSession.parseDataType(returns.json())
        new_id = self._expressions.NamedExpression.newExprId()
        return self._expressions.PythonUDF(
            function.name(), replacement, type_of_result, self._sequence(inputs), function.evalType(), True, new_id
        )

    def _sequence(self, items: Any) -> Any:
        return to_scala_seq(self.spark, items)


def _evaluated_expressions(node: Any, name: str) -> list[Any]:
    expressions = to_list(node.generator().children()) if name == "Generate" else to_list(node.expressions())
    return [expression.child() if class_name(expression) == "Alias" else expression for expression in expressions]


def _python_functions(expression: Any) -> list[Any]:
    inner = [function for child in to_list(expression.children()) for function in _python_functions(child)]
    return [*inner, expression] if class_name(expression) == "PythonUDF" else inner


def _argument_value(argument: Any) -> Any:
    return argument.children().head() if class_name(argument) == "NamedArgumentExpression" else argument
