"""Checks of a cut against its snapshot and Kafka: captured in-flight records, markers, and topics."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...errors import Corruption, NotFound, Refused, SlackwaterError, Unavailable
from ...state.records import TopicState, explain_recreated_topic, is_other_topic
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..cut import replicas
from ..cut.graph import Channel, Cut, channels
from ..cut.in_flight import InFlight, channel_state
from ..cut.kafka_topics import KafkaTopics
from ..cut.stored import ADDRESS_COLUMNS, Captured, CapturedObject, Snapshot
from ..take.capture import read_captured_object
from .report import CheckOutcome, as_sentence, collect_errors


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Channel of the cut, with the records in flight to one receiver."""

    channel: Channel
    in_flight: InFlight | None
    is_exact: bool
    """True if `in_flight.rows` counts only this receiver's records.

    After a clone or a rewind, the number may include the records of all receivers.
    """
    faults: tuple[str, ...] = ()


def channel_states(store: ObjectStore, cut: Cut) -> tuple[ChannelState, ...]:
    """Return each channel of the cut once per reader, with its in-flight records according to the manifests.

    Reads the senders' manifests between the consumed version and the cut.
    """
    states, edges = [], channels(cut)
    for channel in edges:
        output, source = cut.stages[channel.sender].outputs[channel.name], channel.input
        if source is None:
            continue
        counts = (output.ends, output.sent, source.offsets, source.consumed or output.ends, source.lost or output.ends)
        lengths = {len(count) for count in counts}
        state, exact, wrong = None, False, ""
        if len(lengths) > 1:
            counts_text = ", ".join(map(str, sorted(lengths)))
            wrong = f"ends, sent, offsets, consumed and lost differ in their number of partitions: {counts_text}"
        else:
            try:
                state = channel_state(store, cut, channel)
                between = history.iter_base_versions(store, cut.stages[channel.sender], state.after)
                copied = any(version.starts_history or version.rewind is not None for version in between)
                exact = not copied or sum(other.name == channel.name for other in edges) == 1
            except (Corruption, NotFound) as error:
                state, wrong = None, as_sentence(error)
        label = f"{channel.name} from {channel.sender} to {channel.receiver}"
        states.append(ChannelState(channel, state, exact, (f"{label}: {wrong}",) if wrong else ()))
    return tuple(states)


RecordLocations = npt.NDArray[np.int64]
"""Array with one row per record and the columns of `ADDRESS_COLUMNS`."""

_COMPARED_FIELDS = ("sender", "topic", "starts", "ends", "after", "up_to", "schema")


def check_captured(
    snapshot: Snapshot, captured: Mapping[tuple[str, str], Captured], states: Iterable[ChannelState]
) -> Iterator[CheckOutcome]:
    """Check that the snapshot keeps exactly the records in flight. `captured` is by channel and receiver.

    A snapshot taken with markers must keep all in-flight records. A pinned snapshot must keep all or none.
    """
    expected = {(state.channel.name, state.channel.receiver): state.in_flight for state in states}
    for channel_key in sorted(captured.keys() | expected.keys() if captured or snapshot.kind == "markers" else ()):
        in_flight = expected.get(channel_key)
        if channel_key in expected and in_flight is None:
            continue  # in-flight records are unknown; the ledger gives the reason
        is_empty = in_flight is None or not in_flight.attempts
        if is_empty and channel_key not in captured:
            continue
        label = f"{channel_key[0]} to {channel_key[1]}"
        wrong, capture = [], captured.get(channel_key)
        if capture is None and in_flight is not None:
            missing = f"{in_flight.rows} records of versions {in_flight.after + 1} to {in_flight.up_to}"
            wrong.append(f"{missing} are in flight, but it keeps none")
        elif capture is not None:
            if sum(capture.counts) != capture.rows:
                wrong.append(f"it counts {sum(capture.counts)} records, but its objects have {capture.rows}")
            if is_empty:
                wrong.append(f"it keeps {capture.rows} records, but none are in flight")
            for name in () if is_empty else _COMPARED_FIELDS:
                actual, expected_value = getattr(capture, name), getattr(in_flight, name)
                if actual != expected_value:
                    field = name.replace("_", " ")
                    wrong.append(f"it keeps records with {field} {actual}; expected {expected_value}")
        yield CheckOutcome("kept", label, tuple(f"snapshot {snapshot.name!r}, {label}: {fault}" for fault in wrong))


