"""The versions of one stage that are left, and what two versions have both seen: the last that is the same for both.

Of one app that is the earlier of the two, since versions follow each other in a line. A clone's line begins with a
version of its source, so two apps may share one, over any number of clones in between.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ...store.objects.protocol import ObjectStore
from ...store.read.range_reads import at_once
from ...store.versions import apps, history, horizon
from ...store.versions.manifest import Manifest, Table
from ...store.versions.side_tables import SideManifest, stage_of, table_name, table_of
from ..cut.stored import find_snapshot

_AHEAD = 64
"""Manifests asked for at once, when one after the other is looked at."""


class VersionList:
    """Versions of a stage, ascending, counted from 0. Those that were collected are none of them.

    With `table`, one besides the stage's own, they have that as theirs.
    """

    def __init__(self, store: ObjectStore, app: str, stage: str, table: str = "") -> None:
        self.numbers = history.versions(store, app, stage)
        """Their numbers. One listing for each 1,000."""
        self.stage = stage
        self._store, self._app, self._table = store, app, table or stage

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Manifest:
        """The version at this index. Raises `NotFound` where it was collected meanwhile, and `Corruption`."""
        return table_of(history.read(self._store, self._app, self.stage, self.numbers[index]), self._table)

    def from_number(self, number: int) -> int:
        """The first index with this number or a larger one."""
        return bisect_left(self.numbers, number)

    def is_gap(self, index: int) -> bool:
        """Whether versions right before this index were collected."""
        return index > 0 and self.numbers[index] > self.numbers[index - 1] + 1

    def first_where(self, low: int, high: int, holds: Callable[[Manifest], bool]) -> int:
        """The first of the indexes `low` to `high` for which `holds`, which it does for `high` and from it on."""
        return low + bisect_left(range(low, high), True, key=lambda index: holds(self[index]))

    def backwards(self, index: int) -> Iterator[tuple[int, Manifest]]:
        """This version and those before it, newest first, each with its index."""
        for end in range(index + 1, 0, -_AHEAD):
            indexes = range(max(end - _AHEAD, 0), end)
            yield from reversed(list(zip(indexes, at_once().map(self.__getitem__, indexes), strict=True)))


@dataclass(frozen=True, slots=True)
class StageVersions:
    """Versions `after` + 1 to `up_to` of a stage; with `beside`, of the table that is beside its own by that name."""

    store: ObjectStore
    app: str
    stage: str
    after: int
    up_to: int
    beside: str = ""

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where the versions are: store, app and stage, and what they are versions of."""
        return self.store.url, self.app, self.stage, self.beside

    def find(self, number: int) -> Manifest | None:
        """One version, None when it was collected."""
        found = history.find(self.store, self.app, self.stage, number)
        return table_of(found, table_name(self.stage, self.beside)) if found is not None and self.beside else found

    def manifests(self) -> Iterable[Manifest | None]:
        """These versions, None for each that was collected."""
        limit = horizon.newest(self.store, self.app)

        def read(number: int) -> Manifest | None:
            # A manifest that is collectable may still be there when its SSTs are gone.
            is_there = limit.allows(self.stage, number)
            return self.find(number) if is_there else None

        return at_once().map(read, range(self.after + 1, self.up_to + 1))


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What two versions have in common, and what each has of its own."""

    seq: int = 0
    """Rows of both with a `_seq` up to this were there where the two fork: of one key and `_seq` there is one row.
    All others were written later, by one of them. 0 when they have nothing in common."""
    branches: tuple[tuple[StageVersions, ...], tuple[StageVersions, ...]] = ((), ())
    """The versions from there to each of the two."""
    table: Table | None = None
    """As it was there: the ids that its columns have mean the same for both. None when they have nothing in common."""

    @property
    def next_id(self) -> int:
        """Ids of columns below this mean the same for both; those from it on each has given by itself."""
        return (self.table.next_id or len(self.table.columns) + 1) if self.table is not None else 0


def ancestry(one: tuple[ObjectStore, Manifest], other: tuple[ObjectStore, Manifest]) -> Ancestry:
    """What two versions of stages have in common; each comes with the store of its app.

    Three requests for each clone on the way; none for two versions of one app. Raises `Corruption` (what is stored of
    an app on the way is damaged).
    """
    names = [(each.formerly[0].stage if each.formerly else stage_of(each), _beside(each)) for _, each in (one, other)]
    if names[0] != names[1]:
        return Ancestry()
    apart = (one[0].url, one[1].app) != (other[0].url, other[1].app)
    lines = [tuple(_followed(*each, over_clones=apart)) for each in (one, other)]
    for number, mine in enumerate(lines[0]):
        for index, theirs in enumerate(lines[1]):
            fork = min(mine.up_to, theirs.up_to)
            if fork > max(mine.after, theirs.after) and mine.place == theirs.place:
                ends = (number, lines[0], one), (index, lines[1], other)
                found = next((each for end in ends if (each := _read(*end, fork)) is not None), None)
                if found is None:
                    return Ancestry()
                # Whoever writes on takes a `_seq` above that of every row that is there.
                seq = max((sst.seq_max for sst in found.ssts), default=0)
                branches = _branch(lines[0], number, fork), _branch(lines[1], index, fork)
                return Ancestry(seq, branches, found.table)
    return Ancestry()


def _followed(store: ObjectStore, manifest: Manifest, *, over_clones: bool) -> Iterator[StageVersions]:
    """The stretches of `_line` without what rewinds undid. A clone's numbers go on from those of its source."""
    ranges = manifest.follows(of_rows=True)
    for part in _line(store, manifest, over_clones=over_clones):
        for numbers in reversed(ranges):
            after, up_to = max(part.after, numbers.start - 1), min(part.up_to, numbers.stop - 1)
            if up_to > after:
                yield replace(part, after=after, up_to=up_to)


