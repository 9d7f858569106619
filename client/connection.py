"""What a client, its apps and their moments share: the store, the cache of SSTs, the settings, and the way to Kafka."""

from collections.abc import Callable
from copy import copy
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING, Protocol, Self

from ..errors import Usage
from ..settings import Settings

if TYPE_CHECKING:
    from ..keep.clone.first_versions import Channels
    from ..keep.verify.verify import Rereader
    from ..moments.query.log import Topics
    from ..pipeline.kafka.protocol import Kafka as Opened
    from ..store.objects.protocol import ObjectStore
    from ..store.read.cache import SstCache

    class Kafka(Channels, Rereader, Topics, Protocol):
        """What a client needs of Kafka; `pipeline` implements it."""

        @property
        def kafka(self) -> Opened:
            """Kafka, opened."""
            ...


class Connection:
    """Reaches a store and Kafka. Threads may share it. `close` it, or use it in a `with`, to give back its open files.

    Args:
        settings: where things are.
        channels: the topics between stages, None when nothing says where Kafka is; default by the settings.

    Raises:
        Usage: nothing says where the store is, or what says it cannot be understood.
    """

    def __init__(self, settings: Settings, channels: "Callable[[], Kafka | None] | None" = None) -> None:
        self.settings = settings
        self._store = settings.open_store()
        self._channels = channels or settings.open_channels
        self._closed = Event()

    @property
    def root(self) -> str:
        """The store root."""
        return self._store.url

    @property
    def store(self) -> "ObjectStore":
        """The objects under the root. Raises `Usage` once the client is closed."""
        if self._closed.is_set():
            raise Usage("this client is closed", hint="sw.open() opens another")
        return self._store

    @cached_property
    def cache(self) -> "SstCache":
        """Where SSTs of a remote store come to lie on this machine."""
        return self.settings.open_cache()

    @property
    def by(self) -> str:
        """Who works with it, as an app's log has it: user@host."""
        from ..moments.take.audit_log import whoami

        return whoami()

    def channels(self) -> "Kafka | None":
        """The topics between stages; None when nothing says where Kafka is."""
        return self._channels()

    def known_channels(self, what_for: str) -> "Kafka":
        """The same; raises `Usage` when nothing says where Kafka is, and what it is needed for."""
        channels = self.channels()
        if channels is None:
            raise Usage(
                f"nothing says where the Kafka brokers are, {what_for}",
                hint='say sw.open(kafka="host:port"), or set SLACKWATER_KAFKA',
            )
        return channels

    def beside(self, store: "ObjectStore") -> Self:
        """The same for another store, which is closed with this one."""
        _ = self.cache  # is shared
        other = copy(self)
        other._store = store
        return other

    def close(self) -> None:
        """Close the local cache's files. Results that were given out stay; asking for more raises `Usage`."""
        self._closed.set()
        if "cache" in self.__dict__:
            self.cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
