"""The program that computes a backfill: one stage, that reads users' topics itself and keeps the columns in question.

The functions of stateless stages before it are part of its own, so it writes nothing to Kafka: nobody sees what it
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...snapshot.backfill.targets import Target
from ..api.app import App
from ..api.event_time import DEFAULT_EVENT_TIME
from ..api.stage import Stage
from ..api.table import table
from ..api.topic import Topic
from ..batch.applied import over
from ..state.aggregate import narrowed
from ..state.update import silent
from .left_out import Offsets, without

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MAX_RECORDS = 1_000_000
"""A batch, where the program names no bound: what is computed is kept after each."""


def scratch_program(app: App, target: Target, topics: Mapping[str, str], skipped: Offsets) -> App:
    """An app of the target's name with its stage alone.

    Args:
        app: The program, which declares the stage.
        target: What is computed.
        topics: Users' topics that the app reads under another name, by the declared one.
        skipped: Records of users' topics that it does not see.
    """
    stage = app.stages[target.stage]
    assert stage.state is not None  # noqa: S101  only tables are backfilled
    read = {one.name: replace(one, name=topics.get(one.name, one.name)) for one in _topics(app, stage)}

    def transform(*frames: DataFrame) -> DataFrame:
        given = {name: without(one, skipped.get(name, {})) for name, one in zip(read, frames, strict=True)}
        return _made(app, stage, given)  # type: ignore[return-value]

    alone = replace(
        stage,
        transform=transform,
        reads=tuple(read.values()),
        writes=(),
        key=app.key_of(stage),
        state=silent(narrowed(stage.state, target.columns)),
        table=table(partitions=stage.table.partitions, compaction=stage.table.compaction),
        max_records=stage.max_records or _MAX_RECORDS,
        trigger=None,
        max_unflushed=None,
        # What it leaves out is what the app did: a record more, and its columns would not be of the same ones.
        on_error="stop",
        rejects="",
        event_time=DEFAULT_EVENT_TIME,
    )
    return App(target.scratch, {stage.name: alone}, app.file)


def _topics(app: App, stage: Stage) -> Iterator[Topic]:
    for one in stage.inputs.values():
        yield from (one,) if isinstance(one, Topic) else _topics(app, app.writer_of(one))


def _made(app: App, stage: Stage, given: Mapping[str, DataFrame]) -> tuple[DataFrame, ...]:
    """What a stage's function gives, of users' topics."""
    inputs = [given[one.name] if isinstance(one, Topic) else _sent(app, one, given) for one in stage.inputs.values()]
    return over(stage, inputs)


def _sent(app: App, channel: str, given: Mapping[str, DataFrame]) -> DataFrame:
    """The rows that a stage without state sends to one of its outputs."""
    writer = app.writer_of(channel)
    frames = _made(app, writer, given)
    each = frames if len(frames) > 1 else frames * len(writer.writes)
    return each[[output.name for output in writer.writes].index(channel)]
