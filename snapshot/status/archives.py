"""How far an app's input archives are: what they hold, what they lack of what was read, and their gaps."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import Corruption
from ...state.records import stretches
from ...state.topics import are_two
from ...store.archive import index
from ...store.archive.extents import count
from ...store.archive.index import ArchiveIndex
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """What the archive of a topic holds."""

    topic: str
    life: int
    """Which topic of that name: more than 1 where one was deleted and made anew."""
    records: int
    objects: int
    bytes: int
    since_ms: int
    """The time of the earliest record, in ms since 1970; 0 where there is none."""
    behind: int
    """Offsets that were read behind all that it has, and that it has not yet."""
    gaps: tuple[str, ...]
    """Offsets between what it holds that it never had, each as `[0]@10..20`: what is read there ends with an error."""
    holds: tuple[str, ...]
    """What it holds, likewise."""


def status_of(archive: ArchiveIndex, heads: Iterable[Manifest] = ()) -> ArchiveStatus:
    """What an archive holds, by its index, beside what these stages have read."""
    inputs = (at for head in heads for at in head.inputs.values() if at.topic == archive.topic)
    mine = (at for at in inputs if not are_two(archive.topic_id, at.topic_id))
    owed = archive.owes(read for at in mine for read in stretches(None, at, former=False))
    last = {each.partition: each.end for each in archive.covered}
    behind = count(each for each in owed if each.first >= last.get(each.partition, 0))
    return ArchiveStatus(
        archive.topic,
        archive.life,
        archive.rows,
        len(archive.objects),
        archive.bytes,
        min((each.time_min_ms for each in archive.objects), default=0),
        behind,
        tuple(map(str, archive.gaps)),
        tuple(map(str, archive.covered)),
    )


def archives_of(
    store: ObjectStore, app: str, heads: Iterable[Manifest], damaged: dict[str, Corruption] | None = None
) -> tuple[ArchiveStatus, ...]:
    """The archives of an app, whose stages' newest versions are these.

    A listing, and a listing and a read for each. Raises as `index.all_of`.
    """
    known = tuple(heads)
    newest = index.topics(store, app)
    found = index.all_of(store, app, damaged)
    return tuple(status_of(each, known if each.life == newest[each.topic] else ()) for each in found)
