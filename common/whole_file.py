"""Atomic writes of files and folders, locks between processes, and temporary folders.

A process removes its temporary folders when it ends. The next process removes the temporary folders of killed
processes.
"""

import fcntl
import glob
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from ..errors import Refused, SlackwaterError, Usage
from . import runtime

_FILE_EXTENSION = re.compile(
    r"\.(csv|tsv|txt|jsonl?|ndjson|xml|ya?ml|toml|html?|md|log|py|sql|parquet|pq|arrow|feather|ipc|avro|orc|xlsx?|ods|pdf|"
    r"duckdb|ddb|db|sqlite3?|pkl|pickle|np[yz]|h5|hdf5|zip|gz|bz2|xz|zst|lz4|7z|tar|tgz|jar)",
    re.IGNORECASE,
)


_EXTENSION = re.compile(r"\.[a-z]\w*", re.IGNORECASE)


def extension_of(path: PathLike[str] | str) -> str:
    """Return the extension of a file's name, in lower case; empty for a path that ends in a slash."""
    return "" if os.fspath(path).endswith(os.sep) else Path(path).suffix.lower()


def check_folder_name(path: Path | str, option: str, hint: str = "", *, any_extension: bool = False) -> None:
    """Raise `Usage` if a folder is to be created under a name with a file extension, such as `out.csv`.

    Existing folders are accepted. Without `any_extension`, only known file extensions are rejected.
    """
    path = Path(path)
    if (_EXTENSION if any_extension else _FILE_EXTENSION).fullmatch(path.suffix) and not path.is_dir():
        raise Usage(
            f"{option} {path} would be a folder, but its name ends like a file's",
            hint=hint or f"write a name without an ending, such as {path.with_suffix('')}",
        )


@contextmanager
def _refusing(path: Path, option: str) -> Iterator[None]:
    try:
        yield
    except SlackwaterError:
        raise  # some are `OSError`s of a store, not of this disk
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}", hint=f"choose another {option}") from None


@contextmanager
def atomic_file(path: Path, option: str) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` when the `with` block ends without an error.

    Raises `Refused` if the file cannot be written; `option` is the name of the option with the path.
    """
    temporary = path.with_name(f".{path.name}.{runtime.random_hex()}.tmp")
    with _refusing(path, option):
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, option: str) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` when the `with` block ends without an error.

    Also removes temporary folders that killed processes left. Raises `Refused` if `path` exists or cannot be written;
    `option` is the name of the option with the path.
    """
    path = path.absolute()
    check_parent_folder(path, option)
    check_absent(path, option)
    temporary = path.with_name(f".{path.name}.{runtime.random_hex()}.tmp")
    with _refusing(path, option):
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.tmp"):
            with suppress(OSError), _lock_folder(leftover):  # otherwise another process uses it
                shutil.rmtree(leftover)
        temporary.mkdir()
        try:
            with _lock_folder(temporary):
                yield temporary
                # All files must be durable before the rename.
                for folder, _, files in os.walk(temporary):
                    for written in (*(Path(folder) / file for file in files), Path(folder)):
                        fsync_path(written)
                check_absent(path, option)
                temporary.rename(path)
                fsync_path(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_absent(path: Path, option: str) -> None:
    if path.exists() or path.is_symlink():
        raise Refused(f"{path} already exists", hint=f"choose another {option}, or remove it yourself")


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a folder's list of files, to disk.

    To make a new file durable, call this function for the file and for its folder.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_parent_folder(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise Refused(
            f"{path} cannot be written: no folder {path.parent}", hint=f"create the folder, or choose another {option}"
        )


@contextmanager
def lock_file(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file at `path`, whose folder must exist. The lock ends with the `with` block or the process.

    If another process holds the lock, `wait` is called once, then the call blocks until the lock is free.
    """
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            # The former holder may have deleted the file. Then the lock protects nothing, and we try again.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield
                return
        path.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def locked_folder(parent: Path, name: str) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    folder, lock = parent / name, parent / f"{name}.lock"
    # Lock before the folder is created: `sweep` removes folders without a held lock.
    with lock_file(lock, lambda: None):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_dead_folders(parent: Path) -> None:
    for folder in [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else ():
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
    parent = Path(tempfile.gettempdir()) / f"slackwater-{os.getuid()}"
    with suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        # The parent is world-writable: another user may own this folder's name and add files.
        with tempfile.TemporaryDirectory(prefix="slackwater-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    remove_dead_folders(parent)
    with locked_folder(parent, runtime.random_hex(6)) as folder:
        yield folder
