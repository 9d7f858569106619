"""Writes pages of the versions that a runner commits, beside the batches."""

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ...errors import ObjectNotFound, SlackwaterError
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest
from ...store.versions.pages.page import VersionParts, build_page, parts_of
from ...store.versions.pages.stored import PAGE_SIZES, block_of, merge_pages, put_page, read_parts
from .upkeep import lower_priority

_log = logging.getLogger("slackwater")


class PageWriter:
    """Writes a page of one stage for each 64 versions, and merges pages. Failures are logged: pages are a cache."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._versions: list[VersionParts] = []
        """Committed versions of one block that no page has yet."""
        self._pool: ThreadPoolExecutor | None = None

    def record(self, manifest: Manifest) -> None:
        """Record a version that was just committed, as it was stored. Call it for one version after another."""
        block = block_of(manifest.version, PAGE_SIZES[0])
        if self._versions and self._versions[0].version not in block:
            self._flush()
        self._versions.append(parts_of(manifest))
        if manifest.version == block[-1]:
            self._flush()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _flush(self) -> None:
        self._pool = self._pool or ThreadPoolExecutor(1, "pages", initializer=lower_priority)
        self._pool.submit(self._write, self._versions)
        self._versions = []

    def _write(self, versions: list[VersionParts]) -> None:
        first = versions[0]
        name = f"{first.app}/{first.stage}"
        try:
            put_page(self._store, build_page(_with_others(self._store, versions)))
            start = block_of(first.version, PAGE_SIZES[0]).start
            for size in PAGE_SIZES[1:]:
                if start > 1 and (start - 1) % size == 0:
                    merge_pages(self._store, first.app, first.stage, block_of(start - 1, size))
        except SlackwaterError as error:
            _log.info("no page was written for %s@v%d: %s", name, first.version, error)
        except Exception:
            _log.exception("writing a page for %s@v%d failed", name, first.version)


def _with_others(store: ObjectStore, versions: Iterable[VersionParts]) -> Iterator[VersionParts]:
    """Yield the versions, and the versions of other processes between them. Costs a request for each of these."""
    last = 0
    for parts in versions:
        for number in range(last + 1 if last else parts.version, parts.version):
            with suppress(ObjectNotFound):
                yield read_parts(store, parts.app, parts.stage, number)
        yield parts
        last = parts.version
