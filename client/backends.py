"""Connections that a client shares with its apps and moments: store, SST cache, settings, and Kafka."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from ..common import runtime
from ..common.instants import format_iso
from ..errors import Usage
from ..settings import Settings
from .show import formats

if TYPE_CHECKING:
    from ..pipeline.kafka.channels import KafkaChannels
    from ..snapshot.cut.graph import Thinned
    from ..store.objects.protocol import ObjectStore
    from ..store.read.cache import SstCache


class Backends:
    """Connections to a store and to Kafka; thread-safe. Close it, or use it in a `with`, to release its files.

    Args:
        settings: the store, Kafka, and other settings.
        open_channels: function that returns the repartition topics, or None without Kafka; default from the settings.
        note: called with each line of text that a user should read besides the result of a call; default ignores the
            lines.
        flags: options such as --store, to append to the commands that results suggest.

    Raises:
        Usage: no store is configured, or its root is malformed.
    """

    def __init__(
        self,
        settings: Settings,
        open_channels: "Callable[[], KafkaChannels | None] | None" = None,
        *,
        note: Callable[[str], None] = lambda _line: None,
        flags: str = "",
    ) -> None:
        self.settings = settings
        self.channels = open_channels or settings.open_channels
        self.note = note
        self.flags = flags
        self._store = settings.open_store()
        self._by = ""
        self._closed = runtime.event()

    @property
    def root(self) -> str:
        """Store root of the client."""
        return self._store.url

    @property
    def store(self) -> "ObjectStore":
        """Objects under the store root. Raises `Usage` once the client is closed."""
        if self._closed.is_set():
            raise Usage("this client is closed", hint="sw.open() opens another")
        return self._store

    @cached_property
    def cache(self) -> "SstCache":
        """Local cache of SSTs, opened on first use."""
        return self.settings.open_cache()

    @property
    def by(self) -> str:
        """User name in the log of operations, by default user@host."""
        from ..snapshot.take.audit_log import whoami

        return self._by or whoami()

    def on_behalf_of(self, who: str) -> Self:
        """Return a copy that logs operations under the name `who`, such as the name of a token."""
        _ = self.cache  # open the cache before copying, so that both share it
        other = copy(self)
        other._by = who
        return other

    def channels_of(self, app: str) -> "KafkaChannels | None":
        """Return the topics that an app reads, backed by its input archive; None if no Kafka is configured.

        If `app` is empty, only records that Kafka still has can be read.
        """
        channels = self.channels()
        return channels.with_archives(self.store, app) if channels is not None and app else channels

    def require_channels(self, what_for: str, app: str = "") -> "KafkaChannels":
        """Return the topics of an app. Without Kafka, raises `Usage`; `what_for` names the purpose in the message."""
        channels = self.channels_of(app)
        if channels is None:
            raise _no_kafka(what_for)
        return channels

    def channels_or_stub(self, what_for: str, app: str = "") -> "KafkaChannels":
        """Return the topics of an app; if no Kafka is configured, a stub whose first use raises `Usage`."""
        return self.channels_of(app) or cast("KafkaChannels", _MissingChannels(what_for))

    @contextmanager
    def channels_for_clone(self, app: str, *, must_check_offsets: bool) -> "Iterator[KafkaChannels]":
        """Yield the topics of an app from which a clone is created; if no Kafka is configured, a stub.

        The stub does not check that topics still have the offsets at which the clone continues. At the end, a note
        names the unchecked topics. The stub raises `Usage` if the clone needs topics of its own, or if
        `must_check_offsets` is set.
        """
        what_for = "for the app's own topics, and for --topic and --sink"
        channels = self.channels_of(app)
        if channels is not None or must_check_offsets:
            yield channels or cast("KafkaChannels", _MissingChannels(what_for))
            return
        unasked = _UncheckedChannels(what_for)
        yield cast("KafkaChannels", unasked)
        if unasked.topics:
            names = ", ".join(map(repr, unasked.topics))
            self.note(
                f"note: no Kafka configured (--kafka), so it was not checked whether {names} still has the offsets"
            )

    def program_path(self, app: str, code: str | Path | None, what_for: str, example_path: str = "FILE.py") -> str:
        """Return the path of an app's program: `code`, or the path in the settings.

        Raises `Usage` without both: `what_for` continues the sentence "no program given …", and the hint names
        `example_path`.
        """
        file = str(code) if code is not None else self.settings.programs.get(app)
        if file is None:
            hint = f"add --code {example_path}, or set it under [programs] in slackwater.toml: {app} = …"
            raise Usage(f"no program given {what_for}", hint=hint)
        return file

    def note_thinned(self, ref: str, thinned: "Thinned | None") -> None:
        """Print a note if gc removed the moment of `ref`. The note names the moment that is read instead.

        Prints nothing if `thinned` is None.
        """
        if thinned is None:
            return
        moved_ms = thinned.answered_ms - thinned.asked_ms
        how_far = f", {formats.duration(abs(moved_ms))} {'earlier' if moved_ms < 0 else 'later'}" if moved_ms else ""
        moment = f"{format_iso(thinned.answered_ms, 'milliseconds')}{how_far}"
        self.note(f"note: gc has thinned out the history at {ref}; using the nearest kept moment, {moment}")

    def at_root(self, root: str | None) -> Self:
        """Return a copy for the store at `root`, or this object if `root` is empty.

        The copy shares the cache, and both are closed together.
        """
        if not root:
            return self
        _ = self.cache  # open the cache before copying, so that both share it
        other = copy(self)
        other._store = self.store.at(root)
        return other

    def close(self) -> None:
        """Close the files of the local cache. Later calls raise `Usage`; returned results stay valid."""
        self._closed.set()
        if "cache" in self.__dict__:
            self.cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _MissingChannels:
    def __init__(self, what_for: str) -> None:
        self._what_for = what_for

    def __getattr__(self, _name: str) -> Any:
        raise _no_kafka(self._what_for)


class _UncheckedChannels(_MissingChannels):
    """Stub of Kafka for creating a clone: does not check offsets, and collects the names of unchecked topics."""

    def __init__(self, what_for: str) -> None:
        super().__init__(what_for)
        self.topics: dict[str, None] = {}

    def check_topic(self, topic: str, *_offsets: object) -> None:
        self.topics[topic] = None

    def topic_id(self, _topic: str) -> str:
        return ""

    def commit_positions(self, *_positions: object) -> None:
        """Do nothing: only Kafka's own tools read the offsets of the consumer group."""


