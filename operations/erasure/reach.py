"""Data that an erasure does not reach: topics, which expire by retention, and data outside the store."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import SlackwaterError
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.stored import list_snapshots
from ...store.versions import apps
from . import archive
from .family import Member

_ICEBERG_PREFIX = "iceberg-"


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """Data that may hold a key and that an erasure cannot remove."""

    what: str
    """Kind of data that may hold a key.

    One of `input`, `channel`, `sink's own topic` and `sink's topic` (topics), `archive`, `checkpoint`, `iceberg`, `deep
    clone`, `handed out`, `sink`, `table`, `cache` and `replica`.
    """
    name: str
    retention_ms: int | None = None
    """Retention of a topic in milliseconds; -1 for unlimited, None if unknown."""


def list_out_of_reach(members: tuple[Member, ...], kafka: KafkaTopics | None) -> tuple[OutOfReach, ...]:
    """Return data of an app and its clones that an erasure does not reach, without duplicates."""
    unreached: dict[tuple[str, str], OutOfReach] = {}
    for member in members:
        for _, head in member.attached_stages:
            query = head.attached
            assert query is not None  # noqa: S101  what a copy is
            kind = f"the checkpoint {query.checkpoint}: a batch of the query that changes the key brings it back"
            if query.follows_topic:
                kind = f"the topic {query.query}: a record of the key brings it back, until a tombstone follows"
            unreached["checkpoint", query.checkpoint] = OutOfReach("checkpoint", kind)
        for kind, topic in _topics(member):
            if (kind, topic) not in unreached:
                unreached[kind, topic] = OutOfReach(kind, topic, _retention_ms(kafka, topic))
        for topic, count in archive.count_unarchived_offsets(member).items():
            kind = f"{count:,} offsets of {topic} that {member.app} has read but not archived yet"
            unreached["archive", f"{member.store.url} {member.app} {topic}"] = OutOfReach("archive", kind)
        if any(snapshot.name.startswith(_ICEBERG_PREFIX) for snapshot in list_snapshots(member.store, member.app)):
            kind = f"Iceberg tables of {member.app}, which are broken until the next export"
            unreached["iceberg", f"{member.store.url} {member.app}"] = OutOfReach("iceberg", kind)
        for head in member.heads.values():
            for name, sink in head.sinks.items():
                if sink.table:
                    kind = f"the table {sink.table} of the sink {name}, and its history"
                    unreached["table", sink.table] = OutOfReach("table", kind)
        for name in _deep_clones(member):
            unreached["deep clone", name] = OutOfReach("deep clone", name)
    return (
        *unreached.values(),
        OutOfReach("handed out", "bundles of replays, reports, exported files, backups"),
        OutOfReach("sink", "data that consumers of sinks have stored"),
        OutOfReach("cache", "SSTs in caches of other machines, which nothing reads any more"),
        OutOfReach("replica", "replicas under other roots, until they are next replicated"),
    )


def _topics(member: Member) -> Iterator[tuple[str, str]]:
    info = apps.find_app(member.store, member.app)
    for head in member.heads.values():
        # No replay reads the inputs of an attached query.
        for source in head.inputs.values() if head.attached is None else ():
            if not source.upstream:
                yield "input", source.topic
        for output in head.outputs.values():
            yield "channel", output.topic
        published = apps.published_sinks(member.store, info, head.promotion)
        for name, sink in head.sinks.items():
            yield "sink's own topic", sink.topic
            if sink.kind == "topic" and (published is None or name in published):
                yield "sink's topic", (published or {}).get(name, name)


def _retention_ms(kafka: KafkaTopics | None, topic: str) -> int | None:
    try:
        return kafka.retention_ms(topic) if kafka is not None else None
    except SlackwaterError:
        return None  # unknown


def _deep_clones(member: Member) -> Iterator[str]:
    for name in apps.list_apps(member.store):
        info = apps.find_app(member.store, name)
        origin = info.origin if info is not None else None
        if origin is not None and (origin.is_deep or origin.is_empty) and origin.app == member.app:
            yield name
