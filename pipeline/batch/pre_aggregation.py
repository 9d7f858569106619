"""Pre-aggregation: partial aggregates by Spark before its shuffle, for batches with many rows for each key.

Partial aggregates merge to the same table, except for the last bits of float sums, which depend on the order of rows
anyway. Pre-aggregation avoids shuffling and merging each row, and costs a hash table. It does not pay off if most keys
have one row, which the reports of the batch before show.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark import __version__
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from ...state.event_time import AHEAD, AT
from ...state.kinds.aggregate import MOST_TASKS, ROWS, TASKS, Aggregate, part
from ...state.next_version import TaskReport
from ...store.versions.column_types import in_backticks
from .task import StateTask

_LEAST_ROWS = 50_000
"""Minimum number of rows of a batch for which pre-aggregation saves enough."""
_WORTH_IT = 0.6
"""Maximum ratio of pre-aggregated rows to a batch's rows at which pre-aggregation pays off."""
_FEW_KEYS = 10_000
"""Maximum number of keys that are merged in a single task: more tasks would cost more than they save."""
_REMEMBERED = 0.95
"""Factor by which the measured spread of keys decays with each batch without pre-aggregation."""
_MOST_DIGITS = 28
"""Maximum precision of a decimal column: Spark's sum adds ten digits."""
_TIMES = (t.TimestampType, t.TimestampNTZType)
_FRACTIONS = (t.FloatType, t.DoubleType)
_NUMBERED = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DateType, *_TIMES)
_IN_PLACE = (t.BooleanType, t.DecimalType, *_FRACTIONS, *_NUMBERED)
_KEPT = (t.StringType, t.BinaryType, *_IN_PLACE)
_KEEPS_IN_PLACE = tuple(map(int, __version__.split(".")[:2])) >= (4, 2)
"""True if Spark's `max_by` takes a count, which makes Spark use a hash table instead of sorting rows."""
_BOUND = "_slackwater_bound"
"""Column with the event time, in microseconds since 1970, beyond which a row is too far ahead of the clock."""
_BATCH = "_slackwater_batch"
SHUFFLE_TASKS = "spark.sql.shuffle.partitions"


class Forecast:
    """Predicts, from a stage's last batch, whether pre-aggregation pays off for the next one."""

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
            # One unusual batch is forgotten after some tens of others.
            self._spread = 1 + (self._spread - 1) * _REMEMBERED
        worth_it = rows >= _LEAST_ROWS and self._spread * keys <= _WORTH_IT * rows
        self.few_keys = keys <= _FEW_KEYS if worth_it else None


def can_add_up(task: StateTask, schema: t.StructType) -> bool:
    aggregates = task.step.state.added_up
    key = [column.name for column in task.step.table.key]
    if not aggregates or task.late_to is not None or len(task.times.watermarks) > 1:
        # Late rows are sent on as they are.
        return False
    if task.step.lateness is not None and not {*task.step.lateness.columns} <= {*key}:
        return False
    if any(_has_collation(schema[name].dataType) for name in (*key, *task.step.state.needs)):
        return False
    return all(_can_add_up(aggregate, schema) for _, aggregate in aggregates)


def _can_add_up(aggregate: Aggregate, schema: t.StructType) -> bool:
    kind = schema[aggregate.column].dataType if aggregate.column else None
    match aggregate.function:
        case "count":
            return True
        case "sum" | "mean":
            return not isinstance(kind, t.DecimalType) or kind.precision <= _MOST_DIGITS
        case "min" | "max":
            return isinstance(kind, _KEPT)
    return isinstance(kind, _KEPT) and isinstance(schema[str(aggregate.by)].dataType, _NUMBERED)


def _has_collation(kind: t.DataType) -> bool:
    """Return True if Spark may treat different strings as equal."""
    if isinstance(kind, t.StructType):
        return any(_has_collation(field.dataType) for field in kind)
    return isinstance(kind, t.StringType) and not kind.isUTF8BinaryCollation()


