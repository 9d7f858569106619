"""Where tasks find things, and what a worker keeps open of them from batch to batch."""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...store.archive.reading import Archives
from ...store.objects.counting import CountingStore
from ...store.objects.local import SpooledStore
from ...store.objects.open import open_store, take
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3.settings import S3Access, S3Place, S3Settings
from ...store.read.cache import SstCache
from ..kafka.archived import ArchivedKafka
from ..kafka.open import open_kafka
from ..kafka.protocol import Kafka


@dataclass(frozen=True, slots=True)
class Places:
    """Where workers find things. Crosses to them by pickle, inside Spark."""

    app: str
    stage: str
    store: str
    kafka: dict[str, str] = field(repr=False)
    """Client properties, passwords among them."""
    cache: tuple[Path, int]
    """Folder of the SST cache, and how many bytes it may hold."""
    patience_s: float
    spool: str = ""
    """The folder of this machine in which SSTs wait to be uploaded; empty when they go to the store at once."""
    elsewhere: bool = False
    """Whether tasks run on other machines, which may name a folder of their own for the cache."""
    s3_settings: S3Settings | None = None
    """How S3 is talked to; None for what the environment says."""
    s3: S3Access | None = None
    """How the driver gets to the store at this batch; None where its root is enough."""

    def cache_here(self) -> tuple[Path, int]:
        """`cache` on the machine of the task that asks."""
        folder, max_bytes = self.cache
        own = os.environ.get("SLACKWATER_CACHE") if self.elsewhere else None
        return Path(own) if own else folder, max_bytes

    def open_kafka(self) -> Kafka:
        """Kafka, with what it has lost read from input archives. The store is opened where something is to be."""
        archives = Archives(lambda: self.open()[1], self.app)
        return ArchivedKafka(open_kafka(self.kafka), archives, of_past=False)

    def open(self) -> tuple[CountingStore, ObjectStore, SstCache]:
        """What counts the stage's requests, the store to use, and the cache.

        A worker is reused from batch to batch, and with it what it has open, whatever credentials a batch brings.
        """
        storage = (self.store, take(self.s3), self.s3_settings, self.patience_s, self.cache_here())
        counted, cache = _counting(self.app, self.stage, *storage)
        return counted, SpooledStore(counted, Path(self.spool)) if self.spool else counted, cache


@lru_cache(maxsize=8)
def _open(
    root: str, place: S3Place | None, settings: S3Settings | None, patience_s: float, cache: tuple[Path, int]
) -> tuple[ObjectStore, SstCache]:
    return open_store(root, patience_s=patience_s, settings=settings, place=place), SstCache(*cache)


@lru_cache(maxsize=64)
def _counting(_app: str, _stage: str, *storage: Any) -> tuple[CountingStore, SstCache]:
    """A worker serves all stages, and each is counted by itself."""
    opened, cache = _open(*storage)
    return CountingStore(opened), cache