def _line(store: ObjectStore, manifest: Manifest, *, over_clones: bool) -> Iterator[StageVersions]:
    """The stretches of versions that a version follows from: under the names that its stage had, newest first.

    `over_clones` also those of the app that its own was cloned from, and so on.
    """
    part = StageVersions(store, manifest.app, stage_of(manifest), 0, manifest.version, _beside(manifest))
    names = list(manifest.formerly)
    while True:
        info = apps.find_app(part.store, part.app) if over_clones else None
        origin = info.origin if info is not None else None
        born = origin.cut.get(part.stage, 0) if origin is not None else 0
        if names and names[-1].version > born:
            former = names.pop()
            yield replace(part, after=former.version)
            part = replace(part, stage=former.stage, after=0, up_to=former.version)
            continue
        yield replace(part, after=born)
        if origin is None or not born or origin.deep or origin.masks:  # else it has the very rows of its source
            return
        source = part.store.at(origin.root)
        pinned = find_snapshot(source, origin.app, origin.snapshot)
        # Without it, an app of that name may be another one since.
        if pinned is None or pinned.stages.get(part.stage) != born:
            return
        part = StageVersions(source, origin.app, part.stage, 0, born, part.beside)


def _beside(manifest: Manifest) -> str:
    """What a table beside a stage's own is called behind the stage's name; empty for that itself."""
    return manifest.name if isinstance(manifest, SideManifest) else ""


def _branch(line: tuple[StageVersions, ...], number: int, fork: int) -> tuple[StageVersions, ...]:
    """The stretches from a version of the line's part of this number on."""
    branch = (*line[:number], replace(line[number], after=fork))
    return tuple(part for part in branch if part.up_to > part.after)


def _read(
    number: int, line: tuple[StageVersions, ...], end: tuple[ObjectStore, Manifest], version: int
) -> Manifest | None:
    """The manifest of the version at which two lines part; None when nobody has it any more.

    A clone's first version holds what its source's of that number does.
    """
    part = line[number]
    if number == 0 and part.up_to == version:
        return end[1]
    if (found := part.find(version)) is not None:
        return found
    born = line[number - 1] if number else None
    if born is None or born.after != version:
        return None
    return born.find(version)
