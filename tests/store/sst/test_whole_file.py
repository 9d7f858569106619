"""Reading Parquet from memory: when all rows are returned, Arrow's threads have released the memory."""

import gc
import threading
import weakref
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from slackwater.store.read.decode import read_groups, read_whole

from tests.support.static import calls, modules

ROWS = pa.table(
    {
        "number": pa.array(range(5_000), pa.int64()),
        "name": [f"N{number % 77}" for number in range(5_000)],
        "list": [[number] * (number % 3) for number in range(5_000)],
        "null": pa.nulls(5_000, pa.string()),
    }
)


def file_of(rows: pa.Table, **options: Any) -> bytes:
    sink = BytesIO()
    pq.write_table(rows, sink, row_group_size=1_000, **options)
    return sink.getvalue()


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(0, 1), ROWS.slice(0, 0)])
def test_a_file_is_read_completely(rows: pa.Table) -> None:
    assert read_whole(file_of(rows)).equals(rows)


def test_row_groups_are_read_in_the_requested_order() -> None:
    file = pq.ParquetFile(pa.BufferReader(file_of(ROWS)))
    assert read_groups(file, [3, 1]).equals(pa.concat_tables([ROWS.slice(3_000, 1_000), ROWS.slice(1_000, 1_000)]))
    assert read_groups(file, [2], ["name"]).equals(ROWS.slice(2_000, 1_000).select(["name"]))
    assert read_groups(file, []).equals(ROWS.slice(0, 0))


def test_a_damaged_page_is_found_by_its_checksum() -> None:
    data = bytearray(file_of(ROWS, compression="none", write_page_checksum=True, use_dictionary=False))
    data[2_000] ^= 1
    with pytest.raises(OSError, match="CRC"):
        read_whole(bytes(data), check_pages=True)


TIMES = 150
"""Number of repetitions, enough to find a fault that happens once in forty times."""


class _Bytes(np.ndarray):
    """Bytes to which there can be a weak reference."""


@pytest.mark.parametrize(
    "read", [read_whole, lambda data: read_groups(pq.ParquetFile(pa.BufferReader(data)), [0, 1, 2])]
)
def test_no_thread_of_arrow_releases_pythons_memory(read: Callable[[Any], pa.Table]) -> None:
    """If a thread releases the memory while the interpreter exits, the process aborts.

    With `pq.read_table`, this happened once in forty runs.
    """
    raw = np.frombuffer(file_of(ROWS, compression="lz4"), np.uint8)
    let_go: list[int] = []
    for _ in range(TIMES):
        data = raw.copy().view(_Bytes)
        weakref.finalize(data, lambda: let_go.append(threading.get_ident()))
        read(data)
        del data
    gc.collect()
    assert let_go == [threading.get_ident()] * TIMES


def test_no_other_way_of_reading_parquet_is_used() -> None:
    """The functions that are searched for pass the bytes to threads of Arrow's pool."""
    handing = {"read_table", "read_row_group", "read_row_groups", "ParquetDataset", "dataset", "scanner"}
    found = {f"{path.name}:{line}" for path, tree in modules() for name, line in calls(tree) if name in handing}
    assert found == set()
