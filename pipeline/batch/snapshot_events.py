"""Effects of one batch on snapshots: markers to send, and records in flight to capture (Chandy-Lamport).

The effects depend only on the head, and on the input positions before and after the batch. No state is kept between
batches, so an uncommitted batch leaves no trace.
"""

from collections.abc import Collection, Iterator, Mapping

from ...chandy_lamport import events as cl
from ...chandy_lamport.process import Process
from ...errors import Corruption
from ...state.next_version import ProtocolOutcome
from ...state.records import Position
from ...store.versions.manifest import Manifest, VersionSpan


def compute_outcome(
    head: Manifest, before: Mapping[str, Position], after: Mapping[str, Position], closed: Collection[str]
) -> ProtocolOutcome:
    """Return the effects on snapshots of a batch that reads its inputs from `before` up to `after`.

    `before` and `after` have positions by the input's declared name, and are empty for a batch that reads nothing.
    `closed` are snapshots in `head.recorded` whose requests are deleted. Raises `Corruption` if the batch skips or
    repeats versions of a channel that is being captured.
    """
    channels = frozenset(name for name, source in head.inputs.items() if source.upstream)
    awaited = {snapshot: head.awaited.get(snapshot, ()) for snapshot in head.recorded}
    process = Process(channels, frozenset(head.outputs), awaited)
    forgotten = [snapshot for snapshot in head.recorded if snapshot in closed]
    events = [*map(cl.SnapshotEnded, forgotten), *_protocol_events(channels, before, after, set(head.recorded))]
    actions = [action for event in events for action in process.receive(event)]

    recorded = {snapshot: version for snapshot, version in head.recorded.items() if snapshot not in forgotten}
    captured = {snapshot: dict(spans) for snapshot, spans in head.captured.items() if snapshot in recorded}
    for action in actions:
        match action:
            case cl.RecordState(snapshot):
                recorded[snapshot] = head.version + 1
            case cl.Capture(snapshot, channel, VersionSpan() as span):
                spans = captured.setdefault(snapshot, {})
                earlier = spans.get(channel, VersionSpan(span.after, span.after))
                if earlier.up_to != span.after:
                    raise Corruption(
                        f"channel {channel!r} was captured up to version {earlier.up_to}, but the next batch begins "
                        f"after {span.after}",
                        object_key=channel,
                    )
                spans[channel] = VersionSpan(earlier.after, span.up_to)
    return ProtocolOutcome(
        markers=tuple((action.snapshot, action.channel) for action in actions if isinstance(action, cl.SendMarker)),
        recorded=recorded,
        awaited={snapshot: tuple(sorted(channels)) for snapshot, channels in process.recorded.items() if channels},
        captured=captured,
        changed=any(isinstance(event, cl.MarkerArrived | cl.SnapshotRequested) for event in events),
    )


def _protocol_events(
    channels: frozenset[str], before: Mapping[str, Position], after: Mapping[str, Position], recorded: set[str]
) -> Iterator[cl.Event]:
    """Yield the protocol's events of a batch, in this order: rows that arrived, then markers, then requests."""
    for name in sorted(channels & after.keys()):
        if after[name].version > before[name].version:
            yield cl.BatchArrived(name, VersionSpan(before[name].version, after[name].version))
    for name in sorted(after):
        # A position keeps its snapshots until the input advances, so snapshots are new only if the input has advanced.
        if after[name] == before[name]:
            continue
        for snapshot in after[name].snapshots:
            if name in channels:
                yield cl.MarkerArrived(snapshot, name)
            elif not channels and snapshot not in recorded:
                # A stage with channels gets snapshot requests by markers, so requests announced on its topics are
                # ignored.
                recorded.add(snapshot)
                yield cl.SnapshotRequested(snapshot)
