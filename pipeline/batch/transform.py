"""Calls a stage's function on DataFrames: on the streams of its query, or on given records.

Operators that would keep Spark state, which snapshots cannot include, are refused before anything is written. A
watermark that the function declares by `withWatermark` is read from Spark's plan and from the metadata of its column.
The stage itself keeps the watermark; Spark's query has none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ...errors import Refused
from ...state.event_time import EventTimeScan
from ...state.failing import RECORD
from ...state.multi_input import INPUT_COLUMN, tagged_name
from ...store.versions.column_types import Lineage, quote_for_spark
from ..api.stage import Stage
from ..api.topic import Topic
from ..messages.decode import default_topics
from ..spark.plans import analysed_plan, children, class_name, first_column_id, nodes, share_streams, stream_paths
from ..spark.user_errors import as_user_error

# Operators of Spark's plans that keep state between the batches of a streaming query, and the state to declare instead.
_STATEFUL = {
    "Aggregate": "aggregate(...)",
    **dict.fromkeys(("Deduplicate", "DeduplicateWithinWatermark", "Distinct"), "upsert(by=...)"),
    **dict.fromkeys(("FlatMapGroupsWithState", "TransformWithState", "GlobalLimit"), "update(...)"),
    "FlatMapGroupsInPandasWithState": "pandas_state(fn, output, state, timeout)",
    **dict.fromkeys(("TransformWithStateInPandas", "TransformWithStateInPySpark"), "processor(MyProcessor(), output)"),
    "Window": "update(..., order_by=...)",
}
_WATERMARK, _DELAY = "EventTimeWatermark", "spark.watermarkDelayMs"
"""Spark's operator for `withWatermark`, and the metadata key of its delay."""


