"""Indexes of a topic's archive: numbered objects, each of which lists the whole archive. Only the newest counts.

Index N is created by put-if-absent, like a version of a stage. Appending, merging, thinning and forgetting are pure
functions from the newest index to the next; a writer that loses the race for a number applies its function again to the
new head (`change`). Objects are put before an index names them. Garbage collection deletes objects that no index names.

A topic that is deleted and re-created under its name is a new incarnation of the topic: it has a new Kafka id, and its
offsets begin at 0 again. Each incarnation has a separate archive (`ArchiveIndex.life`), so records of two incarnations
never mix.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from ...common import runtime
from ...errors import CommitConflict, Corruption
from ..objects.protocol import ObjectInfo, ObjectStore
from ..versions import checks, horizon, keys, limits
from ..versions.checks import Violation
from ..versions.codec import JsonFolder
from . import extents
from .extents import Extents

_ATTEMPTS = 100
_MAX_UNCHECKED_S = 30.0
"""Limit in seconds: after a slower put, the writer checks that its number was not used and collected meanwhile."""


class ArchiveObject(Struct, frozen=True):
    """One immutable Parquet object with records of a topic, sorted by partition and offset."""

    object: limits.Key
    rows: limits.Rows
    bytes: limits.Bytes
    checksum: limits.Checksum
    """xxh3_128 of the object, hexadecimal."""
    footer_bytes: limits.Bytes
    footer_checksum: limits.Checksum
    extents: Extents
    """Offsets that the object covers. It has all records with these offsets, except forgotten ones."""
    time_min_ms: limits.AnyTimeMs
    time_max_ms: limits.AnyTimeMs
    read_ms: limits.TimeMs
    """Commit time of the newest version that read any of the records. Retention counts from this time."""


class ArchiveIndex(Struct, frozen=True):
    """List of the objects of one archive, and of the offsets that it covers."""

    app: limits.Name
    topic: limits.Topic
    life: limits.Version
    """Number of the topic's incarnation: 1 at first, increased whenever the topic is re-created."""
    number: limits.Version
    id: limits.Ulid
    """Unique id of the index. If the answer to a put is lost, the writer recognises its own index by the id."""
    follows: limits.ShortText
    time_ms: limits.TimeMs
    by: limits.ShortText
    begun_ms: limits.TimeMs = 0
    topic_id: limits.ShortText = ""
    begins: limits.Offsets = ()
    """First archived offset by Kafka partition; 0 for partitions that were added later."""
    objects: Annotated[tuple[ArchiveObject, ...], Meta(max_length=limits.MAX_SSTS)] = ()
    covered: Extents = ()
    """Offsets that the archive covers, including offsets without a record, such as transaction markers."""
    thinned: Extents = ()
    forgotten: Extents = ()
    """Offsets of objects from which keys were forgotten. Some records at these offsets are missing."""

    @property
    def folder(self) -> str:
        return keys.archive_folder(self.topic, self.life)

    @property
    def prefix(self) -> str:
        return keys.archive(self.app, self.folder)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.objects)

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.objects)

    @property
    def gaps(self) -> Extents:
        return extents.subtract(extents.gaps((*self.thinned, *self.covered)), self.thinned)

    def unarchived(self, read: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Extents:
        """Return the offsets that were read after the archive began, but are not archived.

        Each element of `read` has the start offsets and the end offsets of one read, by partition.
        """
        required = extents.union(*(extents.extents_between(starts, ends) for starts, ends in read))
        return extents.subtract(required, (*extents.extents_between((), self.begins), *self.covered, *self.thinned))


INDEXES = JsonFolder(
    ArchiveIndex, keys.archive_indexes, lambda index: index.number, owner_of=lambda index: index.prefix
)
Update = Callable[[ArchiveIndex], ArchiveIndex | None]


@checks.find_violations.register
def _(value: ArchiveIndex) -> Iterator[Violation]:
    yield from extents.extent_violations("covered", value.covered)
    yield from extents.extent_violations("thinned", value.thinned)
    yield from extents.extent_violations("forgotten", value.forgotten)
    pattern, seen = keys.archived_pattern(value.app, value.folder), set[str]()
    for number, item in enumerate(value.objects):
        at = f"objects[{number}]"
        for right, field, expected in (
            (pattern.fullmatch(item.object), "object", f"a key like {new_object_key(value, 'ULID')}"),
            (item.object not in seen, "object", "an object that is named once"),
            (item.rows <= item.bytes, "rows", f"at most its bytes, {item.bytes}"),
            (item.footer_bytes <= item.bytes, "footer_bytes", f"at most its bytes, {item.bytes}"),
            (item.time_min_ms <= item.time_max_ms, "time_max_ms", f"not below time_min_ms, {item.time_min_ms}"),
        ):
            if not right:
                yield Violation(f"{at}.{field}", getattr(item, field), expected)
        seen.add(item.object)
        yield from checks.checksum_violations(f"{at}.checksum", item.checksum)
        yield from checks.checksum_violations(f"{at}.footer_checksum", item.footer_checksum)
        yield from extents.extent_violations(f"{at}.extents", item.extents)
    owned = sorted((extent, number) for number, item in enumerate(value.objects) for extent in item.extents)
    for (lower, _), (after, number) in pairwise(owned):
        if lower.partition == after.partition and after.first < lower.end:
            yield Violation(f"objects[{number}].extents", str(after), "offsets that no other object has")
    if outside := extents.subtract((extent for extent, _ in owned), value.covered):
        yield Violation("covered", tuple(map(str, value.covered)), f"all offsets of its objects, also {outside[0]}")


def new_object_key(index: ArchiveIndex, ulid: str = "") -> str:
    return keys.archive_object(index.app, index.folder, ulid or str(runtime.ulid()))


def empty_index(app: str, topic: str, incarnation: int = 1, topic_id: str = "") -> ArchiveIndex:
    """Return an empty index, from which an archive's first change starts. It has number 0, and is not stored."""
    return ArchiveIndex(app, topic, incarnation, 0, str(runtime.ulid()), "", 0, "", topic_id=topic_id)


def newest(
    store: ObjectStore, app: str, topic: str, incarnation: int = 1, *, previous: ArchiveIndex | None = None
) -> ArchiveIndex | None:
    """Return the newest index of an archive, or None. Costs a listing and a read.

    `previous` is an index that was read earlier, and shortens the listing. Raises `Corruption`.
    """
    prefix, start_after = (
        keys.archive(app, keys.archive_folder(topic, incarnation)),
        max(previous.number - 1, 0) if previous else 0,
    )
    try:
        return INDEXES.newest(store, prefix, after=start_after)
    except Corruption as error:
        raise Corruption(
            f"the content of the input archive of {topic} of {app} is unknown, because its index is damaged: "
            f"{error.message}",
            object_key=error.object_key,
            hint=f"{error.hint}; if that is impossible, delete all under {prefix}, which gives up what was archived, "
            f"and archive what Kafka still has: slackwater archive {app} --from beginning",
        ) from error


def newest_incarnations(store: ObjectStore, app: str) -> dict[str, int]:
    """Return the number of the newest incarnation of each archived topic. Costs one listing of folders."""
    incarnations: dict[str, int] = {}
    for folder in store.list_folders(keys.archives(app)):
        topic, _, suffix = folder.partition("@")
        if suffix.isascii() and (suffix.isdigit() or not suffix):
            incarnations[topic] = max(incarnations.get(topic, 1), int(suffix or 1))
    return incarnations


def iter_archives(store: ObjectStore, app: str, damaged: dict[str, Corruption] | None = None) -> Iterator[ArchiveIndex]:
    """Yield the newest index of each archive of an app. Each incarnation of a topic has an archive of its own.

    Costs a listing of folders, and a listing and a read for each archive. The error for a damaged index is stored in
    `damaged`, by the index's key; without `damaged`, it is raised.
    """
    for topic, count in newest_incarnations(store, app).items():
        for incarnation in range(1, count + 1):
            try:
                if (archive := newest(store, app, topic, incarnation)) is not None:
                    yield archive
            except Corruption as error:
                if damaged is None:
                    raise
                damaged[error.object_key] = error


def change(store: ObjectStore, archive: ArchiveIndex, update: Update, *, by: str, now_ms: int) -> ArchiveIndex:
    """Commit a change to an archive: create the next index by put-if-absent, and retry after a lost race.

    `archive` is an index that was the newest, or the result of `empty_index`. Returns the created index, or the newest
    index if `update` changes nothing. Raises `CommitConflict` after many lost races, `Corruption` and `Unstorable`.
    """
    app, topic, incarnation = archive.app, archive.topic, archive.life
    for _ in range(_ATTEMPTS):
        clock = horizon.freshness(store)
        began = clock.now()
        previous = archive if archive.number else None
        head = newest(store, app, topic, incarnation, previous=previous) or empty_index(
            app, topic, incarnation, archive.topic_id
        )
        content = update(head)
        if content is None:
            return head
        content = replace(
            content,
            number=head.number + 1,
            id=str(runtime.ulid()),
            follows=head.id if head.number else "",
            time_ms=now_ms,
            by=by,
            begun_ms=head.begun_ms if head.number else now_ms,
        )
        if INDEXES.add(store, content) != content:
            continue
        if clock.now() - began < _MAX_UNCHECKED_S or _is_in_effect(store, content):
            return content
        INDEXES.remove(store, content.number, archive.prefix)
    raise CommitConflict(
        f"the archive of {topic} of app {app!r} could not be changed: other processes changed it first",
        version=0,
        hint="try again",
    )


def _is_in_effect(store: ObjectStore, index: ArchiveIndex) -> bool:
    """Return True if the index is valid: no other process used and collected the index's number before the put."""
    successor = INDEXES.find(store, index.number + 1, index.prefix)
    if successor is not None:
        return successor.follows == index.id
    head = INDEXES.newest(store, index.prefix)
    return head is None or head.number <= index.number


def begin_update(offsets: Sequence[int]) -> Update:
    """Return an update that begins an archive at these offsets, by partition.

    It does not change an existing archive.
    """
    return lambda head: None if head.number else replace(head, begins=tuple(offsets))


def append_update(objects: Iterable[ArchiveObject], covered: Iterable[extents.Extent]) -> Update:
    """Return an update that adds objects, and adds `covered` to the archive's covered offsets.

    `covered` has all offsets that were read, including offsets without a record. If the archive already covers some of
    them, the update changes nothing, and the caller must recompute both arguments.
    """
    new, more = tuple(objects), extents.union(covered)

    def update(head: ArchiveIndex) -> ArchiveIndex | None:
        if not more or extents.intersect(more, head.covered):
            return None
        return replace(
            head,
            objects=(*head.objects, *new),
            covered=extents.union(head.covered, more),
            thinned=extents.subtract(head.thinned, more),
        )

    return update


def replace_update(changes: Mapping[str, ArchiveObject | None], *, forgotten: bool = False) -> Update:
    """Return an update that replaces objects. `changes` maps a key to its new object, or to None to remove it.

    Covered offsets stay covered. With `forgotten`, the offsets of replaced objects are added to the index's
    `forgotten`. The update changes nothing if any of the old keys is missing from the archive.
    """

    def update(head: ArchiveIndex) -> ArchiveIndex | None:
        if changes.keys() - {item.object for item in head.objects}:
            return None
        items = (changes.get(item.object, item) for item in head.objects)
        had = (item.extents for item in head.objects if forgotten and item.object in changes)
        objects = tuple(item for item in items if item is not None)
        return replace(head, objects=objects, forgotten=extents.union(head.forgotten, *had))

    return update


def thin_update(before_ms: int) -> Update:
    """Return an update that removes the objects with only old records: all were read before `before_ms`."""

    def update(head: ArchiveIndex) -> ArchiveIndex | None:
        removed = [item for item in head.objects if item.read_ms < before_ms]
        if not removed:
            return None
        lost = extents.union(*(item.extents for item in removed))
        return replace(
            head,
            objects=tuple(item for item in head.objects if item.read_ms >= before_ms),
            covered=extents.subtract(head.covered, lost),
            thinned=extents.union(head.thinned, lost),
        )

    return update


def replaced_indexes(listed: Sequence[ObjectInfo], margin_ms: int = horizon.MIN_AGE_MS) -> list[ObjectInfo]:
    """Return the indexes that were replaced more than `margin_ms` ago, oldest first.

    `listed` has all indexes in order. Ages are by storage's clock. Delete the indexes in the returned order. A writer
    whose base index was deleted then still finds the next index.
    """
    before_ms = listed[-1].modified_ms - margin_ms if listed else 0
    return [info for info, after in pairwise(listed) if after.modified_ms < before_ms]
