"""State of replicas: the app that a folder is a copy of, and the cut up to which the copy is complete.

`Replica` is a small object beside the app's identity. Every writer reads this object first, since an app runs in only
one place. `ReplicaCut` is written last, when all objects that it refers to are copied. Cuts are numbered, and each is
created only if its number is free, so two concurrent copies never overwrite each other's result.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import xxhash
from msgspec import Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import checks, codec, keys, limits
from ...store.versions.checks import Wrong
from ...store.versions.codec import Notes
from ...store.versions.manifest import AppInfo
from .stored import Captured

ReplicaState = Literal["copy", "recovered", "left"]


class Replica(Struct, frozen=True):
    """State of an app's folder in replication: a copy, recovered from a copy, or left because the app moved away."""

    app: limits.Name
    root: limits.Line
    """Store root of the original app; for an app that left this folder, the root where it now runs."""
    created_ms: limits.TimeMs
    """Creation time of the app, which distinguishes it from another app of the same name."""
    state: ReplicaState = "copy"
    """`copy`: only `replicate` writes here. `recovered`: the app runs here. `left`: fenced, the app runs at `root`."""
    topics: dict[limits.Topic, limits.Topic] = {}
    """New names of users' topics since the recovery, by declared name."""
    by: limits.Line = ""
    time_ms: limits.TimeMs = 0
    """Time of the last change of state."""


@checks.relations.register
def _(value: Replica) -> Iterator[Wrong]:
    yield from checks.root_is_wrong("root", value.root)


def find(store: ObjectStore, app: str) -> Replica | None:
    """Return the replica state of an app's folder; None if the folder was never copied to or left. One request."""
    key = keys.replica(keys.check_name("app", app))
    return codec.find(store, key, Replica, under=lambda replica: keys.replica(replica.app))


def topics_of(store: ObjectStore, info: AppInfo | None) -> dict[str, str]:
    """Return the current names of users' topics that the app reads under new names, by declared name. One request."""
    if info is None:
        return {}
    replica = find(store, info.name)
    recovered = replica.topics if replica is not None and replica.state == "recovered" else {}
    return {**(info.origin.topics if info.origin is not None else {}), **recovered}


class Anchor(Struct, frozen=True):
    """Record of a user's topic right before the app's position, used to find that position in a mirror."""

    offset: limits.Offset
    time_ms: limits.TimeMs
    digest: limits.Checksum
    """xxh3_128 of key and value."""


class SinkRest(Struct, frozen=True):
    """Unpublished rows of a sink at a replica's cut."""

    stage: limits.Name
    sink: limits.Topic
    rows: Captured
    """Rows in the format of captured in-flight records, without a reader."""


class ReplicaCut(Struct, frozen=True):
    """Cut up to which a replica is complete."""

    app: limits.Name
    number: limits.Version
    stages: dict[limits.Name, limits.Version]
    """Version of each stage, including retired ones."""
    time_ms: limits.TimeMs
    """Commit time of the newest of these versions."""
    seen_ms: limits.TimeMs
    """Time at which the versions of this cut were still the app's newest."""
    snapshot: limits.NameOrNone = ""
    """Snapshot that pins the cut in the replica, with in-flight records; empty if all stages are retired."""
    lacks: limits.Text = ""
    """Reason why in-flight records or rows for sinks are missing; empty if nothing is."""
    sinks: tuple[SinkRest, ...] = ()
    anchors: dict[limits.Line, tuple[tuple[Anchor, ...], ...]] = {}
    """Last records that were read, oldest first, by stage and declared topic (`STAGE/TOPIC`), and by partition."""
    snapshots: tuple[limits.Name, ...] = ()
    """Copied snapshots of the app."""
    by: limits.Line = ""


CUTS = Notes(ReplicaCut, keys.replica_cuts, lambda cut: cut.number, app=lambda cut: cut.app)
"""Cuts by number. The replica is complete up to the newest one."""
PREFIX = "replica-"
"""Prefix of the names of snapshots that pin a replica's cuts; the cut's number follows."""


class KnownReplica(Struct, frozen=True):
    """Location and progress of a replica, as `replicate` records them in the folder of the original app."""

    app: limits.Name
    id: limits.Id
    """Id of the replica's root."""
    root: limits.Line
    stages: dict[limits.Name, limits.Version]
    time_ms: limits.TimeMs
    seen_ms: limits.TimeMs
    lacks: limits.Text = ""
    by: limits.Line = ""


@checks.relations.register
def _(value: KnownReplica) -> Iterator[Wrong]:
    yield from checks.root_is_wrong("root", value.root)


REPLICAS = Notes(KnownReplica, keys.replicas, lambda replica: replica.id, app=lambda replica: replica.app)


class ReplicaLag(NamedTuple):
    """Lag of a replica behind its app."""

    root: str
    versions: int
    """Number of committed versions that are not copied, over all stages."""
    seen_ms: int
    """Time at which the replica was complete. Later data would be lost in a recovery."""
    lacks: str
    """Reason why in-flight records are missing; empty if none are."""
    by: str


def lags_of(store: ObjectStore, app: str, heads: Mapping[str, int]) -> tuple[ReplicaLag, ...]:
    """Return the lag of each replica behind the app's newest versions. A listing, and a read for each."""
    return tuple(
        ReplicaLag(
            replica.root,
            sum(max(0, version - replica.stages.get(stage, 0)) for stage, version in heads.items()),
            replica.seen_ms,
            replica.lacks,
            replica.by,
        )
        for replica in REPLICAS.all(store, app)
    )


def root_id(root: str) -> str:
    return xxhash.xxh3_64_hexdigest(root.encode())


def forget_replica(store: ObjectStore, app: str, root: str) -> bool:
    """Delete an app's record of its replica under a root; returns False if there was none. Two requests."""
    existed = REPLICAS.find(store, root_id(root), app) is not None
    REPLICAS.remove(store, root_id(root), app)
    return existed


def older_cuts(store: ObjectStore, newest: ReplicaCut) -> tuple[ReplicaCut, ...]:
    """Return the remaining cuts before `newest`, newest first, to search for the last one without missing records."""
    return tuple(cut for cut in reversed(CUTS.all(store, newest.app)) if cut.number < newest.number)


class Recovery(Struct, frozen=True):
    """Recovery of an app from a replica. If two run concurrently, the one that is stored first wins."""

    app: limits.Name
    id: limits.Ulid
    by: limits.Line
    time_ms: limits.TimeMs
    topics: dict[limits.Topic, limits.Topic] = {}
    """New names of users' topics, by declared name."""


def find_recovery(store: ObjectStore, app: str) -> Recovery | None:
    """Return the recovery that was started from a replica, complete or not; None for none. One request."""
    return codec.find(store, keys.recovery(app), Recovery, under=lambda recovery: keys.recovery(recovery.app))
