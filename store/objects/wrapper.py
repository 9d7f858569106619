"""Base classes of object stores, for opening stores at other roots and for wrapping stores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from .protocol import ObjectInfo, ObjectStore

T = TypeVar("T")


class BaseStore(ABC):
    """Base class of stores. `at` opens the store at another root only once."""

    open_root: ClassVar[Callable[..., ObjectStore]]

    def __init__(self, open_other: Callable[[str], ObjectStore] | None = None) -> None:
        self._open_other = open_other
        self._stores_by_root: dict[str, ObjectStore] = {}

    @property
    @abstractmethod
    def url(self) -> str: ...

    def local_path(self, key: str) -> Path | None:
        return None

    def at(self: Self, root: str) -> "Self | ObjectStore":
        if root in ("", self.url):
            return self
        if root not in self._stores_by_root:
            self._stores_by_root.setdefault(root, (self._open_other or BaseStore.open_root)(root))
        return self._stores_by_root[root]


class StoreWrapper(BaseStore):
    """Base class of wrappers, which forward all requests to an inner store.

    `at(root)` returns a copy of the wrapper, around the inner store at that root. So state of a subclass, such as
    counters, belongs in objects that the copies share.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(self._wrap_other)
        self._inner = inner

    def _wrap_other(self, root: str) -> ObjectStore:
        other = copy(self)
        other._inner = self._inner.at(root)
        return other

    @property
    def url(self) -> str:
        return self._inner.url

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        """Forward one request to the inner store. Subclasses override this method to change every request."""
        return request()

    def get(self, key: str) -> bytes:
        return self._forward("get", key, lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._forward("get_range", key, lambda: self._inner.get_range(key, start, length))

    def put(self, key: str, data: bytes) -> None:
        self._forward("put", key, lambda: self._inner.put(key, data), data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._forward("put_if_absent", key, lambda: self._inner.put_if_absent(key, data), data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._forward("list", prefix, lambda: self._inner.list(prefix, start_after))

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self._forward("list_folders", prefix, lambda: self._inner.list_folders(prefix))

    def delete(self, key: str) -> None:
        self._forward("delete", key, lambda: self._inner.delete(key))

    def local_path(self, key: str) -> Path | None:
        return self._inner.local_path(key)

    def settle(self, app: str, now_ms: int) -> None:
        """Move an app's SSTs from hot places (`store.hot`) into the store itself if that is cheaper by now."""
        if isinstance(self._inner, StoreWrapper):
            self._inner.settle(app, now_ms)
