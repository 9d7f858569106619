"""What the channels of a cut hold: records sent before the sender's version and not yet consumed by the receiver's.

All of it follows from the manifests: where the reader stands, where the sender stood, and which attempts counted in
between.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ...fold import records
from ...store.objects.protocol import ObjectStore
from ...store.versions import history
from ...store.versions.manifest import Input, Manifest
from .graph import Channel, Cut, channels
from .moments import heads_of


@dataclass(frozen=True, slots=True)
class InFlight:
    """Records sent before the sender's version and not yet consumed by the receiver's, on one channel.

    They lie in Kafka at `topic[p]` from `starts[p]` up to, not including, `ends[p]`, in messages whose
    attempt is one of `attempts`; anything else in that range is to be skipped.
    """

    channel: str
    topic: str
    sender: str
    receiver: str
    """Empty when no stage had read the channel yet."""
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    attempts: tuple[str, ...]
    rows: int
    """Records that the sender's versions `after`+1..`up_to` wrote. A clone's first version wrote for all readers: of a
    channel with several, one may have had its share of them."""
    counts: tuple[int, ...]
    """Records by Kafka partition: sent by the sender since the channel began, less those consumed and those lost. Empty
    where the receiver began in the middle."""
    after: int
    up_to: int
    schema: str


def in_flight(store: ObjectStore, cut: Cut) -> tuple[InFlight, ...]:
    """What the channels of the cut hold, senders upstream first; nothing for channels that are empty.

    Reads the senders' manifests between what was consumed and the cut. With several receivers of one channel
    there is one entry for each that lags.
    """
    found = (stretch(store, cut, channel) for channel in channels(cut))
    return tuple(state for state in found if state.attempts)


def stretch(store: ObjectStore, cut: Cut, channel: Channel, until: Input | None = None) -> InFlight:
    """What one receiver has still to read of a channel, up to the cut or up to where another receiver is.

    Without attempts when that is nothing. For a channel that nobody read yet, everything that is kept; for one whose
    reader was retired nothing, as nobody waits for it. Raises `NotFound` when a manifest of the sender's is gone.
    """
    sender = cut.stages[channel.sender]
    output = sender.outputs[channel.name]
    if channel.input is None and _given_up(store, cut, channel):
        after, starts, passed = sender.version, output.ends, output.sent
    elif channel.input is None and (left := left_at(cut.stages.values(), channel.name, channel.sender)) is not None:
        after, starts, passed = left.version, left.offsets, left.passed
    elif channel.input is None:
        after = history.first_version(store, cut.app, channel.sender) - 1
        starts = passed = (0,) * len(output.ends)
    else:
        after, starts, passed = channel.input.version, channel.input.offsets, channel.input.passed
    if until is None:
        up_to, ends, sent = sender.version, output.ends, output.sent
    else:
        # Two readers of a clone may stand within its sender's first version, at what was copied for each of them.
        within = until.version == after and until.offsets != starts
        up_to, ends, sent = until.version + within, until.offsets, until.passed
    versions = (history.read(store, cut.app, channel.sender, version) for version in range(after + 1, up_to + 1))
    written = records.sent(channel.name, versions)
    return InFlight(
        channel=channel.name,
        topic=output.topic,
        sender=channel.sender,
        receiver=channel.receiver,
        starts=starts,
        ends=ends,
        attempts=tuple(written.attempts),
        rows=written.rows,
        counts=records.difference(passed, sent),
        after=after,
        up_to=up_to,
        schema=output.schema,
    )


def left_at(heads: Iterable[Manifest], channel: str, sender: str) -> Input | None:
    """Where the last reader of a channel stopped, before a migration gave it to a stage that has not begun yet."""
    left = (head.stopped.get(channel) for head in heads)
    mine = [at for at in left if at is not None and at.upstream == sender]
    return max(mine, key=lambda at: at.version, default=None)


def _given_up(store: ObjectStore, cut: Cut, channel: Channel) -> bool:
    """Whether a stage read the channel that was retired by then, or is now."""
    absent = (stage for stage in history.list_stages(store, cut.app) if stage not in cut.stages)
    for stage, head in heads_of(store, cut.app, absent).items():
        source = head.inputs.get(channel.name)
        if source is not None and source.upstream == channel.sender:
            then = history.latest_at(store, cut.app, stage, cut.time_ms)
            if head.retired or (then is not None and then.retired):
                return True
    return False
