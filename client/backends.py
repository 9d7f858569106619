"""What a client, its apps and their moments share: the store, the cache of SSTs, the settings, and the way to Kafka."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Self, cast

from ..common.instants import iso
from ..errors import Usage
from ..settings import Settings
from .show import formats

if TYPE_CHECKING:
    from ..pipeline.kafka.channels import KafkaChannels
    from ..snapshot.cut.graph import Thinned
    from ..store.objects.protocol import ObjectStore
    from ..store.read.cache import SstCache


class Backends:
    """Reaches a store and Kafka. Threads may share it. `close` it, or use it in a `with`, to give back its open files.

    Args:
        settings: where things are.
        channels: the topics between stages, None when nothing says where Kafka is; default by the settings.
        note: told what is worth knowing beside what a call returns; default nobody.
        flags: what commands to type next need besides, in the words of results.

    Raises:
        Usage: nothing says where the store is, or what says it cannot be understood.
    """

    def __init__(
        self,
        settings: Settings,
        channels: "Callable[[], KafkaChannels | None] | None" = None,
        *,
        note: Callable[[str], None] = lambda _line: None,
        flags: str = "",
    ) -> None:
        self.settings = settings
        self.channels = channels or settings.open_channels
        """The topics between stages; None when nothing says where Kafka is."""
        self.note = note
        self.flags = flags
        self._store = settings.open_store()
        self._by = ""
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
        from ..snapshot.take.audit_log import whoami

        return self._by or whoami()

    def on_behalf_of(self, who: str) -> Self:
        """The same, whose log of operations has somebody else: a server's does what a token's owner asks for."""
        _ = self.cache  # is shared
        other = copy(self)
        other._by = who
        return other

    def channels_of(self, app: str) -> "KafkaChannels | None":
        """The topics that an app reads, as far back as Kafka or its input archive has them; None as `channels`.

        Without an app, empty, as far back as Kafka has them.
        """
        channels = self.channels()
        return channels.with_archives(self.store, app) if channels is not None and app else channels

    def known_channels(self, what_for: str, app: str = "") -> "KafkaChannels":
        """The topics between stages; raises `Usage` when nothing says where Kafka is, and what it is needed for.

        With an app, as `channels_of`.
        """
        channels = self.channels_of(app)
        if channels is None:
            raise _no_kafka(what_for)
        return channels

    def channels_where_needed(self, what_for: str, app: str = "") -> "KafkaChannels":
        """As `known_channels`, which raises only once something is asked of them: of a query's copy nothing is."""
        return self.channels_of(app) or cast("KafkaChannels", _UnknownChannels(what_for))

    @contextmanager
    def channels_of_clone(self, app: str, *, asks: bool) -> "Iterator[KafkaChannels]":
        """Topics for an app that is made of another one, which needs Kafka only for topics of its own.

        Where nothing says where Kafka is, the topics that it goes on reading are not looked at, and a note says so at
        the end; `asks` says that they must be. Raises `Usage` once something else is asked.
        """
        what_for = "in which the app has topics of its own, or reads or writes others"
        known = self.channels_of(app)
        if known is not None or asks:
            yield known or cast("KafkaChannels", _UnknownChannels(what_for))
            return
        unasked = _UnaskedChannels(what_for)
        yield cast("KafkaChannels", unasked)
        if unasked.topics:
            names = ", ".join(map(repr, unasked.topics))
            self.note(f"note: nothing says where Kafka is (--kafka), so nobody looked if {names} still has the offsets")

    def program_of(self, app: str, code: str | Path | None, what_for: str, ran: str = "FILE.py") -> str:
        """The program of an app: `code`, else that of the settings. Raises `Usage` where there is neither.

        `what_for` goes on from "which program", `ran` is the file to name.
        """
        file = str(code) if code is not None else self.settings.programs.get(app)
        if file is None:
            hint = f"add --code {ran}, or write under [programs] in slackwater.toml: {app} = …"
            raise Usage(f"nothing says which program {what_for}", hint=hint)
        return file

    def note_thinned(self, ref: str, thinned: "Thinned | None") -> None:
        """Tell that gc has left another moment than `ref` asked for. Machines find `thinned_out` in the result."""
        if thinned is None:
            return
        moved_ms = thinned.answered_ms - thinned.asked_ms
        how_far = f", {formats.duration(abs(moved_ms))} {'earlier' if moved_ms < 0 else 'later'}" if moved_ms else ""
        moment = f"{iso(thinned.answered_ms, 'milliseconds')}{how_far}"
        self.note(f"note: {ref}: history was thinned out by gc there; answering with the moment {moment}")

    def beside(self, root: str | None) -> Self:
        """The same for another store root, which is closed with this one; itself for none."""
        if not root:
            return self
        _ = self.cache  # is shared
        other = copy(self)
        other._store = self.store.at(root)
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


class _UnknownChannels:
    """Topics of which nobody says where they are."""

    def __init__(self, what_for: str) -> None:
        self._what_for = what_for

    def __getattr__(self, _name: str) -> Any:
        raise _no_kafka(self._what_for)


class _UnaskedChannels(_UnknownChannels):
    """Topics of which nobody says where they are, and that an app goes on reading without a look at them."""

    def __init__(self, what_for: str) -> None:
        super().__init__(what_for)
        self.topics: dict[str, None] = {}

    def check_topic(self, topic: str, *_offsets: object) -> None:
        """Remember that it was not looked at."""
        self.topics[topic] = None

    def topic_id(self, _topic: str) -> str:
        """Give none: nobody knows."""
        return ""

    def announce(self, *_positions: object) -> None:
        """Do nothing: this is only for Kafka's own tools."""


def _no_kafka(what_for: str) -> Usage:
    return Usage(
        f"nothing says where the Kafka brokers are, {what_for}",
        hint="give --kafka HOST:PORT, in Python sw.open(kafka=…), or set SLACKWATER_KAFKA, or write "
        'kafka = "…" (host:port) in slackwater.toml',
    )


def names_of_stage(text: str, what: str = "stage") -> tuple[str, str]:
    """App and stage of `APP/STAGE`, or app and table of `APP/TABLE`. Raises `Usage`, also for a moment behind it."""
    app, name, moment = names_at(text, what)
    if moment:
        raise Usage(
            f"{text!r} names a moment, which goes with no {what} here; expected APP/{what.upper()}",
            hint=f"write {app}/{name}",
        )
    return app, name


def names_at(text: str, what: str = "table") -> tuple[str, str, str]:
    """App, table, and moment with its `@`, which may be empty, of `APP/TABLE@MOMENT`. Raises `Usage`."""
    where, at, moment = text.partition("@")
    app, _, name = where.partition("/")
    if not name:
        raise Usage(
            f"{text!r} names no {what}; expected APP/{what.upper()}", hint=f"`slackwater status {app}` shows the stages"
        )
    return app, name, at + moment
