"""Compactions as values, their results, and the application of results to a manifest.

Pure. `picker` chooses compactions, `merge` runs them.

A compaction covers all or some of the hashes of one hash range (`Table.ranges`), or of several adjacent hash ranges.
The hashes of all inputs lie within the covered hashes. It covers several ranges if an input is *wide*: an SST with
hashes of several ranges. SSTs of small batches may be wide. SSTs from before a change of the ranges may be wide, too.

A writer loses the race for a version's number if another process commits first. If the other process committed a
compaction, the writer's input is still valid, because a compaction changes the storage of rows, but no row. The writer
then *rebases*: it applies its change to the new head. The difference from the old base is applied to the new base, like
in Iceberg's handling of conflicting changes (spec, "Optimistic Concurrency") and in git's rebase.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..versions.commit import without_version_fields
from ..versions.entries.hash_ranges import hash_bounds
from ..versions.entries.ssts import Sst, Ssts
from ..versions.leaves.fold import Fold, apply_fold
from ..versions.manifest import Manifest, SideTable


@dataclass(frozen=True, slots=True)
class Compaction:
    """Merge of adjacent runs into one run. Covers all or some of the hashes of one hash range, or of several ranges."""

    partition: int
    """Hash range for which the compaction was chosen."""
    partitions: int
    inputs: tuple[Sst, ...]
    """SSTs of the runs, newest first, at least one."""
    drops_tombstones: bool
    """True if these hashes have no older row that a tombstone or an expired row could hide.

    Tombstones and expired rows are then dropped.
    """
    level: int | None = None
    """Level of the result; None for the largest level of the inputs plus one."""
    target_file_bytes: int = 64 << 20
    window: tuple[int, int] | None = None
    """Lowest and highest hash; None for the whole hash range."""
    slots: int = 0
    """Number of slots, which are equal ranges of all hashes; 0 for `partitions`.

    An SST that covers several slots begins and ends at slot bounds.
    """
    guards: frozenset[int] = frozenset()
    """Hashes at which SSTs of the result begin."""
    cuts: bool = False
    """True if each SST of the result lies in one slot."""
    clock_ms: int | None = None
    """Clock of the manifest: rows that expire at this time or before are dropped. If None, no row is dropped."""
    is_piece: bool = False
    """True for a part of a larger merge. Inputs reach beyond `window`; other parts merge the rows outside the window.
    """
    is_trivial_move: bool = False
    """True if only the level of the inputs changes: nothing is read or written."""

    @property
    def hash_range(self) -> tuple[int, int]:
        return self.window or hash_bounds(self.partition, self.partitions)

    @property
    def output_level(self) -> int:
        return max(sst.level for sst in self.inputs) + 1 if self.level is None else self.level

    @property
    def input_bytes(self) -> int:
        return 0 if self.is_trivial_move else sum(sst.bytes for sst in self.inputs)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Result of a compaction, which takes effect when a manifest names the outputs."""

    compaction: Compaction
    outputs: tuple[Sst, ...]
    """SSTs of the merged run in hash order. May be empty."""

    @property
    def output_bytes(self) -> int:
        return 0 if self.compaction.is_trivial_move else sum(sst.bytes for sst in self.outputs)


def newest_first(ssts: Iterable[Sst]) -> tuple[Sst, ...]:
    return tuple(sorted(ssts, key=lambda sst: (-sst.seq_max, sst.hash_min)))


Finished = CompactionResult | Fold
"""Result of concurrent work, such as a merge. Takes effect when a version names the result."""


def apply_results(ssts: Sequence[Sst], results: Sequence[Finished]) -> Ssts:
    """Return a manifest's SSTs with each result in place of its inputs.

    `ssts` may belong to a newer version than the compacted version. Then SSTs of later batches are kept, and come
    before the result. A merge is left out in three cases: an input was merged or dropped meanwhile; an SST now lies
    between the inputs; or the merge dropped tombstones and an older SST exists now.
    """
    current = ssts if isinstance(ssts, Ssts) else Ssts(ssts)
    for merge in results:
        if isinstance(merge, Fold):
            current = apply_fold(current, merge)
            continue
        inputs = frozenset(merge.compaction.inputs)
        oldest, newest = min(sst.seq_min for sst in inputs), max(sst.seq_max for sst in inputs)
        nearby = current.within(*merge.compaction.hash_range)
        overlapped = (sst for sst in nearby if sst not in inputs)
        may_be_older = not merge.compaction.drops_tombstones
        fits = (sst.seq_min > newest or (sst.seq_max < oldest and may_be_older) for sst in overlapped)
        if inputs.issubset(nearby) and all(fits):
            current = current.replaced(inputs, merge.outputs)
    return current


def apply_to_manifest(manifest: Manifest, results: Sequence[Finished]) -> Manifest:
    sides = {name: replace(side, ssts=apply_results(side.ssts, results)) for name, side in manifest.side_tables.items()}
    return replace(manifest, ssts=apply_results(manifest.ssts, results), side_tables=sides)


def rebase(base: Manifest, manifest: Manifest, onto: Manifest, merges: Sequence[Finished] = ()) -> Manifest:
    """Return the version after `onto` with the changes that `manifest` made to `base`.

    Inputs, outputs and rows of the batch do not change. The rows are already stored, so they keep their `_seq`. Rows in
    `onto` have smaller `_seq`, because a compaction only merges rows of earlier versions.

    `manifest` is a batch's version, built on `base`. All versions from `base` to `onto` are compactions. If `base`
    itself was rebased, `onto` is the rebased version. `merges` are the merges that `manifest` contains. A merge and its
    outputs are left out if its inputs are gone or the merge no longer applies.

    Raises `ValueError` if `onto` is of another stage or epoch, or older than `base`.
    """
    same = (base.app, base.stage, base.epoch) == (onto.app, onto.stage, onto.epoch)
    if not same or onto.version < base.version:
        raise ValueError(f"expected a head of {base.stage} with epoch {base.epoch} at v{base.version} or later")
    outputs = {sst for done in merges if isinstance(done, CompactionResult) for sst in done.outputs}
    added = [sst for sst in manifest.ssts.changes_since(base.ssts)[0] if sst not in outputs]
    version = onto.version + 1
    return replace(
        manifest,
        version=version,
        seq=0 if manifest.row_seq == version else manifest.row_seq,
        time_ms=max(manifest.time_ms, onto.time_ms + 1),
        table=onto.table,
        forgotten=onto.forgotten,
        side_tables=_side_tables(base, manifest, onto, merges),
        ssts=apply_results(onto.ssts.plus(added), merges),
        recorded={
            snapshot: version if at == manifest.version else onto.recorded.get(snapshot, at)
            for snapshot, at in manifest.recorded.items()
        },
    )


def _side_tables(
    base: Manifest, manifest: Manifest, onto: Manifest, merges: Sequence[Finished]
) -> dict[str, SideTable]:
    before, after = without_version_fields(base).side_tables, without_version_fields(onto).side_tables
    sides: dict[str, SideTable] = {}
    for name, side in manifest.side_tables.items():
        if name not in after or after[name] == before.get(name):
            sides[name] = side
        elif side == before.get(name):
            sides[name] = after[name]
        else:
            outputs = {sst for done in merges if isinstance(done, CompactionResult) for sst in done.outputs}
            added = side.ssts.changes_since(before[name].ssts)[0]
            ssts = after[name].ssts.plus(sst for sst in added if sst not in outputs)
            sides[name] = replace(side, ssts=apply_results(ssts, merges))
    return sides
