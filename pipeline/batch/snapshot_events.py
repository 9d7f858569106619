"""What a batch means to the snapshots under way: its commit's events for the protocol, and what they ask of it.

Pure: the head, where the batch's inputs were and are now; out comes what the next manifest says and which markers
are to be written. Nothing is kept between batches, so that one which does not commit leaves no trace.
"""

from collections.abc import Collection, Iterator, Mapping

from ...chandy_lamport import events as cl
from ...chandy_lamport.process import Process
from ...errors import Corruption
from ...state.next_version import Outcome
from ...state.records import Position
from ...store.versions.manifest import Manifest, Span


def arrive(
    head: Manifest, before: Mapping[str, Position], after: Mapping[str, Position], closed: Collection[str]
) -> Outcome:
    """The protocol's answer to a batch that brings the inputs from `before` to `after`, by declared name.

    Both are empty where it brings nothing on any input. `closed` are recorded snapshots that nobody asks for any more.
    Raises `Corruption` where the head's captures do not join on to the batch.
    """
    channels = frozenset(name for name, source in head.inputs.items() if source.upstream)
    awaited = {snapshot: head.awaited.get(snapshot, ()) for snapshot in head.recorded}
    process = Process(channels, frozenset(head.outputs), awaited)
    forgotten = [snapshot for snapshot in head.recorded if snapshot in closed]
    events = [*map(cl.Forgotten, forgotten), *_events(channels, before, after, set(head.recorded))]
    actions = [action for event in events for action in process.receive(event)]

    recorded = {snapshot: version for snapshot, version in head.recorded.items() if snapshot not in forgotten}
    captured = {snapshot: dict(spans) for snapshot, spans in head.captured.items() if snapshot in recorded}
    for action in actions:
        match action:
            case cl.RecordState(snapshot):
                recorded[snapshot] = head.version + 1
            case cl.Capture(snapshot, channel, Span() as span):
                spans = captured.setdefault(snapshot, {})
                earlier = spans.get(channel, Span(span.after, span.after))
                if earlier.up_to != span.after:
                    raise Corruption(
                        f"channel {channel!r} was captured up to version {earlier.up_to}, and goes on after "
                        f"{span.after}",
                        object_key=channel,
                    )
                spans[channel] = Span(earlier.after, span.up_to)
    return Outcome(
        markers=tuple((action.snapshot, action.channel) for action in actions if isinstance(action, cl.SendMarker)),
        recorded=recorded,
        awaited={snapshot: tuple(sorted(rest)) for snapshot, rest in process.recorded.items() if rest},
        captured=captured,
        changed=any(isinstance(event, cl.MarkerArrived | cl.Requested) for event in events),
    )


def _events(
    channels: frozenset[str], before: Mapping[str, Position], after: Mapping[str, Position], known: set[str]
) -> Iterator[cl.Event]:
    """In the protocol's order: all batches before all markers."""
    for name in sorted(channels & after.keys()):
        if after[name].version > before[name].version:
            yield cl.BatchArrived(name, Span(before[name].version, after[name].version))
    for name in sorted(after):
        # A position keeps its snapshots until the input moves on: they are news only where it did.
        if after[name] == before[name]:
            continue
        for snapshot in after[name].snapshots:
            if name in channels:
                yield cl.MarkerArrived(snapshot, name)
            elif not channels and snapshot not in known:
                # Where there are channels, markers bring what topics only hear of.
                known.add(snapshot)
                yield cl.Requested(snapshot)
