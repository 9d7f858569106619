"""Writes pages (objects that list many versions) for a runner's commits, concurrently with the batches."""

import logging
from collections.abc import Iterator
from contextlib import suppress

from ...common import runtime
from ...common.runtime import Executor
from ...errors import ObjectNotFound, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ...store.versions.pages.page import VersionParts, build_page, parts_of
from ...store.versions.pages.stored import PAGE_SIZES, block_of, merge_pages, put_page, read_parts

_log = logging.getLogger("slackwater")


class PageWriter:
    """Writes a page of one stage for each 64 versions, and merges pages. Failures are logged: pages are a cache.

    `first` is the first version for pages, such as the runner's claim.
    """

    def __init__(self, store: ObjectStore, first: int) -> None:
        self._store = store
        self._versions: dict[int, VersionParts] = {}
        """Committed versions of the current block that are in no page yet."""
        self._next = first
        """First version that is in no page yet."""
        self._pool: Executor | None = None

    def record(self, manifest: Manifest) -> None:
        """Record a newly committed version, in stored form. Call this method for each version, in order."""
        block = block_of(manifest.version, PAGE_SIZES[0])
        if self._next < block.start:
            if self._versions:
                self._flush(block_of(self._next, PAGE_SIZES[0])[-1])
            self._next = block.start
        self._versions[manifest.version] = parts_of(manifest)
        if manifest.version == block[-1]:
            self._flush(manifest.version)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _flush(self, last: int) -> None:
        self._pool = self._pool or runtime.executor(1, "pages", initializer=runtime.lower_priority)
        self._pool.submit(self._write, self._versions, range(self._next, last + 1))
        self._versions, self._next = {}, last + 1

    def _write(self, own: dict[int, VersionParts], numbers: range) -> None:
        version = next(iter(own.values()))
        name = f"{version.app}/{version.stage}"
        try:
            put_page(self._store, build_page(_with_others(self._store, own, numbers)))
            for size in PAGE_SIZES[1:]:
                if numbers.start > 1 and (numbers.start - 1) % size == 0:
                    merge_pages(self._store, version.app, version.stage, block_of(numbers.start - 1, size))
        except SlackwaterError as error:
            _log.info("no page was written for %s@v%d: %s", name, numbers.start, error)
        except Exception:
            _log.exception("writing a page for %s@v%d failed", name, numbers.start)


def _with_others(store: ObjectStore, own: dict[int, VersionParts], numbers: range) -> Iterator[VersionParts]:
    """Yield all versions of these numbers. Costs a request for each version that another process committed."""
    version = next(iter(own.values()))
    for number in numbers:
        with suppress(ObjectNotFound):
            yield own.get(number) or read_parts(store, version.app, version.stage, number)
