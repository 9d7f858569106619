"""Store, Kafka cluster and cache that tasks use, and connections that a worker keeps open between batches."""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...common import runtime
from ...store.archive.reading import Archives
from ...store.hot.hot_store import open_store
from ...store.objects.counting import CountingStore
from ...store.objects.local import SpooledStore
from ...store.objects.open import use_s3_access
from ...store.objects.protocol import ObjectStore
from ...store.objects.s3_settings import S3Access, S3ClientConfig, S3Settings
from ...store.read.cache import SstCache
from ...store.versions.keys import HOT
from ..kafka.archived import ArchivedKafka
from ..kafka.open import open_kafka
from ..kafka.protocol import Kafka


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """Settings with which workers open the store, Kafka and the cache. Spark pickles them to workers."""

    app: str
    stage: str
    store: str
    kafka: dict[str, str] = field(repr=False)
    cache: tuple[Path, int]
    """Folder and maximum bytes of the SST cache."""
    patience_s: float
    spool: str = ""
    """Folder of this machine where SSTs wait for their upload; empty if they are written to the store at once."""
    has_remote_tasks: bool = False
    """True if tasks run on other machines. Those machines may configure a different cache folder."""
    s3_settings: S3Settings | None = None
    s3: S3Access | None = None
    hot: str = ""
    """Root of the app's hot place to which batches write their SSTs; empty for the store itself."""

    def local_cache(self) -> tuple[Path, int]:
        folder, max_bytes = self.cache
        own = os.environ.get("SLACKWATER_CACHE") if self.has_remote_tasks else None
        return Path(own) if own else folder, max_bytes

    def new_sst_name(self) -> str:
        """Return the name of a new SST of a batch; it decides where the SST lies."""
        return f"{runtime.ulid()}{HOT if self.hot else ''}"

    def open_kafka(self) -> Kafka:
        archives = Archives(lambda: self.open()[1], self.app)
        return ArchivedKafka(open_kafka(self.kafka, lambda: self.open()[1]), archives, archive_first=False)

    def open(self) -> tuple[CountingStore, ObjectStore, SstCache]:
        """Return the store that counts the stage's requests, the store to use (a spool, if set), and the cache.

        Connections stay open for all batches of a worker, even if a batch brings new credentials.
        """
        storage = (self.store, use_s3_access(self.s3), self.s3_settings, self.patience_s, self.local_cache(), self.hot)
        counted, cache = _open_counted(self.app, self.stage, *storage)
        return counted, SpooledStore(counted, Path(self.spool)) if self.spool else counted, cache


@lru_cache(maxsize=8)
def _open(
    root: str,
    place: S3ClientConfig | None,
    settings: S3Settings | None,
    patience_s: float,
    cache: tuple[Path, int],
    hot: str,
) -> tuple[ObjectStore, SstCache]:
    store = open_store(root, hot=hot, patience_s=patience_s, settings=settings, client_config=place)
    return store, SstCache(*cache)


@lru_cache(maxsize=64)
def _open_counted(_app: str, _stage: str, *storage: Any) -> tuple[CountingStore, SstCache]:
    opened, cache = _open(*storage)
    return CountingStore(opened), cache


def forget_connections() -> None:
    """Open new connections from now on, without closing existing ones.

    For simulations, because one process may run several.
    """
    _open.cache_clear()
    _open_counted.cache_clear()
