"""Stored state of replicas: copies of an app under a second store root, their cuts, and recoveries from them.

`Replica` is a small object beside the app's identity. Every writer reads this object first, since an app runs in only
one place. `ReplicaCut` is written last, after all objects to which it refers. Cuts are numbered, and a cut is created
only if its number is free, so two concurrent calls of `replicate` never overwrite each other's result.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import xxhash
from msgspec import Struct

from ...store.objects.protocol import ObjectStore
from ...store.versions import checks, codec, keys, limits
from ...store.versions.checks import Violation
from ...store.versions.codec import JsonFolder
from ...store.versions.manifest import AppInfo
from .stored import Captured

ReplicaState = Literal["copy", "recovered", "left"]


class Replica(Struct, frozen=True):
    """State of an app's folder: a replica, an app recovered from a replica, or an app that was recovered elsewhere."""

    app: limits.Name
    root: limits.ShortText
    created_ms: limits.TimeMs
    """Creation time of the app; distinguishes apps of the same name."""
    state: ReplicaState = "copy"
    """`copy`: only `replicate` writes here. `recovered`: the app runs here. `left`: the app runs under `root`."""
    topics: dict[limits.Topic, limits.Topic] = {}
    by: limits.ShortText = ""
    time_ms: limits.TimeMs = 0


@checks.find_violations.register
def _(value: Replica) -> Iterator[Violation]:
    yield from checks.root_violations("root", value.root)


def find_replica_state(store: ObjectStore, app: str) -> Replica | None:
    """Return the replica state of an app's folder; None if the folder has none. One request."""
    key = keys.replica(keys.check_name("app", app))
    return codec.find(store, key, Replica, key_of=lambda replica: keys.replica(replica.app))


def current_topic_names(store: ObjectStore, info: AppInfo | None) -> dict[str, str]:
    if info is None:
        return {}
    replica = find_replica_state(store, info.name)
    recovered = replica.topics if replica is not None and replica.state == "recovered" else {}
    return {**(info.origin.topics if info.origin is not None else {}), **recovered}


class Anchor(Struct, frozen=True):
    """Record of a user's topic right before the app's position. It shows the same position in a mirror of the topic."""

    offset: limits.Offset
    time_ms: limits.TimeMs
    digest: limits.Checksum
    """xxh3_128 of key and value."""


class UnpublishedSinkRows(Struct, frozen=True):
    """Unpublished rows of a sink at the cut of a replica."""

    stage: limits.Name
    sink: limits.Topic
    rows: Captured


class ReplicaCut(Struct, frozen=True):
    """Cut for which a replica has all objects."""

    app: limits.Name
    number: limits.Version
    stages: dict[limits.Name, limits.Version]
    time_ms: limits.TimeMs
    seen_ms: limits.TimeMs
    snapshot: limits.NameOrNone = ""
    lacks: limits.Text = ""
    sinks: tuple[UnpublishedSinkRows, ...] = ()
    anchors: dict[limits.ShortText, tuple[tuple[Anchor, ...], ...]] = {}
    """Last records read before the cut, oldest first, by `STAGE/TOPIC` and by partition."""
    snapshots: tuple[limits.Name, ...] = ()
    by: limits.ShortText = ""


REPLICA_CUTS = JsonFolder(ReplicaCut, keys.replica_cuts, lambda cut: cut.number, owner_of=lambda cut: cut.app)
REPLICA_SNAPSHOT_PREFIX = "replica-"
"""Prefix of the names of snapshots that pin a replica's cuts; followed by the number of the cut."""


class KnownReplica(Struct, frozen=True):
    """Root and progress of a replica, as `replicate` records them in the original app's folder."""

    app: limits.Name
    id: limits.Id
    root: limits.ShortText
    stages: dict[limits.Name, limits.Version]
    time_ms: limits.TimeMs
    seen_ms: limits.TimeMs
    lacks: limits.Text = ""
    by: limits.ShortText = ""


@checks.find_violations.register
def _(value: KnownReplica) -> Iterator[Violation]:
    yield from checks.root_violations("root", value.root)


REPLICAS = JsonFolder(KnownReplica, keys.replicas, lambda replica: replica.id, owner_of=lambda replica: replica.app)


class ReplicaLag(NamedTuple):
    """Number of versions, and time, by which a replica lags behind its app."""

    root: str
    versions: int
    seen_ms: int
    """Time up to which the replica is complete: a recovery loses later data."""
    lacks: str
    by: str


def lags_of(store: ObjectStore, app: str, heads: Mapping[str, int]) -> tuple[ReplicaLag, ...]:
    """Return the lag of each replica of an app whose newest versions are `heads`.

    Makes one list request, and one read for each replica.
    """
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
    """Delete an app's record of its replica under a root; returns False if there is no record. Two requests."""
    existed = REPLICAS.find(store, root_id(root), app) is not None
    REPLICAS.remove(store, root_id(root), app)
    return existed


def older_cuts(store: ObjectStore, newest: ReplicaCut) -> tuple[ReplicaCut, ...]:
    return tuple(cut for cut in reversed(REPLICA_CUTS.all(store, newest.app)) if cut.number < newest.number)


class Recovery(Struct, frozen=True):
    """Recovery of an app from a replica. If two recoveries are started at once, the one stored first wins."""

    app: limits.Name
    id: limits.Ulid
    by: limits.ShortText
    time_ms: limits.TimeMs
    topics: dict[limits.Topic, limits.Topic] = {}


def find_recovery(store: ObjectStore, app: str) -> Recovery | None:
    """Return the recovery that was started from a replica, complete or not; None for none. One request."""
    return codec.find(
        store, keys.recovery_journal(app), Recovery, key_of=lambda recovery: keys.recovery_journal(recovery.app)
    )
