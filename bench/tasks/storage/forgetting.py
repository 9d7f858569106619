"""Cost of forgetting one key of a table with 10 M rows and 200 versions, whose input is archived.

The key is written every few versions, so that SSTs of all ages contain it. Afterwards, every object under the root is
decoded to check that the key is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.store.archive import columns, index, merge
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.objects import ArchiveWriter
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, commit
from slackwater.store.versions.column_types import FieldSource
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Table

from ...support.row import Row
from ...support.written import Stage, ssts

ROWS = 10_000_000
VERSIONS = 200
BATCH = 20_000
EVERY = 10
"""Interval, in batches, at which the key is written."""
PERSON = 4_711_042
TABLE = Table((Column("person", "string"),), (Column("orders", "int64"), Column("cents", "double")), 8)


def rows(folder: Path, quick: bool) -> list[Row]:
    """Forget one key of a large table with a long history."""
    num_rows, versions = (ROWS // 50, VERSIONS // 10) if quick else (ROWS, VERSIONS)
    person = PERSON % num_rows
    store, cache = open_store(str(folder / "store")), SstCache(folder / "cache", 8 << 30)
    _history(store, cache, num_rows, versions, person)
    holding = sum(size for _, size in _holding(store, _name(person)))
    began = time.monotonic()
    done = forget(store, cache, "bench", RequestedKeys.parse([f"people={_name(person)}"]), by="bench")
    seconds = time.monotonic() - began
    left = list(_holding(store, _name(person)))
    what = f"forget one key of {num_rows:,} rows, {versions} versions"
    written, held = f"{done.written_bytes / 1e6:.0f} MB", f"that hold it: {holding / 1e6:.0f} MB"
    return [
        Row.at_most(f"{what}: bytes rewritten", written, held, done.written_bytes / holding, 1.2),
        Row(f"{what}: objects that hold it afterwards", str(len(left)), "none", len(left), "0", not left),
        Row(f"{what}: time", f"{seconds:.1f} s", f"{done.deleted} objects", seconds, "-", True),
    ]


def _name(number: int) -> str:
    return f"person-{number:08d}"


def _names(numbers: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise("person", digits, "-")


def _history(store: ObjectStore, cache: SstCache, num_rows: int, versions: int, person: int) -> None:
    apps.create_app(store, AppInfo("bench", 1))
    base = _rows(np.arange(num_rows))
    level = ssts(store, cache, "bench", "people", TABLE, base, 1, 1)
    read, lineage = {"orders": Input("orders", (0,))}, {"": {"person": (FieldSource("orders", "$.person"),)}}
    first = Manifest("bench", "people", 1, 1, "w", 1, "claim", read, table=TABLE, ssts=level, lineage=lineage)
    commit.commit(store, first)
    stage, random = Stage(store, cache, first), np.random.default_rng(1)
    for number in range(1, versions):
        chosen = random.choice(num_rows, min(BATCH, num_rows // 10), replace=False)
        chosen = np.setdiff1d(chosen, [person])
        if number % EVERY == 0:
            chosen = np.append(chosen, person)
        stage.put(_rows(chosen))
        stage.compact()
        _archive(store, chosen, number)


def _rows(numbers: np.ndarray) -> pa.Table:
    ones = np.ones(len(numbers), np.int64)
    return pa.table({"person": _names(numbers), "orders": ones, "cents": numbers.astype(np.float64)})


def _archive(store: ObjectStore, numbers: np.ndarray, batch: int) -> None:
    names, count = _names(numbers), len(numbers)
    values = pc.binary_join_element_wise('{"person": "', names, '", "cents": 100}', "")
    first = (batch - 1) * 2 * BATCH
    records = pa.table(
        {
            "topic": pa.repeat("orders", count),
            "partition": np.zeros(count, np.int32),
            "offset": np.arange(first, first + count),
            "timestamp": pa.array(np.full(count, batch * 1000)).cast(columns.TIME),
            "timestampType": np.zeros(count, np.int32),
            "key": names.cast(pa.binary()),
            "value": values.cast(pa.binary()),
            "headers": pa.nulls(count, columns.HEADERS),
        }
    ).cast(columns.SCHEMA)
    archive = index.newest(store, "bench", "orders") or index.empty_index("bench", "orders")
    extents = (Extent(0, first, first + count),)
    writer = ArchiveWriter()
    writer.append(records)
    merge.append(store, archive, writer, extents, batch, by="bench", now_ms=batch)


def _holding(store: ObjectStore, name: str) -> Iterator[tuple[str, int]]:
    """Yield the objects whose decoded content has the name, each with its size."""
    word = name.encode()
    for info in store.list(""):
        data = store.get(info.key)
        if not info.key.endswith(".parquet"):
            if word in data:
                yield info.key, info.size_bytes
            continue
        table = pq.read_table(BytesIO(data))
        texts = (column for column in table.columns if column.type in (pa.string(), pa.binary()))
        if any(pc.any(pc.match_substring(column.cast(pa.binary()), word)).as_py() for column in texts):
            yield info.key, info.size_bytes