def recount_captured(
    store: ObjectStore, captured: Captured, markers: tuple[int, ...]
) -> tuple[tuple[int, ...] | None, tuple[CheckOutcome, ...]]:
    """Read every object of a captured channel, check the location of each record, and count the records.

    `markers` has the offset of the snapshot's marker in each partition; empty if there are no markers. Returns the
    number of records by partition (None if an object cannot be read), and a check of each object. Raises only
    `Unavailable`.
    """
    begin, end = len(captured.starts), len(captured.ends)
    if not begin == end == len(markers or captured.ends):
        where = f"{captured.channel} to {captured.receiver}"
        return None, (
            CheckOutcome(
                "kept",
                where,
                (f"{where}: it has {begin} start and {end} end offsets; expected one of each per partition",),
                0,
            ),
        )
    counts = np.zeros(end, np.int64)
    last = np.full((1, len(ADDRESS_COLUMNS)), -1)
    checked = []
    readable = True
    for captured_object in captured.objects:
        wrong: list[str] = []
        rows = None
        with collect_errors(wrong):
            rows = _record_locations(store, captured_object, end)
        if rows is None:
            readable = False
        else:
            wrong += (
                f"{captured_object.key} {fault}"
                for fault in _record_faults(rows, last, captured_object, captured, markers)
            )
            counts += np.bincount(rows[:, 0], minlength=len(counts))
            last = rows[-1:] if len(rows) else last
        checked.append(CheckOutcome("objects", captured_object.key, tuple(wrong)))
    return tuple(counts.tolist()) if readable else None, tuple(checked)


def _record_locations(store: ObjectStore, captured_object: CapturedObject, partitions: int) -> RecordLocations:
    try:
        # All columns, so that page checksums find every damaged page.
        rows = read_captured_object(store, captured_object, check_pages=True)
        addresses = np.column_stack([rows[name].cast(pa.int64()).to_numpy() for name in ADDRESS_COLUMNS])
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corruption(
            f"{captured_object.key} does not hold records with addresses: {error}", object_key=captured_object.key
        ) from None
    if len(addresses) and not 0 <= addresses[:, 0].min() <= addresses[:, 0].max() < partitions:
        raise Corruption(
            f"{captured_object.key} has records of partitions beyond {partitions}", object_key=captured_object.key
        )
    return addresses


def _record_faults(
    rows: RecordLocations,
    last: RecordLocations,
    captured_object: CapturedObject,
    captured: Captured,
    markers: tuple[int, ...],
) -> Iterator[str]:
    if len(rows) != captured_object.rows:
        yield f"has {len(rows)} records; expected {captured_object.rows}"
    partition, offset = rows[:, 0], rows[:, 1]
    starts, ends = np.array(captured.starts), np.array(captured.ends)
    for p, o, r in rows[(offset < starts[partition]) | (offset >= ends[partition])][:1].tolist():
        yield f"has record {captured.topic}[{p}]@{o}+{r}; expected offsets {starts[p]} to {ends[p] - 1}"
    for p, o, r in rows[offset > np.array(markers)[partition]][:1].tolist() if markers else ():
        yield f"has record {captured.topic}[{p}]@{o}+{r}, which is after the marker at {markers[p]}"
    step = np.diff(np.concatenate([last, rows]), axis=0)
    # Addresses must ascend: among partition, offset and row, the first value that changes must increase.
    grown = np.take_along_axis(step, np.argmax(step != 0, axis=1)[:, None], axis=1)[:, 0] > 0
    for p, o, r in rows[~grown][:1].tolist():
        yield f"has record {captured.topic}[{p}]@{o}+{r} twice or out of order"


def markers_of(snapshot: Snapshot | None, cut: Cut, channel: str, sender: str) -> tuple[int, ...]:
    """Return the offset of the snapshot's marker in each partition of a channel; empty if there is none."""
    if snapshot is None or sender not in cut.stages or channel not in cut.stages[sender].outputs:
        return ()
    output = cut.stages[sender].outputs[channel]
    offsets = output.markers.get(snapshot.id, ())
    return offsets if len(offsets) == len(output.ends) else ()


def check_markers(snapshot: Snapshot, cut: Cut) -> Iterator[CheckOutcome]:
    """Check that every sender's version names the marker, and that no reader in the cut has passed the marker."""
    seen = set()
    for channel in channels(cut):
        sender, wrong, count = cut.stages[channel.sender], [], 0
        output = sender.outputs[channel.name]
        markers, ends = output.markers.get(snapshot.id), output.ends
        if channel.name not in seen:
            seen.add(channel.name)
            count = len(ends)
            version, expected = f"{channel.sender}@v{sender.version}", f"one in each of {len(ends)} partitions"
            source = f"of snapshot {snapshot.name!r} on channel {channel.name!r}"
            if markers is None:
                wrong.append(f"{version} names no marker {source}")
            elif len(markers) != len(ends):
                wrong.append(f"{version} names {len(markers)} markers {source}; expected {expected}")
            else:
                wrong += (
                    f"{version} names a marker at {output.topic}[{partition}]@{marker}, but its messages end at {end}"
                    for partition, (marker, end) in enumerate(zip(markers, ends, strict=True))
                    if marker >= end
                )
        if channel.input is not None and markers and len(markers) == len(ends):
            # Between the marker and `ends` there are only markers of other snapshots that the same version wrote.
            reader = f"{channel.receiver}@v{cut.stages[channel.receiver].version} consumed {channel.input.topic}"
            wrong += (
                f"{reader}[{partition}] up to {offset}, past the marker of snapshot {snapshot.name!r}: expected at "
                f"most {end}"
                for partition, (end, offset) in enumerate(zip(ends, channel.input.offsets, strict=False))
                if offset > end
            )
        yield CheckOutcome("markers", f"{channel.name} from {channel.sender}", tuple(wrong), count)


