"""Memory and reads of merges of large rows."""

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pytest
from slackwater.errors import Corruption
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.plan import Compaction, newest_first
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.decode import decode
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions.codec import register_type
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Table

TABLE = Table((Column("n", "int64"),), (Column("events", "list<struct<text: string>>"),), partitions=1)
RUNS = 8
WORD_BYTES = 100


def write_run(store: LocalStore, keys: int, row_bytes: int, seq: int) -> Sst:
    """Write an SST of level 0 that has a list of random text for each key."""
    count = row_bytes // WORD_BYTES
    ends = np.arange(keys * count + 1, dtype=np.int32) * WORD_BYTES
    text = np.random.default_rng(seq).bytes(keys * count * WORD_BYTES // 2).hex().encode()
    words = pa.StringArray.from_buffers(keys * count, pa.py_buffer(ends), pa.py_buffer(text))
    starts = pa.array(np.arange(keys + 1) * count, pa.int32())
    events = pa.ListArray.from_arrays(starts, pa.StructArray.from_arrays([words], ["text"]))
    rows = pa.table({"n": np.arange(keys), "events": events})
    rows = rows.append_column("_hash", pa.array(hash_keys(rows, ["n"])))
    rows = rows.append_column("_seq", pa.array(np.full(keys, seq)))
    rows = rows.append_column("_op", pa.array(np.zeros(keys, np.int8)))
    return writer.write_sst(store, None, app="a", stage="s", table=TABLE, partition=0, rows=rows)


def peak_kib() -> int:
    """Return this process's peak memory. `getrusage` would include that of the parent process."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak)


def merge_and_measure(folder: Path) -> None:
    """Write to stdout: growth of peak memory during a merge (in MiB), the merge's rows, and the bytes that it read."""
    data = (folder / "ssts").read_bytes()
    table, ssts = msgspec.msgpack.decode(data, type=register_type(tuple[Table, tuple[Sst, ...]]))
    store, cache = CountingStore(LocalStore(folder / "store")), SstCache(folder / "cache", 0)
    pa.array([1]).to_numpy()  # loads pandas, as every driver has
    before = peak_kib()
    done = run_compaction(store, cache, "a", "s", table, Compaction(0, 1, newest_first(ssts), drops_tombstones=True))
    sys.stdout.write(f"{(peak_kib() - before) >> 10} {sum(sst.rows for sst in done.outputs)} {store.bytes_read}")


def measure_merge(folder: Path, keys: int, row_bytes: int) -> tuple[int, int, Sst]:
    """Merge eight versions of large rows in a separate process.

    Return the growth of its memory in bytes, the bytes read, and one of the inputs.
    """
    store = LocalStore(folder / "store")
    ssts = tuple(write_run(store, keys, row_bytes, seq) for seq in range(1, RUNS + 1))
    grown, rows, bytes_read = measure_merge_of(folder, TABLE, ssts)
    assert rows == keys
    return grown, bytes_read, ssts[0]


def measure_merge_of(folder: Path, table: Table, ssts: tuple[Sst, ...]) -> tuple[int, int, int]:
    """Merge SSTs of `folder / "store"` in a separate process.

    Return the growth of its memory in bytes, the number of rows, and the bytes read.
    """
    (folder / "ssts").write_bytes(msgspec.msgpack.encode((table, ssts)))
    code = f"from pathlib import Path; from {__name__} import merge_and_measure as f; f(Path({str(folder)!r}))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    grown_mib, rows, bytes_read = map(int, shown.split())
    return grown_mib << 20, rows, bytes_read


@pytest.mark.parametrize(("keys", "row_bytes"), [(1, 24_000_000), (6, 8_000_000)])
def test_a_merge_of_large_rows_holds_few_of_them_in_memory(tmp_path: Path, keys: int, row_bytes: int) -> None:
    grown, bytes_read, sst = measure_merge(tmp_path, keys, row_bytes)
    # Of the older versions of a row, the merge reads the keys.
    assert bytes_read < 1.1 * sst.bytes
    # With all versions of the rows in memory, it was 690 and 1,110 MB.
    assert grown < 250e6


def test_large_rows_are_readable_by_duckdb_by_ranges_and_completely_and_a_flipped_bit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_LARGE_ROW_BYTES", 100)
    store = LocalStore(tmp_path / "store")
    sst = write_run(store, 40, 5_000, 1)
    data = store.get(sst.object)
    expected = pa.Table.from_batches(decode(data, sst, TABLE)).select(["n", "events"]).sort_by("n")
    (tmp_path / "sst.parquet").write_bytes(data)
    assert duckdb.sql(f"SELECT n, events FROM '{tmp_path / 'sst.parquet'}' ORDER BY n").to_arrow_table() == expected
    keys = pa.table({"n": [7, 39, 40]})
    look_up = partial(multi_get, store, None, [sst], TABLE, hash_keys(keys, ["n"]), keys)
    values, present = look_up()
    assert values["events"].to_pylist() == [*expected["events"].take([7, 39]).to_pylist(), None]
    assert present.tolist() == [True, True, False]
    for at in range(4, sst.bytes - sst.footer_bytes - sst.filter_bytes, 50_001):
        store.put(sst.object, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(Corruption):
            multi_get(store, None, [sst], TABLE, hash_keys(every := pa.table({"n": range(40)}), ["n"]), every)