@dataclass(frozen=True, slots=True)
class DeclaredWatermark:
    """Watermark that a stage's function declares: the column with the event time, and the delay."""

    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class AppliedFunction:
    """DataFrames that a stage's function returned, and the watermark declared by each DataFrame."""

    frames: tuple[Any, ...]
    """Returned DataFrames. With state: one, or one for each input. Without state: one, or one for each output."""
    sources: tuple[str, ...]
    """Names of the inputs, in the order of Spark's source numbers."""
    watermarks: tuple[DeclaredWatermark | None, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    """Source fields of each DataFrame's columns, if they were traced."""


@contextmanager
def _user_code(stage: Stage) -> Iterator[None]:
    topics = [source.name for source in stage.inputs.values() if isinstance(source, Topic)]
    with as_user_error(f"stage {stage.name!r}", stage.transform), default_topics(topics):
        yield


def apply_to_streams(stage: Stage, inputs: Mapping[str, DataFrame]) -> AppliedFunction:
    """Call the stage's function with streaming DataFrames. Raises `Refused` for a result that a stage cannot use."""
    with _user_code(stage):
        frames = _call_function(stage, inputs.values())
        _check_frames(stage, frames)
        for frame in frames:
            frame.schema  # noqa: B018  Spark analyses the plan here
    for frame in frames:
        if not frame.isStreaming:
            raise Refused(
                f"stage {stage.name!r} returned a DataFrame that is not derived from its input stream",
                hint="derive the result from the function's argument",
            )
        _check_stateless(stage, analysed_plan(frame))
    sources = _source_order(stage, inputs, frames)
    declared = tuple(_declared_watermark(stage.name, analysed_plan(frame), frame.schema) for frame in frames)
    return AppliedFunction(share_streams(frames) if has_frame_per_output(stage, frames) else frames, sources, declared)


def apply_to_records(stage: Stage, inputs: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
    with _user_code(stage):
        return _call_function(stage, inputs)


def _call_function(stage: Stage, inputs: Iterable[DataFrame]) -> tuple[DataFrame, ...]:
    result = stage.transform(*inputs)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def has_frame_per_output(stage: Stage, frames: Sequence[object]) -> bool:
    return stage.state is None and len(frames) > 1 and len(frames) == len(stage.writes)


def _check_frames(stage: Stage, frames: tuple[object, ...]) -> None:
    for frame in frames:
        if not isinstance(frame, DataFrame):
            raise Refused(f"stage {stage.name!r} returned {type(frame).__name__}; expected a DataFrame")
    if len(frames) == 1 or has_frame_per_output(stage, frames):
        return
    outputs = ", ".join(repr(output.name) for output in stage.writes)
    if stage.state is None and len(stage.writes) > 1:
        raise Refused(
            f"stage {stage.name!r} returned {len(frames)} DataFrames; expected one, whose rows go to each "
            f"output, or one for each of these outputs: {outputs}",
            hint="return a tuple in the order of writes=",
        )
    if len(frames) != len(stage.reads):
        expected = "one" if stage.state is None else f"one, or one for each of its {len(stage.reads)} inputs"
        instead = "state=slackwater.update(..., emits=(…, …)) gives each rows of its own"
        raise Refused(
            f"stage {stage.name!r} returned {len(frames)} DataFrames; expected {expected}",
            hint=f"{outputs} get what the state emits: {instead}" if len(stage.writes) > 1 else "",
        )


def _check_stateless(stage: Stage, plan: Any) -> None:
    for node in nodes(plan):
        if not node.isStreaming():
            continue
        if (name := class_name(node)) in _STATEFUL:
            raise Refused(
                f"stage {stage.name!r} uses a streaming {name}: snapshots cannot include Spark's own state",
                hint=f"declare state=slackwater.{_STATEFUL[name]} on the stage, or compute it from each record alone",
            )
        if name != "Union" and sum(child.isStreaming() for child in children(node)) > 1:
            raise Refused(
                f"stage {stage.name!r} uses a {name} of two streams: snapshots cannot include Spark's own state",
                hint="return the DataFrames as a tuple, one for each input. state=slackwater.join(...) joins them by "
                "key and time; the function of state=slackwater.update(...) gets the rows of each",
            )


def _source_order(stage: Stage, inputs: Mapping[str, DataFrame], frames: tuple[DataFrame, ...]) -> tuple[str, ...]:
    """Return the inputs' names in the order of the plan's streams. Raises `Refused` unless every input occurs once."""
    names = {first_column_id(analysed_plan(frame)): name for name, frame in inputs.items()}
    # The columns of the second use of a stream have new ids.
    streams = [
        [names.get(first_column_id(stream)) for stream, *_ in stream_paths(analysed_plan(frame))] for frame in frames
    ]
    names_used = [name for used in streams for name in used]
    for name in inputs:
        if name not in names_used:
            raise Refused(
                f"stage {stage.name!r} reads {name!r}, but does not use it in what it returns",
                hint="remove the input from reads=, or use it",
            )
    # A stream shared by several outputs is read once. A stream used twice within one output would be read twice.
    twice = [
        used
        for used in (streams if has_frame_per_output(stage, frames) else [names_used])
        if len(used) > len({*used} - {None})
    ]
    if twice:
        raise Refused(
            f"stage {stage.name!r} uses its {'stream' if len(inputs) == 1 else 'streams'} {len(twice[0])} times; "
            "each use would read the whole input again",
            hint="use it once: replace a union of selects by one select with explode(array(...))",
        )
    return tuple(name for name in names_used if name is not None)


def union_tagged(frames: Sequence[DataFrame], key: Sequence[str]) -> DataFrame:
    """Return the union of DataFrames. Each row is tagged with the position of its DataFrame in `frames`.

    The types of key columns must be equal in all DataFrames.
    """
    if len(frames) == 1:
        return frames[0]
    tagged = []
    for position, frame in enumerate(frames):
        columns = [F.col(quote_for_spark(name)) for name in key]
        for other, schema in enumerate(frame.schema for frame in frames):
            for field in schema:
                if field.name not in key:
                    value = F.col(quote_for_spark(field.name)) if other == position else F.lit(None)
                    columns.append(value.cast(field.dataType).alias(tagged_name(other, field.name)))
        tagged.append(frame.select(F.lit(position).alias(INPUT_COLUMN), *columns))
    return reduce(lambda above, below: above.union(below), tagged)


def select_batch_columns(
    rows: DataFrame, key: Sequence[str], needs: Sequence[str], times: EventTimeScan, late: Iterable[str]
) -> DataFrame:
    """Select the columns that a batch's task needs: key, hash, values, times, columns of late rows, and `RECORD`."""
    names = dict.fromkeys((*key, *needs, *times.names, *late, *({RECORD} & {*rows.columns})))
    return rows.select(
        *(F.col(quote_for_spark(name)) for name in names), F.xxhash64(*map(quote_for_spark, key)).alias("_hash")
    )


def _declared_watermark(stage: str, plan: Any, schema: StructType) -> DeclaredWatermark | None:
    """Return the watermark of a returned DataFrame, or None. Raises `Refused` if the watermark is unusable."""
    watermarks = [node for node in nodes(plan) if class_name(node) == _WATERMARK]
    if not watermarks:
        return None
    for node in nodes(plan):
        if class_name(node) == "Union" and any(class_name(below) == _WATERMARK for below in nodes(node)):
            raise Refused(
                f"stage {stage!r} makes a union of DataFrames with watermarks of their own: their rows could not "
                "be told apart",
                hint="call withWatermark on the union; or return a tuple of the DataFrames, for state=update(...)",
            )
    if len(watermarks) > 1:
        problem = f"stage {stage!r} calls withWatermark {len(watermarks)} times on the same rows"
        raise Refused(problem, hint="remove all calls but one")
    for field in schema:
        if _DELAY in field.metadata and field.dataType.typeName() in ("timestamp", "timestamp_ntz"):
            return DeclaredWatermark(field.name, int(field.metadata[_DELAY]))
    column = watermarks[0].eventTime().name()
    raise Refused(
        f"stage {stage!r} has a watermark on column {column!r}, which its returned rows do not have",
        hint=f"select {column!r} too: the watermark is computed from the returned rows",
    )
