"""What sinks were given since a moment, by all that the app did since: rewinds and promotions begin a sink anew."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ...errors import Refused
from ...fold.records import windows
from ...moments.cut.graph import order
from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history, published
from ...store.versions.manifest import Manifest


class SinkTopics(Protocol):
    """What is asked of Kafka about what sinks were given."""

    def ends(self, topic: str, /) -> tuple[int, ...] | None:
        """The end offset of each partition, or None when there is no such topic."""

    def since(self, topic: str, time_ms: int, /) -> tuple[int, ...]:
        """The first offset of each partition whose record has this time or a later one; the end where none has."""


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Rows that a sink was given since a moment, of versions that an earlier rewind has undone, too."""

    stage: str
    sink: str
    topic: str
    """Where they went; empty for a function."""
    rows: int
    """That are published, and cannot be unsent, as far as the store knows."""
    offsets: tuple[str, ...]
    """Where they lie in that topic, among what others may have sent there since."""
    dropped: int
    """That were committed and not published yet: they never will be."""


def sink_rows(
    store: ObjectStore, heads: Mapping[str, Manifest], then: Mapping[str, Manifest], kafka: SinkTopics
) -> Iterator[SinkRows]:
    """What was committed for sinks of these stages since their versions `then`; of each topic by itself.

    Raises `Refused` where they lack rows from before.
    """
    for stage in order(heads):
        head, was = heads[stage], then.get(stage)
        first = history.find(store, head.app, stage, was.version + 1) if was is not None else None
        for name in {**head.sinks, **head.silent, **(was.sinks if was is not None else {})}:
            rows, dropped = _of_sink(store, head, was, name)
            for topic in sorted(rows.keys() | dropped.keys()):
                since_ms = first.time_ms if first is not None else 0
                offsets = _sent_since(kafka, topic, since_ms) if topic and rows[topic] else ()
                if rows[topic] or dropped[topic]:
                    yield SinkRows(stage, name, topic, rows[topic], offsets, dropped[topic])


def others(store: ObjectStore, heads: Mapping[str, Manifest], since_ms: int) -> tuple[str, ...]:
    """The other apps that had the name at some time since, by promotions, and published under it.

    No request for an app that took part in none.
    """
    app = next(iter(heads.values())).app
    name = next((head.promotion.name for head in heads.values() if head.promotion is not None), "")
    if not name:
        return ()
    notes = apps.promotions(store, name)
    until_ms = (*(note.time_ms for note in notes), None)
    held = zip((name, *(note.folder for note in notes)), until_ms, strict=True)
    found = (folder for folder, end_ms in held if folder != app and (end_ms is None or end_ms > since_ms))
    return tuple(dict.fromkeys(found))


def _of_sink(store: ObjectStore, head: Manifest, was: Manifest | None, name: str) -> tuple[Counter[str], Counter[str]]:
    """By topic, the rows of one sink that were published since `was`, and those that are not yet."""
    info = apps.find_app(store, head.app)
    had = was.sinks.get(name) if was is not None else None
    rows, dropped = Counter[str](), Counter[str]()
    for at in _ends(store, head, name, was.version if was is not None else 0):
        sink = at.sinks[name]
        sent = had.sent if had is not None and had.since == sink.since else 0
        done = _published(store, at, name, is_newest=at is head)
        if at is head and done < sent:
            raise Refused(
                f"the sink {name!r} of {head.app}/{head.stage} has still to publish {sent - done:,} rows from before "
                "that moment, which a rewind would drop",
                hint=f"run the app until `slackwater status {head.app}` shows that they are published",
            )
        topics = apps.publishes(store, info, at.promotion) or {}
        topic = topics.get(name, name) if sink.kind == "topic" else ""
        rows[topic] += max(0, done - sent)
        dropped[topic] += sink.sent - done if at is head else 0
    return rows, dropped


def _ends(store: ObjectStore, head: Manifest, name: str, after: int) -> Iterator[Manifest]:
    """The last version of each time that a sink was begun, newest first, down to the one that was there at `after`.

    A few requests for each, and for each rewind and promotion since.
    """
    read, first = partial(history.find, store, head.app), partial(history.first_version, store, head.app)
    at: Manifest | None = head
    while at is not None and at.version > after:
        if (sink := at.sinks.get(name)) is None:
            # It is given up by a rewind, or in the claim after a promotion.
            at = history.newest_where(read, first, at, partial(_is_before, _mark(at)))
            continue
        if not _withdrawn(store, at):
            yield at
        at = history.find(store, at.app, at.stage, sink.since - 1) if sink.since > 1 else None


def _mark(each: Manifest) -> tuple[int, int]:
    """Grows with each promotion and each rewind."""
    return each.promotion.number if each.promotion is not None else 0, len(each.rewinds)


def _is_before(mark: tuple[int, int], each: Manifest) -> bool:
    return _mark(each) < mark


def _withdrawn(store: ObjectStore, at: Manifest) -> bool:
    """Whether a promotion gave the sinks which was withdrawn: nothing of them is published."""
    mark = at.promotion
    return mark is not None and mark.to == at.app and apps.outcome(store, mark) is False


def _published(store: ObjectStore, at: Manifest, name: str, *, is_newest: bool) -> int:
    """Rows published since the sink of a version began, and up to that version; all where nobody has noted any."""
    if is_newest:
        place = published.newest(store, at, name)
        return place.rows if place is not None else 0
    sink = at.sinks[name]
    noted = published.PLACES.all(store, at.app, at.stage, name)
    return max((each.rows for each in noted if sink.since <= each.version <= at.version), default=sink.sent)


def _sent_since(kafka: SinkTopics, topic: str, since_ms: int) -> tuple[str, ...]:
    """What was sent to a topic from a time on; nothing where there is no such topic any more."""
    ends = kafka.ends(topic)
    return windows(topic, kafka.since(topic, since_ms), ends) if ends is not None else ()
