"""Local cache of SSTs, memory-mapped for look-ups and as Parquet files for DuckDB.

Correctness never depends on the cache: missing or damaged files are fetched again, and without a usable folder
everything is read into memory. DuckDB reads an object's own file if the store is local, and a copy on this machine
otherwise.
"""

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache, TTLCache

from ...common import runtime
from ...errors import Corruption, Unavailable
from ..objects.counting import ReadCounters
from ..objects.protocol import ObjectStore
from ..sst.arrow_types import make_sql_safe
from ..sst.schema import HASH
from ..versions.entries.ssts import Sst
from ..versions.keys import HOT
from ..versions.manifest import Table
from .cache_folder import CacheFolder, MappedSst, map_file, write_file
from .decode import decode
from .fetch import check_bytes, corruption_error, fetch, file_name
from .remote_sst import RangedSst

_PARQUET_SUFFIX = ".parquet"
_SQL_SUFFIX = ".shown.parquet"


class ParquetCopies:
    """Local Parquet files for DuckDB. This process verifies each file once, and keeps it until `close`. Thread-safe.

    Copies for which the cache folder has no room go to a temporary folder, which is removed with this object.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._lock = runtime.lock()
        self._paths: dict[str, Path] = {}
        self._spill: Path | None = None
        self._pins = ExitStack()
        weakref.finalize(self, self._pins.close)

    def path(self, store: ObjectStore, sst: Sst) -> Path:
        name = file_name(sst)
        path = self._paths.get(name)
        if path is None:
            path = self._own_path(store, sst) or self._copy(store, sst, name + _PARQUET_SUFFIX)
            self._paths[name] = path
        return path

    def sql_path(self, store: ObjectStore, sst: Sst) -> Path:
        if not sst.unshowable:
            return self.path(store, sst)
        name = file_name(sst) + _SQL_SUFFIX
        if (path := self._paths.get(name)) is None:
            with pq.ParquetFile(self.path(store, sst), memory_map=True) as file:
                rows = make_sql_safe(file.read())
            sink = pa.BufferOutputStream()
            pq.write_table(rows, sink)
            path = self._paths[name] = self._spilled(sst, name, sink.getvalue())
        return path

    def close(self) -> None:
        with self._lock:
            self._paths.clear()
            self._pins.close()

    def _own_path(self, store: ObjectStore, sst: Sst) -> Path | None:
        path = store.at(sst.root).local_path(sst.object)
        if path is None or _is_glob(path):
            return None
        try:
            _check_file(path, sst)
        except FileNotFoundError as error:
            raise corruption_error(sst, "the object is missing") from error
        except OSError as error:
            raise Unavailable(f"cannot read SST {path}: {error}") from error
        return path

    def _copy(self, store: ObjectStore, sst: Sst, name: str) -> Path:
        path = self._folder.path / name
        may_keep = not _is_glob(path)
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
                hint="free disk space, or set a larger cache folder",
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


def _is_glob(path: Path) -> bool:
    return any(character in str(path) for character in "*?[")


_ARROW_SUFFIX = ".arrow"
_MAX_OPEN = 1024
_MAX_COUNTED = 10_000
_TOUCH_S = 60.0
_RETRY_REFUSED_S = 60.0
_MEMORY_BYTES = 256 << 20
"""Memory limit for SSTs while the cache folder is unusable. `open` exceeds it for a single larger SST."""
_MAX_WHOLE_FETCH_BYTES = 64 << 20
"""Size above which an SST is fetched into the cache in ranges, to limit the use of memory."""


class SstCache:
    """Cache folder of SSTs with a size limit, and the SSTs that this process has mapped. Thread-safe."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._folder = CacheFolder(folder, max_bytes)
        self._parquet = ParquetCopies(self._folder)
        self._lock = runtime.rlock()
        # Keyed by the SST's file name.
        self._mapped: LRUCache[str, MappedSst] = LRUCache(_MAX_OPEN)
        self._touched: TTLCache[str, None] = TTLCache(_MAX_OPEN, _TOUCH_S, runtime.monotonic)
        self._in_memory: LRUCache[str, MappedSst] = LRUCache(
            _MEMORY_BYTES, getsizeof=lambda rows: min(rows.memory_bytes, _MEMORY_BYTES)
        )
        self._dropped_s = runtime.monotonic()
        self._ranged: LRUCache[str, tuple[str, int]] = LRUCache(_MAX_COUNTED)
        self._refused: TTLCache[str, None] = TTLCache(_MAX_COUNTED, _RETRY_REFUSED_S, runtime.monotonic)

    def open(self, store: ObjectStore, sst: Sst, table: Table) -> MappedSst:
        """Return the rows of an SST, from the local cache or the store.

        An SST for which the cache has no room is read into process memory; `fetch_rows` avoids that. Raises
        `Corruption`.
        """
        mapped = self.fetch_rows(store, sst, table, ReadCounters())
        return mapped or self._keep_in_memory(sst, table, list(decode(fetch(store, sst), sst, table)))

    def fetch_rows(self, store: ObjectStore, sst: Sst, table: Table, reads: ReadCounters) -> MappedSst | None:
        """Return the rows of an SST, fetched if needed; None if neither cache folder nor memory has room for them.

        `reads` counts the requests. Raises `Corruption`.
        """
        mapped = self.cached_rows(sst, table)
        with self._lock:
            if mapped is not None or file_name(sst) in self._refused:
                return mapped
        data = self._fetch_into_folder(store, sst, table, reads)
        mapped = self.cached_rows(sst, table)
        if mapped is None and data is not None:
            batches, memory_bytes = [], 0
            for rows in decode(data, sst, table):
                memory_bytes += rows.nbytes
                if memory_bytes > _MEMORY_BYTES:
                    break
                batches.append(rows)
            else:
                return self._keep_in_memory(sst, table, batches)
        if mapped is None:
            with self._lock:
                self._refused[file_name(sst)] = None
        return mapped

    def prefetch(self, store: ObjectStore, sst: Sst, table: Table) -> None:
        """Fetch an SST into the folder, decoding it in the caller's thread, which may have a low priority."""
        if not self.has(sst):
            self._fetch_into_folder(store, sst, table, ReadCounters(), use_threads=False)

    def _fetch_into_folder(
        self, store: ObjectStore, sst: Sst, table: Table, reads: ReadCounters, *, use_threads: bool = True
    ) -> bytes | None:
        if sst.bytes > _MAX_WHOLE_FETCH_BYTES:
            ranged = RangedSst(store, sst, table, reads)
            parts = ranged.find_values(HASH, sst.hash_min, sst.hash_max)
            self._write(sst, (block.stored for block in ranged.read(parts)))
            return None
        data = fetch(store, sst)
        reads.requests += 1
        reads.round_trips += 1
        reads.bytes += len(data)
        self._write(sst, decode(data, sst, table, use_threads=use_threads))
        return data

    def cached_rows(self, sst: Sst, table: Table) -> MappedSst | None:
        """Return the rows of an SST if this machine has cached them, else None. Makes no request."""
        name = file_name(sst)
        with self._lock:
            cached = self._mapped if name in self._mapped else self._in_memory
            mapped = cached.get(name)
            if cached is self._mapped and name not in self._touched:
                self._touched[name] = None
                self._folder.touch(name + _ARROW_SUFFIX)
        if mapped is None:
            return self._map(name, sst, table)
        current = mapped.read_as(table, sst)
        if current is not mapped:
            with self._lock:
                cached[name] = current
        return current

    def has(self, sst: Sst) -> bool:
        name = file_name(sst)
        with self._lock:
            if name in self._mapped or name in self._in_memory:
                return True
        return self._folder.has(name + _ARROW_SUFFIX)

    def size_of(self, sst: Sst) -> int:
        return self._folder.size_of(file_name(sst) + _ARROW_SUFFIX)

    def ranged_bytes(self, sst: Sst) -> int:
        with self._lock:
            return self._ranged.get(file_name(sst), ("", 0))[1]

    def count_ranged(self, sst: Sst, size: int) -> None:
        with self._lock:
            self._ranged[file_name(sst)] = sst.object, self.ranged_bytes(sst) + size

    def ranged_objects(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(name for name, size in self._ranged.values() if size)

    def add(self, sst: Sst, rows: pa.Table) -> None:
        """Cache the rows of a new SST. `rows` has the SST's columns, field ids and order."""
        self._write(sst, rows.combine_chunks().to_batches())

    def add_encoded(self, sst: Sst, table: Table, data: bytes) -> None:
        """Cache the rows of a new SST from its bytes. Needs memory for one block."""
        self._write(sst, decode(data, sst, table))

    def parquet_path(self, store: ObjectStore, sst: Sst) -> Path:
        """Return the path of a local file with an SST's bytes.

        The file is verified once, and exists until the cache is closed.

        With a local store, the file is the object itself. Raises `Corruption` if the SST is missing or damaged, and
        `Unavailable` if the store did not answer or no folder of this machine can hold a copy.
        """
        return self._parquet.path(store, sst)

    def sql_path(self, store: ObjectStore, sst: Sst) -> Path:
        """Return the path of a local Parquet file with an SST's rows, in order, for DuckDB.

        Values that SQL cannot represent are replaced (`arrow_types.make_sql_safe`). Raises the errors of
        `parquet_path`.
        """
        return self._parquet.sql_path(store, sst)

    def drop(self, objects: Iterable[str]) -> None:
        """Remove the cached rows of these SST objects, from memory and disk, because keys were forgotten.

        Readers that have mapped an SST keep it until they release it.
        """
        names = {key.rpartition("/")[2].removesuffix(".parquet").removesuffix(HOT) for key in objects}
        with self._lock:
            for cached in (self._mapped, self._in_memory):
                for name in [file for file in cached if file.partition("-")[0] in names]:
                    del cached[name]
        self._folder.drop(names)

    def close(self) -> None:
        with self._lock:
            self._mapped.clear()
            self._in_memory.clear()
        self._parquet.close()

    def _write(self, sst: Sst, batches: Iterable[pa.RecordBatch]) -> None:
        self._folder.put(file_name(sst) + _ARROW_SUFFIX, lambda path: write_file(path, sst, batches))

    def _map(self, name: str, sst: Sst, table: Table) -> MappedSst | None:
        if not self._folder.touch(name + _ARROW_SUFFIX):
            return None
        try:
            mapped = map_file(self._folder.path / (name + _ARROW_SUFFIX), sst, table)
        except (Corruption, pa.ArrowException, OSError):
            self._folder.remove(name + _ARROW_SUFFIX)
            return None
        now_s = runtime.monotonic()
        with self._lock:
            if now_s - self._dropped_s > _TOUCH_S:
                # Checked only occasionally, because evicted files keep their disk space while they are mapped.
                self._dropped_s = now_s
                for evicted in [file for file in self._mapped if not self._folder.has(file + _ARROW_SUFFIX)]:
                    del self._mapped[evicted]
            self._mapped[name] = mapped
            self._touched[name] = None
            self._ranged.pop(name, None)
        return mapped

    def _keep_in_memory(self, sst: Sst, table: Table, batches: Sequence[pa.RecordBatch]) -> MappedSst:
        mapped = MappedSst.from_batches(batches, sst, table, sum(rows.nbytes for rows in batches))
        with self._lock:
            self._in_memory[file_name(sst)] = mapped
            self._ranged.pop(file_name(sst), None)
        return mapped
