"""Object store in a folder, with S3's guarantees by fsync, rename(2) and link(2).

Also `SpooledStore`, whose puts wait in such a folder until they are uploaded.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path

from ...common import runtime
from ...common.whole_file import fsync_path
from ...errors import Forbidden, ObjectExists, ObjectNotFound, Refused, SlackwaterError, Unavailable
from .protocol import ObjectInfo, ObjectStore, UnfinishedWrite, check_key, check_range
from .wrapper import BaseStore, StoreWrapper

_SCRATCH = ".slackwater-tmp"
"""Folder under the root in which objects are written, before they are renamed to their keys. It is never listed."""

_LEFTOVER_S = 3600

_NOT_FOUND_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class LocalStore(BaseStore):
    """Objects as files under one folder. A '/' in a key separates folders. `open_other` opens other store roots.

    Writes are atomic and durable. An object is written and fsynced under a temporary name. Then it is renamed (put) or
    hard-linked (put_if_absent), and its folder is fsynced. A hard link fails if the name exists, even if another
    process created it. The first put creates the root; reads create nothing.

    Unlike S3, the store cannot have both keys `a` and `a/b`.

    Every method may raise, in addition to the errors that `ObjectStore` names:
        Refused: the key leaves the root or crosses another object, or the file may not be read or written.
        Unavailable: the disk failed or is full.
    """

    def __init__(self, path: str | Path, open_other: Callable[[str], ObjectStore] | None = None) -> None:
        super().__init__(open_other)
        # Not resolve(), which replaces symbolic links that the user wrote; nor absolute(), which keeps "..".
        self._root = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100
        self._swept = False

    @property
    def url(self) -> str:
        return str(self._root)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def get(self, key: str) -> bytes:
        with self._translate_errors("read", key):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        with self._translate_errors("read", key), self._path(key).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def put(self, key: str, data: bytes) -> None:
        target = self._path(key)
        with self._temporary_file(key, data) as temporary:
            temporary.replace(target)
            fsync_path(target.parent)

    def put_if_absent(self, key: str, data: bytes) -> None:
        target = self._path(key)
        with self._temporary_file(key, data) as temporary:
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
                    f"the file system of {self._root} has no hard links, which creating objects needs",
                    hint="put the store on another disk, or use S3",
                ) from error
            fsync_path(target.parent)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        with self._translate_errors("list", prefix):
            for key, entry in self._walk(prefix, start_after):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                yield ObjectInfo(key, stat.st_size, stat.st_mtime_ns // 1_000_000)

    def list_folders(self, prefix: str) -> Iterator[str]:
        with self._translate_errors("list", prefix):
            for key, entry in self._entries(prefix):
                # As on S3, a folder is a common prefix of keys: empty folders do not exist.
                if key.endswith("/") and self._has_objects(self._root / key):
                    yield entry.name

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._translate_errors("delete", key):
            try:
                path.unlink()
            except OSError as error:
                # For a folder, Linux answers EISDIR and macOS EPERM.
                if error.errno not in _NOT_FOUND_ERRNOS and not path.is_dir():
                    raise

    def unfinished_writes(self, prefix: str) -> Iterator[UnfinishedWrite]:
        scratch = self._root / _SCRATCH
        with self._translate_errors("list", prefix):
            for path in sorted(scratch.iterdir()) if scratch.is_dir() else ():
                with suppress(FileNotFoundError):
                    yield UnfinishedWrite(f"{_SCRATCH}/{path.name}", path.name, path.stat().st_mtime_ns // 1_000_000)

    def discard(self, leftover: UnfinishedWrite) -> None:
        with self._translate_errors("delete", leftover.key):
            (self._root / _SCRATCH / leftover.id).unlink(missing_ok=True)

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

    def _path(self, key: str) -> Path:
        if check_key(key).split("/", 1)[0] == _SCRATCH:
            raise Refused(f"object key {key!r} is not usable: {_SCRATCH} is the store's own folder")
        return self._root / key

    def _has_objects(self, folder: Path) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            return any(not entry.is_dir() or self._has_objects(Path(entry.path)) for entry in entries)
        return False

    def _walk(self, prefix: str, start_after: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
        for key, entry in self._entries(prefix, start_after):
            if key.endswith("/"):
                if entry.is_symlink():
                    self._check_no_cycle(key)
                yield from self._walk(key, start_after)
            else:
                yield key, entry

    def _check_no_cycle(self, link: str) -> None:
        target, above = (self._root / link).resolve(), (self._root / link).parent
        while above.is_relative_to(self._root):
            if above.resolve().is_relative_to(target):
                raise Refused(
                    f"{self._root / link} is a link to {target}, which contains it", hint="remove or move the link"
                )
            above = above.parent

    def _entries(self, prefix: str, start_after: str = "") -> Sequence[tuple[str, os.DirEntry[str]]]:
        folder = prefix[: prefix.rfind("/") + 1]
        matches = []
        try:
            if folder:
                check_key(folder[:-1])
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    key = folder + entry.name + ("/" if entry.is_dir() else "")
                    beyond = key > start_after or (key.endswith("/") and start_after.startswith(key))
                    if beyond and key.startswith(prefix):
                        matches.append((key, entry))
        except Refused:
            return []  # no valid key has this prefix
        except OSError as error:
            if error.errno not in _NOT_FOUND_ERRNOS:
                raise
        return sorted((item for item in matches if item[0] != f"{_SCRATCH}/"), key=itemgetter(0))

    @contextmanager
    def _temporary_file(self, key: str, data: bytes) -> Iterator[Path]:
        with self._translate_errors("write", key):
            scratch = self._root / _SCRATCH
            _make_folder(scratch)
            _make_folder((self._root / key).parent)
            if not self._swept:
                self._swept = True
                for leftover in self.unfinished_writes(""):
                    if leftover.begun_ms < (runtime.time() - _LEFTOVER_S) * 1000:
                        self.discard(leftover)
            temporary = scratch / runtime.random_hex()
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
            finally:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def _translate_errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except SlackwaterError:
            raise  # some of ours are OSErrors too
        except OSError as error:
            message = f"cannot {verb} {key!r} under {self._root}: {error.strerror}"
            if verb == "read" and error.errno in (*_NOT_FOUND_ERRNOS, errno.ENAMETOOLONG):
                raise ObjectNotFound(key, self.url) from None
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise Forbidden(message, hint="give this user access to the folder, or name another store") from error
            if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                raise Refused(message, hint="in a local store, a key cannot lie below another object's key") from error
            raise Unavailable(message, hint="check the disk and its free space, then run this again") from error


class SpooledStore(StoreWrapper):
    """Store wrapper whose puts wait in a local folder. Thread-safe; several processes may share the folder.

    A put is durable in the folder, and is uploaded later by `upload`; reads look in the folder first. So SSTs are
    written and searched at disk speed while the store is slow or unreachable. Only machines that share the folder can
    read the spooled objects. `put_if_absent` writes to the store directly, because other writers compete for the key.
    Listings show only objects in the store. Stores at other roots do not spool.
    """

    def __init__(self, inner: ObjectStore, folder: Path) -> None:
        super().__init__(inner)
        self._spool = LocalStore(folder)

    def _wrap_other(self, root: str) -> ObjectStore:
        return self._inner.at(root)

    def upload(self, key: str) -> None:
        """Put a spooled object into the store. The spooled copy stays until `drop_spooled`. Raises `ObjectNotFound`."""
        self._inner.put(key, self._spool.get(key))

    def drop_spooled(self, key: str) -> None:
        self._spool.delete(key)

    def get(self, key: str) -> bytes:
        return self._read(lambda store: store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read(lambda store: store.get_range(key, start, length))

    def _read(self, request: Callable[[ObjectStore], bytes]) -> bytes:
        try:
            return request(self._spool)
        except ObjectNotFound:
            return request(self._inner)

    def put(self, key: str, data: bytes) -> None:
        self._spool.put(key, data)

    def delete(self, key: str) -> None:
        self._spool.delete(key)
        self._inner.delete(key)

    def local_path(self, key: str) -> Path | None:
        waiting = self._spool.local_path(key)
        return waiting if waiting is not None and waiting.exists() else self._inner.local_path(key)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_path(folder.parent)
