"""SSTs on this machine: memory-mapped for look-ups, as Parquet files for DuckDB.

Nothing here is needed for a right answer: what is missing or damaged is fetched again, and without a usable folder
everything is read into memory. DuckDB reads the object itself in a local store, else a copy on this machine.
"""

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock, RLock

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache, TTLCache

from ...errors import Corruption, Unavailable
from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..sst.showable import showable
from ..sst.types import HASH
from ..versions.manifest import Sst, Table
from .cache_folder import CacheFolder, Mapped, map_file, write_file
from .decode import decode
from .fetch import check_bytes, corrupt, fetch, file_name
from .remote_sst import RangedSst

_PARQUET = ".parquet"
_SHOWN = ".shown.parquet"


class ParquetCopies:
    """Files whose bytes were checked once by this process, and which stay until `close`. Safe with many threads.

    Copies that the folder cannot hold go to a temporary one, gone with this object.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._lock = Lock()
        self._paths: dict[str, Path] = {}
        self._spill: Path | None = None
        self._pins = ExitStack()
        weakref.finalize(self, self._pins.close)

    def path(self, store: ObjectStore, sst: Sst) -> Path:
        """The file with the object's bytes. See `SstCache.parquet_path`."""
        name = file_name(sst)
        path = self._paths.get(name)
        if path is None:
            path = self._own_path(store, sst) or self._copy(store, sst, name + _PARQUET)
            self._paths[name] = path
        return path

    def sql_path(self, store: ObjectStore, sst: Sst) -> Path:
        """A file with the same rows, of values that SQL has. See `SstCache.sql_path`."""
        if not sst.unshowable:
            return self.path(store, sst)
        name = file_name(sst) + _SHOWN
        if (path := self._paths.get(name)) is None:
            with pq.ParquetFile(self.path(store, sst), memory_map=True) as file:
                rows = showable(file.read())
            sink = pa.BufferOutputStream()
            pq.write_table(rows, sink)
            path = self._paths[name] = self._spilled(sst, name, sink.getvalue())
        return path

    def close(self) -> None:
        """Keep copies from eviction no longer."""
        with self._lock:
            self._paths.clear()
            self._pins.close()

    def _own_path(self, store: ObjectStore, sst: Sst) -> Path | None:
        """The object's own file, checked; None where there is none that DuckDB can name."""
        path = store.at(sst.root).local_path(sst.object)
        if path is None or _is_pattern(path):
            return None
        try:
            _check_file(path, sst)
        except FileNotFoundError as error:
            raise corrupt(sst, "the object is missing") from error
        except OSError as error:
            raise Unavailable(f"cannot read SST {path}: {error}") from error
        return path

    def _copy(self, store: ObjectStore, sst: Sst, name: str) -> Path:
        """A copy in the folder, safe from eviction; outside of it where the folder cannot have one."""
        path = self._folder.path / name
        may_keep = not _is_pattern(path)
        if may_keep and self._pin(name):
            try:
                _check_file(path, sst)
            except (Corruption, OSError):
                self._folder.remove(name)
            else:
                return path
        data = fetch(store, sst)
        if may_keep and self._folder.put(name, lambda file: file.write_bytes(data)) and self._pin(name):
            return path
        return self._spilled(sst, name, data)

    def _spilled(self, sst: Sst, name: str, data: bytes | pa.Buffer) -> Path:
        """A file with these bytes, outside of the folder."""
        try:
            with self._lock:
                if self._spill is None:
                    self._spill = Path(tempfile.mkdtemp(prefix="slackwater-"))
                    weakref.finalize(self, shutil.rmtree, self._spill, ignore_errors=True)
            path = self._spill / name
            path.write_bytes(data)
        except OSError as error:
            raise Unavailable(
                f"no folder on this machine can hold a copy of SST {sst.object} ({len(data)} bytes): {error}",
                hint="free some disk, or name a larger folder for the cache",
            ) from error
        return path

    def _pin(self, name: str) -> bool:
        pin = self._folder.pin(name)
        if pin is not None:
            with self._lock:
                self._pins.callback(os.close, pin)
        return pin is not None


def _check_file(path: Path, sst: Sst) -> None:
    with pa.memory_map(str(path)) as source:
        check_bytes(source.read_buffer(), sst)


def _is_pattern(path: Path) -> bool:
    """Whether DuckDB would take the path for a pattern, and perhaps find another file with it."""
    return any(character in str(path) for character in "*?[")


