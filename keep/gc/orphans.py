"""Objects that nothing names: of attempts that failed, of versions that went, of snapshots that never were.

An object that nothing names yet may be about to be named. Storage's clock alone says when that is over:

- An SST is named by the next batch of its stage, or never: batches of a stage come one after the other, a finished
  merge goes into the next one, and after a claim the former writer cannot commit. So an SST is an orphan once its stage
  has committed a batch or a claim at least the margin after the SST was written. A stage that has not committed since
  keeps its SSTs, however old. Versions of kind "compaction" prove nothing: they may come amidst a batch. And merges,
  which are not part of a batch, are given up long before the margin is over. Of a retired stage nothing is named any
  more: there, an SST is an orphan once it is as old as the margin.
- Records in flight are orphans when no snapshot names them, nobody asks for a snapshot of their name, and nothing was
  added beside them for the margin.
- A write in parts is an orphan when it was begun before the margin.
"""

from collections.abc import Collection, Iterator
from itertools import groupby

from ...moments.cut.stored import list_snapshots, open_requests
from ...store.objects.protocol import Leftover, Leftovers, ObjectInfo
from ...store.versions import keys
from .inventory import Inventory


def last_commit_ms(inventory: Inventory, stage: str) -> int:
    """When, by storage's clock, the stage last committed what names all that was finished before; 0: never.

    Of a retired stage now: until it comes back, nothing is named that is not.
    """
    there = inventory.known.stages.get(stage)
    if there is None:
        return 0
    if there.head.retired:
        return inventory.known.now_ms
    for version in range(there.head.version, there.first - 1, -1):
        if inventory.read(stage, version).kind in ("batch", "claim"):
            return inventory.manifests[stage][version].modified_ms
    return 0


def orphans(inventory: Inventory, stage: str, named: Collection[str], margin_ms: int) -> Iterator[ObjectInfo]:
    """The SSTs of a stage that no version names, or ever will."""
    before_ms = last_commit_ms(inventory, stage) - margin_ms
    for info in inventory.ssts.get(stage, ()):
        if info.key not in named and info.modified_ms <= before_ms:
            yield info


def unnamed_records(inventory: Inventory, margin_ms: int) -> Iterator[ObjectInfo]:
    """Kept records in flight that belong to no snapshot, and to none that is under way."""
    store, app = inventory.store, inventory.app
    prefix = keys.snapshots(app)
    listed = [info for info in store.list(prefix) if "/" in info.key.removeprefix(prefix)]
    if not listed:
        return
    # In this order: a request goes when its snapshot is written, and is seen there then.
    asked = {request.name for request in open_requests(store, app)}
    kept = {key for each in list_snapshots(store, app) for key in each.object_keys}
    for name, infos in groupby(listed, key=lambda info: info.key.removeprefix(prefix).split("/", 1)[0]):
        group = tuple(infos)
        idle = max(info.modified_ms for info in group) <= inventory.known.now_ms - margin_ms
        if idle and name not in asked:
            yield from (info for info in group if info.key not in kept)


def abandoned(inventory: Inventory, margin_ms: int) -> Iterator[Leftover]:
    """Writes that broke off, in stores that keep what was written of them."""
    if isinstance(inventory.store, Leftovers):
        for leftover in inventory.store.leftovers(f"{inventory.app}/"):
            if leftover.begun_ms <= inventory.known.now_ms - margin_ms:
                yield leftover
