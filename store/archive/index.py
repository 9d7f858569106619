"""What the archive of a topic holds: index objects, of which each is the whole of it and the one above replaces it.

Index N is made where there is none, like a version of a stage; appending, merging, thinning and forgetting are each a
pure function from the newest index to the next, and who loses the race for a number reads on and makes it again
(`change`). An object that no index names yet, or any more, is nobody's: garbage collection sweeps it. An index names
only what was put before.

A topic that was deleted and made again under its name counts its offsets from 0 once more. Kafka gives it another id,
and its archive is another one, of the next `life`: records of the two never mix.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace
from ulid import ULID

from ...errors import CommitConflict, Corruption
from ..objects.protocol import ObjectInfo, ObjectStore
from ..versions import checks, horizon, keys, limits
from ..versions.checks import Wrong
from ..versions.notes import Notes
from . import extents
from .extents import Extents

_ATTEMPTS = 100
"""Lost races, to those that commit at the same moment, before a change gives up."""
_QUICK_S = 30.0
"""Nobody can have taken the number and swept it again so soon: what is swept was replaced an hour ago."""


class ArchiveObject(Struct, frozen=True):
    """One immutable Parquet object: records of a topic, sorted by partition and offset (`objects`)."""

    object: limits.Key
    """Key under the store root."""
    rows: limits.Rows
    bytes: limits.Bytes
    checksum: limits.Checksum
    """xxh3_128 of the object's bytes, hexadecimal."""
    footer_bytes: limits.Bytes
    """How many bytes at the object's end are its Parquet footer."""
    footer_checksum: limits.Checksum
    """xxh3_128 of the footer's bytes, hexadecimal."""
    extents: Extents
    """What was read to make it: all records of these offsets are here, but those that were forgotten."""
    time_min_ms: limits.SpanMs
    """The range of the records' times, milliseconds since 1970 UTC."""
    time_max_ms: limits.SpanMs
    read_ms: limits.TimeMs
    """When the newest version that read of these was committed: by this time retention lets it go."""


