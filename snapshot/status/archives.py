"""Status of an app's input archives: contents, records read but not archived yet, and gaps."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import Corruption
from ...state.records import are_two, stretches
from ...store.archive import index
from ...store.archive.extents import count
from ...store.archive.index import ArchiveIndex
from ...store.objects.protocol import ObjectStore
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """Status of the archive of a topic."""

    topic: str
    life: int
    """Number of the topic of that name: more than 1 if the topic was deleted and recreated."""
    records: int
    objects: int
    bytes: int
    since_ms: int
    """Time of the earliest record, in ms since 1970; 0 for none."""
    behind: int
    """Number of offsets that were read after the end of the archive and are not archived yet."""
    gaps: tuple[str, ...]
    """Ranges of offsets that the archive lacks, each as `[0]@10..20`. Reading one raises an error."""
    holds: tuple[str, ...]
    """Ranges of offsets in the archive, in the same form."""


def status_of(archive: ArchiveIndex, heads: Iterable[Manifest] = ()) -> ArchiveStatus:
    """Return the status of an archive, by its index and by the inputs of these stages."""
    inputs = (at for head in heads for at in head.inputs.values() if at.topic == archive.topic)
    same_topic = (at for at in inputs if not are_two(archive.topic_id, at.topic_id))
    missing = archive.owes(read for at in same_topic for read in stretches(None, at, former=False))
    last = {extent.partition: extent.end for extent in archive.covered}
    behind = count(extent for extent in missing if extent.first >= last.get(extent.partition, 0))
    return ArchiveStatus(
        archive.topic,
        archive.life,
        archive.rows,
        len(archive.objects),
        archive.bytes,
        min((archived.time_min_ms for archived in archive.objects), default=0),
        behind,
        tuple(map(str, archive.gaps)),
        tuple(map(str, archive.covered)),
    )


def archives_of(
    store: ObjectStore, app: str, heads: Iterable[Manifest], damaged: dict[str, Corruption] | None = None
) -> tuple[ArchiveStatus, ...]:
    """Return the status of each archive of an app. `heads` are the newest versions of its stages.

    One list request, and one more with a read for each archive. Raises `Corruption` unless `damaged` collects it.
    """
    manifests = tuple(heads)
    newest = index.topics(store, app)
    archives = index.all_of(store, app, damaged)
    return tuple(status_of(archive, manifests if archive.life == newest[archive.topic] else ()) for archive in archives)
