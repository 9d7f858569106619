"""Folds: entries of SSTs move from a manifest into leaves, so that the manifest stays small.

A fold writes new leaves while batches continue. The next version names the new leaves in place of the old leaves and
inline entries. A fold identifies an entry by its SST, so a fold still applies to a version that has removed some of
these SSTs. It is dropped if another fold replaced one of its leaves, or added a leaf for one of its slots.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from msgspec.structs import replace

from ...objects.many import map_concurrently
from ...objects.protocol import ObjectStore
from ..entries.hash_ranges import hash_bounds, partition_of_hash
from ..entries.ssts import Leaf, LeafReader, Sst, Ssts, name_of
from ..manifest import Manifest, Table
from .objects import MAX_LEAVES, read_leaves, write_leaf

_ENTRY_BYTES, _NAME_BYTES = 165, 29
"""Approximate JSON size of an entry, and of the name of a removed SST."""
_MAX_INLINE_BYTES = 48 << 10
_MAX_REMOVED_BYTES = 8 << 10
_ENTRIES_PER_RUN = 1.5
"""Number of entries per possible run of a hash range that stay inline, because the next merges replace them."""
_SSTS_PER_LEAF = 256
_TOLERANCE = 2
"""Factor by which a manifest may exceed its limits before a commit folds the manifest. Runners fold between batches."""


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """Leaves to replace, and the entries of each new leaf by slot."""

    replaced: tuple[Leaf, ...]
    moved: frozenset[Sst]
    slots: int
    content: tuple[tuple[int, tuple[Sst, ...]], ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold with written leaves. Takes effect when a version names the leaves."""

    plan: FoldPlan
    leaves: tuple[Leaf, ...]
    reader: LeafReader


def needs_fold(manifest: Manifest, *, excess: int = 1) -> bool:
    """Return True if inline entries, or a leaf's list of removed SSTs, exceed `excess` times their limit."""
    table, ssts = manifest.table, manifest.ssts
    return table is not None and (
        inline_bytes(ssts) > excess * _max_inline_bytes(table) or any(_is_worn(leaf, excess) for leaf in ssts.leaves)
    )


def fold_ssts(store: ObjectStore, manifest: Manifest) -> Fold:
    """Plan a fold of the version's table, and put its leaves. Raises `Corruption` and `Unavailable`."""
    assert manifest.table is not None  # noqa: S101  a manifest without a table needs no fold
    plan = plan_fold(manifest.ssts, _max_inline_bytes(manifest.table), _SSTS_PER_LEAF)
    return write_fold(store, manifest.app, manifest.stage, plan)


def plan_fold(ssts: Ssts, limit: int, per_leaf: int) -> FoldPlan:
    """Return a fold after which inline entries take at most half of `limit` bytes. Reads the leaves to replace.

    The number of slots is the smallest power of two, up to 64, with at most `per_leaf` SSTs in each slot. The newest
    entries stay inline, because the next merges replace them: up to a quarter of `limit` for level 0, and a quarter for
    merged SSTs. For the remaining entries, the slots with the most entries are folded first. Leaves with many removed
    SSTs are always folded.
    """
    size = inline_bytes(ssts)
    slots = max([_slots_for(len(ssts), per_leaf), *(leaf.slots for leaf in ssts.leaves)])
    newest_first = sorted(ssts.inline, key=lambda sst: (-sst.seq_max, sst.hash_min))
    stay = limit // 4 // _ENTRY_BYTES
    movable = [sst for is_merged in (True, False) for sst in _of_level(newest_first, is_merged)[stay:]]
    blocks = _group_by_block(ssts.leaves, movable, slots)
    heaviest = sorted(blocks, key=lambda block: -block.size)
    chosen = []
    for block in heaviest:
        if size > limit // 2 or (block.leaf is not None and _is_worn(block.leaf)):
            chosen.append(block)
            size -= block.size
    content: dict[int, list[Sst]] = {}
    for block in chosen:
        for sst in (*(ssts.entries((block.leaf,)) if block.leaf is not None else ()), *block.ssts):
            content.setdefault(partition_of_hash(sst.hash_min, slots), []).append(sst)
    return FoldPlan(
        tuple(block.leaf for block in chosen if block.leaf is not None),
        frozenset(sst for block in chosen for sst in block.ssts),
        slots,
        tuple((slot, tuple(content[slot])) for slot in sorted(content)),
    )


