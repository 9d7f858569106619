"""Rows that stand for several of a key, added up before they are brought to their state partition.

Such a row has the key, how many rows it stands for (`ROWS`), in which tasks these were read (`TASKS`), and of each
aggregate the columns of `aggregate.part`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .kinds.aggregate import ROWS, BoundAggregates
from .kinds.due import BoundDue
from .kinds.kind import BoundState

TASKS = "_slackwater_tasks"
"""An int64 whose bit n says whether task n, modulo `MOST_TASKS`, had one of the rows."""
MOST_TASKS = 63


def aggregates_of(state: BoundState | None) -> BoundAggregates | None:
    """The aggregates whose rows may be added up before; None of a state that takes each row by itself."""
    inner = state.inner if isinstance(state, BoundDue) and state.final else state
    return inner if isinstance(inner, BoundAggregates) else None


def over_partials(state: BoundState, columns: tuple[str, ...]) -> BoundState:
    """The same state over rows that stand for several, whose columns besides the key these are."""
    if isinstance(state, BoundDue):
        return replace(state, inner=over_partials(state.inner, columns))
    assert isinstance(state, BoundAggregates)  # noqa: S101  as `aggregates_of` says
    return replace(state, needs=columns)


def num_rows(rows: pa.Table) -> int:
    """How many rows these are, or stand for."""
    return int(pc.sum(rows[ROWS]).as_py() or 0) if ROWS in rows.column_names else int(rows.num_rows)


def num_partials(rows: pa.Table) -> int:
    """How many rows of several each task of Spark's made at most, before those of a key were made one; else 0."""
    if TASKS not in rows.column_names:
        return 0
    return int(np.unpackbits(pc.fill_null(rows[TASKS], 0).to_numpy().view(np.uint8)).sum())
