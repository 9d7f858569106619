"""Rows added up by Spark before they cross its shuffle, where a batch has many of each key.

What an aggregate keeps of several rows merges with what it keeps of others, so it makes no difference to the table,
but for the last bits of sums of floats, which depend on the order of rows anyway. It saves the shuffle and the merging
of each row, and costs a hash table: not worth it where most keys come once, as the batch before shows.
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
from .state_task import StateTask

_LEAST_ROWS = 50_000
"""In a batch with fewer there is nothing to save."""
_WORTH_IT = 0.6
"""The part of a batch's rows that may be left of them."""
_FEW_KEYS = 10_000
"""So many are merged by one task: others cost more than they take from it."""
_REMEMBERED = 0.95
"""With each batch that is not added up, so much is left of what was seen of how widely keys are spread."""
_MOST_DIGITS = 28
"""Of decimals whose sums, ten digits longer, Spark has room for."""
_TIMES = (t.TimestampType, t.TimestampNTZType)
_FRACTIONS = (t.FloatType, t.DoubleType)
_NUMBERED = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DateType, *_TIMES)
"""Types whose order an integer has."""
_IN_PLACE = (t.BooleanType, t.DecimalType, *_FRACTIONS, *_NUMBERED)
"""Types whose values Spark's hash table replaces where they are."""
_KEPT = (t.StringType, t.BinaryType, *_IN_PLACE)
"""Types of which a smallest, largest, first or last value is kept."""
_KEEPS_IN_PLACE = tuple(map(int, __version__.split(".")[:2])) >= (4, 2)
"""Whether Spark's `max_by` can be told how many to keep: it does so in its hash table, and else sorts the rows."""
_BOUND = "_slackwater_bound"
"""A column with the time from which on rows are too far ahead of the clock, in microseconds since 1970."""
_BATCH = "_slackwater_batch"
"""The view of a batch's rows."""
SHUFFLE_TASKS = "spark.sql.shuffle.partitions"
"""Spark's setting of the tasks behind the shuffle of rows that are added up."""


class Forecast:
    """Whether a stage's next batch is to be added up before the shuffle: as the one before would have been."""

    def __init__(self) -> None:
        self._spread = 1.0
        """In how many of Spark's tasks each key has rows, as far as was seen."""
        self.few_keys: bool | None = None
        """Whether one task may merge all keys of the next batch; None where its rows cross the shuffle as they are."""

    def learn(self, results: Sequence[TaskReport]) -> None:
        """Take notice of what the tasks of a batch report."""
        rows = sum(result.rows_in for result in results)
        # Of an aggregate, each key of the batch is written.
        keys = sum(sst.rows for result in results for sst in result.ssts)
        if partials := sum(result.partials for result in results):
            self._spread = partials / max(1, keys)
        else:
            # What one odd batch showed is forgotten after some tens of others.
            self._spread = 1 + (self._spread - 1) * _REMEMBERED
        worth_it = rows >= _LEAST_ROWS and self._spread * keys <= _WORTH_IT * rows
        self.few_keys = keys <= _FEW_KEYS if worth_it else None


def can_add_up(task: StateTask, schema: t.StructType) -> bool:
    """Whether rows of this schema may come to a task added up."""
    aggregates = task.step.state.added_up
    key = [column.name for column in task.step.table.key]
    if not aggregates or task.late_to is not None or len(task.times.watermarks) > 1:
        # Late rows go on as they are.
        return False
    if task.step.lateness is not None and not {*task.step.lateness.columns} <= {*key}:
        return False
    if any(_has_collation(schema[name].dataType) for name in (*key, *task.step.state.needs)):
        return False
    return all(_can_add_up(made, schema) for _, made in aggregates)


def _can_add_up(made: Aggregate, schema: t.StructType) -> bool:
    kind = schema[made.column].dataType if made.column else None
    match made.function:
        case "count":
            return True
        case "sum" | "mean":
            return not isinstance(kind, t.DecimalType) or kind.precision <= _MOST_DIGITS
        case "min" | "max":
            return isinstance(kind, _KEPT)
    return isinstance(kind, _KEPT) and isinstance(schema[str(made.by)].dataType, _NUMBERED)


def _has_collation(kind: t.DataType) -> bool:
    """Whether Spark takes strings for equal that are not the same."""
    if isinstance(kind, t.StructType):
        return any(_has_collation(field.dataType) for field in kind)
    return isinstance(kind, t.StringType) and not kind.isUTF8BinaryCollation()


