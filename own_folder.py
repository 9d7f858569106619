"""Folders of one process alone, which go with it: those of processes that were killed, the next one removes."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from .whole_file import locked


@contextmanager
def own_folder(parent: Path, name: str) -> Iterator[Path]:
    """A folder of this name in `parent`, empty, and removed at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    folder, lock = parent / name, parent / f"{name}.lock"
    # Before the folder: one without a lock that is held belongs to nobody.
    with locked(lock, lambda: None):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def sweep(parent: Path) -> None:
    """Remove the folders in `parent` of processes that died. Those of others are let be."""
    for folder in [each for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else ():
        lock = folder.with_name(f"{folder.name}.lock")
        try:
            with suppress(FileNotFoundError), lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder among the temporary files of this machine. What was left of this user's before goes first."""
    parent = Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"
    with suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        # Everybody may write there: this name is somebody else's, who could put files into it.
        with tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    sweep(parent)
    with own_folder(parent, uuid4().hex[:12]) as folder:
        yield folder
