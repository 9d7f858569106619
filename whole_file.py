"""Files that are written whole or not at all, and locks that one process at a time holds."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from .errors import Refused


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
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}", hint=f"choose another {option}") from None


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
