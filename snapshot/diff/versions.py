"""Stored versions of one stage, and the common ancestor of two versions.

For two versions of one app, that is the earlier of the two, since versions follow each other in a line. The line of a
clone starts with a version of its source, so two apps may share an ancestor over any number of clones.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ...store.objects.protocol import ObjectStore
from ...store.read.fetch import at_once
from ...store.versions import apps, history, horizon
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import SideManifest, stage_of, table_name, table_of
from ..cut.stored import find_snapshot

_AHEAD = 64
"""Number of manifests read ahead."""


class VersionList:
    """Stored versions of a stage, ascending, by index from 0. Collected versions are left out.

    With `table`, the manifests are those of that side table.
    """

    def __init__(self, store: ObjectStore, app: str, stage: str, table: str = "") -> None:
        self.numbers = history.versions(store, app, stage)
        """Version numbers. One list request per 1,000."""
        self.stage = stage
        self._store, self._app, self._table = store, app, table or stage

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Manifest:
        """Return the manifest at this index. Raises `NotFound` (collected meanwhile) and `Corruption`."""
        return table_of(history.read(self._store, self._app, self.stage, self.numbers[index]), self._table)

    def from_number(self, number: int) -> int:
        """Return the first index whose version is `number` or newer."""
        return bisect_left(self.numbers, number)

    def is_gap(self, index: int) -> bool:
        """Return True if versions right before this index were collected."""
        return index > 0 and self.numbers[index] > self.numbers[index - 1] + 1

    def first_where(self, low: int, high: int, holds: Callable[[Manifest], bool]) -> int:
        """Return the first index from `low` to `high` for which `holds` is true. It must stay true up to `high`."""
        return low + bisect_left(range(low, high), True, key=lambda index: holds(self[index]))

    def backwards(self, index: int) -> Iterator[tuple[int, Manifest]]:
        """Yield the version at `index` and all older ones, newest first, each with its index."""
        for end in range(index + 1, 0, -_AHEAD):
            indexes = range(max(end - _AHEAD, 0), end)
            yield from reversed(list(zip(indexes, at_once().map(self.__getitem__, indexes), strict=True)))


@dataclass(frozen=True, slots=True)
class StageVersions:
    """Versions `after` + 1 to `up_to` of a stage, or of its side table of the name `beside`."""

    store: ObjectStore
    app: str
    stage: str
    after: int
    up_to: int
    beside: str = ""

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Identity of the table whose versions these are: store, app, stage and side table."""
        return self.store.url, self.app, self.stage, self.beside

    def find(self, number: int) -> Manifest | None:
        """Return one version; None if it was collected."""
        manifest = history.find(self.store, self.app, self.stage, number)
        return (
            table_of(manifest, table_name(self.stage, self.beside))
            if manifest is not None and self.beside
            else manifest
        )

    def manifests(self) -> Iterable[Manifest | None]:
        """Return these versions, None for each collected one."""
        limit = horizon.newest(self.store, self.app)

        def read(number: int) -> Manifest | None:
            # A collectable manifest may outlive its SSTs.
            is_there = limit.allows(self.stage, number)
            return self.find(number) if is_there else None

        return at_once().map(read, range(self.after + 1, self.up_to + 1))


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Common ancestor of two versions, and the versions that each has added since."""

    seq: int = 0
    """Largest `_seq` at the fork. Rows with this `_seq` or a smaller one are the same in both versions; later rows were
    written by one of the two. 0 if the versions have nothing in common.
    """
    branches: tuple[tuple[StageVersions, ...], tuple[StageVersions, ...]] = ((), ())
    """Versions from the fork to each of the two."""
    table: Table | None = None
    """Table declaration at the fork, whose column ids mean the same in both; None if they have nothing in common."""

    @property
    def next_id(self) -> int:
        """First column id that the two may have assigned differently; smaller ids mean the same in both."""
        return (self.table.next_id or len(self.table.columns) + 1) if self.table is not None else 0


def ancestry(first: tuple[ObjectStore, Manifest], second: tuple[ObjectStore, Manifest]) -> Ancestry:
    """Return the common ancestor of two versions of stages; each comes with the store of its app.

    Takes three requests for each clone in between; none for two versions of one app. Raises `Corruption` (a stored app
    or manifest in between is damaged).
    """
    names = [
        (manifest.formerly[0].stage if manifest.formerly else stage_of(manifest), _side_table_name(manifest))
        for _, manifest in (first, second)
    ]
    if names[0] != names[1]:
        return Ancestry()
    apart = (first[0].url, first[1].app) != (second[0].url, second[1].app)
    lines = [tuple(_effective_parts(*end, over_clones=apart)) for end in (first, second)]
    for number, first_part in enumerate(lines[0]):
        for index, second_part in enumerate(lines[1]):
            fork = min(first_part.up_to, second_part.up_to)
            if fork > max(first_part.after, second_part.after) and first_part.place == second_part.place:
                ends = (number, lines[0], first), (index, lines[1], second)
                ancestor = next(
                    (manifest for end in ends if (manifest := _fork_manifest(*end, fork)) is not None), None
                )
                if ancestor is None:
                    return Ancestry()
                # Later writes use a `_seq` above that of every existing row.
                seq = max((sst.seq_max for sst in ancestor.ssts), default=0)
                branches = _branch_since(lines[0], number, fork), _branch_since(lines[1], index, fork)
                return Ancestry(seq, branches, ancestor.table)
    return Ancestry()


def _effective_parts(store: ObjectStore, manifest: Manifest, *, over_clones: bool) -> Iterator[StageVersions]:
    """Yield the parts of `_lineage_parts` without the versions that rewinds undid.

    A clone continues the version numbers of its source.
    """
    ranges = manifest.follows(of_rows=True)
    for part in _lineage_parts(store, manifest, over_clones=over_clones):
        for numbers in reversed(ranges):
            after, up_to = max(part.after, numbers.start - 1), min(part.up_to, numbers.stop - 1)
            if up_to > after:
                yield replace(part, after=after, up_to=up_to)


def _lineage_parts(store: ObjectStore, manifest: Manifest, *, over_clones: bool) -> Iterator[StageVersions]:
    """Yield the ranges of versions that lead to a version, under each name of its stage, newest first.

    With `over_clones`, also the versions of the app that its app was cloned from, and so on.
    """
    part = StageVersions(store, manifest.app, stage_of(manifest), 0, manifest.version, _side_table_name(manifest))
    names = list(manifest.formerly)
    while True:
        info = apps.find_app(part.store, part.app) if over_clones else None
        origin = info.origin if info is not None else None
        first_version = origin.cut.get(part.stage, 0) if origin is not None else 0
        if names and names[-1].version > first_version:
            former = names.pop()
            yield replace(part, after=former.version)
            part = replace(part, stage=former.stage, after=0, up_to=former.version)
            continue
        yield replace(part, after=first_version)
        if (
            origin is None or not first_version or origin.deep or origin.masks
        ):  # only other clones share rows with their source
            return
        source = part.store.at(origin.root)
        pinned = find_snapshot(source, origin.app, origin.snapshot)
        # Without the pin, the name may belong to a different app by now.
        if pinned is None or pinned.stages.get(part.stage) != first_version:
            return
        part = StageVersions(source, origin.app, part.stage, 0, first_version, part.beside)


def _side_table_name(manifest: Manifest) -> str:
    """Return the name of a side table without its stage's name; empty for the stage's own table."""
    return manifest.name if isinstance(manifest, SideManifest) else ""


def _branch_since(line: tuple[StageVersions, ...], number: int, fork: int) -> tuple[StageVersions, ...]:
    """Return the ranges of `line` after version `fork`, which is in its part `number`."""
    branch = (*line[:number], replace(line[number], after=fork))
    return tuple(part for part in branch if part.up_to > part.after)


def _fork_manifest(
    number: int, line: tuple[StageVersions, ...], end: tuple[ObjectStore, Manifest], version: int
) -> Manifest | None:
    """Return the manifest of the version at which two lines fork; None if it was collected.

    The first version of a clone has the same rows as the source's version of that number.
    """
    part = line[number]
    if number == 0 and part.up_to == version:
        return end[1]
    if (manifest := part.find(version)) is not None:
        return manifest
    clone_part = line[number - 1] if number else None
    if clone_part is None or clone_part.after != version:
        return None
    return clone_part.find(version)
