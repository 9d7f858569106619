"""Spark queries to adopt: tables of the adopting program, and adoptions of a query."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace
from slackwater.operations.attach.protocol import ReadableCheckpoint
from slackwater.operations.from_spark.adopt.adoption import AdoptedBatch, Adoption
from slackwater.operations.from_spark.adopt.mapping import map_tables
from slackwater.state.event_time import TimeRules
from slackwater.state.fits import declare_parts, reconcile_parts
from slackwater.state.kinds.kind import BoundState, Kind
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.arrow_types import from_arrow
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Table


def table_of(kind: Kind, key: pa.Schema, bound: BoundState, partitions: int = 2) -> Table:
    """Return the table that a program with this state declares."""
    columns = (tuple(Column(each.name, from_arrow(each.type)) for each in of) for of in (key, bound.values))
    return Table(*columns, partitions, kind.stored)


def declared(kind: Kind, rows: pa.Schema, key: Sequence[str]) -> Table:
    """Return the table of a program with this kind of state, for rows with these columns."""
    return table_of(kind, pa.schema([rows.field(name) for name in key]), kind.bind([rows], tuple(key)))


def adoption(
    store: ObjectStore,
    cache: SstCache,
    checkpoint: ReadableCheckpoint,
    table: Table,
    *,
    stage: str = "totals",
    batches: range | None = None,
    rules: TimeRules = TimeRules(),  # noqa: B008  it is frozen
    on_step: Callable[[AdoptedBatch], None] = lambda _step: None,
    topics: Mapping[str, tuple[int, ...]] | None = None,
    bound: BoundState | None = None,
    **how: Any,
) -> Adoption:
    """Return an adoption of a checkpoint's query, which reads the topic `orders`, as the stage shop/totals."""
    sides = reconcile_parts(declare_parts(bound, table), table, {}) if bound is not None else {}
    first = Manifest("shop", stage, 1, 1, "w", 1, "init", table=table, by="host:1", side_tables=sides)
    inputs = {name: Input(name, at) for name, at in (topics or {"orders": (0, 0)}).items()}
    rows = lambda: map_tables(checkpoint.tables, table, f"stage shop/{stage}", bound)  # noqa: E731
    return Adoption(
        store, cache, checkpoint, replace(first, inputs=inputs), rows,
        batches=batches or checkpoint.readable_batches(), time_rules=rules, info=AppInfo("shop", 1),
        on_step=on_step, **how,
    )  # fmt: skip
