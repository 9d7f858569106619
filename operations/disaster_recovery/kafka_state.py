"""Copies of Kafka data in a replica, in case Kafka is lost with the app: in-flight records, rows for sinks, anchors.

Anchors are, for each partition of users' topics, the last records that the app read. They identify the app's position
in a mirror of the topic, which has other offsets.
"""

from collections.abc import Iterable, Iterator

from ...errors import Corruption, Refused, Unavailable
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import InFlight, in_flight
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.replicas import Anchor, SinkRest
from ...snapshot.cut.stored import Captured, Snapshot
from ...snapshot.take.capture import capture
from ...state.records import are_two
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, published
from ...store.versions.manifest import Manifest

ANCHORS = 16
"""Number of anchors for each partition: so many that only a fault repeats their sequence in a topic."""


def records_in_flight(
    source: ObjectStore,
    target: ObjectStore,
    cut: Cut,
    name: str,
    keepers: Iterable[Snapshot],
    reader: Topics | None,
) -> tuple[tuple[Captured, ...], str]:
    """Copy the in-flight records of a cut to the target for snapshot `name`; returns the copies and an error.

    The error is the reason why records are missing, or empty. Records that one of the `keepers`, snapshots of the
    target, already has are not read again.
    """
    missing, captured = [], []
    for state in in_flight(source, cut):
        copy = next((records for snapshot in keepers if (records := snapshot.captured(state)) is not None), None)
        if copy is not None:
            captured.append(copy)
        elif state.receiver:
            missing.append(state)
    if missing and reader is None:
        return (), _unread(sum(state.rows for state in missing), "in-flight records")
    try:
        return (*captured, *(capture(target, cut.app, name, missing, reader) if reader is not None else ())), ""
    except (Corruption, Refused, Unavailable) as error:
        return (), f"in-flight records are not copied: {error.message}"


def sink_rests(
    source: ObjectStore, target: ObjectStore, cut: Cut, name: str, reader: Topics | None
) -> tuple[tuple[SinkRest, ...], str]:
    """Copy the rows that sinks had not yet published at a cut; returns the copies and an error.

    The error is the reason why rows are missing, or empty.
    """
    unpublished: list[SinkRest] = []
    for head in cut.stages.values():
        for sink, state in _unpublished(source, head):
            if reader is None:
                return (), _unread(state.rows, f"rows for the sink {sink!r}")
            try:
                unpublished += [
                    SinkRest(head.stage, sink, rows) for rows in capture(target, cut.app, name, [state], reader)
                ]
            except (Corruption, Refused, Unavailable) as error:
                return (), f"rows for the sink {sink!r} are not copied: {error.message}"
    return tuple(unpublished), ""


def _unread(rows: int, label: str) -> str:
    return f"{rows:,} {label} are not copied: no Kafka configured (--kafka)"


def _unpublished(store: ObjectStore, head: Manifest) -> Iterator[tuple[str, InFlight]]:
    """Yield each sink of a version that has unpublished rows, and a description of these rows as in-flight records."""
    for name, place in published.places(store, head).items():
        sink = head.sinks[name]
        done = place.version if place is not None else sink.since
        if done >= head.version or (remaining := published.behind(sink, place)) <= 0:
            continue
        between = tuple(history.between(store, head.app, head.stage, done, head.version))
        attempts = tuple(attempt for at in between if name in at.sinks for attempt in at.sinks[name].attempts)
        begin = place.offset if place is not None else history.read(store, head.app, head.stage, done).sinks[name].end
        ends = (begin,), (sink.end,)
        yield (
            name,
            InFlight(
                name,
                sink.topic,
                head.stage,
                head.stage,
                *ends,
                attempts,
                remaining,
                (remaining,),
                done,
                head.version,
                "",
                sink.topic_id,
            ),
        )


def anchors_of(cut: Cut, reader: Topics | None) -> dict[str, tuple[tuple[Anchor, ...], ...]]:
    """Return the last records that the cut has read, by user's topic as declared and partition; empty without Kafka.

    Several stages may read one topic up to different offsets, so each stage has its own: see `anchor_name`.
    """
    anchors: dict[str, tuple[tuple[Anchor, ...], ...]] = {}
    if reader is None:
        return anchors
    for stage, manifest in cut.stages.items():
        for name, source in manifest.inputs.items():
            if source.upstream:
                continue
            try:
                if are_two(source.topic_id, reader.topic_id(source.topic)):
                    continue  # the topic was recreated: its records were never read
                anchors[anchor_name(stage, name)] = tuple(
                    reader.before(source.topic, partition, offset, ANCHORS) if offset else ()
                    for partition, offset in enumerate(source.offsets)
                )
            except (Refused, Unavailable, LookupError):
                continue  # then recovery uses the mirror's offset syncs, if any
    return anchors


def anchor_name(stage: str, topic: str) -> str:
    """Return the key of the anchors of a stage's input in `ReplicaCut.anchors`."""
    return f"{stage}/{topic}"
