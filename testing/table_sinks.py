"""Table sinks in tests of an app: rows are collected in memory, and no table is written."""

from dataclasses import replace

import pyarrow as pa

from ..pipeline.api.app import App
from ..pipeline.api.sink import FunctionSink
from ..pipeline.api.stage import Stage
from ..pipeline.api.table_sink import TableSink
from ..pipeline.api.topic import Repartition

PublishedRows = dict[str, list[pa.Table]]
"""Rows of each version, by sink."""


def collect_rows(app: App, published: PublishedRows) -> App:
    """Return a copy of the app whose table sinks are functions that append their rows to `published`."""
    functions: dict[str, FunctionSink] = {}

    def in_test(output: object) -> object:
        if not isinstance(output, TableSink):
            return output
        rows = published.setdefault(output.name, [])
        function = FunctionSink(output.name, lambda _app, _stage, _version, table: rows.append(table))
        return functions.setdefault(output.name, function)

    def stage_in_test(stage: Stage) -> Stage:
        writes: tuple[Repartition | FunctionSink, ...] = tuple(map(in_test, stage.writes))  # type: ignore[arg-type]
        late = in_test(stage.event_time.late)
        return replace(stage, writes=writes, event_time=replace(stage.event_time, late=late))  # type: ignore[arg-type]

    return replace(app, stages={name: stage_in_test(stage) for name, stage in app.stages.items()})
