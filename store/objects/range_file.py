"""An object as a file that is read by ranges."""

import io
from collections.abc import Callable


class RangeFile(io.RawIOBase):
    """File of a known size. `fetch` returns the bytes from an offset on, of a given number."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._size, self._fetch, self._position = size, fetch, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        unread = self._size - self._position
        data = self._fetch(self._position, unread if size < 0 else min(size, unread))
        self._position += len(data)
        return data