class ArchiveIndex(Struct, frozen=True):
    """All that one archive holds."""

    app: limits.Name
    topic: limits.Topic
    """In Kafka."""
    life: limits.Version
    """Which topic of that name, from 1."""
    number: limits.Version
    """From 1."""
    id: limits.Ulid
    """Tells a lost answer from a lost race."""
    follows: limits.Line
    """`id` of the index before this one; empty for the first."""
    time_ms: limits.TimeMs
    by: limits.Line
    """host:pid or user@host of whoever made it, for people."""
    begun_ms: limits.TimeMs = 0
    """When its first index was made."""
    topic_id: limits.Line = ""
    """Kafka's id of the topic; empty where the brokers do not say."""
    begins: limits.Offsets = ()
    """Where the app stood when the archive was begun, by partition: what it read from there on is to be here. Of
    partitions that came since, 0."""
    objects: Annotated[tuple[ArchiveObject, ...], Meta(max_length=limits.MAX_SSTS)] = ()
    """In the order in which they were appended."""
    covered: Extents = ()
    """All that can be read here; also where Kafka had no record, as of transactions' marks."""
    thinned: Extents = ()
    """What was here, and retention let go."""
    forgotten: Extents = ()
    """What objects had out of which keys were taken: here may be fewer records, or rows in messages, than were read."""

    @property
    def folder(self) -> str:
        """What the archive's folder is called."""
        return keys.archive_folder(self.topic, self.life)

    @property
    def prefix(self) -> str:
        """Of the keys of all that belongs to the archive."""
        return keys.archive(self.app, self.folder)

    @property
    def bytes(self) -> int:
        """Of its objects."""
        return sum(each.bytes for each in self.objects)

    @property
    def rows(self) -> int:
        """Records in its objects."""
        return sum(each.rows for each in self.objects)

    @property
    def gaps(self) -> Extents:
        """What it lacks between what it has, and never had."""
        return extents.minus(extents.gaps((*self.thinned, *self.covered)), self.thinned)

    def owes(self, read: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Extents:
        """What it lacks of what was read since it was begun: from some offsets to before others, by partition, each."""
        each = (zip_longest(starts, ends, self.begins, fillvalue=0) for starts, ends in read)
        wanted = (
            extents.Extent(partition, max(first, begin), end)
            for parts in each
            for partition, (first, end, begin) in enumerate(parts)
            if max(first, begin) < end
        )
        return extents.minus(wanted, (*self.covered, *self.thinned))

    def lacks(self, partition: int, first: int, end: int) -> Extents:
        """Of a range of offsets, what cannot be read here."""
        return extents.minus((extents.Extent(partition, first, end),), self.covered)


INDEXES = Notes(ArchiveIndex, keys.archive_indexes, lambda each: each.number, app=lambda each: each.prefix)
"""Of an archive, by its prefix."""
Update = Callable[[ArchiveIndex], ArchiveIndex | None]
"""Makes of the newest index the content of the next; None where nothing is to be changed. Pure."""


@checks.relations.register
def _(value: ArchiveIndex) -> Iterator[Wrong]:
    yield from extents.wrong("covered", value.covered)
    yield from extents.wrong("thinned", value.thinned)
    yield from extents.wrong("forgotten", value.forgotten)
    pattern, seen = keys.archived_pattern(value.app, value.folder), set[str]()
    for number, each in enumerate(value.objects):
        at = f"objects[{number}]"
        for right, field, expected in (
            (pattern.fullmatch(each.object), "object", f"a key like {_object(value, 'ULID')}"),
            (each.object not in seen, "object", "an object that is not named before"),
            (each.rows <= each.bytes, "rows", f"at most its bytes, {each.bytes}"),
            (each.footer_bytes <= each.bytes, "footer_bytes", f"at most its bytes, {each.bytes}"),
            (each.time_min_ms <= each.time_max_ms, "time_max_ms", f"not below time_min_ms, {each.time_min_ms}"),
        ):
            if not right:
                yield Wrong(f"{at}.{field}", getattr(each, field), expected)
        seen.add(each.object)
        yield from checks.checksum_is_wrong(f"{at}.checksum", each.checksum)
        yield from checks.checksum_is_wrong(f"{at}.footer_checksum", each.footer_checksum)
        yield from extents.wrong(f"{at}.extents", each.extents)
    owned = sorted((one, number) for number, each in enumerate(value.objects) for one in each.extents)
    for (before, _), (after, number) in pairwise(owned):
        if before.partition == after.partition and after.first < before.end:
            yield Wrong(f"objects[{number}].extents", str(after), "offsets that no other object has")
    if outside := extents.minus((one for one, _ in owned), value.covered):
        yield Wrong("covered", tuple(map(str, value.covered)), f"what its objects have, {outside[0]}, too")


def _object(index: ArchiveIndex, ulid: str) -> str:
    return keys.archived(index.app, index.folder, ulid)


def new_object(index: ArchiveIndex) -> str:
    """A key for another object of an archive."""
    return _object(index, str(ULID()))


def empty(app: str, topic: str, life: int = 1, topic_id: str = "") -> ArchiveIndex:
    """An archive that does not exist yet."""
    return ArchiveIndex(app, topic, life, 0, str(ULID()), "", 0, "", topic_id=topic_id)


def newest(
    store: ObjectStore, app: str, topic: str, life: int = 1, *, known: ArchiveIndex | None = None
) -> ArchiveIndex | None:
    """What an archive holds; None where there is none. A listing, and a read. Raises `Corruption`, `Unavailable`.

    What was `known` earlier makes the listing short, where the archive was changed often.
    """
    prefix, after = keys.archive(app, keys.archive_folder(topic, life)), max(known.number - 1, 0) if known else 0
    try:
        return INDEXES.newest(store, prefix, after=after)
    except Corruption as error:
        raise Corruption(
            f"nobody can tell what the input archive of {topic} of {app} holds, as its index is damaged: "
            f"{error.message}",
            object_key=error.object_key,
            hint=f"{error.hint}; without that, delete all under {prefix}, which gives up what was archived: slackwater "
            f"archive {app} --from beginning fills it with what Kafka still has",
        ) from error


def topics(store: ObjectStore, app: str) -> dict[str, int]:
    """The topics of which there are archives, each with its newest life. One listing of folders."""
    found: dict[str, int] = {}
    for folder in store.list_folders(keys.archives(app)):
        topic, _, life = folder.partition("@")
        if life.isascii() and (life.isdigit() or not life):
            found[topic] = max(found.get(topic, 1), int(life or 1))
    return found


def all_of(store: ObjectStore, app: str, damaged: dict[str, Corruption] | None = None) -> Iterator[ArchiveIndex]:
    """The archives of an app, all lives of each topic. Requests: a listing, and for each as of `newest`.

    Those whose index is damaged are left out, and the error is put into `damaged` by the index's key. Without that,
    raises as `newest`.
    """
    for topic, lives in topics(store, app).items():
        for life in range(1, lives + 1):
            try:
                if (found := newest(store, app, topic, life)) is not None:
                    yield found
            except Corruption as error:
                if damaged is None:
                    raise
                damaged[error.object_key] = error


def change(store: ObjectStore, archive: ArchiveIndex, update: Update, *, by: str, now_ms: int) -> ArchiveIndex:
    """Make the next index of the newest, by put-if-absent; after a lost race, of the next newest.

    `archive` is one that was the newest, or an `empty` one. Returns the one that was made, or the newest where `update`
    changes nothing.

    Raises `CommitConflict` where others kept winning the race, `Corruption`, `Unavailable`, and `Unstorable`.
    """
    app, topic, life = archive.app, archive.topic, archive.life
    for _ in range(_ATTEMPTS):
        clock = horizon.freshness(store)
        began = clock.now()
        known = archive if archive.number else None
        head = newest(store, app, topic, life, known=known) or empty(app, topic, life, archive.topic_id)
        made = update(head)
        if made is None:
            return head
        made = replace(
            made,
            number=head.number + 1,
            id=str(ULID()),
            follows=head.id if head.number else "",
            time_ms=now_ms,
            by=by,
            begun_ms=head.begun_ms if head.number else now_ms,
        )
        if INDEXES.add(store, made) != made:
            continue
        if clock.now() - began < _QUICK_S or _counts(store, made):
            return made
        INDEXES.remove(store, made.number, archive.prefix)
    raise CommitConflict(
        f"the archive of {topic} of app {app!r} was changed by others each time that this one was to be",
        version=0,
        hint="try again",
    )


def _counts(store: ObjectStore, made: ArchiveIndex) -> bool:
    """Whether an index that took long to be put is not below one that knows nothing of it, its number swept since."""
    after = INDEXES.find(store, made.number + 1, made.prefix)
    if after is not None:
        return after.follows == made.id
    found = INDEXES.newest(store, made.prefix)
    return found is None or found.number <= made.number


def begun(at: Sequence[int]) -> Update:
    """Begin an archive where an app stands, by partition. Changes nothing where it is begun already."""
    return lambda head: None if head.number else replace(head, begins=tuple(at))


def appended(objects: Iterable[ArchiveObject], covered: Iterable[extents.Extent]) -> Update:
    """Add objects, and what was read for them, which may be more than they hold.

    Changes nothing where the archive has some of it by then: then it is to be seen what is left to be appended.
    """
    new, more = tuple(objects), extents.union(covered)

    def update(head: ArchiveIndex) -> ArchiveIndex | None:
        if not more or extents.common(more, head.covered):
            return None
        return replace(
            head,
            objects=(*head.objects, *new),
            covered=extents.union(head.covered, more),
            thinned=extents.minus(head.thinned, more),
        )

    return update


def exchanged(changes: Mapping[str, ArchiveObject | None], *, forgotten: bool = False) -> Update:
    """Put objects into the places of others, by their keys, and take out those for which there is None.

    For what becomes of single objects, as when keys in them are `forgotten`: what is covered stays. Changes nothing
    where one of them is not there any more.
    """

    def update(head: ArchiveIndex) -> ArchiveIndex | None:
        if changes.keys() - {each.object for each in head.objects}:
            return None
        made = (changes.get(each.object, each) for each in head.objects)
        had = (each.extents for each in head.objects if forgotten and each.object in changes)
        objects = tuple(each for each in made if each is not None)
        return replace(head, objects=objects, forgotten=extents.union(head.forgotten, *had))

    return update


def merged(inputs: Iterable[ArchiveObject], output: ArchiveObject) -> Update:
    """Put one object into the place of several. Changes nothing where one of them is not there any more."""
    first, *rest = (each.object for each in inputs)
    return exchanged({first: output, **dict.fromkeys(rest)})


def thinned(before_ms: int) -> Update:
    """Let go of objects of which all was read before a time."""

    def update(head: ArchiveIndex) -> ArchiveIndex | None:
        gone = [each for each in head.objects if each.read_ms < before_ms]
        if not gone:
            return None
        lost = extents.union(*(each.extents for each in gone))
        return replace(
            head,
            objects=tuple(each for each in head.objects if each.read_ms >= before_ms),
            covered=extents.minus(head.covered, lost),
            thinned=extents.union(head.thinned, lost),
        )

    return update


def replaced(listed: Sequence[ObjectInfo], margin_ms: int = horizon.MIN_AGE_MS) -> list[ObjectInfo]:
    """Of an archive's indexes, all of them in order, those that were replaced so long ago.

    By storage's clock, of which the newest index is what is known here. Deleted in this order, none is missed by who
    was about to replace it: its successor is there.
    """
    before_ms = listed[-1].modified_ms - margin_ms if listed else 0
    return [each for each, after in pairwise(listed) if after.modified_ms < before_ms]
