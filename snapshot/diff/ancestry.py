"""What two versions of a stage have both seen: the last version before them that is the same for both.

Of one app that is the earlier of the two, since versions follow each other in a line. A clone's line begins with a
version of its source, so two apps may share one, over any number of clones in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...store.objects.protocol import ObjectStore
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Table
from ..cut.stored import find_snapshot


@dataclass(frozen=True, slots=True)
class StageVersions:
    """Versions `after` + 1 to `up_to` of a stage."""

    store: ObjectStore
    app: str
    stage: str
    after: int
    up_to: int


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What two versions have in common, and what each has of its own."""

    seq: int = 0
    """Rows of both with a `_seq` up to this were there when the two parted: of one key and `_seq` there is one row.
    All others were written later, by one of them. 0 when they have nothing in common."""
    ways: tuple[tuple[StageVersions, ...], tuple[StageVersions, ...]] = ((), ())
    """The versions from there to each of the two."""
    table: Table | None = None
    """As it was there: the ids that its columns have mean the same for both. None when they have nothing in common."""

    @property
    def next_id(self) -> int:
        """Ids of columns below this mean the same for both; those from it on each has given by itself."""
        return (self.table.next_id or len(self.table.columns) + 1) if self.table is not None else 0


def ancestry(one: tuple[ObjectStore, Manifest], other: tuple[ObjectStore, Manifest]) -> Ancestry:
    """What two versions of stages have in common; each comes with the store of its app.

    Three requests for each clone on the way; none for two versions of one app.

    Raises:
        Corruption: what is stored of an app on the way is damaged.
        Unavailable: a store did not answer.
    """
    if _first_name(one[1]) != _first_name(other[1]) or one[1].backfills != other[1].backfills:
        # A backfill gives rows of the same `_seq` other values.
        return Ancestry()
    apart = (one[0].url, one[1].app) != (other[0].url, other[1].app)
    lines = [tuple(_line(*each, over_clones=apart)) for each in (one, other)]
    for number, mine in enumerate(lines[0]):
        for place, theirs in enumerate(lines[1]):
            if (mine.store.url, mine.app, mine.stage) == (theirs.store.url, theirs.app, theirs.stage):
                parted = min(mine.up_to, theirs.up_to)
                ends = (number, lines[0], one), (place, lines[1], other)
                found = next((each for end in ends if (each := _read(*end, parted)) is not None), None)
                if found is None:
                    return Ancestry()
                # Whoever writes on takes a `_seq` above that of every row that is there.
                seq = max((sst.seq_max for sst in found.ssts), default=0)
                ways = _way(lines[0], number, parted), _way(lines[1], place, parted)
                return Ancestry(seq, ways, found.table)
    return Ancestry()


def _first_name(manifest: Manifest) -> str:
    """What the stage was called first."""
    return manifest.formerly[0].stage if manifest.formerly else manifest.stage


def _line(store: ObjectStore, manifest: Manifest, *, over_clones: bool) -> Iterator[StageVersions]:
    """The stretches of versions that a version follows from: under the names that its stage had, newest first.

    `over_clones` also those of the app that its own was cloned from, and so on.
    """
    stretch = StageVersions(store, manifest.app, manifest.stage, 0, manifest.version)
    names = list(manifest.formerly)
    while True:
        info = apps.find_app(stretch.store, stretch.app) if over_clones else None
        origin = info.origin if info is not None else None
        born = origin.cut.get(stretch.stage, 0) if origin is not None else 0
        if names and names[-1].version > born:
            former = names.pop()
            yield replace(stretch, after=former.version)
            stretch = StageVersions(stretch.store, stretch.app, former.stage, 0, former.version)
            continue
        yield replace(stretch, after=born)
        if origin is None or not born:
            return
        source = stretch.store.at(origin.root)
        pinned = find_snapshot(source, origin.app, origin.snapshot)
        # Without it, an app of that name may be another one since.
        if pinned is None or pinned.stages.get(stretch.stage) != born:
            return
        stretch = StageVersions(source, origin.app, stretch.stage, 0, born)


def _way(line: tuple[StageVersions, ...], number: int, parted: int) -> tuple[StageVersions, ...]:
    """The stretches from a version of the line's stretch of this number on."""
    way = (*line[:number], replace(line[number], after=parted))
    return tuple(stretch for stretch in way if stretch.up_to > stretch.after)


def _read(
    number: int, line: tuple[StageVersions, ...], end: tuple[ObjectStore, Manifest], version: int
) -> Manifest | None:
    """The manifest of the version at which two lines part; None when nobody has it any more.

    A clone's first version holds what its source's of that number does.
    """
    stretch = line[number]
    if number == 0 and stretch.up_to == version:
        return end[1]
    if (found := history.find(stretch.store, stretch.app, stretch.stage, version)) is not None:
        return found
    born = line[number - 1] if number else None
    if born is None or born.after != version:
        return None
    return history.find(born.store, born.app, born.stage, version)
