"""Records that a backfill leaves out: those that the stage, or one before it, had rejected when the app was migrated.

Their rows are not in the table. If one is retried later, that adds it to all columns, the new ones too; with the past,
it would be there twice. One that was retried before the migration is part of the past like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from ...snapshot.backfill.windows import read_through
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions.aside import rejected_of
from ...store.versions.manifest import Manifest
from ..reject.table import Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Offsets = Mapping[str, Mapping[int, tuple[int, ...]]]
"""Of each topic as declared, by partition."""


def left_out(store: ObjectStore, cache: SstCache, migrated: Manifest) -> Offsets:
    """The records that waited to be retried at the version of a migration, of what had come to the stage by then.

    Raises:
        Refused: a version on the way was collected.
        Corruption: an SST is missing or damaged.
        Unavailable: the store did not answer.
    """
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for each in read_through(store, migrated):
        if not rejected_of(each).waiting:
            continue
        rows = Written(store, cache, each.app, each.stage).rows(each)
        waiting = rows.filter(pc.is_null(rows["retried"])).select(["input", "partition", "offset"])
        grouped = pa.TableGroupBy(waiting, ["input", "partition"]).aggregate([("offset", "list")])
        for row in grouped.to_pylist():
            found.setdefault(row["input"], {})[row["partition"]] = tuple(sorted(row["offset_list"]))
    return found


def without(records: DataFrame, offsets: Mapping[int, tuple[int, ...]]) -> DataFrame:
    """A user's topic without these records, by partition: no function or expression after it sees them."""
    for partition, some in offsets.items():
        # As text: a column made of each number is a call to the JVM.
        numbers = ", ".join(map(str, some))
        records = records.where(F.expr(f"NOT (partition = {partition} AND offset IN ({numbers}))"))
    return records