def added_up(rows: DataFrame, task: StateTask) -> tuple[DataFrame, StateTask]:
    """One row for each key of these rows, with its `_hash`, and the task for such rows. To be asked of what can be."""
    schema, key = rows.schema, [column.name for column in task.step.table.key]
    aggregates = task.step.state.added_up
    made = {ROWS: "count(1)", TASKS: f"bit_or({TASKS})"}
    picked: dict[str, str] = {}
    for name, one in aggregates:
        if one.function in ("first", "last"):
            made[part("picked", name)] = _picked(one, schema)
            picked |= {part(what, name): f"{in_backticks(part('picked', name))}.{what}" for what in ("value", "by")}
        else:
            made |= {part(what, name): column for what, column in _parts(one, schema).items()}
    # Which task a row is in, may only be asked outside of aggregates.
    inner = {TASKS: f"shiftleft(1L, spark_partition_id() % {MOST_TASKS})"}
    times = task.times
    if times.watermarks:
        (watermark,) = times.watermarks
        at = f"unix_micros(CAST({in_backticks(watermark.columns[0])} AS timestamp))"
        # A number that is another one in each batch, plainly written, would have Spark compile each batch's code.
        inner[_BOUND] = f"get(array({(times.bound_ms + 1) * 1000}L), shiftright(spark_partition_id(), 31))"
        in_time = f"{at} < {_BOUND}"
        made |= {AT: f"max(CASE WHEN {in_time} THEN {at} END)", AHEAD: f"count_if(NOT ({in_time}))"}
        times = replace(times, watermarks=(replace(watermark, columns=(AT,)),))
    columns = tuple(name for name in made if not name.startswith(part("picked", "")))
    keys = ", ".join(map(in_backticks, key))
    needed = ", ".join(map(in_backticks, dict.fromkeys((*key, *task.step.state.needs, *task.times.names))))
    # One statement: made of Spark's functions, one by one, it would take as long as a small batch. Over a view that the
    # next batch replaces, in the query's own session: one that `sql` makes itself, and drops, takes a third longer.
    rows.createOrReplaceTempView(_BATCH)
    parts = rows.sparkSession.sql(
        f"SELECT {keys}, {_listed({name: in_backticks(name) for name in columns} | picked)}, "
        f"xxhash64({keys}) AS _hash FROM ("
        f"SELECT {keys}, {_listed(made)} FROM ("
        f"SELECT {needed}, {_listed(inner)} FROM {_BATCH}) GROUP BY {keys})"
    )
    step = replace(task.step, state=task.step.state.over_partials((*columns, *picked)))
    return parts, replace(task, step=step, times=times)


def _listed(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{column} AS {in_backticks(name)}" for name, column in columns.items())


def _parts(made: Aggregate, schema: t.StructType) -> dict[str, str]:
    """What is kept of several rows by an aggregate that needs no order, by what it is, as SQL."""
    if made.column is None:
        return {"count": "count(1)"}
    column, kind = in_backticks(made.column), schema[made.column].dataType
    if made.function == "count":
        return {"count": f"count({column})"}
    if made.function in ("sum", "mean"):
        # Sums of halves have room in 64 bits, whatever becomes of the whole.
        halves = {"sum": f"sum(shiftright({column}, 32))", "low": f"sum({column} & {0xFFFFFFFF}L)"}
        sums = halves if isinstance(kind, t.LongType) else {"sum": f"sum({column})"}
        return sums | ({"count": f"count({column})"} if made.function == "mean" else {})
    if isinstance(kind, _FRACTIONS):
        column = f"CASE WHEN NOT isnan({column}) THEN {column} END"
    if isinstance(kind, _IN_PLACE):
        return {"value": f"{made.function}({column})"}
    return {"value": _by(made.function, column, column)}


def _by(function: str, value: str, rank: str) -> str:
    """Of several rows, the value of that with the largest rank, or the smallest (`max`, `min`), as SQL."""
    return f"get({function}_by({value}, {rank}, 1), 0)" if _KEEPS_IN_PLACE else f"{function}_by({value}, {rank})"


def _picked(made: Aggregate, schema: t.StructType) -> str:
    """Value and `by` of the first or last of several rows; of equals, the largest value, and NaN before nothing."""
    value, by = in_backticks(str(made.column)), in_backticks(str(made.by))
    kind = schema[str(made.by)].dataType
    number = f"unix_micros(CAST({by} AS timestamp))" if isinstance(kind, _TIMES) else f"CAST({by} AS bigint)"
    if isinstance(kind, t.DateType):
        number = f"CAST(unix_date({by}) AS bigint)"
    order = number if made.function == "last" else f"~{number}"
    known = f"NOT isnan({value})" if isinstance(schema[str(made.column)].dataType, _FRACTIONS) else "true"
    rank = f"CASE WHEN {by} IS NOT NULL THEN struct({order}, {value} IS NOT NULL, {known}, {value}) END"
    return _by("max", f"struct({value} AS value, {by} AS by)", rank)