def reread_markers(
    snapshot: Snapshot, cut: Cut, reader: KafkaTopics | None, not_reread: list[str]
) -> Iterator[CheckOutcome]:
    """Check each marker in Kafka. If a channel's markers cannot be read, `not_reread` gets a sentence about them."""
    for name, sender in sorted({(channel.name, channel.sender) for channel in channels(cut)}):
        topic = cut.stages[sender].outputs[name].topic
        for partition, offset in enumerate(markers_of(snapshot, cut, name, sender)):
            address = f"{topic}[{partition}]@{offset}"
            marker_id, reason = None, "no Kafka configured"
            if reader is not None:
                try:
                    marker_id, reason = reader.marker_at(topic, partition, offset), f"{address} is gone from Kafka"
                except (NotFound, Refused, Unavailable) as error:
                    reason = error.message
            if marker_id is None:
                not_reread.append(f"markers on {name} were not re-read: {reason}")
                break
            if marker_id != snapshot.id:
                actual = f"the marker of {marker_id}" if marker_id else "no marker"
                yield CheckOutcome(
                    "markers", address, (f"{address} holds {actual}; expected that of {snapshot.id}",), 0
                )


TOPIC_CHECK_PURPOSE = "to check that topics were not recreated"
_TopicUse = tuple[str, str]
"""Use of a topic: a verb ("read" or "wrote"), and the topic."""


def check_topics(store: ObjectStore, cut: Cut, kafka: KafkaTopics, not_checked: list[str]) -> Iterator[CheckOutcome]:
    """Check that no topic which the cut's stages read or wrote was deleted and recreated since the cut.

    If the newest version already uses the recreated topic, this is not a fault: `not_checked` then gets a sentence that
    the former records cannot be read again. If Kafka does not answer, `not_checked` gets the reason.
    """
    if (replica := replicas.find_replica_state(store, cut.app)) is not None and replica.state == "copy":
        return  # its topics are in another Kafka
    states: dict[str, TopicState | None] = {}
    for stage, manifest in sorted(cut.stages.items()):
        for (verb, topic), (expected_id, offsets) in _topics_by_use(manifest).items():
            try:
                if topic not in states:
                    states[topic] = kafka.state(topic)
            except SlackwaterError as error:
                if any(topic_id for other in cut.stages.values() for topic_id, _ in _topics_by_use(other).values()):
                    reason = error.message
                    not_checked.append(f"topics were not checked for being recreated: {reason}")
                return
            current, version = states[topic], f"{stage}@v{manifest.version}"
            if current is None:
                yield CheckOutcome("topics", topic, (f"{version} {verb} topic {topic!r}, which no longer exists",))
                continue
            reason = explain_recreated_topic(topic, expected_id, offsets, current)
            if reason and _head_uses(store, cut, stage, (verb, topic), current):
                not_checked.append(f"what {version} {verb} cannot be read again: {reason}")
                reason = ""
            yield CheckOutcome(
                "topics", topic, (f"{version} {verb} another topic than the current one: {reason}",) if reason else ()
            )


def _topics_by_use(manifest: Manifest) -> dict[_TopicUse, tuple[str, tuple[int, ...]]]:
    topics: dict[_TopicUse, tuple[str, tuple[int, ...]]] = {}
    if manifest.attached is None and not manifest.retired:
        topics |= {("read", source.topic): (source.topic_id, source.offsets) for source in manifest.inputs.values()}
        topics |= {("wrote", output.topic): (output.topic_id, output.ends) for output in manifest.outputs.values()}
        topics |= {("wrote", sink.topic): (sink.topic_id, (sink.end,)) for sink in manifest.sinks.values()}
    return topics


def _head_uses(store: ObjectStore, cut: Cut, stage: str, use: _TopicUse, current: TopicState) -> bool:
    head = history.head(store, cut.app, stage)
    topic_id, offsets = _topics_by_use(head).get(use, ("", ())) if head is not None else ("", ())
    return (
        bool(topic_id)
        and not is_other_topic(topic_id, current.id)
        and not explain_recreated_topic(use[1], topic_id, offsets, current)
    )
