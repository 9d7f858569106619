"""The rows of an SST as a file on this machine: written once, memory-mapped for look-ups.

An Arrow IPC file, uncompressed, and after it the xxh3_128 of those bytes and its name: disks and power do fail, and
people move files.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import pyarrow as pa
import xxhash

from ..sst.types import stored_schema
from ..versions.manifest import Sst
from .decode import Block, check_shape, corrupt, file_name

_TRAILER_BYTES = 16


@dataclass(frozen=True, eq=False)
class Mapped:
    """One SST, ready for look-ups. Valid for as long as it is referenced."""

    blocks: tuple[Block, ...]
    """Its rows in order."""
    memory_bytes: int
    """What the rows take of the process's own memory: 0 for a mapped file."""

    @cached_property
    def table(self) -> pa.Table:
        """All rows as one table, without a copy."""
        return pa.Table.from_batches([block.rows for block in self.blocks])


def write_file(path: Path, sst: Sst, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the SST's rows; `schema` is its table's (`sst_schema`). Raises `Corruption` for no rows, and `OSError`."""
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise corrupt(sst, "it has no rows")
    stored = stored_schema(schema, first.schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, stored) as writer:
        for batch in chain([first], remaining):
            writer.write_batch(batch)
    with pa.memory_map(str(path)) as source:
        digest = _digest(source.read_buffer(), sst)
    with path.open("ab") as file:
        file.write(digest)


def map_file(path: Path, sst: Sst, schema: pa.Schema) -> Mapped:
    """Map a file of `write_file`. Unlinked or replaced from now on, the map keeps what it has.

    Raises:
        Corruption, ArrowException, OSError: it is not what was written for this SST.
    """
    data = pa.memory_map(str(path)).read_buffer()
    content = data.slice(0, max(0, data.size - _TRAILER_BYTES))
    if _digest(content, sst) != data[content.size :].to_pybytes():
        raise corrupt(sst, "its copy in the cache is not what was written")
    reader = pa.ipc.open_file(content)
    blocks = tuple(Block.of(reader.get_batch(i)) for i in range(reader.num_record_batches))
    check_shape(sst, schema, reader.schema, sum(block.rows.num_rows for block in blocks))
    return Mapped(blocks, 0)


def _digest(content: pa.Buffer, sst: Sst) -> bytes:
    """Of the content of this SST's file and no other's."""
    digest = xxhash.xxh3_128(content)
    digest.update(file_name(sst).encode())
    return digest.digest()
