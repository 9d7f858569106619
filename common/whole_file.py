"""Files and folders that are written whole or not at all, and locks that one process at a time holds.

Folders of one process alone, which go with it: those of processes that were killed, the next one removes.
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
from uuid import uuid4

from ..errors import Refused, SlackwaterError, Usage

_FILE = re.compile(
    r"\.(csv|tsv|txt|jsonl?|ndjson|xml|ya?ml|toml|html?|md|log|py|sql|parquet|pq|arrow|feather|ipc|avro|orc|xlsx?|ods|pdf|"
    r"duckdb|ddb|db|sqlite3?|pkl|pickle|np[yz]|h5|hdf5|zip|gz|bz2|xz|zst|lz4|7z|tar|tgz|jar)",
    re.IGNORECASE,
)
"""Endings of names that are of files: a folder of such a name would not be what was meant."""


_ENDING = re.compile(r"\.[a-z]\w*", re.IGNORECASE)
"""Endings of names that are none of numbers, such as those of versions and days."""


def ending_of(path: PathLike[str] | str) -> str:
    """The ending of a file's name, in small letters; empty of a folder, which has none, or a slash behind its name."""
    return "" if os.fspath(path).endswith(os.sep) else Path(path).suffix.lower()


def check_folder_name(path: Path | str, option: str, hint: str = "", *, any_ending: bool = False) -> None:
    """Raise `Usage` where a folder that is to be made would be called as a file is; one that is there may be.

    With `any_ending` also where its ending is of no file that is known here: it was to say of which format a file is.
    """
    path = Path(path)
    if (_ENDING if any_ending else _FILE).fullmatch(path.suffix) and not path.is_dir():
        raise Usage(
            f"{option} {path} would be a folder, and its name ends as a file's does",
            hint=hint or f"write a name without an ending, such as {path.with_suffix('')}",
        )


@contextmanager
def whole_file(path: Path, option: str) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place when the block is done.

    Raises `Refused` where it cannot be written; `option` named it.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except SlackwaterError:
        raise  # some are `OSError`, too: of a store that does not answer, not of this disk
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}", hint=f"choose another {option}") from None


@contextmanager
def whole_folder(path: Path, option: str) -> Iterator[Path]:
    """A folder beside `path` to write to, which gets its name, that none may have, when the block is done.

    What calls that were killed have left of theirs is removed. Raises `Refused` where there is such a folder or file,
    or it cannot be written; `option` named it.
    """
    path = path.absolute()
    check_folder(path, option)
    check_new(path, option)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.tmp"):
            with suppress(OSError), _held(left):  # else somebody is at it, or may not be disturbed
                shutil.rmtree(left)
        temporary.mkdir()
        try:
            with _held(temporary):
                yield temporary
                # Before it has its name, all of it lies on the disk.
                for folder, _, files in os.walk(temporary):
                    for each in (*(Path(folder) / file for file in files), Path(folder)):
                        sync(each)
                check_new(path, option)
                temporary.rename(path)
                sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except SlackwaterError:
        raise  # some are `OSError`, too: of a store that does not answer, not of this disk
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}", hint=f"choose another {option}") from None


def check_new(path: Path, option: str) -> None:
    """Raise `Refused` where there is something of that name."""
    if path.exists() or path.is_symlink():
        raise Refused(f"{path} is there already", hint=f"choose another {option}, or remove it yourself")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder during the block, no longer than this process lives. Raises `OSError` where another does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Make a file durable, or a folder's entries: the fsync of a file does not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_folder(path: Path, option: str) -> None:
    """Raise `Refused` where there is no folder to write to."""
    if not path.parent.is_dir():
        raise Refused(f"{path} cannot be written: no folder {path.parent}", hint=f"make it, or choose another {option}")


@contextmanager
def locked(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at `path`, whose folder must exist. It goes with this process, however that ends.

    `wait` is called once if somebody else has it; then this waits until it is free.
    """
    while True:
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever held it may have deleted the file: then the lock we got is nobody's.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                yield
                return
        path.parent.mkdir(parents=True, exist_ok=True)


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
