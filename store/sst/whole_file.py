"""Parquet in memory, read whole such that no thread of Arrow's holds the file once its rows are there.

Arrow's readers of tables and of row groups hand parts of the file to its pool, whose threads let go of them a moment
after the caller has the rows. To let go of memory that is Python's they need the interpreter's lock; a thread that asks
for it while the interpreter ends is ended in the middle of a C++ destructor, and with it the process ("terminate called
without an active exception"). Read by batches, the parts stay with the caller, and the pool only works on them.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq


def read_whole(data: bytes | pa.Buffer, *, check_pages: bool = False) -> pa.Table:
    """All rows of a Parquet file; `check_pages` compares each page with its own checksum.

    Raises:
        ArrowException, OSError: it is no Parquet, or a page is damaged.
    """
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=check_pages)
    return read_groups(file, range(file.num_row_groups))


def read_groups(file: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of these row groups, in this order; of these columns, or of all. Raises as `read_whole`."""
    rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    batches = file.iter_batches(batch_size=max(rows, 1), row_groups=list(groups), columns=columns and list(columns))
    schema = file.schema_arrow
    return pa.Table.from_batches(batches, schema if columns is None else pa.schema([schema.field(c) for c in columns]))
