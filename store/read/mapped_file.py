"""The rows of an SST as a file on this machine: written once, memory-mapped for look-ups.

An Arrow IPC file, uncompressed, and after it the xxh3_128 of those bytes and its name: disks and power do fail, and
people move files.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import pyarrow as pa
import xxhash

from ..sst.evolution import Reading
from ..versions.manifest import Sst, Table
from .decode import Block, check_shape, corrupt, file_name

_TRAILER_BYTES = 16


@dataclass(frozen=True, eq=False)
class Mapped:
    """One SST, ready for look-ups. Valid for as long as it is referenced."""

    blocks: tuple[Block, ...]
    """Its rows in order."""
    memory_bytes: int
    """What the rows take of the process's own memory: 0 for a mapped file."""
    table: Table
    """As which one the rows are read."""

    @staticmethod
    def of(batches: Iterable[pa.RecordBatch], sst: Sst, table: Table, memory_bytes: int = 0) -> "Mapped":
        """The SST whose rows these are. Raises `Corruption` unless it has columns that the table has or had."""
        rows = list(batches)
        how = check_shape(sst, table, rows[0].schema, sum(each.num_rows for each in rows)) if rows else None
        return Mapped(tuple(Block.of(each, how) for each in rows), memory_bytes, table)

    def read_as(self, table: Table, sst: Sst) -> "Mapped":
        """The same rows, read as those of this table: at another version it may have other columns. Raises as `of`."""
        if table == self.table or not self.blocks:
            return self
        how = check_shape(sst, table, self.blocks[0].stored.schema, sst.rows)
        return Mapped(tuple(replace(block, reading=how) for block in self.blocks), self.memory_bytes, table)

    @property
    def reading(self) -> Reading | None:
        """How `stored` is read as rows of the table; None where they are that already."""
        return self.blocks[0].reading if self.blocks else None

    @cached_property
    def stored(self) -> pa.Table:
        """All rows as one table, as the SST has them, without a copy."""
        return pa.Table.from_batches([block.stored for block in self.blocks])


def write_file(path: Path, sst: Sst, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the SST's rows as it has them, ids of columns included. Raises `Corruption` for no rows, and `OSError`."""
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise corrupt(sst, "it has no rows")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        for batch in chain([first], remaining):
            writer.write_batch(batch)
    with pa.memory_map(str(path)) as source:
        digest = _digest(source.read_buffer(), sst)
    with path.open("ab") as file:
        file.write(digest)


def map_file(path: Path, sst: Sst, table: Table) -> Mapped:
    """Map a file of `write_file`. Unlinked or replaced from now on, the map keeps what it has.

    Raises:
        Corruption, ArrowException, OSError: it is not what was written for this SST.
    """
    data = pa.memory_map(str(path)).read_buffer()
    content = data.slice(0, max(0, data.size - _TRAILER_BYTES))
    if _digest(content, sst) != data[content.size :].to_pybytes():
        raise corrupt(sst, "its copy in the cache is not what was written")
    reader = pa.ipc.open_file(content)
    return Mapped.of((reader.get_batch(i) for i in range(reader.num_record_batches)), sst, table)


def _digest(content: pa.Buffer, sst: Sst) -> bytes:
    """Of the content of this SST's file and no other's."""
    digest = xxhash.xxh3_128(content)
    digest.update(file_name(sst).encode())
    return digest.digest()
