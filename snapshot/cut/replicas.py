"""Of what an app's folder is a copy, and what became of it; and up to which cut a replica is complete.

The first is a small object beside the app's identity. Whoever would write to the app looks at it first: an app runs in
one place. What a replica is complete up to says an object that is put last, when all that it speaks of is there. Each
has a number of its own, put where there is none: of two that copy at once, neither takes back what the other has said.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import xxhash
from msgspec import Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import checks, keys, limits, notes
from ...store.versions.checks import Wrong
from ...store.versions.manifest import AppInfo
from ...store.versions.notes import Notes
from .stored import Captured

State = Literal["copy", "recovered", "left"]


class Replica(Struct, frozen=True):
    """What lies in an app's folder."""

    app: limits.Name
    root: limits.Line
    """The store root of which it is a copy; of what was left behind, the one under which the app runs since."""
    created_ms: limits.TimeMs
    """When the app was created: another app of the same name was so at another time."""
    state: State = "copy"
    """A copy, which nobody but `replicate` writes to; the app itself, since it was recovered; or left behind: its
    stages were fenced, and the app runs under `root`."""
    topics: dict[limits.Topic, limits.Topic] = {}
    """Users' topics that the app reads under another name since it was recovered, by their names as declared."""
    by: limits.Line = ""
    time_ms: limits.TimeMs = 0
    """When it became what it is."""


@checks.relations.register
def _(value: Replica) -> Iterator[Wrong]:
    yield from checks.root_is_wrong("root", value.root)


def find(store: ObjectStore, app: str) -> Replica | None:
    """What an app's folder says of itself; None of an app that was never copied here. One request."""
    key = keys.replica(keys.check_name("app", app))
    return notes.find(store, key, Replica, under=lambda found: keys.replica(found.app))


def topics_of(store: ObjectStore, info: AppInfo | None) -> dict[str, str]:
    """The users' topics that an app reads under another name, by their names as declared. One request."""
    if info is None:
        return {}
    found = find(store, info.name)
    recovered = found.topics if found is not None and found.state == "recovered" else {}
    return {**(info.origin.topics if info.origin is not None else {}), **recovered}


class Anchor(Struct, frozen=True):
    """A record of a user's topic right before where the app stood: a mirror of it has that at another offset."""

    offset: limits.Offset
    time_ms: limits.TimeMs
    digest: limits.Checksum
    """xxh3_128 of key and value."""


class SinkRest(Struct, frozen=True):
    """What a sink had still to publish."""

    stage: limits.Name
    sink: limits.Topic
    rows: Captured
    """As records in flight that nobody reads."""


class ReplicaCut(Struct, frozen=True):
    """What a replica is complete up to."""

    app: limits.Name
    number: limits.Version
    stages: dict[limits.Name, limits.Version]
    """The version of each stage, those that are retired among them."""
    time_ms: limits.TimeMs
    """When the newest of these was committed."""
    seen_ms: limits.TimeMs
    """When it was seen that the app had no later ones."""
    snapshot: limits.NameOrNone = ""
    """Pins the cut in the replica, with the records in flight; empty where the app has no stage that is not retired."""
    lacks: limits.Text = ""
    """Why records in flight, or rows for sinks, are not kept with it; empty where they are, or there were none."""
    sinks: tuple[SinkRest, ...] = ()
    anchors: dict[limits.Line, tuple[tuple[Anchor, ...], ...]] = {}
    """By stage and user's topic as declared (`STAGE/TOPIC`), and by partition, the last records read, oldest first."""
    snapshots: tuple[limits.Name, ...] = ()
    """The app's own that are there."""
    by: limits.Line = ""


CUTS = Notes(ReplicaCut, keys.replica_cuts, lambda each: each.number, app=lambda each: each.app)
PREFIX = "replica-"
"""What the snapshots that pin such cuts in the replica begin with; the number follows."""


class KnownReplica(Struct, frozen=True):
    """What `replicate` leaves with the app itself: where a replica is, and how far."""

    app: limits.Name
    id: limits.Id
    """Of its root."""
    root: limits.Line
    stages: dict[limits.Name, limits.Version]
    time_ms: limits.TimeMs
    seen_ms: limits.TimeMs
    lacks: limits.Text = ""
    by: limits.Line = ""


@checks.relations.register
def _(value: KnownReplica) -> Iterator[Wrong]:
    yield from checks.root_is_wrong("root", value.root)


REPLICAS = Notes(KnownReplica, keys.replicas, lambda each: each.id, app=lambda each: each.app)
"""By the root."""


class ReplicaLag(NamedTuple):
    """How far a replica is behind its app."""

    root: str
    versions: int
    """Committed and not copied, of all stages."""
    seen_ms: int
    """When it lacked nothing: so old is what would be lost, at most."""
    lacks: str
    """Why records in flight are not kept with it; empty where they are."""
    by: str


def lags_of(store: ObjectStore, app: str, heads: Mapping[str, int]) -> tuple[ReplicaLag, ...]:
    """How far the replicas of an app are behind its newest versions. A listing, and a read for each."""
    return tuple(
        ReplicaLag(
            each.root,
            sum(max(0, version - each.stages.get(stage, 0)) for stage, version in heads.items()),
            each.seen_ms,
            each.lacks,
            each.by,
        )
        for each in REPLICAS.all(store, app)
    )


def root_id(root: str) -> str:
    """What is left with an app about a replica lies under this."""
    return xxhash.xxh3_64_hexdigest(root.encode())


def forget(store: ObjectStore, app: str, root: str) -> bool:
    """Have an app know nothing of its replica under a root any more; whether it did. Two requests."""
    known = REPLICAS.find(store, root_id(root), app) is not None
    REPLICAS.remove(store, root_id(root), app)
    return known


def newest_cut(store: ObjectStore, app: str) -> ReplicaCut | None:
    """What a replica is complete up to; None for nothing yet. A listing, and a read. Raises `Corruption`."""
    return CUTS.newest(store, app)


def older_cuts(store: ObjectStore, newest: ReplicaCut) -> tuple[ReplicaCut, ...]:
    """The cuts before it that are still there, newest first: where it lacks something, the last that did not."""
    return tuple(each for each in reversed(CUTS.all(store, newest.app)) if each.number < newest.number)


class Recovery(Struct, frozen=True):
    """That an app is being recovered from a replica, by whom: of two at once, this is whose it is."""

    app: limits.Name
    id: limits.Ulid
    by: limits.Line
    time_ms: limits.TimeMs
    topics: dict[limits.Topic, limits.Topic] = {}
    """Users' topics that it reads under another name from then on, by their names as declared."""


def find_recovery(store: ObjectStore, app: str) -> Recovery | None:
    """The recovery that was begun from a replica, done or not; None for none. One request."""
    return notes.find(store, keys.recovery(app), Recovery, under=lambda found: keys.recovery(found.app))
