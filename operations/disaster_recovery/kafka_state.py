"""What a replica keeps of Kafka, which may be lost with the app: records in flight, rows for sinks, and anchors.

Anchors are the last records that were read of each partition of users' topics. By them a mirror of the topic, which has
other offsets, tells where the app stood.
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
"""Records kept for each partition: so many in a row are not the same ones elsewhere in a topic, but for a fault."""


def records_in_flight(
    source: ObjectStore,
    target: ObjectStore,
    cut: Cut,
    name: str,
    keepers: Iterable[Snapshot],
    reader: Topics | None,
) -> tuple[tuple[Captured, ...], str]:
    """The records in flight of a cut, kept in the target for snapshot `name`: and why there are none, if there are not.

    What one of the `keepers`, snapshots of the target, has of them is not read again.
    """
    missing, found = [], []
    for state in in_flight(source, cut):
        had = next((kept for each in keepers if (kept := each.captured(state)) is not None), None)
        if had is not None:
            found.append(had)
        elif state.receiver:
            missing.append(state)
    if missing and reader is None:
        return (), _unread(sum(state.rows for state in missing), "records on the way between stages")
    try:
        return (*found, *(capture(target, cut.app, name, missing, reader) if reader is not None else ())), ""
    except (Corruption, Refused, Unavailable) as error:
        return (), f"records on the way between stages are not kept: {error.message}"


def sink_rests(
    source: ObjectStore, target: ObjectStore, cut: Cut, name: str, reader: Topics | None
) -> tuple[tuple[SinkRest, ...], str]:
    """What sinks had still to publish at a cut, kept likewise; and why not, if it is not."""
    found: list[SinkRest] = []
    for head in cut.stages.values():
        for sink, state in _unpublished(source, head):
            if reader is None:
                return (), _unread(state.rows, f"rows for the sink {sink!r}")
            try:
                found += [SinkRest(head.stage, sink, kept) for kept in capture(target, cut.app, name, [state], reader)]
            except (Corruption, Refused, Unavailable) as error:
                return (), f"rows for the sink {sink!r} are not kept: {error.message}"
    return tuple(found), ""


def _unread(rows: int, what: str) -> str:
    return f"{rows:,} {what} are not kept: nothing says where Kafka is (--kafka)"


def _unpublished(store: ObjectStore, head: Manifest) -> Iterator[tuple[str, InFlight]]:
    """By sink of a version, what was to be published of it, as records in flight that nobody else reads."""
    for name, place in published.places(store, head).items():
        sink = head.sinks[name]
        done = place.version if place is not None else sink.since
        if done >= head.version or (left := published.behind(sink, place)) <= 0:
            continue
        between = tuple(history.between(store, head.app, head.stage, done, head.version))
        attempts = tuple(each for at in between if name in at.sinks for each in at.sinks[name].attempts)
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
                left,
                (left,),
                done,
                head.version,
                "",
                sink.topic_id,
            ),
        )


def anchors_of(cut: Cut, reader: Topics | None) -> dict[str, tuple[tuple[Anchor, ...], ...]]:
    """By user's topic as declared and partition, the last records that the cut has read; none where Kafka is away.

    Of several stages that read one topic each has read up to offsets of its own: see `anchor_name`.
    """
    found: dict[str, tuple[tuple[Anchor, ...], ...]] = {}
    if reader is None:
        return found
    for stage, manifest in cut.stages.items():
        for name, source in manifest.inputs.items():
            if source.upstream:
                continue
            try:
                if are_two(source.topic_id, reader.topic_id(source.topic)):
                    continue  # what lies there now was never read
                found[anchor_name(stage, name)] = tuple(
                    reader.before(source.topic, partition, offset, ANCHORS) if offset else ()
                    for partition, offset in enumerate(source.offsets)
                )
            except (Refused, Unavailable, LookupError):
                continue  # then the mirror's own account counts, or none
    return found


def anchor_name(stage: str, topic: str) -> str:
    """What the anchors of a stage's input are kept under."""
    return f"{stage}/{topic}"
