"""SSTs on this machine: memory-mapped for look-ups, as Parquet files for DuckDB.

Nothing here is needed for a right answer: what is missing or damaged is fetched again, and without a usable
folder everything is read into memory.
"""

import os
import shutil
import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import RLock

import pyarrow as pa
import xxhash

from ...errors import Corruption, Unavailable
from ..objects.protocol import ObjectStore
from ..sst.types import sst_schema, stored_schema
from ..versions.manifest import Sst, Table
from .cache_folder import CacheFolder
from .decode import Block, check_bytes, check_shape, corrupt, decode, fetch, file_name
from .hot_tier import HotTier
from .read_stats import Reads
from .remote_sst import RangedSst

__all__ = ["Mapped", "SstCache"]

_ARROW = ".arrow"
"""An Arrow IPC file, uncompressed, and after it the xxh3_128 of those bytes and its name: disks and power do fail, and
people move files."""
_PARQUET = ".parquet"
"""A copy of the object."""
_TRAILER_BYTES = 16
_MAX_OPEN = 1024
"""SSTs a process keeps mapped."""
_MAX_RANGED = 10_000
"""SSTs for which reads by pieces are counted."""
_TOUCH_S = 60.0
"""How exactly the time of a file's last use is known."""
_REFUSED_S = 60.0
"""For so long nobody tries again to keep an SST that could not be kept."""
_WHOLE_BYTES = 64 << 20
"""Larger SSTs come to the cache by pieces: bounds memory."""


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


class _Open:
    """An entry of the list of open SSTs."""

    __slots__ = ("mapped", "touched_s")

    def __init__(self, mapped: Mapped) -> None:
        self.mapped = mapped
        self.touched_s = time.monotonic()


