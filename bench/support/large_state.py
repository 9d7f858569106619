"""Apps that begin with a large table: its SSTs are written as a compaction would leave them, and committed."""

from __future__ import annotations

import os
import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .events import names

if TYPE_CHECKING:
    import numpy.typing as npt
    import slackwater as sw
    from pyspark.sql import DataFrame, SparkSession
    from slackwater.store.objects.protocol import ObjectStore
    from slackwater.store.versions.entries.ssts import Sst
    from slackwater.store.versions.manifest import Manifest, Table

APP, STAGE = "bench", "legs"
ROWS_PER_SST = 2_500_000
"""Number of rows per SST, so that it has about the size at which compaction splits its results."""
_HASHED_AT_ONCE = 10_000_000
"""Maximum number of keys whose names are in memory. An Arrow array of strings holds at most 2 GiB."""


def app_of(topic: str, keys: int, partitions: int) -> sw.App:
    """Return an app that counts and sums by leg.

    Its topic has ranges of numbers; each number is mapped to one of `keys` legs.
    """
    import slackwater as sw

    app = sw.App(APP)

    @app.stage(
        name=STAGE,
        reads=sw.topic(topic),
        key="leg",
        state=sw.aggregate(flights=sw.count(), delay=sw.sum("delay")),
        table=sw.table(partitions=partitions),
    )
    def legs(messages: DataFrame) -> DataFrame:
        return legs_of(messages, keys)

    return app


def legs_of(messages: DataFrame, keys: int) -> DataFrame:
    """Return one row for each number of the topic's ranges."""
    from pyspark.sql import functions as F

    ends = F.split(F.col("value").cast("string"), ",").cast("array<long>")
    numbers = messages.select(F.explode(F.sequence(ends[0], ends[1])).alias("number"))
    # The step is coprime to the number of keys: every key comes once before any key is repeated, and neighbours are far
    # apart.
    leg = (F.col("number") * 7_919) % keys
    name = F.concat(F.lit("leg-"), F.lpad(leg.cast("string"), 9, "0"))
    return numbers.select(name.alias("leg"), (F.col("number") % 60).cast("double").alias("delay"))


def write(root: Path, app: sw.App, spark: SparkSession, bootstrap: str, keys: int, *, at_end: bool = False) -> None:
    """Write an app with a table of this many keys. Its offsets are at the beginning of its topic, or at the end."""
    from msgspec.structs import replace
    from slackwater.pipeline.kafka.open import open_kafka
    from slackwater.store.objects.open import open_store
    from slackwater.store.versions import commit

    store = open_store(str(root))
    claimed = begun(store, app, spark, bootstrap)
    assert claimed.table is not None
    made = commit.successor(claimed, kind="batch", epoch=1, writer="bench", by="bench", now_ms=claimed.time_ms + 1)
    if at_end:
        kafka = open_kafka(bootstrap)
        inputs = {name: replace(one, offsets=kafka.offset_bounds(one.topic)[1]) for name, one in claimed.inputs.items()}
        made = replace(made, inputs=inputs)
    commit.commit(store, replace(made, ssts=_ssts(store, claimed.table, keys)))


def begun(store: ObjectStore, app: sw.App, spark: SparkSession, bootstrap: str) -> Manifest:
    """Commit the first version of an app of one stage. The stage is claimed, and has read nothing."""
    from slackwater.pipeline.batch.schemas import derive_schemas
    from slackwater.pipeline.kafka.open import open_kafka
    from slackwater.pipeline.publish.sinks import create_internal_topics
    from slackwater.pipeline.run.claim import Claimer
    from slackwater.store.versions import apps
    from slackwater.store.versions.manifest import AppInfo

    kafka = open_kafka(bootstrap)
    apps.ensure_app(store, AppInfo(APP, time.time_ns() // 1_000_000))
    (stage,) = app.stages_in_order()
    create_internal_topics(kafka, APP, (stage,), None, validate_only=False)
    claimer = Claimer(store, kafka, app, {}, writer="bench", by="bench", accept_loss=False)
    return claimer.claim(stage, derive_schemas(app, spark)[stage.name], time.time_ns() // 1_000_000)


def fill_cache(root: Path, folder: Path) -> None:
    """Fetch all SSTs of the app's table into a cache folder."""
    from slackwater.store.objects.open import open_store
    from slackwater.store.read.cache import SstCache
    from slackwater.store.versions import history

    store = open_store(str(root))
    head = history.head(store, APP, STAGE)
    assert head is not None
    assert head.table is not None
    cache = SstCache(folder, 1 << 40)
    for sst in head.ssts:
        cache.prefetch(store, sst, head.table)
    cache.close()


def copy(root: Path, to: Path) -> None:
    """Copy a store root by hard links, because objects never change."""
    shutil.copytree(root, to, copy_function=os.link)


def _ssts(store: ObjectStore, table: Table, keys: int) -> tuple[Sst, ...]:
    """Write SSTs of at most `ROWS_PER_SST` rows, each in one state partition."""
    from msgspec.structs import replace
    from slackwater.store.sst import writer
    from slackwater.store.sst.hashing import hash_keys, partition_of

    parts = (np.arange(first, min(first + _HASHED_AT_ONCE, keys)) for first in range(0, keys, _HASHED_AT_ONCE))
    hashes = np.concatenate([hash_keys(pa.table({"leg": _legs(part)}), ["leg"]) for part in parts])
    order = np.argsort(hashes)
    hashes = hashes[order]
    ends = np.searchsorted(partition_of(hashes, table.partitions), np.arange(table.partitions + 1))
    made = []
    pieces = (
        (partition, start, min(start + ROWS_PER_SST, last))
        for partition, (first, last) in enumerate(pairwise(ends.tolist()))
        for start in range(first, last, ROWS_PER_SST)
    )
    for partition, start, end in pieces:
        rows = pa.table(
            {
                "_hash": hashes[start:end],
                "leg": _legs(order[start:end]),
                "flights": np.ones(end - start, np.int64),
                "delay": (order[start:end] % 60).astype(np.float64),
                "_seq": np.ones(end - start, np.int64),
                "_op": np.zeros(end - start, np.int8),
            }
        )
        new = writer.write_sst(store, None, app=APP, stage=STAGE, table=table, partition=partition, rows=rows)
        made.append(replace(new, level=1))
    return tuple(made)


def _legs(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return names(numbers).cast(pa.string())