def added_up(rows: DataFrame, task: StateTask) -> tuple[DataFrame, StateTask]:
    """Return one row for each key with its partial aggregates and `_hash`, and the task that merges such rows.

    Requires `can_pre_aggregate`.
    """
    schema, key = rows.schema, [column.name for column in task.step.table.key]
    aggregates = task.step.state.added_up
    partials = {ROWS: "count(1)", TASKS: f"bit_or({TASKS})"}
    picked: dict[str, str] = {}
    for name, aggregate in aggregates:
        if aggregate.function in ("first", "last"):
            partials[part("picked", name)] = _picked(aggregate, schema)
            picked |= {part(field, name): f"{in_backticks(part('picked', name))}.{field}" for field in ("value", "by")}
        else:
            partials |= {part(field, name): column for field, column in _parts(aggregate, schema).items()}
    # `spark_partition_id` is allowed only outside of aggregates.
    inner = {TASKS: f"shiftleft(1L, spark_partition_id() % {MOST_TASKS})"}
    times = task.times
    if times.watermarks:
        (watermark,) = times.watermarks
        at = f"unix_micros(CAST({in_backticks(watermark.columns[0])} AS timestamp))"
        # As a plain literal, a number that changes with each batch would have Spark compile code for each batch.
        inner[_BOUND] = f"get(array({(times.bound_ms + 1) * 1000}L), shiftright(spark_partition_id(), 31))"
        in_time = f"{at} < {_BOUND}"
        partials |= {AT: f"max(CASE WHEN {in_time} THEN {at} END)", AHEAD: f"count_if(NOT ({in_time}))"}
        times = replace(times, watermarks=(replace(watermark, columns=(AT,)),))
    columns = tuple(name for name in partials if not name.startswith(part("picked", "")))
    keys = ", ".join(map(in_backticks, key))
    needed = ", ".join(map(in_backticks, dict.fromkeys((*key, *task.step.state.needs, *task.times.names))))
    # One SQL statement: building it from Spark's functions takes as long as a small batch. The view is replaced by the
    # next batch, in the query's own session: a view that `sql` creates and drops itself takes a third longer.
    rows.createOrReplaceTempView(_BATCH)
    parts = rows.sparkSession.sql(
        f"SELECT {keys}, {_listed({name: in_backticks(name) for name in columns} | picked)}, "
        f"xxhash64({keys}) AS _hash FROM ("
        f"SELECT {keys}, {_listed(partials)} FROM ("
        f"SELECT {needed}, {_listed(inner)} FROM {_BATCH}) GROUP BY {keys})"
    )
    step = replace(task.step, state=task.step.state.over_partials((*columns, *picked)))
    return parts, replace(task, step=step, times=times)


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{column} AS {in_backticks(name)}" for name, column in columns.items())


def _parts(aggregate: Aggregate, schema: t.StructType) -> dict[str, str]:
    if aggregate.column is None:
        return {"count": "count(1)"}
    column, kind = in_backticks(aggregate.column), schema[aggregate.column].dataType
    if aggregate.function == "count":
        return {"count": f"count({column})"}
    if aggregate.function in ("sum", "mean"):
        # The sums of both halves fit into 64 bits even where the total overflows.
        halves = {"sum": f"sum(shiftright({column}, 32))", "low": f"sum({column} & {0xFFFFFFFF}L)"}
        sums = halves if isinstance(kind, t.LongType) else {"sum": f"sum({column})"}
        return sums | ({"count": f"count({column})"} if aggregate.function == "mean" else {})
    if isinstance(kind, _FRACTIONS):
        column = f"CASE WHEN NOT isnan({column}) THEN {column} END"
    if isinstance(kind, _IN_PLACE):
        return {"value": f"{aggregate.function}({column})"}
    return {"value": _by(aggregate.function, column, column)}


def _by(function: str, value: str, rank: str) -> str:
    return f"get({function}_by({value}, {rank}, 1), 0)" if _KEEPS_IN_PLACE else f"{function}_by({value}, {rank})"


def _picked(aggregate: Aggregate, schema: t.StructType) -> str:
    """Return SQL for the value and `by` of the first or last row. Ties: the largest value, then NaN, then null."""
    value, by = in_backticks(str(aggregate.column)), in_backticks(str(aggregate.by))
    kind = schema[str(aggregate.by)].dataType
    number = f"unix_micros(CAST({by} AS timestamp))" if isinstance(kind, _TIMES) else f"CAST({by} AS bigint)"
    if isinstance(kind, t.DateType):
        number = f"CAST(unix_date({by}) AS bigint)"
    order = number if aggregate.function == "last" else f"~{number}"
    is_number = f"NOT isnan({value})" if isinstance(schema[str(aggregate.column)].dataType, _FRACTIONS) else "true"
    rank = f"CASE WHEN {by} IS NOT NULL THEN struct({order}, {value} IS NOT NULL, {is_number}, {value}) END"
    return _by("max", f"struct({value} AS value, {by} AS by)", rank)
