"""What a replica lacks: which versions of which stages, in the order in which they are put, and what must be so before.

Senders come before their receivers, and of a stage older versions before newer ones. So whatever of it is there, the
newest versions are a consistent cut, and between what a stage has read and its sender has sent nothing is missing.
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
    """What a replica lacks."""

    versions: Mapping[str, tuple[int, ...]]
    """By stage, senders first; ascending."""
    cut: Mapping[str, Manifest]
    """What the replica is complete up to with these, stages that are retired among them."""
    snapshots: tuple[Snapshot, ...]
    """The app's own that are to be there."""
    limit: Boundary
    """What may exist of the app's versions."""


def last_final(store: ObjectStore, app: str) -> Boundary:
    """The boundary by which versions were deleted last. Requests of `horizon.all_of`."""
    return next((each for each in reversed(horizon.all_of(store, app)) if each.final), NOTHING_COLLECTED)


def every_version(store: ObjectStore, app: str, there: Mapping[str, int]) -> Todo:
    """All versions behind those that are there, which are the newest of each stage in the replica.

    Raises `Refused` where the app has lost versions that come between by garbage collection, or has fewer than that.
    """
    limit, heads = last_final(store, app), newest_settled(store, app)
    versions = {}
    for stage in order(heads):
        head, has = heads[stage].version, there.get(stage, 0)
        first = limit.first.get(stage) or history.first_version(store, app, stage)
        if 0 < has < first - 1:
            raise Refused(
                f"the replica has {app}/{stage} up to v{has}, and {store.url} from v{first} on: what came between was "
                "collected there (slackwater gc) before it was copied",
                hint=f"begin another replica: slackwater replicate {app} --to another root. This one stays what it is, "
                "and can be recovered, until that one is whole; let gc keep versions for longer than a replica may "
                "be behind ([retention] all)",
            )
        kept = limit.kept.get(stage, ()) if not has else ()
        versions[stage] = (*kept, *range(max(has + 1, first), head + 1))
    known = [each for each in list_snapshots(store, app) if _is_of(each, heads)]
    return Todo(versions, heads, tuple(known), limit)


def _is_of(snapshot: Snapshot, heads: Mapping[str, Manifest]) -> bool:
    """Whether a snapshot is to be copied: those that keep something for a clone are of this root alone."""
    each = snapshot.stages.items()
    return snapshot.kind != "clone" and all(stage in heads and v <= heads[stage].version for stage, v in each)


def needed(cut: Mapping[str, Manifest]) -> dict[str, set[int]]:
    """The versions of a cut, and those of senders that tell what was on the way in it."""
    found = {stage: {manifest.version} for stage, manifest in cut.items()}
    for manifest in cut.values():
        for source in manifest.inputs.values():
            if source.upstream in cut:
                found[source.upstream].update(range(max(source.version, 1), cut[source.upstream].version))
    return found
