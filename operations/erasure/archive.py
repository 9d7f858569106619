"""The input archive without a key: its objects once more, and an index that names these instead."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...common import instants
from ...errors import CommitConflict, Corruption, ObjectNotFound
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.gc import census
from ...snapshot.query.fields import Field
from ...snapshot.status.overview import archives_of
from ...snapshot.under_way import runners
from ...store.archive import index, objects
from ...store.archive.index import INDEXES, ArchiveIndex, ArchiveObject
from ...store.read.decode import read_whole
from ...store.versions.manifest import Manifest
from .family import Member
from .held import Held, Search
from .matching import Matches, Rule, message_rows

_ROUNDS = 100
"""Of which in each somebody else has changed the archive meanwhile."""
_PAUSES = 20
"""Until it is said instead what is to come: a runner archives every few seconds."""


WHAT = "input archive"
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""As stages write messages."""


def holders(search: Search) -> Iterator[tuple[ArchiveIndex, ArchiveObject, dict[str, int]]]:
    """The objects of all archives of an app that hold a key and were not seen yet; by field, how many records do.

    Those that hold none are known as `Search.clean` from then on. Raises `Corruption` and `Unavailable`.
    """
    for archive in search.archives():
        for one in archive.objects:
            if one.object in search.clean:
                continue
            search.looked_into += 1
            if fields := _fields(search, archive.topic, one.object, _rows(search, one)):
                yield archive, one, fields
            else:
                search.clean.add(one.object)


GoneObject = tuple[str, ArchiveObject, dict[str, int], int]
"""The topic, the object, records by field, and the bytes in its place."""


def take_out(
    search: Search, *, by: str, now_ms: Callable[[], int], before: Callable[[Sequence[GoneObject]], None]
) -> bool:
    """Have no index of an app name an object that holds a key; whether any did. `before` is told what is to go.

    Raises `CommitConflict` where others kept changing an archive, `Corruption` and `Unavailable`.
    """
    store, any_gone = search.member.store, False
    for _ in range(_ROUNDS):
        by_archive: dict[str, tuple[ArchiveIndex, dict[str, ArchiveObject | None]]] = {}
        gone: list[GoneObject] = []
        for archive, one, fields in holders(search):
            made = _rewritten(search, archive, one)
            by_archive.setdefault(archive.prefix, (archive, {}))[1][one.object] = made
            gone.append((archive.topic, one, fields, made.bytes if made is not None else 0))
        if not gone:
            return any_gone
        any_gone = True
        before(gone)
        for archive, changes in by_archive.values():
            # It changes nothing where one of them was merged meanwhile: then all are looked at again.
            index.change(store, archive, index.exchanged(changes, forgotten=True), by=by, now_ms=now_ms())
    raise CommitConflict(
        f"the input archive of {search.member.app} kept changing while keys were to be forgotten", version=0
    )


def unnamed(search: Search) -> Iterator[tuple[Held, bool]]:
    """Objects in the archives' folders that hold a key, or cannot be decoded, and that the newest index does not name.

    And whether an earlier one names it: then nobody will any more. Else it was put a moment ago, or is litter.
    """
    store, app = search.member.store, search.member.app
    for archive in search.archives():
        listed = [info for info in store.list(archive.prefix) if census.kind_of(info.key) is census.ARCHIVED]
        # After the listing: what was appended in between is named.
        try:
            all_indexes = INDEXES.all(store, archive.prefix)
        except Corruption as error:
            search.damaged[error.object_key] = error
            continue
        indexes = [frozenset(one.object for one in each.objects) for each in all_indexes]
        earlier = frozenset().union(*indexes)
        for info in listed:
            if info.key not in indexes[-1] and _of_bytes(search, archive.topic, info.key):
                held = Held(app, store.url, info.key, WHAT, archive.topic, info.size_bytes, named=False)
                yield held, info.key in earlier


def await_appended(searches: Sequence[Search], pause: Callable[[], None]) -> None:
    """Wait for runners that are yet to archive what their apps have read by now, for some rounds of theirs.

    A record that was read before the keys went, and is archived afterwards, would bring one back.
    """
    waiting = [(search.member, tuple(_heads(search.member))) for search in searches]
    for _ in range(_PAUSES):
        waiting = [(each, heads) for each, heads in waiting if owed(each, heads) and _runs(each)]
        if not waiting:
            return
        pause()


