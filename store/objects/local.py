"""The object store in a folder: what S3 promises, kept with fsync, rename(2) and link(2)."""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from uuid import uuid4

from ...errors import ObjectExists, ObjectNotFound, Refused, SlackwaterError, Unavailable
from .protocol import Leftover, ObjectInfo, ObjectStore, check_key, check_range
from .wrapper import OtherRoots

_SCRATCH = ".slackwater-tmp"
"""Folder under the root where objects are written before they get their name; never listed."""

_LEFTOVER_S = 3600
"""A temporary file this old belongs to no put that is still running."""

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""What the file system answers for a key that names a folder, or goes through a file."""


class LocalStore(OtherRoots):
    """Objects as files under one folder; a key's '/' is the folder separator. `open_other` opens another root.

    A file appears under its name whole and durable, or not at all: it is written and fsynced under a
    temporary name, then renamed (put) or hard-linked (put_if_absent: link fails when the name is taken, also
    between processes), and its folder is fsynced. The root is made by the first put; reading makes nothing.

    One limit S3 does not have: of the keys `a` and `a/b` only one can exist.
    """

    def __init__(self, path: str | Path, open_other: Callable[[str], ObjectStore] | None = None) -> None:
        super().__init__(open_other)
        # Not resolve(), which replaces symbolic links that the user wrote; nor absolute(), which keeps "..".
        self._root = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100
        self._swept = False

    @property
    def url(self) -> str:
        """The absolute folder."""
        return str(self._root)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def get(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            ObjectNotFound: there is none under this key.
            Refused: the key leaves the root, or the file may not be read.
            Unavailable: the disk failed.
        """
        with self._translated("read", key):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`, fewer at the object's end. Raises as `get`."""
        check_range(start, length)
        with self._translated("read", key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, atomically and durably.

        Raises:
            Refused: the key leaves the root or crosses another object, or the folder may not be written.
            Unavailable: the disk failed or is full.
        """
        target = self._path(key)
        with self._writing(key, data) as temporary:
            temporary.replace(target)
            _sync(target.parent)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, durably. Raises `ObjectExists` when the key is taken, also by a race.

        Raises else as `put`.
        """
        target = self._path(key)
        with self._writing(key, data) as temporary:
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                if target.is_dir():
                    raise
                raise ObjectExists(key, self.url) from None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP):
                    raise
                raise Refused(
                    f"the file system of {self._root} has no hard links, by which objects are created",
                    hint="put the store on another disk, or use S3",
                ) from error
            _sync(target.parent)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, in the order of keys."""
        with self._translated("list", prefix):
            for key, entry in self._walk(prefix, start_after):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since its folder was read
                yield ObjectInfo(key, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly under `prefix` (which ends with '/' or is empty), in order."""
        with self._translated("list", prefix):
            for key, entry in self._entries(prefix):
                # As on S3, a folder is what its objects' keys have in common: an empty one does not exist.
                if key.endswith("/") and any(self._walk(key)):
                    yield entry.name

    def delete(self, key: str) -> None:
        """Remove the object; no error when it is not there. Raises as `put`."""
        path = self._path(key)
        with self._translated("delete", key):
            try:
                path.unlink()
            except OSError as error:
                # For a folder, which is no object, Linux answers EISDIR and macOS EPERM.
                if error.errno not in _ABSENT and not path.is_dir():
                    raise

    def leftovers(self, prefix: str) -> Iterator[Leftover]:
        """Temporary files: of puts under way, and of puts that were killed. Of which keys, is not known."""
        scratch = self._root / _SCRATCH
        with self._translated("list", prefix):
            for path in sorted(scratch.iterdir()) if scratch.is_dir() else ():
                with suppress(FileNotFoundError):
                    yield Leftover(f"{_SCRATCH}/{path.name}", path.name, path.stat().st_mtime_ns // 1_000_000)

    def discard(self, leftover: Leftover) -> None:
        """Remove a temporary file; no error when it is not there."""
        with self._translated("delete", leftover.key):
            (self._root / _SCRATCH / leftover.id).unlink(missing_ok=True)

    def local_path(self, key: str) -> Path | None:
        """The object's file."""
        return self._path(key)

    def _path(self, key: str) -> Path:
        if check_key(key).split("/", 1)[0] == _SCRATCH:
            raise Refused(f"object key {key!r} is not usable: {_SCRATCH} is the store's own folder")
        return self._root / key

    def _walk(self, prefix: str, start_after: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Keys and files below a prefix, in the order of keys."""
        for key, entry in self._entries(prefix, start_after):
            if key.endswith("/"):
                yield from self._walk(key, start_after)
            else:
                yield key, entry

    def _entries(self, prefix: str, start_after: str = "") -> Sequence[tuple[str, os.DirEntry[str]]]:
        """What one folder holds under a prefix, as keys in order; a folder's key ends with '/'.

        With that slash, the order of one folder's entries is the order of all keys below them. Folders whose
        keys all sort up to `start_after` are left out, so that nobody reads them.
        """
        folder = prefix[: prefix.rfind("/") + 1]
        if folder:
            try:
                check_key(folder[:-1])
            except Refused:
                return []  # no key can start like this
        found = []
        try:
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    key = folder + entry.name + ("/" if entry.is_dir() else "")
                    beyond = key > start_after or (key.endswith("/") and start_after.startswith(key))
                    if beyond and key.startswith(prefix):
                        found.append((key, entry))
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
        return sorted((item for item in found if item[0] != f"{_SCRATCH}/"), key=itemgetter(0))

    @contextmanager
    def _writing(self, key: str, data: bytes) -> Iterator[Path]:
        """A durable temporary file with the data, and the folder it shall go to; removed at the end."""
        with self._translated("write", key):
            scratch = self._root / _SCRATCH
            _make_folder(scratch)
            _make_folder((self._root / key).parent)
            if not self._swept:
                self._swept = True
                self._sweep()
            temporary = scratch / uuid4().hex
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what puts that were killed have left."""
        for leftover in self.leftovers(""):
            if leftover.begun_ms < (time.time() - _LEFTOVER_S) * 1000:
                self.discard(leftover)

    @contextmanager
    def _translated(self, verb: str, key: str) -> Iterator[None]:
        """Operating system errors in the words of `ObjectStore`."""
        try:
            yield
        except SlackwaterError:
            raise  # some of ours are OSErrors too
        except OSError as error:
            what = f"cannot {verb} {key!r} under {self._root}: {error.strerror}"
            if verb == "read" and error.errno in (*_ABSENT, errno.ENAMETOOLONG):
                raise ObjectNotFound(key, self.url) from None
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise Refused(what, hint="give this user access to the folder, or name another store") from error
            if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                raise Refused(what, hint="in a folder, a key cannot go through another object") from error
            raise Unavailable(what, hint="see to the disk, then run this again") from error


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents, each of them durably."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Make a folder's entries durable: a file's own fsync does not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
