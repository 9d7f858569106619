"""How far back Kafka goes for a backfill: what of it can be read, and from when."""

from collections.abc import Mapping
from dataclasses import replace

from ...snapshot.backfill.channels import left_in
from ...snapshot.backfill.targets import Left, Target
from ...store.objects.protocol import ObjectStore
from ..kafka.protocol import Kafka
from .backfilled import Filled


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