class SstCache:
    """A bounded folder of SSTs, and those this process has open. Safe with many threads and processes."""

    def __init__(self, folder: Path, max_bytes: int, *, max_memory_bytes: int = 256 << 20, hot_bytes: int = 0) -> None:
        """Use the folder, which is created when it is first needed.

        Args:
            folder: only for this cache; any number of processes may share it.
            max_bytes: what its files may take together (see `CacheFolder`).
            max_memory_bytes: what SSTs may take of this process's memory while the folder is of no use. What is
                asked for by `open` may be larger.
            hot_bytes: what the tier in memory may take (see `HotTier`); 0 for none.
        """
        self._folder = CacheFolder(folder, max_bytes)
        self._hot = HotTier.open(self._folder, hot_bytes)
        self._folders = (self._hot.folder, self._folder) if self._hot else (self._folder,)
        self._max_memory_bytes = max_memory_bytes
        self._lock = RLock()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._dropped_s = time.monotonic()
        self._ranged_bytes: dict[str, int] = {}
        self._pieced: set[str] = set()
        self._refused_s: dict[str, float] = {}
        self._parquet: dict[str, Path] = {}
        self._spill: Path | None = None
        self._pins: list[int] = []
        weakref.finalize(self, _close_all, self._pins)

    def open(self, store: ObjectStore, sst: Sst, table: Table) -> Mapped:
        """The SST's rows; asks the store only when no process of this machine has them yet.

        Where they can be kept nowhere, all of them are in the memory of this process: `bring` avoids that.

        Raises:
            Corruption: the object is missing or not what the manifest promises.
            Unavailable: the store did not answer.
        """
        mapped = self.bring(store, sst, table, Reads())
        if mapped is None:
            mapped = self._in_memory(sst, decode(fetch(store, sst), sst, sst_schema(table)), max_bytes=None)
            assert mapped is not None  # noqa: S101  nothing bounds it
        return mapped

    def bring(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> Mapped | None:
        """The SST's rows; None where neither the folder nor the memory that this cache may use can hold them.

        Args:
            store: the store of the app.
            sst: which one.
            table: the declared columns.
            reads: counts what is asked of the store.

        Raises:
            Corruption: the object is missing or not what the manifest promises.
            Unavailable: the store did not answer.
        """
        mapped = self.peek(sst, table)
        if mapped is not None or self.refuses(sst):
            return mapped
        data = self._fetch(store, sst, table, reads)
        mapped = self.peek(sst, table)
        if mapped is None and data is not None:
            rows = decode(data, sst, sst_schema(table))
            mapped = self._in_memory(sst, rows, max_bytes=self._max_memory_bytes)
        if mapped is None:
            with self._lock:
                if len(self._refused_s) > _MAX_RANGED:
                    self._refused_s.clear()
                self._refused_s[file_name(sst)] = time.monotonic()
        return mapped

    def prefetch(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> None:
        """Have the SST in the folder, if it can be there. Arguments and errors as of `bring`."""
        if not self.has(sst):
            self._fetch(store, sst, table, reads)

    def _fetch(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> bytes | None:
        """Bring the SST to the folder; its bytes, or None where they are too many to hold at once."""
        schema = sst_schema(table)
        if sst.bytes > _WHOLE_BYTES:
            ranged = RangedSst(store, sst, table, reads)
            self._write(sst, schema, (block.rows for block in ranged.read(ranged.all_groups)))
            return None
        data = fetch(store, sst)
        reads.requests += 1
        reads.bytes += len(data)
        self._write(sst, schema, decode(data, sst, schema))
        return data

    def refuses(self, sst: Sst) -> bool:
        """Whether the SST could not be kept a moment ago."""
        with self._lock:
            refused_s = self._refused_s.get(file_name(sst))
        return refused_s is not None and time.monotonic() - refused_s < _REFUSED_S

    def peek(self, sst: Sst, table: Table) -> Mapped | None:
        """The SST's rows if this machine has them, else None; asks no store."""
        name = file_name(sst)
        with self._lock:
            entry = self._open.get(name)
            if entry is not None:
                self._open.move_to_end(name)
                self._touch(name, entry)
                return entry.mapped
        mapped = self._map(sst, table)
        return None if mapped is None else self._remember(sst, mapped)

    def has(self, sst: Sst) -> bool:
        """Whether this machine seems to have the SST's rows; asks no store, and looks at no byte of them."""
        name = file_name(sst)
        with self._lock:
            if name in self._open:
                return True
        return any(folder.has(name + _ARROW) for folder in self._folders)

    def size_of(self, sst: Sst) -> int:
        """Bytes of the SST's rows on this machine; 0 where it does not have them."""
        name = file_name(sst) + _ARROW
        return next((size for folder in self._folders if (size := folder.size_of(name))), 0)

    @property
    def max_bytes(self) -> int:
        """What the folder's files may take together."""
        return self._folder.max_bytes

    def pieced(self) -> tuple[str, ...]:
        """The objects that this process reads by pieces, as it has nothing better."""
        with self._lock:
            return tuple(self._pieced)

    def add(self, sst: Sst, rows: pa.Table) -> None:
        """Keep the rows of an SST that was just written: exactly its columns and order."""
        self._write(sst, rows.schema, rows.combine_chunks().to_batches())

    def add_encoded(self, sst: Sst, table: Table, data: bytes) -> None:
        """Keep the rows of an SST that was just written, from its bytes; takes the memory of one block."""
        schema = sst_schema(table)
        self._write(sst, schema, decode(data, sst, schema))

    def parquet_path(self, store: ObjectStore, sst: Sst) -> Path:
        """A file with the object's bytes, checked once by this cache; it stays until the cache is closed.

        The object itself where the store is a local folder, else a copy.

        Raises:
            Corruption: the object is missing or not what the manifest promises.
            Unavailable: the store did not answer, or there is no folder on this machine that could hold a
                copy.
        """
        name = file_name(sst)
        with self._lock:
            path = self._parquet.get(name)
        if path is None:
            path = self._own_path(store, sst) or self._pinned_copy(store, sst) or self._spilled_copy(store, sst)
            with self._lock:
                self._parquet[name] = path
        return path

    def ranged_bytes(self, sst: Sst, more: int) -> int:
        """Add to the bytes that were read piecemeal of an SST which is not here, and return their sum."""
        name = file_name(sst)
        with self._lock:
            if len(self._ranged_bytes) > _MAX_RANGED:
                self._ranged_bytes.clear()
                self._pieced.clear()
            if more:
                self._pieced.add(sst.object)
            self._ranged_bytes[name] = self._ranged_bytes.get(name, 0) + more
            return self._ranged_bytes[name]

    def close(self) -> None:
        """Let go of all files. The folder stays; paths to copies are no longer kept from eviction."""
        with self._lock:
            self._open.clear()
            self._parquet.clear()
            _close_all(self._pins)
        if self._hot is not None:
            self._hot.close()

    def _write(self, sst: Sst, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Put the rows into a folder, if one can be written."""

        def write(path: Path) -> None:
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

        name = file_name(sst) + _ARROW
        if self._hot is not None and self._hot.takes(sst.level, sst.bytes):
            # Perhaps written twice; it is small.
            batches = list(batches)
            if self._hot.folder.put(name, write):
                return
        self._folder.put(name, write)

    def _map(self, sst: Sst, table: Table) -> Mapped | None:
        """The SST's file in a folder, if there is a good one."""
        for folder in self._folders:
            mapped = self._map_from(folder, sst, table)
            if mapped is not None:
                return mapped
        return None

    def _map_from(self, folder: CacheFolder, sst: Sst, table: Table) -> Mapped | None:
        name = file_name(sst) + _ARROW
        if not folder.touch(name):
            return None
        try:
            # Unlinked or replaced from now on, the map keeps what it has.
            data = pa.memory_map(str(folder.path / name)).read_buffer()
            content = data.slice(0, max(0, data.size - _TRAILER_BYTES))
            if _digest(content, sst) != data[content.size :].to_pybytes():
                raise corrupt(sst, "its copy in the cache is not what was written")
            reader = pa.ipc.open_file(content)
            blocks = tuple(Block.of(reader.get_batch(i)) for i in range(reader.num_record_batches))
            check_shape(sst, sst_schema(table), reader.schema, sum(block.rows.num_rows for block in blocks))
        except (Corruption, pa.ArrowException, OSError):
            folder.remove(name)
            return None
        return Mapped(blocks, 0)

    def _remember(self, sst: Sst, mapped: Mapped) -> Mapped:
        """Keep it open; let go of what was not used for longest where that is too much."""
        name = file_name(sst)
        with self._lock:
            self._drop_evicted()
            self._open[name] = _Open(mapped)
            self._open.move_to_end(name)
            self._ranged_bytes.pop(name, None)
            self._pieced.discard(sst.object)
            memory = sum(entry.mapped.memory_bytes for entry in self._open.values())
            for other, entry in list(self._open.items())[:-1]:
                heavy = memory > self._max_memory_bytes and entry.mapped.memory_bytes > 0
                if heavy or len(self._open) > _MAX_OPEN:
                    memory -= entry.mapped.memory_bytes
                    del self._open[other]
        return mapped

    def _in_memory(self, sst: Sst, batches: Iterable[pa.RecordBatch], *, max_bytes: int | None) -> Mapped | None:
        """The rows in this process's memory; None once they are more than that."""
        blocks, memory = [], 0
        for rows in batches:
            memory += rows.nbytes
            if max_bytes is not None and memory > max_bytes:
                return None
            blocks.append(Block.of(rows))
        return self._remember(sst, Mapped(tuple(blocks), memory))

    def _touch(self, name: str, entry: _Open) -> None:
        """Note now and then that an open file is used, so that it is evicted late."""
        now_s = time.monotonic()
        if not entry.mapped.memory_bytes and now_s - entry.touched_s > _TOUCH_S:
            entry.touched_s = now_s
            for folder in self._folders:
                folder.touch(name + _ARROW)

    def _drop_evicted(self) -> None:
        """Let go, now and then, of open files that were evicted: they would hold on to the disk's space."""
        now_s = time.monotonic()
        if now_s - self._dropped_s > _TOUCH_S:
            self._dropped_s = now_s
            for name, entry in list(self._open.items()):
                if not entry.mapped.memory_bytes and not any(folder.has(name + _ARROW) for folder in self._folders):
                    del self._open[name]

    def _own_path(self, store: ObjectStore, sst: Sst) -> Path | None:
        """The object's own file, checked; None where there is none that DuckDB can name."""
        path = store.at(sst.root).local_path(sst.object)
        if path is None or _is_pattern(path):
            return None
        try:
            with pa.memory_map(str(path)) as source:
                check_bytes(source.read_buffer(), sst)
        except FileNotFoundError as error:
            raise corrupt(sst, "the object is missing") from error
        except OSError as error:
            raise Unavailable(f"cannot read SST {path}: {error}") from error
        return path

    def _pinned_copy(self, store: ObjectStore, sst: Sst) -> Path | None:
        """A copy in the folder, safe from eviction; None when the folder cannot have it."""
        name = file_name(sst) + _PARQUET
        path = self._folder.path / name
        if _is_pattern(path):
            return None
        if self._pin(name):
            try:
                with pa.memory_map(str(path)) as source:
                    check_bytes(source.read_buffer(), sst)
            except (Corruption, OSError):
                self._folder.remove(name)
            else:
                return path
        data = fetch(store, sst)
        return path if self._folder.put(name, lambda file: _write_bytes(file, data)) and self._pin(name) else None

    def _pin(self, name: str) -> bool:
        pin = self._folder.pin(name)
        if pin is None:
            return False
        with self._lock:
            self._pins.append(pin)
        return True

    def _spilled_copy(self, store: ObjectStore, sst: Sst) -> Path:
        """A copy outside the folder, gone with this cache object."""
        data = fetch(store, sst)
        try:
            with self._lock:
                if self._spill is None:
                    self._spill = Path(tempfile.mkdtemp(prefix="slackwater-"))
                    weakref.finalize(self, shutil.rmtree, self._spill, ignore_errors=True)
            path = self._spill / (file_name(sst) + _PARQUET)
            path.write_bytes(data)
        except OSError as error:
            raise Unavailable(
                f"no folder on this machine can hold a copy of SST {sst.object} ({sst.bytes} bytes): {error}",
                hint="free some disk, or name a larger folder for the cache",
            ) from error
        return path


def _digest(content: pa.Buffer, sst: Sst) -> bytes:
    """Of the content of this SST's file and no other's."""
    digest = xxhash.xxh3_128(content)
    digest.update(file_name(sst).encode())
    return digest.digest()


def _is_pattern(path: Path) -> bool:
    """Whether DuckDB would take the path for a pattern, and perhaps find another file with it."""
    return any(character in str(path) for character in "*?[")


def _write_bytes(file: Path, data: bytes) -> None:
    file.write_bytes(data)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