_ARROW = ".arrow"
_MAX_OPEN = 1024
"""SSTs a process keeps mapped."""
_MAX_COUNTED = 10_000
"""SSTs for which reads of ranges are counted, and refusals are known."""
_TOUCH_S = 60.0
"""How exactly the time of a file's last use is known."""
_REFUSED_S = 60.0
"""For so long nobody tries again to keep an SST that could not be kept."""
_MEMORY_BYTES = 256 << 20
"""What SSTs may take of this process's memory while the folder is of no use; what `open` asks for may be larger."""
_WHOLE_BYTES = 64 << 20
"""Larger SSTs come to the cache by ranges: bounds memory."""


class SstCache:
    """A bounded folder of SSTs, and those this process has open. Safe with many threads and processes."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Use a folder of its own, created when it is first needed, which any number of processes may share."""
        self.max_bytes = max_bytes
        """What the folder's files may take together (see `CacheFolder`)."""
        self._folder = CacheFolder(folder, max_bytes)
        self._parquet = ParquetCopies(self._folder)
        self._lock = RLock()
        # By name of the SST's file.
        self._mapped: LRUCache[str, Mapped] = LRUCache(_MAX_OPEN)
        self._touched: TTLCache[str, None] = TTLCache(_MAX_OPEN, _TOUCH_S)
        """Mapped files whose last use was noted a moment ago."""
        self._in_memory: LRUCache[str, Mapped] = LRUCache(
            _MEMORY_BYTES, getsizeof=lambda rows: min(rows.memory_bytes, _MEMORY_BYTES)
        )
        self._dropped_s = time.monotonic()
        self._ranged: LRUCache[str, tuple[str, int]] = LRUCache(_MAX_COUNTED)
        """Object and bytes read of it by ranges."""
        self._refused: TTLCache[str, None] = TTLCache(_MAX_COUNTED, _REFUSED_S)

    def open(self, store: ObjectStore, sst: Sst, table: Table) -> Mapped:
        """The SST's rows; asks the store only when no process of this machine has them yet.

        Where they can be kept nowhere, all of them are in the memory of this process: `bring` avoids that. Raises as
        `bring`.
        """
        mapped = self.bring(store, sst, table, Reads())
        return mapped or self._hold(sst, table, list(decode(fetch(store, sst), sst, table)))

    def bring(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> Mapped | None:
        """The SST's rows; None where neither the folder nor the memory that this cache may use can hold them.

        `reads` counts what is asked of the store.
        """
        mapped = self.peek(sst, table)
        with self._lock:
            if mapped is not None or file_name(sst) in self._refused:
                return mapped
        data = self._fetch(store, sst, table, reads)
        mapped = self.peek(sst, table)
        if mapped is None and data is not None:
            held, memory_bytes = [], 0
            for rows in decode(data, sst, table):
                memory_bytes += rows.nbytes
                if memory_bytes > _MEMORY_BYTES:
                    break
                held.append(rows)
            else:
                return self._hold(sst, table, held)
        if mapped is None:
            with self._lock:
                self._refused[file_name(sst)] = None
        return mapped

    def prefetch(self, store: ObjectStore, sst: Sst, table: Table) -> None:
        """Have the SST in the folder, if it can be there. Raises as `bring`."""
        if not self.has(sst):
            self._fetch(store, sst, table, Reads())

    def _fetch(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> bytes | None:
        """Bring the SST to the folder; its bytes, or None where they are too many to hold at once."""
        if sst.bytes > _WHOLE_BYTES:
            ranged = RangedSst(store, sst, table, reads)
            parts = ranged.having(HASH, sst.hash_min, sst.hash_max)
            self._write(sst, (block.stored for block in ranged.read(parts)))
            return None
        data = fetch(store, sst)
        reads.requests += 1
        reads.round_trips += 1
        reads.bytes += len(data)
        self.add_encoded(sst, table, data)
        return data

    def peek(self, sst: Sst, table: Table) -> Mapped | None:
        """The SST's rows if this machine has them, else None; asks no store."""
        name = file_name(sst)
        with self._lock:
            kept = self._mapped if name in self._mapped else self._in_memory
            mapped = kept.get(name)
            if kept is self._mapped and name not in self._touched:
                self._touched[name] = None
                self._folder.touch(name + _ARROW)
        if mapped is None:
            return self._map(name, sst, table)
        found = mapped.read_as(table, sst)
        if found is not mapped:
            with self._lock:
                kept[name] = found
        return found

    def has(self, sst: Sst) -> bool:
        """Whether this machine seems to have the SST's rows; asks no store, and looks at no byte of them."""
        name = file_name(sst)
        with self._lock:
            if name in self._mapped or name in self._in_memory:
                return True
        return self._folder.has(name + _ARROW)

    def size_of(self, sst: Sst) -> int:
        """Bytes of the SST's rows on this machine; 0 where it does not have them."""
        return self._folder.size_of(file_name(sst) + _ARROW)

    def ranged_bytes(self, sst: Sst) -> int:
        """Bytes that this process has read by ranges of an SST which is not here."""
        with self._lock:
            return self._ranged.get(file_name(sst), ("", 0))[1]

    def count_ranged(self, sst: Sst, size: int) -> None:
        """Add to `ranged_bytes`."""
        with self._lock:
            self._ranged[file_name(sst)] = sst.object, self.ranged_bytes(sst) + size

    def ranged_objects(self) -> tuple[str, ...]:
        """The objects that this process reads by ranges, as it has nothing better."""
        with self._lock:
            return tuple(name for name, size in self._ranged.values() if size)

    def add(self, sst: Sst, rows: pa.Table) -> None:
        """Keep the rows of an SST that was just written: exactly its columns, with their ids, and its order."""
        self._write(sst, rows.combine_chunks().to_batches())

    def add_encoded(self, sst: Sst, table: Table, data: bytes) -> None:
        """Keep the rows of an SST that was just written, from its bytes; takes the memory of one block."""
        self._write(sst, decode(data, sst, table))

    def parquet_path(self, store: ObjectStore, sst: Sst) -> Path:
        """A file with the object's bytes, checked once by this cache; it stays until the cache is closed.

        The object itself where the store is a local folder, else a copy.

        Raises `Unavailable` where the store did not answer, or there is no folder on this machine that could hold a
        copy.
        """
        return self._parquet.path(store, sst)

    def sql_path(self, store: ObjectStore, sst: Sst) -> Path:
        """A file that DuckDB reads, with the SST's rows in their order, as `parquet_path`.

        Values for which SQL has none are others there (`sst.showable`).
        """
        return self._parquet.sql_path(store, sst)

    def drop(self, objects: Iterable[str]) -> None:
        """Keep nothing of these objects, in memory or in the folder: what they held is to be forgotten.

        Who has one mapped, keeps it for as long.
        """
        names = {key.rpartition("/")[2].removesuffix(".parquet") for key in objects}
        with self._lock:
            for kept in (self._mapped, self._in_memory):
                for name in [each for each in kept if each.partition("-")[0] in names]:
                    del kept[name]
        self._folder.drop(names)

    def close(self) -> None:
        """Let go of all files. The folder stays; paths to copies are no longer kept from eviction."""
        with self._lock:
            self._mapped.clear()
            self._in_memory.clear()
        self._parquet.close()

    def _write(self, sst: Sst, batches: Iterable[pa.RecordBatch]) -> None:
        """Put the rows into the folder, if it can be written."""
        self._folder.put(file_name(sst) + _ARROW, lambda path: write_file(path, sst, batches))

    def _map(self, name: str, sst: Sst, table: Table) -> Mapped | None:
        """The rows from the SST's file in the folder, if there is a good one."""
        if not self._folder.touch(name + _ARROW):
            return None
        try:
            mapped = map_file(self._folder.path / (name + _ARROW), sst, table)
        except (Corruption, pa.ArrowException, OSError):
            self._folder.remove(name + _ARROW)
            return None
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._dropped_s > _TOUCH_S:
                # Now and then: mapped files that were evicted would hold on to the disk's space.
                self._dropped_s = now_s
                for evicted in [each for each in self._mapped if not self._folder.has(each + _ARROW)]:
                    del self._mapped[evicted]
            self._mapped[name] = mapped
            self._touched[name] = None
            self._ranged.pop(name, None)
        return mapped

    def _hold(self, sst: Sst, table: Table, batches: Sequence[pa.RecordBatch]) -> Mapped:
        """The rows in this process's memory."""
        mapped = Mapped.of(batches, sst, table, sum(rows.nbytes for rows in batches))
        with self._lock:
            self._in_memory[file_name(sst)] = mapped
            self._ranged.pop(file_name(sst), None)
        return mapped
