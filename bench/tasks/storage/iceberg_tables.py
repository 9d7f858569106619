"""Export of a table to Iceberg without a copy, beside a copy of its rows; then again after 1 % of the rows changed.

`python -m bench.tasks.storage.iceberg_tables [FOLDER] [--quick]` prints its rows alone; `--quick` uses 1 M rows instead
of 10 M.

Everything is in local folders. The table's SSTs are compacted; the changes are in one level-0 SST per state partition
on top, as a batch writes them. The peer is DuckDB, which writes the rows of the same version to Parquet. The import of
pyiceberg, a second or two, is not included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from slackwater.operations.exchange.iceberg.export import IcebergExport, WrittenTable
from slackwater.snapshot.cut.graph import Cut
from slackwater.store.objects.open import open_store
from slackwater.store.read import duckdb_view
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Manifest

from ...multi_get import TABLE
from ...support.row import Row
from ...support.written import ssts

ROWS = 10_000_000
QUICK_ROWS = 1_000_000
_CHUNK = 2_500_000
_CHANGED = 100
"""One in this many rows changes."""


def rows(folder: Path, quick: bool) -> list[Row]:
    """Write the table to the folder, and measure. Takes two minutes at full scale.

    Args:
        folder: an empty folder on a disk with 1 GB.
        quick: 1 M rows instead of 10 M.
    """
    count = QUICK_ROWS if quick else ROWS
    store, lake = open_store(str(folder / "store")), open_store(str(folder / "lake"))
    with closing(SstCache(folder / "cache", 1 << 34)) as cache:
        export = IcebergExport(store, cache, lake, "bench")
        base: tuple[Sst, ...] = ()
        for start in range(0, count, _CHUNK):
            numbers = np.arange(start, min(start + _CHUNK, count))
            base += ssts(store, None, "bench", "legs", TABLE, _legs(numbers, 1), 1 + start // _CHUNK, 1)
        first, first_s = _timed(export, base, 10)
        changed = ssts(store, None, "bench", "legs", TABLE, _legs(np.arange(0, count, _CHANGED), 2), 11, 0)
        second, second_s = _timed(export, (*base, *changed), 11)
        again, again_s = _timed(export, (*base, *changed), 11)
        whole, whole_s = _timed(
            IcebergExport(store, cache, open_store(str(folder / "other")), "bench"), (*base, *changed), 11
        )
        manifest = _manifest((*base, *changed), 11)
        began = time.perf_counter()
        with duckdb.connect() as con:
            duckdb_view.register_table(con, "legs", store, cache, manifest)
            con.execute(f"COPY legs TO '{folder / 'copy.parquet'}' (COMPRESSION zstd)")
        copy_s, copied = time.perf_counter() - began, (folder / "copy.parquet").stat().st_size
    assert (again.moved, second.rows, whole.rows) == (False, count, count)
    peer = f"a copy by DuckDB: {copy_s:.1f} s, {copied:,} bytes"
    about = f"{count:,} rows, {whole.files} SSTs of {whole.bytes:,} bytes"
    print(f"nothing replaced: {first_s:.2f} s, {first.written_bytes:,} bytes; the same again: {again_s:.3f} s, 0 bytes")
    return [
        Row.at_most(
            f"export --iceberg of {about}, {whole.hidden:,} of them replaced: bytes written",
            f"{whole.written_bytes:,} bytes, {whole_s:.2f} s",
            peer,
            whole.written_bytes / copied,
            0.02,
        ),
        Row.at_most(
            f"the increment after {count // _CHANGED:,} of its rows changed",
            f"{second.written_bytes:,} bytes, {second_s:.2f} s",
            peer,
            second.written_bytes / copied,
            0.02,
        ),
    ]


def _legs(numbers: np.ndarray[tuple[int], np.dtype[np.int64]], delay: float) -> pa.Table:
    legs = [f"leg-{number * 7_919 % 100_000_007:09}" for number in numbers.tolist()]
    return pa.table({"leg": legs, "flights": numbers % 97, "delay": numbers * 0.37 * delay})


def _manifest(each: tuple[Sst, ...], version: int) -> Manifest:
    return Manifest("bench", "legs", version, 1, "bench", version, "batch", table=TABLE, ssts=each)


def _timed(export: IcebergExport, each: tuple[Sst, ...], version: int) -> tuple[WrittenTable, float]:
    began = time.perf_counter()
    (done,) = export.write(Cut("bench", {"legs": _manifest(each, version)}), version)
    return done, time.perf_counter() - began


if __name__ == "__main__":
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-", dir=named[0] if named else None) as work:
        for row in rows(Path(work), "--quick" in sys.argv):
            print(row)
