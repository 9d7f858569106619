"""What a collection removes of input archives: records read longer ago than retention keeps, and unnamed objects.

Records go object by object, so some stay a little longer. What an index replaced stays for the margin, as somebody may
be reading by that index.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ...common import instants
from ...errors import Corruption
from ...store.archive import index
from ...store.archive.index import INDEXES, ArchiveIndex
from ...store.objects.many import do_all
from ...store.objects.protocol import ObjectInfo, ObjectStore
from ...store.versions import keys
from . import census
from .retention import Retention


@dataclass(frozen=True, slots=True)
class ArchiveCollected:
    """What went of the archive of a topic, and what stays."""

    topic: str
    life: int
    """Which topic of that name: more than 1 where one was deleted and made anew."""
    records: int
    """That retention let go."""
    objects: int
    """With records that went, those that nothing names any more, and indexes."""
    bytes: int
    """Of these."""
    kept_records: int
    kept_objects: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What is to be collected of one archive."""

    head: ArchiveIndex
    before_ms: int
    """What was read before that time goes; 0 for nothing."""
    then: ArchiveIndex
    """As it is then."""

    @property
    def goes(self) -> frozenset[str]:
        """The objects that retention lets go."""
        return frozenset({each.object for each in self.head.objects} - {each.object for each in self.then.objects})


def plan_archives(
    store: ObjectStore, app: str, retention: Retention, now_ms: int, damaged: dict[str, Corruption]
) -> tuple[ArchivePlan, ...]:
    """What there is to collect, by storage's clock. Of an archive with a `damaged` index nothing is."""
    plans = []
    for head in index.all_of(store, app, damaged):
        keep_ms = retention.input_of(head.topic)
        before_ms = max(0, now_ms - keep_ms) if keep_ms is not None else 0
        plans.append(ArchivePlan(head, before_ms, index.thinned(before_ms)(head) or head))
    return tuple(plans)


def collect_archive(
    store: ObjectStore, plan: ArchivePlan, now_ms: int, margin_ms: int, *, by: str, dry_run: bool
) -> ArchiveCollected:
    """Collect what is planned; what was appended or merged meanwhile stays. Raises as `index.change`."""
    then = plan.then
    if plan.goes and not dry_run:
        then = index.change(store, plan.head, index.thinned(plan.before_ms), by=by, now_ms=instants.now_ms())
    indexes, objects = _listed(store, plan.head)
    old = [info for info in index.replaced(indexes, margin_ms) if info.modified_ms <= now_ms - margin_ms]
    kept = [info for info in indexes if info not in old]
    oldest = next(INDEXES.read(store, kept[:1], plan.head.prefix), then)
    named = {each.object for one in (oldest, then) for each in one.objects} - (plan.goes - _named(then))
    unnamed = [info for info in objects if info.key not in named and info.modified_ms <= now_ms - margin_ms]
    goes = [*unnamed, *old]
    if not dry_run:
        # An index that is left never names more than what is there.
        do_all(lambda info: store.delete(info.key), old)
        do_all(lambda info: store.delete(info.key), unnamed)
    records = sum(each.rows for each in plan.head.objects if each.object in plan.goes)
    return ArchiveCollected(
        then.topic, then.life, records, len(goes), _bytes(goes), then.rows, len(then.objects), then.bytes
    )


def _named(archive: ArchiveIndex) -> frozenset[str]:
    return frozenset(each.object for each in archive.objects)


def _listed(store: ObjectStore, archive: ArchiveIndex) -> tuple[tuple[ObjectInfo, ...], tuple[ObjectInfo, ...]]:
    """The archive's indexes, and its objects."""
    objects = (info for info in store.list(archive.prefix) if census.kind_of(info.key) is census.ARCHIVED)
    return INDEXES.listed(store, archive.prefix), tuple(objects)


def _bytes(infos: Iterable[ObjectInfo]) -> int:
    return sum(info.size_bytes for info in infos)


def why_archived(store: ObjectStore, app: str, key: str) -> str:
    """Why an object of an archive is kept, in words; empty where the newest index does not name it."""
    for head in index.all_of(store, app):
        if key in _named(head):
            return f"the input archive of {head.topic} has it: kept for as long as [retention] says (input)"
        if key.startswith(keys.archive_indexes(head.prefix)):
            return f"it is an index of the input archive of {head.topic}: the newest stays, others for an hour"
    return ""
