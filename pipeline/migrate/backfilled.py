"""What `slackwater migrate --backfill` did or would do, and how far back Kafka goes for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice

from ...keep.backfill.targets import Left, Target
from ...keep.backfill.windows import left_in
from ...keep.migrate.migrate import Migrated
from ...store.objects.protocol import ObjectStore
from ..kafka.protocol import Kafka


@dataclass(frozen=True, slots=True)
class Filled:
    """Columns that were computed over the past, or would be."""

    target: Target
    starts: Mapping[str, tuple[int, ...]]
    """Where it begins, by user's topic as declared: from there on the values are complete."""
    whole: bool
    """Whether nothing is missing: the stage itself began there."""
    records: int
    """How many offsets were to be read."""
    from_ms: int | None
    """The time of the earliest record, in ms since 1970; None where there is none."""
    version: int = 0
    """The stage's version that has the values; 0 for none."""
    keys: int = 0
    """For how many keys there are values, at most."""
    keys_exact: bool = True
    """False where a key is counted once for each sorted run that has it."""
    ssts: int = 0
    """Objects that were rewritten for it."""
    bytes: int = 0
    needed: str = ""
    """The app that computed it, where that stays for now: a batch under way may need it."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill did, or would do, upstream first; and before it, the migration."""

    migrated: Migrated
    filled: tuple[Filled, ...]
    left: tuple[Left, ...]


def reach(
    kafka: Kafka, store: ObjectStore, target: Target, called: Mapping[str, str], *, patience_s: float
) -> Filled | Left:
    """What there is in Kafka of what a backfill would read; or why that is too little.

    Users' topics that the app reads under another name are `called` that, by the declared one. Raises `NotFound` and
    `Unavailable`.
    """
    starts, times, wanted = {}, [], target.records
    for topic, at in target.starts.items():
        name, ends = called.get(topic, topic), target.ends[topic]
        if (channel := target.channels.get(topic)) is not None:
            name = channel.end.topic
        earliest = kafka.offsets(name)[0]
        if channel is not None:
            left = left_in(store, target.app, topic, channel, earliest)
            target = replace(target, channels={**target.channels, topic: left})
            at = left.start.offsets
        starts[topic] = tuple(min(max(pair), end) for *pair, end in zip(at, earliest, ends, strict=False))
        for partition, (start, end) in enumerate(zip(starts[topic], ends, strict=True)):
            if start < end:
                found = chain.from_iterable(kafka.read(name, partition, start, start + 1, patience_s=patience_s))
                times += [int(message.timestamp()[1]) for message in islice(found, 1)]
    there = target.records_from(starts)
    if wanted and not there:
        return Left(
            target.stage,
            target.columns,
            f"of what it had read before v{target.since} Kafka has nothing any more",
            "where you have those records elsewhere, a stage of another name can begin with them: slackwater init",
        )
    return Filled(target, starts, target.is_whole(starts), there, min(times, default=None))