def _no_kafka(what_for: str) -> Usage:
    return Usage(
        f"no Kafka configured, needed {what_for}",
        hint="give --kafka HOST:PORT, in Python sw.open(kafka=…), or set SLACKWATER_KAFKA, or write "
        'kafka = "…" (host:port) in slackwater.toml',
    )


def split_stage_name(text: str, noun: str = "stage") -> tuple[str, str]:
    """Split `APP/STAGE` or `APP/TABLE` into the two names. Raises `Usage` for text of another form."""
    app, name, moment = split_table_ref(text, noun)
    if moment:
        raise Usage(
            f"{text!r} names a moment; expected APP/{noun.upper()} without a moment",
            hint=f"write {app}/{name}",
        )
    return app, name


@dataclass(frozen=True, slots=True)
class OtherTable:
    """Table of an app, `APP/TABLE@MOMENT`, for a comparison. Never the name of a file."""

    ref: str


def split_table_ref(text: str, noun: str = "table") -> tuple[str, str, str]:
    """Split `APP/TABLE@MOMENT` into app, table and `@MOMENT` (empty if none). Raises `Usage` without a table."""
    where, at, moment = text.partition("@")
    app, _, name = where.partition("/")
    if not name:
        raise Usage(
            f"{text!r} names no {noun}; expected APP/{noun.upper()}", hint=f"`slackwater status {app}` shows the stages"
        )
    return app, name, at + moment
