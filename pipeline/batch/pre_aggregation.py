"""Pre-aggregation: partial aggregates by Spark before its shuffle, for batches with many rows for each key.

Merging partial aggregates gives the same table, except for the last bits of float sums, which depend on the order of
rows in any case. Pre-aggregation avoids shuffling and merging each row, and costs a hash table. It does not pay off if
most keys have only one row; a `Forecast` estimates this from the stage's last batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark import __version__
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ...state.event_time import AHEAD_COUNT, MAX_EVENT_TIME
from ...state.kinds.aggregate import MAX_TASKS, ROWS_COLUMN, TASKS_COLUMN, Aggregate, partial_column
from ...state.next_version import TaskReport
from ...store.versions.column_types import quote_for_spark
from .task import StateTask

_MIN_ROWS = 50_000
"""Minimum number of rows of a batch for pre-aggregation; smaller batches save too little."""
_MAX_ROW_RATIO = 0.6
"""Maximum ratio of rows after pre-aggregation to rows before it; above this ratio, pre-aggregation does not pay off."""
_MAX_KEYS_OF_ONE_TASK = 10_000
"""Maximum number of keys that a single task merges. For fewer keys, more tasks would cost more than they save."""
_SPREAD_DECAY = 0.95
_MAX_PRECISION = 28
"""Maximum precision of a decimal column to pre-aggregate: Spark's sum needs ten more digits."""
_TIMESTAMP_TYPES = (t.TimestampType, t.TimestampNTZType)
_FLOAT_TYPES = (t.FloatType, t.DoubleType)
_INTEGER_ORDERED_TYPES = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DateType, *_TIMESTAMP_TYPES)
_IN_PLACE = (t.BooleanType, t.DecimalType, *_FLOAT_TYPES, *_INTEGER_ORDERED_TYPES)
_COMPARABLE_TYPES = (t.StringType, t.BinaryType, *_IN_PLACE)
_MAX_BY_TAKES_COUNT = tuple(map(int, __version__.split(".")[:2])) >= (4, 2)
"""True if Spark's `max_by` takes a count, which makes Spark use a hash table instead of sorting rows."""
_BOUND = "_slackwater_bound"
"""Column with the upper limit of event times (microseconds since 1970). Later rows are too far ahead of the clock."""
_BATCH = "_slackwater_batch"
SHUFFLE_TASKS = "spark.sql.shuffle.partitions"


class Forecast:
    """Predicts from a stage's last batch if pre-aggregation pays off for the next batch."""

    def __init__(self) -> None:
        self._spread = 1.0
        """Average number of Spark tasks that have rows of a key, as measured."""
        self.few_keys: bool | None = None
        """True if one task can merge all keys of the next batch; None for no pre-aggregation."""

    def learn(self, results: Sequence[TaskReport]) -> None:
        rows = sum(result.rows_in for result in results)
        # An aggregate writes each key of the batch.
        keys = sum(sst.rows for result in results for sst in result.ssts)
        if partials := sum(result.partials for result in results):
            self._spread = partials / max(1, keys)
        else:
            # The effect of one unusual batch disappears after some tens of normal batches.
            self._spread = 1 + (self._spread - 1) * _SPREAD_DECAY
        worth_it = rows >= _MIN_ROWS and self._spread * keys <= _MAX_ROW_RATIO * rows
        self.few_keys = keys <= _MAX_KEYS_OF_ONE_TASK if worth_it else None


def can_pre_aggregate(task: StateTask, schema: t.StructType) -> bool:
    aggregates = task.step.state.partial_aggregates
    key = [column.name for column in task.step.table.key]
    if not aggregates or task.late_output is not None or len(task.times.watermarks) > 1:
        # Late rows are sent on as they are.
        return False
    if task.step.lateness is not None and not {*task.step.lateness.columns} <= {*key}:
        return False
    if any(_has_collation(schema[name].dataType) for name in (*key, *task.step.state.needed_columns)):
        return False
    return all(_can_aggregate_partially(aggregate, schema) for _, aggregate in aggregates)


def _can_aggregate_partially(aggregate: Aggregate, schema: t.StructType) -> bool:
    kind = schema[aggregate.column].dataType if aggregate.column else None
    match aggregate.function:
        case "count":
            return True
        case "sum" | "mean":
            return not isinstance(kind, t.DecimalType) or kind.precision <= _MAX_PRECISION
        case "min" | "max":
            return isinstance(kind, _COMPARABLE_TYPES)
    return isinstance(kind, _COMPARABLE_TYPES) and isinstance(
        schema[str(aggregate.by)].dataType, _INTEGER_ORDERED_TYPES
    )


def _has_collation(kind: t.DataType) -> bool:
    """Return True if Spark may treat different strings of this type as equal."""
    if isinstance(kind, t.StructType):
        return any(_has_collation(field.dataType) for field in kind)
    return isinstance(kind, t.StringType) and not kind.isUTF8BinaryCollation()


