"""A cache folder of immutable files, shared by several processes and limited in size.

Files appear atomically, by rename, and disappear by unlink, so processes that have mapped a file can still read it. A
shared flock(2) pins a file, which protects it from eviction. The pin ends with the process, or earlier. A folder that
cannot be written raises no error: a warning is logged once, and the folder behaves as if it were empty.

For look-ups, the rows of an SST are stored as one such file and memory-mapped. It is an uncompressed Arrow IPC file,
followed by the xxh3_128 of its bytes and its name, to detect failing disks and files moved by hand.
"""

import fcntl
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import xxhash

from ...common import runtime
from ..sst.schema import ColumnConversion
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from .decode import Block, Cells, check_columns
from .fetch import corruption_error, file_name

_log = logging.getLogger(__name__)

_TEMPORARY = ".tmp-"
_STALE_S = 3600
_EVICTED_SHARE = 0.1
"""Share of the size limit that eviction frees, and that this process may write between two size measurements."""


class CacheFolder:
    """Folder of immutable files, by name. Safe for many threads and processes."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Create the folder's object. `path` is a folder for cache files alone, created with the first file.

        `max_bytes` limits the total size of the files. Pinned files may exceed the limit. If several processes write at
        the same time, each additional process may exceed it by a tenth.
        """
        self.path, self.max_bytes = path, max_bytes
        self._known_bytes = 0
        self._unmeasured_bytes = max_bytes
        self._has_warned = False

    def put(self, name: str, write: Callable[[Path], object]) -> bool:
        """Add a file, which `write` fills under a temporary name. Returns True if the file then exists.

        File system errors return False. Other errors of `write` are raised, and leave no file.
        """
        temporary = self.path / f"{_TEMPORARY}{runtime.random_hex()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(temporary)
            size = temporary.stat().st_size
            if size > self.max_bytes:
                return False
            self._make_room(size)
            # A concurrent writer wrote the same bytes, and its file may already be pinned.
            if not (self.path / name).exists():
                temporary.replace(self.path / name)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("cannot use cache folder %s (%s): continuing without it", self.path, error)
            return False
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._known_bytes += size
        self._unmeasured_bytes += size
        return True

    def has(self, name: str) -> bool:
        """Return True if the file exists. This does not count as a use of the file."""
        return os.path.exists(f"{self.path}/{name}")  # noqa: PTH110  called for each SST of each look-up

    def size_of(self, name: str) -> int:
        try:
            return (self.path / name).stat().st_size
        except OSError:
            return 0

    def touch(self, name: str) -> bool:
        try:
            os.utime(self.path / name)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # the folder is read-only: the file exists, and nothing is evicted
        return True

    def remove(self, name: str) -> None:
        with suppress(OSError):
            (self.path / name).unlink()

    def drop(self, stems: Collection[str]) -> None:
        with suppress(OSError), os.scandir(self.path) as listing:
            for item in listing:
                if item.name.partition("-")[0] in stems:
                    self.remove(item.name)

    def pin(self, name: str) -> int | None:
        """Protect a file from eviction until the returned file descriptor is closed; None if there is no file."""
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        # On a file system without locks, only its recent use protects the file from eviction.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            return None
        self.touch(name)
        return descriptor

    def _make_room(self, size: int) -> None:
        fits = self._known_bytes + size <= self.max_bytes
        if fits and self._unmeasured_bytes < self.max_bytes * _EVICTED_SHARE:
            return
        entries = []
        with os.scandir(self.path) as listing:
            for item in listing:
                with suppress(FileNotFoundError):
                    stat = item.stat()
                    if not item.name.startswith(_TEMPORARY):
                        entries.append((stat.st_mtime_ns, stat.st_size, item.name))
                    elif stat.st_mtime < runtime.time() - _STALE_S:
                        self.remove(item.name)
        total = sum(file_bytes for _, file_bytes, _ in entries)
        if total + size > self.max_bytes:
            for _, file_bytes, name in sorted(entries):
                if total + size <= self.max_bytes * (1 - _EVICTED_SHARE):
                    break
                if self._evict(name):
                    total -= file_bytes
        self._known_bytes, self._unmeasured_bytes = total, 0

    def _evict(self, name: str) -> bool:
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            # A file system without locks has no pinned files.
            self.remove(name)
        else:
            self.remove(name)
        finally:
            os.close(descriptor)
        return True


_TRAILER_BYTES = 16
_DIGEST_BYTES = 1 << 18


@dataclass(frozen=True, eq=False)
class MappedSst:
    """Rows of one SST, ready for look-ups. The memory stays valid while this object is referenced."""

    blocks: tuple[Block, ...]
    memory_bytes: int
    table: Table

    @staticmethod
    def from_batches(rows: Sequence[pa.RecordBatch], sst: Sst, table: Table, memory_bytes: int = 0) -> "MappedSst":
        """Make rows of an SST ready for look-ups. Raises `Corruption` if the table never had the columns of `rows`."""
        reading = check_columns(sst, table, rows[0].schema, sum(batch.num_rows for batch in rows)) if rows else None
        return MappedSst(tuple(Block.from_rows(batch, reading) for batch in rows), memory_bytes, table)

    def read_as(self, table: Table, sst: Sst) -> "MappedSst":
        """Return the rows with the columns of the given table. Raises `Corruption` if they cannot be converted."""
        if table == self.table or not self.blocks:
            return self
        reading = check_columns(sst, table, self.blocks[0].stored.schema, sst.rows)
        return MappedSst(tuple(replace(block, conversion=reading) for block in self.blocks), self.memory_bytes, table)

    @property
    def conversion(self) -> ColumnConversion | None:
        return self.blocks[0].conversion if self.blocks else None

    @cached_property
    def stored(self) -> pa.Table:
        return pa.Table.from_batches([block.stored for block in self.blocks])

    @cached_property
    def cells(self) -> tuple[Cells, ...]:
        return tuple(Cells(block) for block in self.blocks if block.hashes.size)


def write_file(path: Path, sst: Sst, batches: Iterable[pa.RecordBatch]) -> None:
    """Write an SST's rows to a cache file, with field ids. Raises `Corruption` if there are no rows, and `OSError`."""
    remaining = iter(batches)
    batch = next(remaining, None)
    if batch is None:
        raise corruption_error(sst, "it has no rows")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        while batch is not None:
            writer.write_batch(batch)
            batch = None  # not in memory while the next one is decoded
            batch = next(remaining, None)
    digest = xxhash.xxh3_128()
    with path.open("r+b", buffering=0) as file:
        # Mapped pages would count as memory.
        while chunk := file.read(_DIGEST_BYTES):
            digest.update(chunk)
        file.write(_with_name(digest, sst))


def map_file(path: Path, sst: Sst, table: Table) -> MappedSst:
    """Map a cache file that `write_file` wrote. The map stays valid if the file is unlinked or replaced.

    Raises `Corruption`, `ArrowException` or `OSError` for a damaged file.
    """
    data = pa.memory_map(str(path)).read_buffer()
    content = data.slice(0, max(0, data.size - _TRAILER_BYTES))
    if _digest(content, sst) != data[content.size :].to_pybytes():
        raise corruption_error(sst, "its copy in the cache is damaged")
    reader = pa.ipc.open_file(content)
    return MappedSst.from_batches([reader.get_batch(i) for i in range(reader.num_record_batches)], sst, table)


def _digest(content: pa.Buffer, sst: Sst) -> bytes:
    return _with_name(xxhash.xxh3_128(content), sst)


def _with_name(digest: xxhash.xxh3_128, sst: Sst) -> bytes:
    digest.update(file_name(sst).encode())
    return digest.digest()
