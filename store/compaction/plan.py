"""A compaction as a value: which SSTs become one sorted run, what came of it, and putting that in their place.

Pure. `picker` says what to compact, `merge` carries it out.

A compaction covers a range of hashes within one state partition. After a rescale an SST may reach beyond the partition.
Of such an input, the part inside is merged, and the rest is cut at the partitions' bounds: cutting changes the order of
nothing, so those partitions need not be looked at. What was written under another number of partitions so comes apart
bit by bit, as it is merged anyway.

Rebasing: the same change, made of a newer head.

A writer loses a version's number when another process commits first. Where that was a compaction, which changes how
rows are stored and no row, nothing the writer read is out of date: its version follows the compaction's instead. As
with the conflicting changes of Iceberg (spec, "Optimistic Concurrency") and of git's rebase, what it changed is taken
off the old base and put on the new one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..sst.sorted_runs import bounds, overlapping
from ..versions.commit import carried
from ..versions.manifest import Manifest, SideTable, Sst


@dataclass(frozen=True, slots=True)
class Compaction:
    """Neighbouring runs over some hashes of one state partition, to become one run."""

    partition: int
    partitions: int
    """The table's number of state partitions."""
    inputs: tuple[Sst, ...]
    """At least one; newest first. All SSTs of these runs, also those that reach into other partitions."""
    drops_tombstones: bool
    """Whether nothing older is left under these hashes that a tombstone could hide. Then expired rows are dropped,
    too; else they stay, for they hide older rows as well."""
    level: int = 0
    """Of the outputs; 0 for one more than the highest of the inputs."""
    target_file_bytes: int = 64 << 20
    """Outputs are cut into SSTs of about so many bytes."""
    window: tuple[int, int] | None = None
    """The lowest and the highest hash that is merged; None for all of the partition."""
    slots: int = 0
    """An SST that is larger than one of so many equal ranges of all hashes begins and ends at their bounds; 0 for the
    table's own number of partitions."""
    guards: frozenset[int] = frozenset()
    """First hashes of slots before which outputs are cut in any case."""
    clock_ms: int | None = None
    """Rows that expire at this time or before are expired: the clock of the manifest that was picked from, which no
    later version's is behind. None drops none."""
    moves: bool = False
    """Whether the inputs can stay as they are but for their level: a trivial move, which reads and writes nothing."""

    @property
    def hashes(self) -> tuple[int, int]:
        """The lowest and the highest hash that is merged."""
        return self.window or bounds(self.partition, self.partitions)

    @property
    def output_level(self) -> int:
        """The level of the outputs."""
        return self.level or max(sst.level for sst in self.inputs) + 1

    @property
    def input_bytes(self) -> int:
        """What has to be read: bytes of the inputs, none for a trivial move."""
        return 0 if self.moves else sum(sst.bytes for sst in self.inputs)


@dataclass(frozen=True, slots=True)
class Done:
    """A compaction that was carried out; it counts once a manifest says so."""

    compaction: Compaction
    outputs: tuple[Sst, ...]
    """The SSTs of the merged run in the order of their hashes, none when no row was left; and the parts of inputs
    beyond the partition."""

    @property
    def output_bytes(self) -> int:
        """What was written."""
        return 0 if self.compaction.moves else sum(sst.bytes for sst in self.outputs)


def newest_first(ssts: Iterable[Sst]) -> tuple[Sst, ...]:
    """The order of a compaction's inputs: of two rows of a key, the newer one comes first."""
    return tuple(sorted(ssts, key=lambda sst: (-sst.seq_max, sst.hash_min)))


def apply(ssts: Sequence[Sst], done: Sequence[Done]) -> tuple[Sst, ...]:
    """The SSTs of a manifest with each result in the place of its inputs.

    The manifest may be newer than the one that was compacted: SSTs added since stay, before the result. A result that
    does not fit any more is left out, since its inputs were merged or dropped otherwise: when an input is gone, when
    one came to lie between the inputs, or when tombstones were dropped and there is an older one now.
    """
    current = tuple(ssts)
    for one in done:
        inputs = frozenset(one.compaction.inputs)
        oldest, newest = min(sst.seq_min for sst in inputs), max(sst.seq_max for sst in inputs)
        others = (sst for sst in overlapping(current, *one.compaction.hashes) if sst not in inputs)
        may_be_older = not one.compaction.drops_tombstones
        fits = (sst.seq_min > newest or (sst.seq_max < oldest and may_be_older) for sst in others)
        if inputs.issubset(current) and all(fits):
            first = next(i for i, sst in enumerate(current) if sst in inputs)
            rest = tuple(sst for sst in current[first:] if sst not in inputs)
            current = (*current[:first], *one.outputs, *rest)
    return current


def apply_to(manifest: Manifest, done: Sequence[Done]) -> Manifest:
    """The manifest with each result in the place of its inputs (`apply`), in whichever of its tables these are."""
    sides = {name: replace(each, ssts=apply(each.ssts, done)) for name, each in manifest.side_tables.items()}
    return replace(manifest, ssts=apply(manifest.ssts, done), side_tables=sides)


def rebase(before: Manifest, manifest: Manifest, onto: Manifest, merges: Sequence[Done] = ()) -> Manifest:
    """The version after `onto` that changes it as `manifest` changed `before`.

    What the batch read, wrote and sent stays as it is, and so does the `_seq` of its rows, which are stored already. It
    is above that of every row in `onto`: a compaction only takes up rows of versions before its own.

    `manifest` is the version of a batch, built on `before`; `onto` follows from that by compactions alone or,
    where `before` itself had to be rebased, is that. Of the `merges` that `manifest` has put in the place of their
    inputs one whose inputs are gone, or that does not fit any more, is left out, and its outputs with it.

    Raises `ValueError` where `onto` is of another stage or epoch, or not newer.
    """
    same = (before.app, before.stage, before.epoch) == (onto.app, onto.stage, onto.epoch)
    if not same or onto.version < before.version:
        raise ValueError(f"expected a head of {before.stage} with epoch {before.epoch} at v{before.version} or later")
    known = {*before.ssts, *(sst for done in merges for sst in done.outputs)}
    added = (sst for sst in manifest.ssts if sst not in known)
    version = onto.version + 1
    return replace(
        manifest,
        version=version,
        seq=0 if manifest.row_seq == version else manifest.row_seq,
        time_ms=max(manifest.time_ms, onto.time_ms + 1),
        table=onto.table,
        forgotten=onto.forgotten,
        side_tables=_side_tables(before, manifest, onto),
        ssts=apply((*onto.ssts, *added), merges),
        recorded={
            snapshot: version if at == manifest.version else onto.recorded.get(snapshot, at)
            for snapshot, at in manifest.recorded.items()
        },
    )


def _side_tables(before: Manifest, manifest: Manifest, onto: Manifest) -> dict[str, SideTable]:
    """Those that a rebased version has: its own where it changed them, else those of what it follows."""
    if manifest.side_tables != carried(before).side_tables:
        return manifest.side_tables
    return carried(onto).side_tables