def owed(member: Member, heads: Sequence[Manifest] = ()) -> dict[str, int]:
    """Offsets by topic that an app has read, by its newest versions or these, and that are to come into its archive."""
    found = archives_of(member.store, member.app, heads or _heads(member), {})
    return {each.topic: each.behind for each in found if each.behind}


def _heads(member: Member) -> Iterable[Manifest]:
    return heads_of(member.store, member.app, stages_of(member.store, member.app)).values()


def _runs(member: Member) -> bool:
    return bool(runners.beats(member.store, member.app, instants.now_ms()))


def _rows(search: Search, one: ArchiveObject) -> Iterable[pa.Table]:
    return objects.ArchivedRecords(search.member.store, one).all()


def _fields(search: Search, topic: str, key: str, parts: Iterable[pa.Table]) -> dict[str, int]:
    """The records of an object that hold a key, by the field that says so; what cannot be told is noted."""
    fields: dict[str, int] = {}
    search.unproved.pop(key, None)
    for rows in parts:
        for found in _matches(search, topic, key, rows)[1]:
            for text, count in found.fields.items():
                fields[text] = fields.get(text, 0) + count
    return fields


def _of_bytes(search: Search, topic: str, key: str) -> bool:
    try:
        return bool(_fields(search, topic, "", [read_whole(search.member.store.get(key))]))
    except ObjectNotFound:
        return False
    except (pa.ArrowException, OSError):
        return True  # who knows


def _matches(search: Search, topic: str, key: str, rows: pa.Table) -> tuple[dict[int, pa.Table], list[Matches]]:
    """The records that are messages between stages, by place; and what holds a key: records first, rows of each then.

    A message has rows of many keys, and those of others stay: as a whole it holds none.
    """
    fields, places = search.fields, search.fields.places_of(topic)
    plain = [rule for place in places if place not in fields.channels for rule in fields.rules(place)]
    inside = [rule for place in places if place in fields.channels for rule in fields.rules(place)]
    values = rows["value"].to_pylist()
    sent = {place: each for place, value in enumerate(values) if value and (each := message_rows(value)) is not None}
    if sent:
        left = [None if place in sent else value for place, value in enumerate(values)]
        at = rows.schema.get_field_index("value")
        rows = rows.set_column(at, "value", pa.array(left, pa.binary()))
    of_rows = [*inside, *map(_of_row, plain)]
    # What stands in a channel besides messages are marks of our own.
    records = rows.slice(0, 0) if all(place in fields.channels for place in places) else rows
    found = [search.matches(WHAT, places[0], key, records, plain)]
    if not records.num_rows:
        found[0].mask = np.zeros(rows.num_rows, np.bool_)
    found += [search.matches(WHAT, places[0], key, each, of_rows) for each in sent.values()]
    if topic not in fields.topics and not plain and key:
        search.note(
            key, WHAT, topic, f"no stage reads the topic any more (--field 'TABLE={topic}:FIELD')", rows.num_rows
        )
    return sent, found


def _of_row(rule: Rule) -> Rule:
    """A rule for the rows of a message, of one for messages."""

    def column(where: Field) -> Field:
        inside = where.column == "value" and where.steps
        return Field(where.steps[0], where.steps[1:]) if inside else where

    columns = tuple(tuple(replace(each, field=column(each.field)) for each in some) for some in rule.columns)
    return Rule(rule.table, columns)


def _rewritten(search: Search, archive: ArchiveIndex, one: ArchiveObject) -> ArchiveObject | None:
    """The object without the records that hold a key, put under a new name; None where none is left.

    What it covers stays: these offsets were read, and nothing is to be read there any more.
    """
    writer = objects.ArchiveWriter()
    for rows in _rows(search, one):
        writer.append(_without(rows, *_matches(search, archive.topic, "", rows)))
    if not writer.num_rows:
        return None
    made, data = writer.finish(index.new_object(archive), one.extents, one.read_ms)
    search.member.store.put(made.object, data)
    return made


def _without(rows: pa.Table, sent: dict[int, pa.Table], found: list[Matches]) -> pa.Table:
    """Records without those that hold a key, messages without such rows."""
    gone, values = found[0].mask.copy(), rows["value"].to_pylist()
    for (place, each), mine in zip(sent.items(), found[1:], strict=True):
        if mine.mask.any():
            gone[place] = gone[place] or mine.mask.all()
            values[place] = _encoded(each.filter(pa.array(~mine.mask)))
    if sent:
        rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    return rows.filter(pa.array(~gone)) if gone.any() else rows


def _encoded(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())
