"""Objects that are durable on this machine first, and in the store later.

What a process puts here lies in a folder, fsynced, until somebody uploads it; reads look there first. So SSTs can be
written and searched at the speed of the disk, while the store is slow or away. Only for machines that share the folder.
"""

from collections.abc import Callable
from pathlib import Path

from ...errors import ObjectNotFound
from .local import LocalStore
from .protocol import ObjectStore
from .wrapper import Wrapper


class SpooledStore(Wrapper):
    """Another store, whose puts wait in a folder of this machine. Safe with many threads and processes.

    Only `put` waits: what must be won against others, `put_if_absent`, goes to the store itself, and listings show what
    the store has. Nothing waits for another root.
    """

    def __init__(self, inner: ObjectStore, folder: Path) -> None:
        super().__init__(inner)
        self._spool = LocalStore(folder)

    def _wrap_other(self, root: str) -> ObjectStore:
        return self._inner.at(root)

    def upload(self, key: str) -> None:
        """Put an object that waits into the store. It still waits until it is forgotten, so that it is read here.

        Raises:
            ObjectNotFound: It does not wait here.
            Unavailable: Storage did not answer.
        """
        self._inner.put(key, self._spool.get(key))

    def forget(self, key: str) -> None:
        """Remove an object from the folder: the store has it, or nobody needs it."""
        self._spool.delete(key)

    def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        return self._read(lambda store: store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore`."""
        return self._read(lambda store: store.get_range(key, start, length))

    def _read(self, request: Callable[[ObjectStore], bytes]) -> bytes:
        try:
            return request(self._spool)
        except ObjectNotFound:
            return request(self._inner)

    def put(self, key: str, data: bytes) -> None:
        """Write it into the folder, durably. Raises as `LocalStore.put`."""
        self._spool.put(key, data)

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        self._spool.delete(key)
        self._inner.delete(key)

    def local_path(self, key: str) -> Path | None:
        """Where the object lies on this machine's disk, or None."""
        waiting = self._spool.local_path(key)
        return waiting if waiting is not None and waiting.exists() else self._inner.local_path(key)
