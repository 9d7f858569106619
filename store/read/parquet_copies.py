"""SSTs as Parquet files that DuckDB can read: the object itself in a local store, else a copy on this machine."""

import os
import shutil
import tempfile
import weakref
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

import pyarrow as pa

from ...errors import Corruption, Unavailable
from ..objects.protocol import ObjectStore
from ..versions.manifest import Sst
from .cache_folder import CacheFolder
from .fetch import check_bytes, corrupt, fetch, file_name

_PARQUET = ".parquet"


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
        try:
            with self._lock:
                if self._spill is None:
                    self._spill = Path(tempfile.mkdtemp(prefix="slackwater-"))
                    weakref.finalize(self, shutil.rmtree, self._spill, ignore_errors=True)
            path = self._spill / name
            path.write_bytes(data)
        except OSError as error:
            raise Unavailable(
                f"no folder on this machine can hold a copy of SST {sst.object} ({sst.bytes} bytes): {error}",
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
