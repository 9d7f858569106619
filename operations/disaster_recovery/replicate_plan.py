"""Lists the versions that a replica lacks, in the order in which they are copied.

Senders come before their receivers, and older versions of a stage before newer ones. So at any time the newest versions
in the replica are a consistent cut, and no record between a sender's and its receiver's version is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import Refused
from ...snapshot.cut.graph import order
from ...snapshot.cut.moments import newest_settled
from ...snapshot.cut.stored import Snapshot, list_snapshots
from ...store.objects.protocol import ObjectStore
from ...store.versions import history, horizon
from ...store.versions.horizon import NOTHING_COLLECTED, Boundary
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Todo:
    """Versions and snapshots that a replica lacks."""

    versions: Mapping[str, tuple[int, ...]]
    """By stage, senders first; ascending."""
    cut: Mapping[str, Manifest]
    """The cut up to which the replica is complete after copying, retired stages included."""
    snapshots: tuple[Snapshot, ...]
    """The app's own snapshots that the replica is to have."""
    limit: Boundary
    """The boundary of the app's versions."""


def last_final(store: ObjectStore, app: str) -> Boundary:
    """Return the boundary of the last garbage collection. Requests of `horizon.all_of`."""
    return next((boundary for boundary in reversed(horizon.all_of(store, app)) if boundary.final), NOTHING_COLLECTED)


def every_version(store: ObjectStore, app: str, copied: Mapping[str, int]) -> Todo:
    """Return all versions after those `copied`, which are the newest of each stage in the replica.

    Raises `Refused` if garbage collection deleted a version in between, or the app has fewer versions than the replica.
    """
    limit, heads = last_final(store, app), newest_settled(store, app)
    versions = {}
    for stage in order(heads):
        head, has = heads[stage].version, copied.get(stage, 0)
        first = limit.first.get(stage) or history.first_version(store, app, stage)
        if 0 < has < first - 1:
            raise Refused(
                f"the replica has {app}/{stage} up to v{has}, and {store.url} only from v{first} on: gc deleted the "
                "versions in between before they were copied",
                hint=f"start a new replica: slackwater replicate {app} --to another root. This one can still be "
                "recovered until the new one is complete; have gc keep versions for longer than a replica may lag "
                "([retention] all)",
            )
        older = limit.kept.get(stage, ()) if not has else ()
        versions[stage] = (*older, *range(max(has + 1, first), head + 1))
    snapshots = [snapshot for snapshot in list_snapshots(store, app) if _is_copied(snapshot, heads)]
    return Todo(versions, heads, tuple(snapshots), limit)


def _is_copied(snapshot: Snapshot, heads: Mapping[str, Manifest]) -> bool:
    """Return True if a snapshot is to be copied: those that pin versions for a clone stay in their own root."""
    versions = snapshot.stages.items()
    return snapshot.kind != "clone" and all(stage in heads and v <= heads[stage].version for stage, v in versions)


def needed(cut: Mapping[str, Manifest]) -> dict[str, set[int]]:
    """Return the versions of a cut, and those of senders that list the in-flight records of the cut."""
    versions = {stage: {manifest.version} for stage, manifest in cut.items()}
    for manifest in cut.values():
        for source in manifest.inputs.values():
            if source.upstream in cut:
                versions[source.upstream].update(range(max(source.version, 1), cut[source.upstream].version))
    return versions
