"""Where a notebook begins: a store, the apps in it, and what all of them are reached with."""

from collections.abc import Callable, Mapping
from threading import Event
from typing import Protocol, Self

from ..errors import Usage
from ..settings import load
from ..snapshot.clone.channels import Channels
from ..snapshot.verify.verify import Rereader
from ..store.objects.protocol import ObjectStore
from ..store.read.cache import SstCache
from ..store.versions.apps import list_apps, read_app
from .app import StoredApp
from .shown import Shown, View


class Kafka(Channels, Rereader, Protocol):
    """What a client needs of Kafka; `pipeline` implements it."""

    @property
    def kafka(self) -> Mapping[str, str]:
        """Librdkafka client properties."""
        ...


def open(store: str | None = None, kafka: str | None = None) -> "Client":  # noqa: A001  said as sw.open()
    """The apps of a store, to be looked at and worked with.

    Args:
        store: the store root, `s3://bucket/prefix` or a folder. Default, as for the command line: the environment's
            `SLACKWATER_STORE`, then `store` of the nearest `slackwater.toml`.
        kafka: the brokers, `host:port`; likewise from `SLACKWATER_KAFKA` or the file. Needed only for records in flight
            that no snapshot keeps, for cloning, and to verify deeply.

    Raises:
        Usage: nothing says where the store is, or the file is not understood.
        Unavailable: the store did not answer.
    """
    settings = load(store=store, kafka=kafka)
    return Client(settings.open_store(), settings.open_cache(), settings.open_channels)


class Client(Shown):
    """A store and its apps. Threads may share it. `close` it, or use it in a `with`, to give back its open files.

    Args:
        store: the objects under the store root.
        cache: where SSTs of a remote store come to lie on this machine.
        channels: the topics between stages; gives None when nothing says where Kafka is.
        closed: set once it is closed; clients that share a cache share it.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        channels: Callable[[], Kafka | None],
        closed: Event | None = None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._channels = channels
        self._closed = closed or Event()

    @property
    def root(self) -> str:
        """The store root."""
        return self._store.url

    @property
    def apps(self) -> tuple[str, ...]:
        """Names of the apps in the store, sorted. One listing.

        Raises:
            Usage: the client is closed.
            Unavailable: the store did not answer.
        """
        return tuple(sorted(list_apps(self.store)))

    def app(self, name: str) -> StoredApp:
        """An app of the store.

        Raises:
            NotFound: there is none of that name; tells the nearest.
            Usage: no app can have that name, or the client is closed.
            Unavailable: the store did not answer.
        """
        read_app(self.store, name)
        return StoredApp(self, name)

    def close(self) -> None:
        """Close the local cache's files. Results that were given out stay; asking for more raises `Usage`."""
        self._closed.set()
        self._cache.close()

    @property
    def store(self) -> ObjectStore:
        """The objects under the root. Raises `Usage` once the client is closed."""
        if self._closed.is_set():
            raise Usage("this client is closed", hint="sw.open() opens another")
        return self._store

    @property
    def cache(self) -> SstCache:
        """Where SSTs of a remote store come to lie on this machine."""
        return self._cache

    def channels(self) -> Kafka | None:
        """The topics between stages; None when nothing says where Kafka is."""
        return self._channels()

    def beside(self, store: ObjectStore) -> "Client":
        """A client of another store, which is closed with this one."""
        return Client(store, self._cache, self._channels, self._closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _view(self) -> View:
        return View(f"slackwater store {self.root}{' (closed)' if self._closed.is_set() else ''}")
