"""Where tasks find things, and what a worker keeps open of them from batch to batch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from ...store.objects.counting import CountingStore
from ...store.objects.open import open_store, take
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.access import S3Access, S3Place
from ...store.objects.s3.settings import S3Settings
from ...store.objects.spooled import SpooledStore
from ...store.read.cache import SstCache


@dataclass(frozen=True, slots=True)
class Places:
    """Where workers find things. Crosses to them by pickle, inside Spark."""

    app: str
    stage: str
    store: str
    kafka: dict[str, str] = field(repr=False)
    """Client properties, passwords among them."""
    cache: tuple[str, int, int]
    """Folder of the SST cache, how many bytes it may hold, and how many of memory its hot tier."""
    patience_s: float
    spool: str = ""
    """The folder of this machine in which SSTs wait to be uploaded; empty when they go to the store at once."""
    elsewhere: bool = False
    """Whether tasks run on other machines, which may name a folder of their own for the cache."""
    s3_settings: S3Settings | None = None
    """How S3 is talked to; None for what the environment says."""
    s3: S3Access | None = None
    """How the driver gets to the store at this batch; None where its root is enough."""

    def cache_here(self) -> tuple[str, int, int]:
        """`cache` on the machine of the task that asks."""
        folder, max_bytes, hot_bytes = self.cache
        own = os.environ.get("SLACKWATER_CACHE", "") if self.elsewhere else ""
        return own or folder, max_bytes, hot_bytes

    def open(self) -> tuple[CountingStore, ObjectStore, SstCache]:
        """What counts the stage's requests, the store to use, and the cache.

        A worker is reused from batch to batch, and with it what it has open, whatever credentials a batch brings.
        """
        place, cache = take(self.s3), self.cache_here()
        return _open(
            _Storage(self.app, self.stage, self.spool, self.store, place, self.s3_settings, self.patience_s, cache)
        )


@dataclass(frozen=True, slots=True)
class _Storage:
    """All that what is open depends on."""

    app: str
    stage: str
    spool: str
    root: str
    place: S3Place | None
    s3_settings: S3Settings | None
    patience_s: float
    cache: tuple[str, int, int]


@lru_cache(maxsize=64)
def _open(storage: _Storage) -> tuple[CountingStore, ObjectStore, SstCache]:
    # A worker serves all stages, and each is counted by itself.
    opened, cache = _open_for_all(replace(storage, app="", stage="", spool=""))
    counted = CountingStore(opened)
    return counted, SpooledStore(counted, Path(storage.spool)) if storage.spool else counted, cache


@lru_cache(maxsize=8)
def _open_for_all(storage: _Storage) -> tuple[ObjectStore, SstCache]:
    folder, max_bytes, hot_bytes = storage.cache
    opened = open_store(storage.root, patience_s=storage.patience_s, settings=storage.s3_settings, place=storage.place)
    return opened, SstCache(Path(folder), max_bytes, hot_bytes=hot_bytes)
