"""Rows in the order of an SST's hashes, however many: DuckDB sorts them, on disk where they do not fit into memory."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa

from ...errors import SlackwaterError
from ...store.sst.hashing import hash_keys, partition_of
from ...store.sst.types import HASH
from ..query.sql import empty_database

MEMORY = "512 MiB"
"""What sorting may take; beyond that, DuckDB goes to disk."""

_BATCH_ROWS = 1 << 17


def by_hash(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema, key: tuple[str, ...], on_read: Callable[[int, int], None]
) -> Iterator[pa.RecordBatch]:
    """The rows with `_hash` before their columns, ascending by it; rows of one hash in any order.

    Takes all rows before it gives the first. What does not fit into `MEMORY` goes to Python's folder of temporary
    files.

    Args:
        rows: batches of this schema.
        schema: the columns.
        key: those whose hash it is.
        on_read: told of each batch that was taken, as rows and bytes.

    Raises:
        SlackwaterError: there is no room on the disk. Also whatever `rows` raises.
    """
    hashed = pa.schema([pa.field(HASH, pa.int64()), *schema])
    failure: BaseException | None = None

    def with_hash() -> Iterator[pa.RecordBatch]:
        nonlocal failure
        try:
            for batch in rows:
                columns = [pa.array(hash_keys(batch, key)), *batch.columns]
                made = pa.RecordBatch.from_arrays(columns, schema=hashed)
                on_read(made.num_rows, made.nbytes)
                yield made
        except BaseException as error:
            # DuckDB would tell of it in words of its own.
            failure = error
            raise

    with closing(empty_database()) as con:
        con.execute(f"SET TimeZone = 'UTC'; SET preserve_insertion_order = false; SET memory_limit = '{MEMORY}'")
        con.register("rows", pa.RecordBatchReader.from_batches(hashed, with_hash()))
        try:
            for batch in con.sql(f"FROM rows ORDER BY {HASH}").to_arrow_reader(_BATCH_ROWS):
                yield batch.cast(hashed)
        except (duckdb.Error, pa.ArrowException) as error:
            if failure is not None:
                raise failure from None
            sentence, _, more = str(error).strip().partition("\n")
            hint = "it sorts on disk, in the folder that TMPDIR names: let it name one with room"
            raise SlackwaterError(f"the rows cannot be sorted: {sentence}", quoted=more.strip(), hint=hint) from error


def by_slot(rows: Iterable[pa.RecordBatch], num_slots: Callable[[], int]) -> Iterator[tuple[int, int, pa.Table]]:
    """Rows that come by hash, cut where slots end: each slot that has rows, the number of slots, and its rows.

    A slot is one of so many equal ranges of all hashes. How many there are is asked when the first rows come.
    """
    slots, current = 0, -1
    waiting: list[pa.RecordBatch] = []
    for batch in rows:
        slots = slots or num_slots()
        numbers = partition_of(batch.column(HASH).to_numpy(), slots)
        ends = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
        for start, end in pairwise((0, *ends, batch.num_rows)):
            if int(numbers[start]) != current:
                if waiting:
                    yield current, slots, pa.Table.from_batches(waiting)
                current, waiting = int(numbers[start]), []
            waiting.append(batch.slice(start, end - start))
    if waiting:
        yield current, slots, pa.Table.from_batches(waiting)
