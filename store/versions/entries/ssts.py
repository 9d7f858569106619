"""The SSTs of a table at one version. The manifest contains the entries of the newest SSTs; leaves contain the rest.

A leaf is an immutable object with the entries of SSTs whose hashes begin in one range. A manifest refers to at most 64
leaves, so its size does not grow with the table. Each reference lists the SSTs of the leaf that later versions removed.
Opening a version takes two round trips: one for the manifest, then one for all leaves that the reader needs. Manifest
and leaves form a tree of height two, and the root buffers changes (Bender et al., "An Introduction to Be-trees and
Write-Optimization", ;login: 2015).
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from msgspec import Struct
from msgspec.structs import replace

from .. import limits


class Sst(Struct, frozen=True):
    """One immutable Parquet object with rows of adjacent hash ranges, sorted by (`_hash`, key)."""

    object: limits.Key
    partition: limits.StatePartition
    """State partition at the time of writing.

    After a rescale, the hashes determine the state partition (`sst.sorted_runs`).
    """
    level: limits.LevelNumber
    """0 for an SST written by a batch; at least 1 for one written by a compaction."""
    rows: limits.Rows
    bytes: limits.Bytes
    checksum: limits.Checksum
    hash_min: limits.Hash
    hash_max: limits.Hash
    seq_min: limits.Version
    seq_max: limits.Version
    """Largest `_seq` of the rows. Of two rows of a key, the row with the larger `_seq` is newer."""
    footer_bytes: limits.Bytes
    """Length of the object's end: one checksum for each row group, then the Parquet footer."""
    footer_checksum: limits.Checksum
    filter_bytes: limits.Bytes
    """Length of the part before `footer_bytes`: filters, page indexes, and checksums of the filters."""
    tombstones: limits.Bytes = 0
    root: limits.ShortText = ""
    """Store root of the object if it differs from the manifest's, as in a clone across roots; else empty."""
    expiring: limits.Bytes = 0
    """Number of rows with an expiry time."""
    expires_min: limits.AnyTimeMs = 0
    """Earliest expiry time of the rows, ms since 1970 UTC; 0 if no row expires."""
    expires_max: limits.AnyTimeMs = 0
    unshowable: bool = False
    """True if SQL cannot represent some values (`arrow_types.make_sql_safe`)."""


class Leaf(Struct, frozen=True, array_like=True):
    """Reference to a leaf: an object with the entries of SSTs whose `hash_min` is in one slot of all hashes."""

    object: limits.Key
    slot: limits.StatePartition
    slots: limits.StatePartitions
    """Number of equal ranges into which all hashes are divided; `slot` is one of them."""
    ssts: limits.Count
    """Number of entries in the object, removed SSTs included."""
    hash_min: limits.Hash
    """Lowest hash of the slot."""
    hash_max: limits.Hash
    """Largest hash of an SST in the leaf; may lie beyond the slot."""
    root: limits.ShortText = ""
    removed: tuple[limits.Id, ...] = ()
    """Names of SSTs in the leaf's object that later versions removed, ascending."""

    @property
    def live(self) -> int:
        return self.ssts - len(self.removed)


LeafReader = Callable[[Sequence[Leaf]], Iterable[tuple[Sst, ...]]]
"""Function that reads leaves concurrently, and returns all entries of each leaf."""


def name_of(sst: Sst) -> str:
    """Return an SST's name: the part of its object's key that differs between all SSTs."""
    return sst.object.rpartition("/")[2].partition(".")[0]