def pre_aggregate(rows: DataFrame, task: StateTask) -> tuple[DataFrame, StateTask]:
    """Return one row for each key with partial aggregates and `_hash`, and the task that merges these rows.

    Call this only if `can_pre_aggregate` returns True.
    """
    schema, key = rows.schema, [column.name for column in task.step.table.key]
    aggregates = task.step.state.partial_aggregates
    partials = {ROWS_COLUMN: "count(1)", TASKS_COLUMN: f"bit_or({TASKS_COLUMN})"}
    picked: dict[str, str] = {}
    for name, aggregate in aggregates:
        if aggregate.function in ("first", "last"):
            partials[partial_column("picked", name)] = _first_or_last_sql(aggregate, schema)
            picked |= {
                partial_column(field, name): f"{quote_for_spark(partial_column('picked', name))}.{field}"
                for field in ("value", "by")
            }
        else:
            partials |= {
                partial_column(field, name): column for field, column in _partial_sql(aggregate, schema).items()
            }
    # Spark allows `spark_partition_id` only outside of aggregates.
    inner = {TASKS_COLUMN: f"shiftleft(1L, spark_partition_id() % {MAX_TASKS})"}
    times = task.times
    if times.watermarks:
        (watermark,) = times.watermarks
        at = f"unix_micros(CAST({quote_for_spark(watermark.columns[0])} AS timestamp))"
        # As a plain literal, a number that changes with each batch would make Spark compile code for each batch.
        inner[_BOUND] = f"get(array({(times.bound_ms + 1) * 1000}L), shiftright(spark_partition_id(), 31))"
        in_time = f"{at} < {_BOUND}"
        partials |= {
            MAX_EVENT_TIME: f"max(CASE WHEN {in_time} THEN {at} END)",
            AHEAD_COUNT: f"count_if(NOT ({in_time}))",
        }
        times = replace(times, watermarks=(replace(watermark, columns=(MAX_EVENT_TIME,)),))
    columns = tuple(name for name in partials if not name.startswith(partial_column("picked", "")))
    keys = ", ".join(map(quote_for_spark, key))
    needed = ", ".join(map(quote_for_spark, dict.fromkeys((*key, *task.step.state.needed_columns, *task.times.names))))
    # One SQL statement, because building the plan from Spark's functions takes as long as a small batch. The next batch
    # replaces the view, in the query's own session: a view that `sql` creates and drops itself takes a third longer.
    rows.createOrReplaceTempView(_BATCH)
    parts = rows.sparkSession.sql(
        f"SELECT {keys}, {_select_list({name: quote_for_spark(name) for name in columns} | picked)}, "
        f"xxhash64({keys}) AS _hash FROM ("
        f"SELECT {keys}, {_select_list(partials)} FROM ("
        f"SELECT {needed}, {_select_list(inner)} FROM {_BATCH}) GROUP BY {keys})"
    )
    step = replace(task.step, state=task.step.state.over_partials((*columns, *picked)))
    return parts, replace(task, step=step, times=times)


def _select_list(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{column} AS {quote_for_spark(name)}" for name, column in columns.items())


def _partial_sql(aggregate: Aggregate, schema: t.StructType) -> dict[str, str]:
    if aggregate.column is None:
        return {"count": "count(1)"}
    column, kind = quote_for_spark(aggregate.column), schema[aggregate.column].dataType
    if aggregate.function == "count":
        return {"count": f"count({column})"}
    if aggregate.function in ("sum", "mean"):
        # The sum is computed in two halves, which fit into 64 bits even if the total overflows.
        halves = {"sum": f"sum(shiftright({column}, 32))", "low": f"sum({column} & {0xFFFFFFFF}L)"}
        sums = halves if isinstance(kind, t.LongType) else {"sum": f"sum({column})"}
        return sums | ({"count": f"count({column})"} if aggregate.function == "mean" else {})
    if isinstance(kind, _FLOAT_TYPES):
        column = f"CASE WHEN NOT isnan({column}) THEN {column} END"
    if isinstance(kind, _IN_PLACE):
        return {"value": f"{aggregate.function}({column})"}
    return {"value": _max_by_sql(aggregate.function, column, column)}


def _max_by_sql(function: str, value: str, rank: str) -> str:
    return f"get({function}_by({value}, {rank}, 1), 0)" if _MAX_BY_TAKES_COUNT else f"{function}_by({value}, {rank})"


def _first_or_last_sql(aggregate: Aggregate, schema: t.StructType) -> str:
    value, by = quote_for_spark(str(aggregate.column)), quote_for_spark(str(aggregate.by))
    kind = schema[str(aggregate.by)].dataType
    number = f"unix_micros(CAST({by} AS timestamp))" if isinstance(kind, _TIMESTAMP_TYPES) else f"CAST({by} AS bigint)"
    if isinstance(kind, t.DateType):
        number = f"CAST(unix_date({by}) AS bigint)"
    order = number if aggregate.function == "last" else f"~{number}"
    is_number = f"NOT isnan({value})" if isinstance(schema[str(aggregate.column)].dataType, _FLOAT_TYPES) else "true"
    rank = f"CASE WHEN {by} IS NOT NULL THEN struct({order}, {value} IS NOT NULL, {is_number}, {value}) END"
    return _max_by_sql("max", f"struct({value} AS value, {by} AS by)", rank)
