"""A stage's function applied to DataFrames: streams of a query, or rows that are at hand.

What would keep state where no snapshot sees it is refused, before anything is written. What `withWatermark` says in it
is in Spark's plan, as a node and as metadata of the column; the query keeps no state that needs it, the stage does.
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
from ...state.event_time import Times
from ...state.failing import RECORD
from ...state.multi_input import TAG, name_of
from ...store.versions.column_types import in_backticks
from ..api.stage import Stage
from ..api.topic import Topic
from ..messages.decode import reading
from ..spark.plans import children, first_column, kind, nodes, once, paths, plan_of
from ..spark.user_errors import as_user_error

# Operators of Spark's plans that keep state between the batches of a streaming query, and the state to say instead.
_STATEFUL = {
    "Aggregate": "aggregate(...)",
    **dict.fromkeys(("Deduplicate", "DeduplicateWithinWatermark", "Distinct"), "upsert(by=...)"),
    **dict.fromkeys(("FlatMapGroupsWithState", "TransformWithState", "GlobalLimit"), "update(...)"),
    "FlatMapGroupsInPandasWithState": "pandas_state(fn, output, state, timeout)",
    **dict.fromkeys(("TransformWithStateInPandas", "TransformWithStateInPySpark"), "processor(MyProcessor(), output)"),
    "Window": "update(..., order_by=...)",
}
_WATERMARK, _DELAY = "EventTimeWatermark", "spark.watermarkDelayMs"
"""Spark's operator of `withWatermark`, and what it marks the column with."""


@dataclass(frozen=True, slots=True)
class DeclaredWatermark:
    """A watermark on the rows of one DataFrame: the column that is their event time, and the delay."""

    column: str
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Applied:
    """What a stage's function makes of its inputs, and of each DataFrame the watermark that it declared."""

    frames: tuple[DataFrame, ...]
    """One, or one for each input (with state) or output (without). Those for outputs read each stream once."""
    sources: tuple[str, ...]
    """The inputs' names in the order in which Spark numbers the sources of the query."""
    declared: tuple[DeclaredWatermark | None, ...] = ()


@contextmanager
def _calling(stage: Stage) -> Iterator[None]:
    """While a stage's function runs. Raises `Refused` where it fails."""
    topics = [one.name for one in stage.inputs.values() if isinstance(one, Topic)]
    with as_user_error(f"stage {stage.name!r}", stage.transform), reading(topics):
        yield


def apply(stage: Stage, inputs: Mapping[str, DataFrame]) -> Applied:
    """The stage's function applied to one DataFrame for each input. Raises `Refused` as `shapes` does."""
    with _calling(stage):
        frames = _frames(stage, inputs.values())
        _check_frames(stage, frames)
        for frame in frames:
            frame.schema  # noqa: B018  Spark analyses the plan here
    for frame in frames:
        if not frame.isStreaming:
            raise Refused(
                f"stage {stage.name!r} returned a DataFrame that does not come from its stream",
                hint="build what it returns from the DataFrame it is given",
            )
        _refuse_state(stage, plan_of(frame))
    sources = _sources(stage, inputs, frames)
    declared = tuple(_declared(stage.name, plan_of(frame), frame.schema) for frame in frames)
    return Applied(once(frames) if each_output(stage, frames) else frames, sources, declared)


