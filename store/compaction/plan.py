"""A compaction as a value: the SSTs that become one sorted run, the result, and applying it to a manifest.

Pure. `picker` chooses compactions, `merge` runs them.

A compaction covers a range of hashes within one state partition. After a rescale an SST may reach beyond the partition.
The part of such an input inside the partition is merged, and the other parts are cut at the partitions' bounds. Cutting
does not change the order of runs, so the other partitions need not be read. So SSTs written under another number of
partitions are gradually split by normal merges.

Rebasing applies the same change to a newer head. A writer loses a version's number when another process commits first.
If that was a compaction, which changes how rows are stored but no row, everything that the writer read is still valid:
its version follows the compaction's instead. Like Iceberg's handling of conflicting changes (spec, "Optimistic
Concurrency") and git's rebase, the difference from the old base is applied to the new one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..sst.sorted_runs import bounds, overlapping
from ..versions.commit import carried
from ..versions.manifest import Manifest, SideTable, Sst


@dataclass(frozen=True, slots=True)
class Compaction:
    """Neighbouring runs over some hashes of one state partition, to be merged into one run."""

    partition: int
    partitions: int
    """The table's number of state partitions."""
    inputs: tuple[Sst, ...]
    """SSTs of the runs, newest first, at least one; some may reach into other partitions."""
    drops_tombstones: bool
    """True if no older row of these hashes is left that a tombstone could hide. Expired rows are then
    dropped, too; otherwise they stay, because an expired row also hides older rows.
    """
    level: int = 0
    """Level of the outputs; 0 means the highest input level plus one."""
    target_file_bytes: int = 64 << 20
    window: tuple[int, int] | None = None
    """The lowest and the highest hash that is merged; None for all of the partition."""
    slots: int = 0
    """Number of equal ranges (slots) of all hashes: an SST that spans several slots begins and ends at slot bounds.
    0 means the table's number of state partitions.
    """
    guards: frozenset[int] = frozenset()
    """First hashes of slots before which outputs are always cut."""
    clock_ms: int | None = None
    """Rows that expire at this time or before are dropped; None drops none. This is the clock of the manifest from
    which the compaction was picked; clocks of later versions are not earlier."""
    moves: bool = False
    """True for a trivial move: the inputs only change their level, and nothing is read or written."""

    @property
    def hashes(self) -> tuple[int, int]:
        """The lowest and the highest hash that is merged."""
        return self.window or bounds(self.partition, self.partitions)

    @property
    def output_level(self) -> int:
        return self.level or max(sst.level for sst in self.inputs) + 1

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs to read, 0 for a trivial move."""
        return 0 if self.moves else sum(sst.bytes for sst in self.inputs)


@dataclass(frozen=True, slots=True)
class Done:
    """A finished compaction, which takes effect when a manifest names its outputs."""

    compaction: Compaction
    outputs: tuple[Sst, ...]
    """SSTs of the merged run in hash order, none if no row was left, followed by the parts of inputs that lie
    beyond the partition.
    """

    @property
    def output_bytes(self) -> int:
        """Bytes written, 0 for a trivial move."""
        return 0 if self.compaction.moves else sum(sst.bytes for sst in self.outputs)


def newest_first(ssts: Iterable[Sst]) -> tuple[Sst, ...]:
    """Return the SSTs in the order of a compaction's inputs: of two rows of a key, the newer comes first."""
    return tuple(sorted(ssts, key=lambda sst: (-sst.seq_max, sst.hash_min)))


def apply(ssts: Sequence[Sst], done: Sequence[Done]) -> tuple[Sst, ...]:
    """Return the SSTs of a manifest with each result in the place of its inputs.

    `ssts` may be of a newer version than the compacted one: SSTs added since stay, before the result. A
    result that no longer fits is left out: one of its inputs was merged or dropped meanwhile, an SST now lies
    between the inputs, or tombstones were dropped although there is an older SST now.
    """
    current = tuple(ssts)
    for merge in done:
        inputs = frozenset(merge.compaction.inputs)
        oldest, newest = min(sst.seq_min for sst in inputs), max(sst.seq_max for sst in inputs)
        overlapped = (sst for sst in overlapping(current, *merge.compaction.hashes) if sst not in inputs)
        may_be_older = not merge.compaction.drops_tombstones
        fits = (sst.seq_min > newest or (sst.seq_max < oldest and may_be_older) for sst in overlapped)
        if inputs.issubset(current) and all(fits):
            first = next(i for i, sst in enumerate(current) if sst in inputs)
            remaining = tuple(sst for sst in current[first:] if sst not in inputs)
            current = (*current[:first], *merge.outputs, *remaining)
    return current


def apply_to(manifest: Manifest, done: Sequence[Done]) -> Manifest:
    """Return the manifest with each result in the place of its inputs (see `apply`), in main and side tables."""
    sides = {name: replace(side, ssts=apply(side.ssts, done)) for name, side in manifest.side_tables.items()}
    return replace(manifest, ssts=apply(manifest.ssts, done), side_tables=sides)


def rebase(base: Manifest, manifest: Manifest, onto: Manifest, merges: Sequence[Done] = ()) -> Manifest:
    """Return the version after `onto` with the changes that `manifest` made to `base`.

    What the batch read, wrote and sent stays, and so does the `_seq` of its rows, which are stored already. That `_seq`
    is above that of every row in `onto`, because a compaction only merges rows of versions before its own.

    `manifest` is a batch's version, built on `base`; `onto` follows `base` by compactions alone (if `base` itself had
    to be rebased, `onto` is the result). Of the `merges` that `manifest` contains, those whose inputs are gone, or that
    do not fit any more, are left out with their outputs.

    Raises `ValueError` if `onto` is of another stage or epoch, or not newer.
    """
    same = (base.app, base.stage, base.epoch) == (onto.app, onto.stage, onto.epoch)
    if not same or onto.version < base.version:
        raise ValueError(f"expected a head of {base.stage} with epoch {base.epoch} at v{base.version} or later")
    existing = {*base.ssts, *(sst for done in merges for sst in done.outputs)}
    added = (sst for sst in manifest.ssts if sst not in existing)
    version = onto.version + 1
    return replace(
        manifest,
        version=version,
        seq=0 if manifest.row_seq == version else manifest.row_seq,
        time_ms=max(manifest.time_ms, onto.time_ms + 1),
        table=onto.table,
        forgotten=onto.forgotten,
        side_tables=_side_tables(base, manifest, onto),
        ssts=apply((*onto.ssts, *added), merges),
        recorded={
            snapshot: version if at == manifest.version else onto.recorded.get(snapshot, at)
            for snapshot, at in manifest.recorded.items()
        },
    )


def _side_tables(base: Manifest, manifest: Manifest, onto: Manifest) -> dict[str, SideTable]:
    """Return the side tables of a rebased version: those of `manifest` if changed from `base`, else of `onto`."""
    if manifest.side_tables != carried(base).side_tables:
        return manifest.side_tables
    return carried(onto).side_tables
