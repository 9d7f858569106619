"""Erasure of keys in input archives: rewrites archive objects, and commits an index that names the new objects."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...common import instants
from ...errors import CommitConflict, Corruption, ObjectNotFound
from ...pipeline.kafka.messages import encode_rows
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.gc import census
from ...snapshot.query.fields import Field
from ...snapshot.status.overview import archive_statuses
from ...snapshot.under_way import runners
from ...store.archive import index, objects
from ...store.archive.index import INDEXES, ArchiveIndex, ArchiveObject
from ...store.read.decode import read_whole
from ...store.versions.manifest import Manifest
from ..key_search.matching import Matches, Rule, message_rows
from .family import Member
from .held import HeldObject, KeySearch

_ROUNDS = 100
"""Maximum number of attempts to replace objects. An attempt fails if another process changes the archive meanwhile."""
_PAUSES = 20
"""Maximum number of pauses for runners to archive their records. Offsets that are still missing are then reported."""


ARCHIVE_KIND = "input archive"


def find_objects_with_keys(search: KeySearch) -> Iterator[tuple[ArchiveIndex, ArchiveObject, dict[str, int]]]:
    """Yield the archive objects that hold a requested key, with the number of matching records by field.

    Objects without a requested key are added to `KeySearch.clean`, and not searched again. Raises `Corruption` and
    `Unavailable`.
    """
    for archive in search.archives():
        for item in archive.objects:
            if item.object in search.clean:
                continue
            search.searched_count += 1
            if fields := _fields(search, archive.topic, item.object, _rows(search, item)):
                yield archive, item, fields
            else:
                search.clean.add(item.object)


ReplacedObject = tuple[str, ArchiveObject, dict[str, int], int]
"""Topic, replaced object, number of records with a requested key by field, and size of the new object in bytes."""


def remove_keys(
    search: KeySearch, *, by: str, now_ms: Callable[[], int], on_replace: Callable[[Sequence[ReplacedObject]], None]
) -> bool:
    """Replace the objects with a requested key in all input archives of an app. Returns True if objects were replaced.

    `on_replace` receives the objects before they are replaced. Raises `CommitConflict` if other processes kept changing
    an archive, `Corruption` and `Unavailable`.
    """
    store, any_gone = search.member.store, False
    for _ in range(_ROUNDS):
        by_archive: dict[str, tuple[ArchiveIndex, dict[str, ArchiveObject | None]]] = {}
        gone: list[ReplacedObject] = []
        for archive, item, fields in find_objects_with_keys(search):
            rewritten = _rewrite(search, archive, item)
            by_archive.setdefault(archive.prefix, (archive, {}))[1][item.object] = rewritten
            gone.append((archive.topic, item, fields, rewritten.bytes if rewritten is not None else 0))
        if not gone:
            return any_gone
        any_gone = True
        on_replace(gone)
        for archive, changes in by_archive.values():
            # If an object was merged meanwhile, this changes nothing, and the next round searches again.
            index.change(store, archive, index.replace_update(changes, forgotten=True), by=by, now_ms=now_ms())
    raise CommitConflict(
        f"the input archive of {search.member.app} kept changing while keys were taken out of it", version=0
    )


def find_unreferenced(search: KeySearch) -> Iterator[tuple[HeldObject, bool]]:
    """Yield archive objects that the newest index does not name and that hold a requested key.

    Objects that cannot be decoded are yielded as well. The second yielded value is True if an earlier index names the
    object, so that no later index will name it. It is False for an orphan, and for a very new object.
    """
    store, app = search.member.store, search.member.app
    for archive in search.archives():
        listed = [info for info in store.list(archive.prefix) if census.object_kind_of(info.key) is census.ARCHIVED]
        # After the listing, so that an index already names objects that were appended in between.
        try:
            all_indexes = INDEXES.all(store, archive.prefix)
        except Corruption as error:
            search.damaged[error.object_key] = error
            continue
        indexes = [frozenset(item.object for item in version.objects) for version in all_indexes]
        earlier = frozenset().union(*indexes)
        for info in listed:
            if info.key not in indexes[-1] and _holds_key(search, archive.topic, info.key):
                candidate = HeldObject(
                    app, store.url, info.key, ARCHIVE_KIND, archive.topic, info.size_bytes, named=False
                )
                yield candidate, info.key in earlier


def await_archiving(searches: Sequence[KeySearch], pause: Callable[[], None]) -> None:
    """Wait, for a limited time, until live runners have archived all records that their apps have read.

    If a record was read before the erasure and archived after it, the archive would contain a forgotten key.
    """
    waiting = [(search.member, tuple(_heads(search.member))) for search in searches]
    for _ in range(_PAUSES):
        waiting = [
            (member, heads)
            for member, heads in waiting
            if count_unarchived_offsets(member, heads) and _is_running(member)
        ]
        if not waiting:
            return
        pause()


def count_unarchived_offsets(member: Member, heads: Sequence[Manifest] = ()) -> dict[str, int]:
    """Return, by topic, the number of offsets that the versions `heads` have read and that no archive has."""
    archives = archive_statuses(member.store, member.app, heads or _heads(member), {})
    return {topic.topic: topic.behind for topic in archives if topic.behind}


def _heads(member: Member) -> Iterable[Manifest]:
    return heads_of(member.store, member.app, stages_of(member.store, member.app)).values()


def _is_running(member: Member) -> bool:
    return bool(runners.live_heartbeats(member.store, member.app, instants.now_ms()))


def _rows(search: KeySearch, item: ArchiveObject) -> Iterable[pa.Table]:
    return objects.ArchivedRecords(search.member.store, item).all_rows()


def _fields(search: KeySearch, topic: str, key: str, parts: Iterable[pa.Table]) -> dict[str, int]:
    fields = Counter[str]()
    search.unproved.pop(key, None)
    for rows in parts:
        for matches in _matches(search, topic, key, rows)[1]:
            fields.update(matches.fields)
    return fields


def _holds_key(search: KeySearch, topic: str, key: str) -> bool:
    try:
        return bool(_fields(search, topic, "", [read_whole(search.member.store.get(key))]))
    except ObjectNotFound:
        return False
    except (pa.ArrowException, OSError):
        return True  # unknown: count it as a match


def _matches(search: KeySearch, topic: str, key: str, rows: pa.Table) -> tuple[dict[int, pa.Table], list[Matches]]:
    fields, inputs = search.fields, search.fields.declared_names_of(topic)
    plain = [rule for place in inputs if place not in fields.channels for rule in fields.rules_for(place)]
    inside = [rule for place in inputs if place in fields.channels for rule in fields.rules_for(place)]
    values = rows["value"].to_pylist()
    sent = {
        place: message for place, value in enumerate(values) if value and (message := message_rows(value)) is not None
    }
    if sent:
        records_only = [None if place in sent else value for place, value in enumerate(values)]
        at = rows.schema.get_field_index("value")
        rows = rows.set_column(at, "value", pa.array(records_only, pa.binary()))
    of_rows = [*inside, *map(_rule_for_rows, plain)]
    # Records of a channel that are no messages are slackwater's markers.
    records = rows.slice(0, 0) if all(place in fields.channels for place in inputs) else rows
    matches = [search.match_records(ARCHIVE_KIND, inputs[0], key, records, plain)]
    if not records.num_rows:
        matches[0].mask = np.zeros(rows.num_rows, np.bool_)
    matches += [search.match_records(ARCHIVE_KIND, inputs[0], key, message, of_rows) for message in sent.values()]
    if topic not in fields.topics and not plain and key:
        search.add_unproved(
            key,
            ARCHIVE_KIND,
            topic,
            f"no stage reads the topic any more (--field 'TABLE={topic}:FIELD')",
            rows.num_rows,
        )
    return sent, matches


def _rule_for_rows(rule: Rule) -> Rule:
    def column(where: Field) -> Field:
        inside = where.column == "value" and where.steps
        return Field(where.steps[0], where.steps[1:]) if inside else where

    columns = tuple(
        tuple(replace(comparison, field=column(comparison.field)) for comparison in some) for some in rule.columns
    )
    return Rule(rule.table, columns)


def _rewrite(search: KeySearch, archive: ArchiveIndex, item: ArchiveObject) -> ArchiveObject | None:
    writer = objects.ArchiveWriter()
    for rows in _rows(search, item):
        writer.append(_without_keys(rows, *_matches(search, archive.topic, "", rows)))
    if not writer.num_rows:
        return None
    copy, data = writer.finish(index.new_object_key(archive), item.extents, item.read_ms)
    search.member.store.put(copy.object, data)
    return copy


def _without_keys(rows: pa.Table, sent: dict[int, pa.Table], matches: list[Matches]) -> pa.Table:
    gone, values = matches[0].mask.copy(), rows["value"].to_pylist()
    for (place, message), match in zip(sent.items(), matches[1:], strict=True):
        if match.mask.any():
            gone[place] = gone[place] or match.mask.all()
            values[place] = encode_rows(message.filter(pa.array(~match.mask)).combine_chunks())
    if sent:
        rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    return rows.filter(pa.array(~gone)) if gone.any() else rows
