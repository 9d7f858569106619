"""The hot tier: the newest, smallest SSTs in memory (tmpfs), in front of the folder on disk.

One for each cache folder and user of a machine, shared by all their processes, bounded in bytes. A process holds a
shared flock(2) for as long as it uses it; who can have the lock alone is the last one, and removes the tier. So does
the next process to start, with what killed ones left behind.

What is evicted, or left at the end, goes to disk if somebody used it lately. What nobody used was compacted away.
"""

import fcntl
import os
import shutil
import time
import weakref
from contextlib import suppress
from pathlib import Path

import xxhash

from .cache_folder import CacheFolder

_MEMORY = Path("/dev/shm")  # noqa: S108  the machine's tmpfs; the folder in it is this user's alone
_LATELY_S = 300.0
"""Used within this time, a file goes to disk when it leaves. Readers note a use once a minute."""
_SHARE = 8
"""An SST of more than 1/n of the tier stays on disk: it would drive out too many others."""


class HotTier:
    """A folder in memory. Safe to use from many threads and processes."""

    def __init__(self, folder: Path, lock: int, disk: CacheFolder, max_bytes: int) -> None:
        self.folder = CacheFolder(folder, max_bytes, evicted=lambda path: _demote(path, disk))
        self._largest_bytes = max_bytes // _SHARE
        self._release = weakref.finalize(self, _leave, folder, lock, disk)

    @staticmethod
    def open(disk: CacheFolder, max_bytes: int, memory: Path = _MEMORY) -> "HotTier | None":
        """The tier in front of a folder; None for 0 bytes, and where `memory` is no tmpfs that can be used.

        `max_bytes` is what its files may take together, of the machine's memory.
        """
        if max_bytes <= 0 or not memory.is_dir():
            return None
        prefix = f"slackwater-{os.getuid()}-"
        folder = memory / f"{prefix}{xxhash.xxh3_64_hexdigest(os.fsencode(disk.path.absolute()))}"
        try:
            for lock in memory.glob(f"{prefix}*.lock"):
                _sweep(lock)
            held = _share(_lock_of(folder))
            folder.mkdir(mode=0o700, exist_ok=True)
            # Everybody may write there; a folder that somebody else put in our place is not ours.
            found = folder.lstat()
            if found.st_uid != os.getuid() or folder.is_symlink() or found.st_mode & 0o077:
                os.close(held)
                return None
        except OSError:
            return None
        return HotTier(folder, held, disk, max_bytes)

    def takes(self, level: int, size: int) -> bool:
        """Whether an SST of this level and so many bytes belongs here."""
        return level == 0 and size <= self._largest_bytes

    def close(self) -> None:
        """Use it no more; the last one who does removes it."""
        self._release()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _share(path: Path) -> int:
    """A descriptor that holds a shared lock on the file of this name."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        # The last user removed it while we waited.
        os.close(descriptor)


def _sweep(lock: Path) -> None:
    """Remove a tier that nobody uses: its processes were killed, and what is in it may be half written."""
    with suppress(OSError):
        _leave(lock.with_suffix(""), os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))


def _leave(folder: Path, lock: int, disk: CacheFolder | None = None) -> None:
    """Give the lock back, and remove the tier if nobody else uses it; files of use go to disk, if one is given."""
    # Where somebody else holds it, flock(2) raises an OSError.
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if disk is not None and folder.is_dir():
            for path in folder.iterdir():
                if not path.name.startswith("."):
                    _demote(path, disk)
        shutil.rmtree(folder, ignore_errors=True)
        # Last: while it is there, who comes waits for it, and then looks again.
        _lock_of(folder).unlink(missing_ok=True)
    os.close(lock)


def _demote(path: Path, disk: CacheFolder) -> None:
    with suppress(OSError):
        if time.time() - path.stat().st_mtime <= _LATELY_S:
            disk.put(path.name, lambda file: file.write_bytes(path.read_bytes()))
