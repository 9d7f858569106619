"""Changes of state variables, read from changelogs without Spark, equal those of Spark's own reader."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from slackwater.operations.attach.protocol import APPENDED, DELETED
from slackwater.operations.from_spark.checkpoint.checkpoint import open_checkpoint
from slackwater.operations.from_spark.checkpoint.tables import StateTable

from tests.models.profiles import SEARCHES
from tests.operations.from_spark.checkpoint.by_spark import State, by_spark, plain_arrow

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


@pytest.mark.parametrize("name", ["transform-changelog", pytest.param("transform-format2", marks=pytest.mark.ci)])
def test_changelogs_have_the_changes_that_sparks_own_reader_returns(
    name: str, recorded: Callable[[str], Path], spark: SparkSession
) -> None:
    """Also for all kinds of variables, with and without time to live, timers, and one or several batches at once."""
    folder = recorded(name)
    with open_checkpoint(str(folder), spark) as checkpoint:
        first, *later = checkpoint.readable_batches()[-4:]
        assert len(checkpoint.tables) == 7
        compared = (first, *later) if SEARCHES else (first, later[-1])
        expected = {
            (table.name, batch): by_spark(spark, folder, checkpoint, table, batch)
            for table, batch in product(checkpoint.tables, compared)
        }
        jobs = _jobs(spark)
        assert jobs
        for table, at_once in product(checkpoint.tables, (1, 2, 3)):
            state = dict(expected[table.name, first])
            ends = [*later[at_once - 1 : -1 : at_once], later[-1]]
            read = checkpoint.read_changes(table, first, later[-1], at_once=at_once, appended=True)
            for batch, changed in zip(ends, read, strict=True):
                _apply(state, table, changed)
                assert state == expected.get((table.name, batch), state), (table.name, at_once, batch)
        assert _jobs(spark) == jobs, "Spark ran nothing"


def _jobs(spark: SparkSession) -> int:
    """Return the number of Spark jobs so far."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def _apply(state: State, table: StateTable, changes: pa.Table) -> None:
    keys = set()
    for row in changes.to_pylist():
        values: tuple[Any, ...] = tuple(plain_arrow(row[name]) for name in table.schema.names)
        key, values = values[: len(table.key)], values[len(table.key) :]
        assert key not in keys, "a key is there twice"
        keys.add(key)
        if row[DELETED]:
            state.pop(key, None)
        elif row.get(APPENDED) and key in state:
            state[key] = (state[key][0] + values[0],)
        else:
            state[key] = values
