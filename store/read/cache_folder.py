"""A folder of files that never change, shared by several processes and bounded in bytes.

Files appear whole, by a rename, and go by unlink, which leaves those who have them mapped undisturbed. A file
that must keep its name for a while is pinned by a shared flock(2), which ends with the process at the latest.
Nothing here raises for a folder that cannot be written: it says so once, in the log, and answers that there
is no such file.

The rows of an SST are such a file, written once and memory-mapped for look-ups: an Arrow IPC file, uncompressed, and
after it the xxh3_128 of those bytes and its name: disks and power do fail, and people move files.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import xxhash

from ..sst.evolution import Reading
from ..versions.manifest import Sst, Table
from .cells import Cells
from .decode import Block, check_shape
from .fetch import corrupt, file_name

_log = logging.getLogger(__name__)

_TEMPORARY = ".tmp-"
_STALE_S = 3600
"""A temporary file this old belongs to a process that died."""
_SLACK = 0.1
"""Eviction frees this part of the folder, and what others write goes unseen until we wrote as much."""


class CacheFolder:
    """Files by name. Safe to use from many threads and processes."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Use the folder, which is created with its first file; nothing else may be kept in it.

        Its files may take `max_bytes` together. Each further process that writes at the same time may exceed that by a
        tenth, and pinned files do not yield.
        """
        self.path, self.max_bytes = path, max_bytes
        self._known_bytes = 0
        self._unmeasured_bytes = max_bytes
        self._complained = False

    def put(self, name: str, write: Callable[[Path], object]) -> bool:
        """Let `write` fill a file and give it its name; whether the file is there now.

        Only what the file system refuses is handled here; other errors of `write` pass through, and leave no
        file.
        """
        temporary = self.path / f"{_TEMPORARY}{uuid4().hex}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(temporary)
            size = temporary.stat().st_size
            if size > self.max_bytes:
                return False
            self._make_room(size)
            # Whoever was faster wrote the same bytes, and somebody may have pinned them already.
            if not (self.path / name).exists():
                temporary.replace(self.path / name)
        except OSError as error:
            if not self._complained:
                self._complained = True
                _log.warning("cache folder %s is of no use (%s): going on without it", self.path, error)
            return False
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._known_bytes += size
        self._unmeasured_bytes += size
        return True

    def has(self, name: str) -> bool:
        """Whether the file is there; no use of it."""
        return os.path.exists(f"{self.path}/{name}")  # noqa: PTH110  asked for each SST of each look-up

    def size_of(self, name: str) -> int:
        """Bytes of the file; 0 when it is not there."""
        try:
            return (self.path / name).stat().st_size
        except OSError:
            return 0

    def touch(self, name: str) -> bool:
        """Note that the file is used; whether it is there."""
        try:
            os.utime(self.path / name)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # a folder that cannot be written: the file is there, and its time of use does not matter
        return True

    def remove(self, name: str) -> None:
        """Drop a file."""
        with suppress(OSError):
            (self.path / name).unlink()

    def drop(self, stems: Collection[str]) -> None:
        """Remove the files whose names begin with one of these, up to a '-'."""
        with suppress(OSError), os.scandir(self.path) as listing:
            for item in listing:
                if item.name.partition("-")[0] in stems:
                    self.remove(item.name)

    def pin(self, name: str) -> int | None:
        """Keep the file in place until the returned file descriptor is closed; None when there is no file."""
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        # A file system without locks does not keep us from reading; then only the time of use protects the file.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            return None
        self.touch(name)
        return descriptor

    def _make_room(self, size: int) -> None:
        """Evict the files that were not used for longest until `size` more bytes fit."""
        fits = self._known_bytes + size <= self.max_bytes
        if fits and self._unmeasured_bytes < self.max_bytes * _SLACK:
            return
        entries = []
        with os.scandir(self.path) as listing:
            for item in listing:
                with suppress(FileNotFoundError):
                    found = item.stat()
                    if not item.name.startswith(_TEMPORARY):
                        entries.append((found.st_mtime_ns, found.st_size, item.name))
                    elif found.st_mtime < time.time() - _STALE_S:
                        self.remove(item.name)
        total = sum(taken for _, taken, _ in entries)
        if total + size > self.max_bytes:
            for _, taken, name in sorted(entries):
                if total + size <= self.max_bytes * (1 - _SLACK):
                    break
                if self._evict(name):
                    total -= taken
        self._known_bytes, self._unmeasured_bytes = total, 0

    def _evict(self, name: str) -> bool:
        """Unlink the file unless somebody has it pinned; whether its bytes are free."""
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            # A file system without locks: nobody can have pinned it either.
            self.remove(name)
        else:
            self.remove(name)
        finally:
            os.close(descriptor)
        return True


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
    def of(rows: Sequence[pa.RecordBatch], sst: Sst, table: Table, memory_bytes: int = 0) -> "Mapped":
        """The SST whose rows these are. Raises `Corruption` unless it has columns that the table has or had."""
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

    @cached_property
    def cells(self) -> tuple[Cells, ...]:
        """Its rows in order, value by value."""
        return tuple(Cells(block) for block in self.blocks if block.hashes.size)


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

    Raises `Corruption` or `ArrowException` or `OSError` where it is not what was written for this SST.
    """
    data = pa.memory_map(str(path)).read_buffer()
    content = data.slice(0, max(0, data.size - _TRAILER_BYTES))
    if _digest(content, sst) != data[content.size :].to_pybytes():
        raise corrupt(sst, "its copy in the cache is not what was written")
    reader = pa.ipc.open_file(content)
    return Mapped.of([reader.get_batch(i) for i in range(reader.num_record_batches)], sst, table)


def _digest(content: pa.Buffer, sst: Sst) -> bytes:
    """Of the content of this SST's file and no other's."""
    digest = xxhash.xxh3_128(content)
    digest.update(file_name(sst).encode())
    return digest.digest()
