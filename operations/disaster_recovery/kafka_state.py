"""Copies of Kafka data in a replica: in-flight records, unpublished rows of sinks, and anchors.

The copies serve a recovery without the app's Kafka. Anchors are the last records that the app read from each partition
of users' topics. They identify the app's position in a mirror of the topic, in which offsets differ.
"""

from collections.abc import Iterable, Iterator, Sequence

from ...errors import Corruption, Refused, Unavailable
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import InFlight, in_flight, rows_of_sink
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.replicas import Anchor, UnpublishedSinkRows
from ...snapshot.cut.stored import Captured, Snapshot
from ...snapshot.take.capture import capture_in_flight
from ...state.records import is_other_topic
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, published
from ...store.versions.manifest import Manifest

ANCHOR_COUNT = 16
"""Number of anchors per partition, chosen so that their sequence is unlikely to occur twice in a topic."""


def copy_in_flight_records(
    source: ObjectStore,
    target: ObjectStore,
    cut: Cut,
    name: str,
    keepers: Iterable[Snapshot],
    reader: KafkaTopics | None,
) -> tuple[tuple[Captured, ...], str]:
    """Copy the in-flight records of a cut for snapshot `name`. Returns the copies and an error message.

    The error message explains why records are missing; it is empty if all were copied. Records that the target already
    has in a snapshot of `keepers` are not read from Kafka again.
    """
    missing, captured = [], []
    for state in in_flight(source, cut):
        copy = next(
            (records for snapshot in keepers if (records := snapshot.find_captured_channel(state)) is not None), None
        )
        if copy is not None:
            captured.append(copy)
        elif state.receiver:
            missing.append(state)
    copies, lacks = _capture(target, cut.app, name, missing, reader, "in-flight records")
    return () if lacks else (*captured, *copies), lacks


def copy_unpublished_rows(
    source: ObjectStore, target: ObjectStore, cut: Cut, name: str, reader: KafkaTopics | None
) -> tuple[tuple[UnpublishedSinkRows, ...], str]:
    """Copy the rows that sinks had not published at a cut. Returns the copies and an error message.

    The error message explains why rows are missing; it is empty if all were copied.
    """
    unpublished: list[UnpublishedSinkRows] = []
    for head in cut.stages.values():
        for sink, state in _unpublished(source, head):
            copies, lacks = _capture(target, cut.app, name, [state], reader, f"rows for the sink {sink!r}")
            if lacks:
                return (), lacks
            unpublished += [UnpublishedSinkRows(head.stage, sink, rows) for rows in copies]
    return tuple(unpublished), ""


def _capture(
    target: ObjectStore, app: str, name: str, states: Sequence[InFlight], reader: KafkaTopics | None, label: str
) -> tuple[tuple[Captured, ...], str]:
    if not states:
        return (), ""
    if reader is None:
        rows = sum(state.rows for state in states)
        return (), f"{rows:,} {label} are not copied: no Kafka configured (--kafka)"
    try:
        return tuple(capture_in_flight(target, app, name, states, reader)), ""
    except (Corruption, Refused, Unavailable) as error:
        return (), f"{label} are not copied: {error.message}"


def _unpublished(store: ObjectStore, head: Manifest) -> Iterator[tuple[str, InFlight]]:
    for name, place in published.read_positions(store, head).items():
        sink = head.sinks[name]
        done = place.version if place is not None else sink.since
        if done >= head.version or (remaining := published.unpublished_rows(sink, place)) <= 0:
            continue
        begin = place.offset if place is not None else history.read(store, head.app, head.stage, done).sinks[name].end
        yield name, rows_of_sink(store, head, name, begin, done, remaining)


def read_anchors(cut: Cut, reader: KafkaTopics | None) -> dict[str, tuple[tuple[Anchor, ...], ...]]:
    """Return the last records that each stage has read from each partition, by `anchor_name`.

    Empty without Kafka. Stages may have read a topic up to different offsets, so each stage has its own anchors.
    """
    anchors: dict[str, tuple[tuple[Anchor, ...], ...]] = {}
    if reader is None:
        return anchors
    for stage, manifest in cut.stages.items():
        for name, source in manifest.inputs.items():
            if source.upstream:
                continue
            try:
                if is_other_topic(source.topic_id, reader.topic_id(source.topic)):
                    continue  # the topic was recreated, so the app has read none of its records
                anchors[anchor_name(stage, name)] = tuple(
                    reader.records_before(source.topic, partition, offset, ANCHOR_COUNT) if offset else ()
                    for partition, offset in enumerate(source.offsets)
                )
            except (Refused, Unavailable, LookupError):
                continue  # recovery then uses the mirror's offset syncs, if there are any
    return anchors


def anchor_name(stage: str, topic: str) -> str:
    return f"{stage}/{topic}"
