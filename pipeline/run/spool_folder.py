"""Where the SSTs of unflushed versions wait on this machine: a folder for each runner, gone with it.

A version that is not committed counts for nobody: the next runner goes on from the last one that is. So what a runner
that died has left here is of no use, and the next one on this machine removes it.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..dev.process import locked


def beside(cache_folder: Path) -> Path:
    """The folder of all runners that have this cache: on the same disk, and not in what the cache may evict."""
    return cache_folder.with_name(f"{cache_folder.name}-spool")


@contextmanager
def spool_folder(parent: Path, writer: str) -> Iterator[Path]:
    """A folder for this process alone, empty, and removed at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    folder, lock = parent / writer, parent / f"{writer}.lock"
    # Before the folder: one without a lock that is held belongs to nobody.
    with locked(lock, lambda: None):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def sweep(parent: Path) -> None:
    """Remove what runners have left that died. Those that live are let be."""
    for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
        lock = folder.with_name(f"{folder.name}.lock")
        if folder.is_dir() and not _is_held(lock):
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _is_held(lock: Path) -> bool:
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