class Ssts(Sequence[Sst]):
    """SSTs of one version of a table, in no particular order. Immutable; leaves are read when they are needed.

    Methods that need entries of a leaf raise `Corruption` (a leaf is missing or damaged) and `Unavailable`.
    """

    __slots__ = ("_all", "_by_leaf", "_reader", "inline", "leaves")

    def __init__(
        self, inline: Iterable[Sst] = (), leaves: Iterable[Leaf] = (), reader: LeafReader | None = None
    ) -> None:
        self.inline, self.leaves, self._reader = tuple(inline), tuple(leaves), reader
        self._by_leaf: dict[str, tuple[Sst, ...]] = {}
        self._all: tuple[Sst, ...] | None = None if self.leaves else self.inline

    def bind(self, reader: LeafReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return len(self.inline) + sum(leaf.live for leaf in self.leaves)

    def __iter__(self) -> Iterator[Sst]:
        return iter(self._whole())

    @overload
    def __getitem__(self, index: int) -> Sst: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Sst, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._whole()[index]

    def __contains__(self, sst: object) -> bool:
        return isinstance(sst, Sst) and (sst in self.inline or sst in self.entries(self._begins_in(sst)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ssts):
            return (self.inline, self.leaves) == (other.inline, other.leaves)
        return isinstance(other, tuple) and self._whole() == other

    def __hash__(self) -> int:
        return hash((self.inline, self.leaves))

    def __repr__(self) -> str:
        return f"Ssts({self.inline!r}, {self.leaves!r})" if self.leaves else f"Ssts({self.inline!r})"

    def __reduce__(self) -> tuple[type["Ssts"], tuple[Any, ...]]:
        return Ssts, (self.inline, self.leaves)

    def plus(self, added: Iterable[Sst]) -> "Ssts":
        return self._changed((*self.inline, *added), self.leaves)

    def within(self, low: int, high: int) -> tuple[Sst, ...]:
        """Return the SSTs that may have hashes from `low` to `high`, both included. Reads only their leaves."""
        leaves = (leaf for leaf in self.leaves if leaf.hash_min <= high and leaf.hash_max >= low)
        ssts = (*self.entries(leaves), *self.inline)
        return tuple(sst for sst in ssts if sst.hash_min <= high and sst.hash_max >= low)

    def entries(self, leaves: Iterable[Leaf]) -> tuple[Sst, ...]:
        """Return the SSTs of some of the leaves, without those that were removed."""
        requested = tuple(leaves)
        missing = [leaf for leaf in requested if leaf.object not in self._by_leaf]
        if missing:
            if self._reader is None:
                raise RuntimeError(f"the SSTs of a manifest with {len(self.leaves)} leaves have no reader: bind one")
            for leaf, ssts in zip(missing, self._reader(missing), strict=True):
                removed = frozenset(leaf.removed)
                self._by_leaf[leaf.object] = tuple(sst for sst in ssts if name_of(sst) not in removed)
        return tuple(sst for leaf in requested for sst in self._by_leaf[leaf.object])

    def replaced(self, old: Collection[Sst], new: Iterable[Sst]) -> "Ssts":
        """Return the SSTs with `new` in place of `old`. All SSTs in `old` must be present."""
        gone = frozenset(old)
        remaining = [sst for sst in self.inline if sst not in gone]
        position = next((number for number, sst in enumerate(self.inline) if sst in gone), 0)
        inline = (*remaining[:position], *new, *remaining[position:])
        outside = gone.difference(self.inline) if len(remaining) + len(gone) > len(self.inline) else ()
        removed: dict[str, list[str]] = {}
        for sst in outside:
            for leaf in self._begins_in(sst):
                removed.setdefault(leaf.object, []).append(name_of(sst))
        return self._changed(inline, self._leaves_without(removed))

    def mapped(self, change: Callable[[Sst], Sst | None]) -> "Ssts":
        """Return the SSTs with `change` applied to each; a result of None removes the SST. Changed SSTs move inline."""
        inline = [new for sst in self.inline if (new := change(sst)) is not None]
        removed: dict[str, list[str]] = {}
        self.entries(self.leaves)  # reads them side by side
        for leaf in self.leaves:
            for sst in self.entries((leaf,)):
                if (new := change(sst)) != sst:
                    removed.setdefault(leaf.object, []).append(name_of(sst))
                    inline += [new] if new is not None else []
        return self._changed(inline, self._leaves_without(removed))

    def with_leaves(
        self,
        inline: Iterable[Sst],
        leaves: Iterable[Leaf],
        entries: Mapping[str, tuple[Sst, ...]],
        reader: LeafReader,
    ) -> "Ssts":
        """Return the same SSTs with these inline entries and leaves.

        `entries` has the entries of new leaves, without removed SSTs.
        """
        ssts = self._changed(inline, leaves)
        ssts._by_leaf |= entries
        ssts._reader = ssts._reader or reader
        return ssts

    def at_roots(self, root_of: Callable[[str], str]) -> "Ssts":
        """Return the SSTs as a manifest under another store root names them.

        The function `root_of` maps the store root of each object.
        """
        inline = (replace(sst, root=root_of(sst.root)) for sst in self.inline)
        return Ssts(inline, (replace(leaf, root=root_of(leaf.root)) for leaf in self.leaves), self._reader)

    def changes_since(self, earlier: "Ssts") -> tuple[tuple[Sst, ...], tuple[Sst, ...]]:
        """Return the SSTs that an earlier version lacks, and the SSTs that only the earlier version has.

        Reads the inline entries, the leaves that only one of the versions has, and the leaves from which SSTs were
        removed.
        """
        new, old = self._entries_unlike(earlier), earlier._entries_unlike(self)
        had, has = frozenset(old), frozenset(new)
        return tuple(sst for sst in new if sst not in had), tuple(sst for sst in old if sst not in has)

    def _entries_unlike(self, other: "Ssts") -> list[Sst]:
        """Return the inline entries, and the entries of all leaves that `other` lacks."""
        others = {leaf.object: frozenset(leaf.removed) for leaf in other.leaves}
        entries = [*self.inline, *self.entries(leaf for leaf in self.leaves if leaf.object not in others)]
        for leaf in self.leaves:
            names = others.get(leaf.object, frozenset()).difference(leaf.removed)
            if names:
                entries += (sst for sst in self.entries((leaf,)) if name_of(sst) in names)
        return entries

    def _changed(self, inline: Iterable[Sst], leaves: Iterable[Leaf]) -> "Ssts":
        ssts = Ssts(inline, leaves, self._reader)
        unchanged = {leaf.object for leaf in ssts.leaves if leaf in self.leaves}
        ssts._by_leaf = {key: entries for key, entries in self._by_leaf.items() if key in unchanged}
        return ssts

    def _begins_in(self, sst: Sst) -> tuple[Leaf, ...]:
        # One leaf: slots do not overlap.
        starts = [leaf.hash_min for leaf in self.leaves]
        at = bisect_right(starts, sst.hash_min)
        return self.leaves[at - 1 : at] if at else ()

    def _leaves_without(self, removed: Mapping[str, Collection[str]]) -> tuple[Leaf, ...]:
        changed = (
            replace(leaf, removed=tuple(sorted({*leaf.removed, *removed[leaf.object]})))
            if leaf.object in removed
            else leaf
            for leaf in self.leaves
        )
        return tuple(leaf for leaf in changed if leaf.live)

    def _whole(self) -> tuple[Sst, ...]:
        if self._all is None:
            self._all = (*self.entries(self.leaves), *self.inline)
        return self._all
