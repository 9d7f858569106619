"""What forgetting does not reach: topics, which let it pass, and what was handed out."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import SlackwaterError
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.stored import list_snapshots
from ...store.versions import apps
from . import archive
from .family import Member

_PINS = "iceberg-"
"""How the snapshots begin that an export as Iceberg tables makes."""


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """Something that may hold a key, and that nobody can look into from here."""

    what: str
    """A topic, `input`, `channel`, `sink's own topic` or `sink's topic`; else `archive`, `checkpoint`, `iceberg`,
    `deep clone`, `handed out`, `sink`, `cache` or `replica`."""
    name: str
    retention_ms: int | None = None
    """Of a topic, how long it keeps records; -1 for ever, None where nobody says."""


def out_of_reach(members: tuple[Member, ...], kafka: Topics | None) -> tuple[OutOfReach, ...]:
    """All of an app's and its clones', in the order of the apps. Topics that several have are told once."""
    found: dict[tuple[str, str], OutOfReach] = {}
    for each in members:
        for _, head in each.copies:
            query = head.attached
            assert query is not None  # noqa: S101  what a copy is
            what = f"the checkpoint {query.checkpoint}: a batch of the query that changes the key brings it back"
            found["checkpoint", query.checkpoint] = OutOfReach("checkpoint", what)
        for what, topic in _topics(each):
            if (what, topic) not in found:
                found[what, topic] = OutOfReach(what, topic, _retention_ms(kafka, topic))
        for topic, count in archive.owed(each).items():
            what = f"{count:,} offsets of {topic} that {each.app} has read and has yet to archive"
            found["archive", f"{each.store.url} {each.app} {topic}"] = OutOfReach("archive", what)
        if any(snapshot.name.startswith(_PINS) for snapshot in list_snapshots(each.store, each.app)):
            what = f"Iceberg tables of {each.app}: they are broken until they are exported the next time"
            found["iceberg", f"{each.store.url} {each.app}"] = OutOfReach("iceberg", what)
        for name in _deep_clones(each):
            found["deep clone", name] = OutOfReach("deep clone", name)
    return (
        *found.values(),
        OutOfReach("handed out", "bundles of replays, reports, exported files, backups"),
        OutOfReach("sink", "what the readers of sinks have made of it"),
        OutOfReach("cache", "SSTs in caches of other machines, which nothing reads any more"),
        OutOfReach("replica", "replicas under other roots, until they are replicated the next time"),
    )


def _topics(member: Member) -> Iterator[tuple[str, str]]:
    info = apps.find_app(member.store, member.app)
    for head in member.heads.values():
        # What a query reads, no replay of ours reads again.
        for source in head.inputs.values() if head.attached is None else ():
            if not source.upstream:
                yield "input", source.topic
        for output in head.outputs.values():
            yield "channel", output.topic
        published = apps.publishes(member.store, info, head.promotion)
        for name, sink in head.sinks.items():
            yield "sink's own topic", sink.topic
            if sink.kind == "topic" and (published is None or name in published):
                yield "sink's topic", (published or {}).get(name, name)


def _retention_ms(kafka: Topics | None, topic: str) -> int | None:
    try:
        return kafka.retention_ms(topic) if kafka is not None else None
    except SlackwaterError:
        return None  # what cannot be asked is not known


def _deep_clones(member: Member) -> Iterator[str]:
    """The apps of the same root that were cloned from it and share nothing with it: each has the key for itself."""
    for name in apps.list_apps(member.store):
        info = apps.find_app(member.store, name)
        origin = info.origin if info is not None else None
        if origin is not None and (origin.deep or origin.empty) and origin.app == member.app:
            yield name