def over(stage: Stage, inputs: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
    """What the stage's function makes of DataFrames that do not stream, as `Applied.frames`. Raises `Refused`."""
    with _calling(stage):
        return _frames(stage, inputs)


def _frames(stage: Stage, inputs: Iterable[DataFrame]) -> tuple[DataFrame, ...]:
    made = stage.transform(*inputs)
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def each_output(stage: Stage, frames: Sequence[object]) -> bool:
    """Whether these are a DataFrame for each output: without state, there is nothing else that they could be."""
    return stage.state is None and len(frames) > 1 and len(frames) == len(stage.writes)


def _check_frames(stage: Stage, frames: tuple[object, ...]) -> None:
    for frame in frames:
        if not isinstance(frame, DataFrame):
            raise Refused(f"stage {stage.name!r} returned {type(frame).__name__}; expected a DataFrame")
    if len(frames) == 1 or each_output(stage, frames):
        return
    outputs = ", ".join(repr(output.name) for output in stage.writes)
    if stage.state is None and len(stage.writes) > 1:
        raise Refused(
            f"stage {stage.name!r} returned {len(frames)} DataFrames; expected one, whose rows go to each of its "
            f"outputs, or one for each of these: {outputs}",
            hint="return a tuple in the order of writes=",
        )
    if len(frames) != len(stage.reads):
        expected = "one" if stage.state is None else f"one, or one for each of its {len(stage.reads)} inputs"
        each = "state=slackwater.update(..., emits=(…, …)) gives each rows of its own"
        raise Refused(
            f"stage {stage.name!r} returned {len(frames)} DataFrames; expected {expected}",
            hint=f"{outputs} get what the state emits: {each}" if len(stage.writes) > 1 else "",
        )


def _refuse_state(stage: Stage, plan: Any) -> None:
    for node in nodes(plan):
        if not node.isStreaming():
            continue
        if (name := kind(node)) in _STATEFUL:
            raise Refused(
                f"stage {stage.name!r} uses a streaming {name}, whose state no snapshot would see",
                hint=f"say it as state=slackwater.{_STATEFUL[name]} on the stage, or do it on the rows of one event",
            )
        if name != "Union" and sum(child.isStreaming() for child in children(node)) > 1:
            raise Refused(
                f"stage {stage.name!r} uses a {name} of two streams, whose state no snapshot would see",
                hint="return the DataFrames as a tuple, one for each input: state=slackwater.join(...) joins them by "
                "key and time, and the function of state=slackwater.update(...) gets the rows of each",
            )


def _sources(stage: Stage, inputs: Mapping[str, DataFrame], frames: tuple[DataFrame, ...]) -> tuple[str, ...]:
    """The inputs' names in the order of the streams in the plan. Raises `Refused` unless each is there once."""
    names = {first_column(plan_of(frame)): name for name, frame in inputs.items()}
    # A stream that is used again gets new column ids the second time.
    each = [[names.get(first_column(stream)) for stream, *_ in paths(plan_of(frame))] for frame in frames]
    found = [name for used in each for name in used]
    for name in inputs:
        if name not in found:
            raise Refused(
                f"stage {stage.name!r} reads {name!r}, but nothing it returns comes from there",
                hint="leave the input out of reads=, or use it",
            )
    # What several outputs have in common is read once; what one of them uses twice is not.
    twice = [used for used in (each if each_output(stage, frames) else [found]) if len(used) > len({*used} - {None})]
    if twice:
        raise Refused(
            f"stage {stage.name!r} uses its {'stream' if len(inputs) == 1 else 'streams'} {len(twice[0])} times; "
            "each use would read all of its input again",
            hint="write it as one pass: a union of selects becomes one select with explode(array(...))",
        )
    return tuple(name for name in found if name is not None)


def tag(frames: Sequence[DataFrame], key: Sequence[str]) -> DataFrame:
    """All rows of these DataFrames, each of which has the key columns with the same types."""
    if len(frames) == 1:
        return frames[0]
    tagged = []
    for position, frame in enumerate(frames):
        mine = [F.col(in_backticks(name)) for name in key]
        for other, schema in enumerate(one.schema for one in frames):
            for field in schema:
                if field.name not in key:
                    value = F.col(in_backticks(field.name)) if other == position else F.lit(None)
                    mine.append(value.cast(field.dataType).alias(name_of(other, field.name)))
        tagged.append(frame.select(F.lit(position).alias(TAG), *mine))
    return reduce(lambda above, below: above.union(below), tagged)


def for_state(
    rows: DataFrame, key: Sequence[str], needs: Sequence[str], times: Times, late: Iterable[str]
) -> DataFrame:
    """What a state takes of a batch's rows: the key and its hash, what it and late rows need, times, and `RECORD`."""
    names = dict.fromkeys((*key, *needs, *times.names, *late, *({RECORD} & {*rows.columns})))
    return rows.select(
        *(F.col(in_backticks(name)) for name in names), F.xxhash64(*map(in_backticks, key)).alias("_hash")
    )


def _declared(stage: str, plan: Any, schema: StructType) -> DeclaredWatermark | None:
    """The watermark of a DataFrame that a stage's function returned. Raises `Refused` where it cannot be kept."""
    watermarks = [node for node in nodes(plan) if kind(node) == _WATERMARK]
    if not watermarks:
        return None
    for node in nodes(plan):
        if kind(node) == "Union" and any(kind(below) == _WATERMARK for below in nodes(node)):
            raise Refused(
                f"stage {stage!r} unites DataFrames that have watermarks of their own, whose rows nobody could tell "
                "apart any more",
                hint="say withWatermark of the union; or return a tuple of the DataFrames, for state=update(...)",
            )
    if len(watermarks) > 1:
        what = f"stage {stage!r} says withWatermark {len(watermarks)} times of the same rows"
        raise Refused(what, hint="leave all but one out")
    for field in schema:
        if _DELAY in field.metadata and field.dataType.typeName() in ("timestamp", "timestamp_ntz"):
            return DeclaredWatermark(field.name, int(field.metadata[_DELAY]))
    column = watermarks[0].eventTime().name()
    raise Refused(
        f"stage {stage!r} has a watermark on column {column!r}, which the rows that it returns do not have",
        hint=f"select {column!r} too: the watermark follows from the rows that the function returns",
    )
