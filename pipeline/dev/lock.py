"""One process at a time: a lock file."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


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
