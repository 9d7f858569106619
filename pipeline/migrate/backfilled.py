"""What `slackwater migrate --backfill` did or would do, and how far back Kafka goes for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...keep.backfill.channels import left_in
from ...keep.backfill.targets import Left, Target
from ...keep.migrate.migrate import Migrated
from ...store.objects.protocol import ObjectStore
from ..kafka.protocol import Kafka


@dataclass(frozen=True, slots=True)
class Filled:
    """Columns that were computed over the past, or would be.

    Attributes:
        target: What.
        starts: Where it begins, by user's topic as declared: from there on the values are complete.
        whole: Whether nothing is missing: the stage itself began there.
        records: How many offsets were to be read.
        from_ms: The time of the earliest record, in ms since 1970; None where there is none.
        version: The stage's version that has the values; 0 for none.
        keys: For how many keys there are values, at most.
        keys_exact: False where a key is counted once for each sorted run that has it.
        ssts: Objects that were rewritten for it.
        bytes: Theirs.
        needed: The app that computed it, where that stays for now: a batch under way may need it.
    """

    target: Target
    starts: Mapping[str, tuple[int, ...]]
    whole: bool
    records: int
    from_ms: int | None
    version: int = 0
    keys: int = 0
    keys_exact: bool = True
    ssts: int = 0
    bytes: int = 0
    needed: str = ""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill did, or would do.

    Attributes:
        migrated: What the program changed before.
        filled: The columns that got their past, upstream first.
        left: Those that stay as they are, and why.
    """

    migrated: Migrated
    filled: tuple[Filled, ...]
    left: tuple[Left, ...]


def reach(
    kafka: Kafka, store: ObjectStore, target: Target, called: Mapping[str, str], *, patience_s: float
) -> Filled | Left:
    """What there is in Kafka of what a backfill would read; or why that is too little.

    Args:
        kafka: Kafka, opened.
        store: The store of the app.
        target: What is to be read.
        called: Users' topics that the app reads under another name, by the declared one.
        patience_s: How long a broker may be away.

    Raises:
        NotFound: There is no such topic.
        Unavailable: Kafka did not answer.
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
        times += [
            time_ms
            for partition, (start, end) in enumerate(zip(starts[topic], ends, strict=True))
            if start < end and (time_ms := _time_ms(kafka, name, partition, start, patience_s)) is not None
        ]
    there = target.records_from(starts)
    if wanted and not there:
        return Left(
            target.stage,
            target.columns,
            f"of what it had read before v{target.since} Kafka has nothing any more",
            "where you have those records elsewhere, a stage of another name can begin with them: slackwater init",
        )
    return Filled(target, starts, target.is_whole(starts), there, min(times, default=None))


def _time_ms(kafka: Kafka, topic: str, partition: int, offset: int, patience_s: float) -> int | None:
    for messages in kafka.read(topic, partition, offset, offset + 1, patience_s=patience_s):
        for message in messages:
            return int(message.timestamp()[1])
    return None
