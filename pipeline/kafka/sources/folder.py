"""New files of a folder, in the order of their times and names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from ....common import runtime
from ....errors import ObjectNotFound
from ....store.objects.protocol import ObjectInfo
from .file_list import SourceFile
from .rows import FileReader

_WHOLE_SHARE = 20
"""A listing of the whole folder is repeated after this many times its duration."""


class FolderFinder:
    """Finds new files. Most listings begin after the name that sorts last, so they cost what is new.

    Names that sort before it are found by listings of the whole folder, which take at most a twentieth of the time.
    """

    def __init__(self, reader: FileReader) -> None:
        self._reader, self._glob = reader, reader.source.glob
        self._store = reader.store.at(reader.source.address)
        self._num_known = 0
        self._seen = set[str]()
        self._waiting: list[ObjectInfo] = []
        self._last_name = ""
        self._list_whole_at_s = 0.0

    def find(self, known: list[SourceFile], time_limit_s: float | None) -> Iterator[SourceFile]:
        """Yield the files that `known` does not have, until `time_limit_s` has passed.

        None is for no limit, and for a listing of the whole folder.
        """
        self._seen.update(file.path for file in known[self._num_known :])
        self._num_known = len(known)
        self._waiting = [info for info in self._waiting if info.key not in self._seen]
        self._list_new(is_whole=time_limit_s is None or runtime.monotonic() >= self._list_whole_at_s)
        begun_s = runtime.monotonic()
        while self._waiting:
            info = self._waiting.pop()
            try:
                rows, marks = self._reader.count_rows(info.key, info.size_bytes)
            except ObjectNotFound:
                continue  # removed since the listing
            yield SourceFile(info.key, rows, info.size_bytes, max(0, info.modified_ms), marks=marks)
            if time_limit_s is not None and runtime.monotonic() - begun_s > time_limit_s:
                return

    def _list_new(self, *, is_whole: bool) -> None:
        begun_s = runtime.monotonic()
        waiting = {info.key for info in self._waiting}
        listed = self._store.list("", "" if is_whole else self._last_name)
        new = [info for info in self._selected(listed) if info.key not in self._seen and info.key not in waiting]
        if is_whole:
            now_s = runtime.monotonic()
            self._list_whole_at_s = now_s + _WHOLE_SHARE * (now_s - begun_s)
        # The next file to read is the last of the list.
        self._waiting = sorted([*self._waiting, *new], key=lambda info: (info.modified_ms, info.key), reverse=True)

    def _selected(self, listed: Iterable[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in listed:
            self._last_name = max(self._last_name, info.key)
            *_, name = segments = info.key.split("/")
            is_hidden = any(segment.startswith(("_", ".")) for segment in segments)
            if not is_hidden and (not self._glob or fnmatchcase(name, self._glob)):
                yield info