def write_fold(store: ObjectStore, app: str, stage: str, plan: FoldPlan) -> Fold:
    """Put the leaves of a fold concurrently. Costs one request for each. Raises `Unavailable`."""

    def write(item: tuple[int, tuple[Sst, ...]]) -> Leaf:
        slot, ssts = item
        low, high = hash_bounds(slot, plan.slots)
        return write_leaf(store, app, stage, (slot, plan.slots), (low, max(high, *(s.hash_max for s in ssts))), ssts)

    return Fold(plan, tuple(map_concurrently(write, plan.content)), partial(read_leaves, store))


def apply_fold(ssts: Ssts, fold: Fold) -> Ssts:
    """Return the SSTs after a fold moved entries into leaves; the same object if the fold no longer applies."""
    current = {leaf.object: leaf for leaf in ssts.leaves}
    replaced = {leaf.object for leaf in fold.plan.replaced}
    leaves = [leaf for leaf in ssts.leaves if leaf.object not in replaced]
    others_fold = any(_share_slots(*pair) for pair in product(leaves, fold.leaves))
    if others_fold or not replaced <= current.keys():
        return ssts
    inline = frozenset(ssts.inline)
    removed = {name for key in replaced for name in current[key].removed}
    entries_by_leaf: dict[str, tuple[Sst, ...]] = {}
    for leaf, (_, content) in zip(fold.leaves, fold.plan.content, strict=True):
        gone = {
            name_of(sst)
            for sst in content
            if (sst not in inline if sst in fold.plan.moved else name_of(sst) in removed)
        }
        if len(gone) < leaf.ssts:
            leaves.append(replace(leaf, removed=tuple(sorted(gone))))
            entries_by_leaf[leaf.object] = tuple(sst for sst in content if name_of(sst) not in gone)
    remaining = (sst for sst in ssts.inline if sst not in fold.plan.moved)
    return ssts.with_leaves(remaining, sorted(leaves, key=lambda leaf: leaf.hash_min), entries_by_leaf, fold.reader)


def fold_before_commit(store: ObjectStore, manifest: Manifest) -> Manifest:
    """Return the manifest with folded SSTs if the manifest exceeds its limits by far; usually the same object.

    A runner usually folds earlier, while batches continue.
    """
    if not needs_fold(manifest, excess=_TOLERANCE):
        return manifest
    return replace(manifest, ssts=apply_fold(manifest.ssts, fold_ssts(store, manifest)))


def inline_bytes(ssts: Ssts) -> int:
    """Return the approximate JSON size of the inline entries and the names of removed SSTs."""
    return len(ssts.inline) * _ENTRY_BYTES + sum(map(_removed_bytes, ssts.leaves))


def _of_level(ssts: Iterable[Sst], is_merged: bool) -> list[Sst]:
    return [sst for sst in ssts if (sst.level > 0) == is_merged]


def _share_slots(first: Leaf, second: Leaf) -> bool:
    return (
        first.slot * second.slots < (second.slot + 1) * first.slots
        and second.slot * first.slots < (first.slot + 1) * second.slots
    )


def _removed_bytes(leaf: Leaf) -> int:
    return len(leaf.removed) * _NAME_BYTES


def _is_worn(leaf: Leaf, excess: int = 1) -> bool:
    return _removed_bytes(leaf) > excess * min(_MAX_REMOVED_BYTES, max(1 << 10, leaf.live * _ENTRY_BYTES))


def _max_inline_bytes(table: Table) -> int:
    entries = _ENTRIES_PER_RUN * table.compaction.l0_trigger * table.ranges
    return max(_MAX_INLINE_BYTES, int(entries) * _ENTRY_BYTES)


def _slots_for(ssts: int, per_leaf: int) -> int:
    slots = 1
    while slots < MAX_LEAVES and slots * per_leaf < ssts:
        slots *= 2
    return slots


@dataclass(slots=True)
class _Block:
    """Slots that a fold rewrites together: all slots of one leaf, or one slot that has no leaf."""

    slots: range
    leaf: Leaf | None
    ssts: list[Sst]

    @property
    def size(self) -> int:
        return len(self.ssts) * _ENTRY_BYTES + (_removed_bytes(self.leaf) if self.leaf is not None else 0)


def _group_by_block(leaves: Sequence[Leaf], movable: Iterable[Sst], slots: int) -> list[_Block]:
    blocks: dict[int, _Block] = {}
    for leaf in leaves:
        width = slots // leaf.slots
        covered = range(leaf.slot * width, (leaf.slot + 1) * width)
        blocks |= dict.fromkeys(covered, _Block(covered, leaf, []))
    for sst in movable:
        slot = partition_of_hash(sst.hash_min, slots)
        blocks.setdefault(slot, _Block(range(slot, slot + 1), None, [])).ssts.append(sst)
    return list({id(block): block for block in blocks.values()}.values())
