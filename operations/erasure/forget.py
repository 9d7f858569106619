"""`slackwater forget`: removes keys from all objects of an app and its clones, in one step for each app.

1. Put a journal in each app. From now on, snapshots, garbage collections and erasures of other keys are refused. The
   journal has a salted hash of the keys, by which a repeated command recognises the interrupted call.
2. Rewrite SSTs and in-flight records that hold a key, under new names without the key.
3. Record the replacements in the app's index (`store.versions.forgotten`), for all SSTs that its versions name,
   including SSTs of other apps. From now on no reader finds the key at any version.
4. Commit a version of kind `forget` for each stage. Versions that a runner committed meanwhile are rewritten first, so
   no version before this one names the key. A batch that was computed on older rows is computed again; later records
   with the key make new rows.
5. Wait, for a limited time, for records that runners had read before and archive only now, and rewrite those objects.
6. Delete the replaced objects, and unreferenced objects that hold a key. Mask keys in the texts of edits. Delete the
   journal.

Each step examines the current objects and does not depend on an earlier call, so a repeated call finishes an
interrupted erasure. Replaced objects are deleted last: readers that still use the old names find no object, and retry
(`retry_if_forgotten`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ...common import instants, runtime
from ...errors import Refused, SlackwaterError, Usage
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.stored import notify_runners
from ...snapshot.take.audit_log import OPERATIONS, operation_message, record_operation_once
from ...snapshot.under_way.exclusion import RUNS_ELSEWHERE, AppCondition, Intent, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import forgotten, keys
from ...store.versions.forgotten import ForgetJournal
from ...store.versions.side_tables import table_name
from ..key_search.key_fields import NOTHING_DECLARED, DeclaredFields
from ..key_search.matching import KeyRows, MessageDecoder
from . import archive
from .family import HashedKeys, Member, RequestedKeys, check_tables, find_family
from .held import IN_FLIGHT, HeldObject, KeySearch, Progress, UndecidedRecords, decode_in_full, find_unread_records
from .reach import OutOfReach, list_out_of_reach
from .taking_out import Erasure, commit_versions, delete_replaced, mask_texts, remove_archived_keys, remove_keys


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """Number of rows or records of a table, channel or topic with a requested key in one field."""

    what: str
    of: str
    """Table, channel or topic."""
    field: str
    rows: int
    objects: int


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """Result of an erasure or of its dry run."""

    app: str
    dry_run: bool
    apps: tuple[str, ...]
    keys: int
    held: tuple[HeldObject, ...]
    rows: int = 0
    """Number of removed rows and records. A row that several versions store is counted for each version."""
    read_bytes: int = 0
    written_bytes: int = 0
    deleted: int = 0
    versions: tuple[tuple[str, str, int], ...] = ()
    """App, stage and version of each committed version of kind `forget`."""
    snapshots: tuple[tuple[str, str], ...] = ()
    """App and name of each edited snapshot."""
    unnamed: tuple[HeldObject, ...] = ()
    """Unreferenced objects with a requested key that were not deleted, because a running batch may still commit them.

    If no batch commits them, garbage collection deletes them within the hour.
    """
    others: tuple[str, ...] = ()
    out_of_reach: tuple[OutOfReach, ...] = ()
    gone: tuple[RemovedRows, ...] = ()
    """Removed rows and records, by table, channel or topic, and by field.

    For a dry run, rows and records that would be removed.
    """
    unread: tuple[HeldObject, ...] = ()
    """Channels with unread records that hold a requested key. A stage that reads them would store the key again."""
    unproved: tuple[UndecidedRecords, ...] = ()


def forget(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    requested: RequestedKeys,
    *,
    by: str,
    kafka: KafkaTopics | None = None,
    declared: DeclaredFields = NOTHING_DECLARED,
    formats: MessageDecoder | None = None,
    now_ms: Callable[[], int] = instants.now_ms,
    pause: Callable[[], None] = lambda: runtime.sleep(1),
    dry_run: bool = False,
    on_progress: Progress = lambda _line: None,
) -> ErasureResult:
    """Remove keys from all versions and snapshots of an app and of its clones.

    `cache` is this machine's cache, from which replaced objects are removed. A dry run changes nothing and lists the
    objects that hold a key. The log of operations records the number of keys by table, not the keys. `kafka` is
    optional: retention times, and records that no stage has read yet, are read from it. `declared` are fields from
    which keys are made, in addition to the fields in the app's lineage. `formats` decodes messages by their schemas.
    `pause` is a function that waits; it is called while a runner has not yet archived all records that it has read.

    Raises the errors of `StoredApp.forget`. Also raises `Usage` if the message to be logged contains a key, and
    `Corruption` if an object is missing or damaged. After an error, completed steps remain done, and the same call
    continues.
    """
    check_exclusion(store, app, Intent.FORGET, *RUNS_ELSEWHERE, dry_run=dry_run)
    members = find_family(store, app)
    first = members[0]
    check_tables(first, requested)
    searches = _searches(members, requested, declared, formats)
    _check_searchable(searches)
    work = Erasure(requested, searches, by, now_ms, on_progress)
    names = tuple(_display_name(member, store) for member in members)
    without_keys = _tables_without_keys(first, requested)
    result = ErasureResult(app, dry_run, names, sum(map(len, requested.tables.values())), (), others=without_keys)
    if dry_run:
        holding = tuple(chain.from_iterable(map(find_objects_with_keys, searches)))
        _check_readable(searches)
        _check_held(app, holding, store)
        gone = _count_rows((item.what, item.table, item.fields) for item in holding)
        return _with_remaining(replace(result, held=holding, gone=gone), searches, kafka)
    _remove_keys_first(work, app, store)
    versions = tuple(chain.from_iterable(commit_versions(work, search) for search in searches))
    archive.await_archiving(searches, pause)
    for search in searches:
        remove_archived_keys(work, search)
    deleted, unnamed = delete_replaced(work, cache)
    mask_texts(work)
    _check_readable(searches)
    snapshots = tuple(chain.from_iterable(_edited_snapshots(work, search) for search in searches))
    removed = _read_journal(work, searches[0]).taken
    _record(work, versions)
    result = replace(
        result,
        rows=sum(sum(removal.fields.values()) for removal in removed.values()),
        read_bytes=sum(removal.bytes for removal in removed.values()),
        written_bytes=sum(removal.written_bytes for removal in removed.values()),
        deleted=deleted,
        versions=versions,
        snapshots=snapshots,
        unnamed=unnamed,
        gone=_count_rows((removal.what, removal.of, removal.fields) for removal in removed.values()),
    )
    result = _with_remaining(result, searches, kafka)
    # The journal is deleted last: while it exists, the same call continues.
    _end(work)
    return result


def _with_remaining(result: ErasureResult, searches: Sequence[KeySearch], kafka: KafkaTopics | None) -> ErasureResult:
    reach = list_out_of_reach(tuple(search.member for search in searches), kafka)
    unread = tuple(chain.from_iterable(find_unread_records(search, kafka) for search in searches))
    return replace(result, out_of_reach=reach, unread=unread, unproved=_unproved(searches))


def _check_searchable(searches: Sequence[KeySearch]) -> None:
    searches[0].check_declared()
    for search in searches:
        search.check_fields_known()
    if searches[0].texts.contain_key(operation_message()):
        raise Usage(
            "the message contains a key to be forgotten, and the log of operations would keep it",
            hint="refer to the request by a ticket number",
        )


def _remove_keys_first(work: Erasure, app: str, store: ObjectStore) -> None:
    fresh = _begin(work)
    try:
        _check_no_writers(work)
        any_removed = remove_keys(work)
        if fresh and not any_removed:
            _check_readable(work.searches)
            _check_held(app, tuple(chain.from_iterable(map(find_objects_with_keys, work.searches))), store)
    except SlackwaterError:
        if fresh and not work.rewriter.removed:
            _end(work)
        raise


def _edited_snapshots(work: Erasure, search: KeySearch) -> Iterator[tuple[str, str]]:
    member, since_ms = search.member, _read_journal(work, search).time_ms
    for name, at_ms in forgotten.cached_index(member.store, member.app).snapshots.items():
        if at_ms >= since_ms:
            yield member.app, name


def _record(work: Erasure, versions: Iterable[tuple[str, str, int]]) -> None:
    message = operation_message() or _read_journal(work, work.searches[0]).message
    tables = ", ".join(f"{len(some)} of {table}" for table, some in sorted(work.requested.tables.items()))
    for search in work.searches:
        name, since_ms = search.member.app, _read_journal(work, search).time_ms
        by_stage = {stage: (version - 1, version) for owner, stage, version in versions if owner == name}
        record_operation_once(
            search.member.store, name, "forget", tables, work.by, by_stage, since_ms=since_ms, message=message
        )


@dataclass(frozen=True, slots=True)
class KeySearchResult:
    """Result of a search for keys: the objects that hold them, and data that cannot be searched."""

    app: str
    apps: tuple[str, ...]
    keys: int
    deep: bool
    held: tuple[HeldObject, ...]
    objects: int
    out_of_reach: tuple[OutOfReach, ...]
    unproved: tuple[UndecidedRecords, ...] = ()
    elsewhere: tuple[HeldObject, ...] = ()


def search_keys(
    store: ObjectStore,
    app: str,
    requested: RequestedKeys,
    *,
    kafka: KafkaTopics | None,
    declared: DeclaredFields = NOTHING_DECLARED,
    formats: MessageDecoder | None = None,
    deep: bool = False,
    on_progress: Progress = lambda _line: None,
) -> KeySearchResult:
    """Search an app and its clones for objects that hold requested keys. Changes nothing.

    The result also lists data that cannot be searched. With `deep`, all objects in the apps' folders are decoded, and
    keys of type text are searched in every field. Raises `NotFound`, `Usage`, `Corruption`, `Unavailable`, and the
    errors of `find_family` and `check_tables`.
    """
    members = find_family(store, app)
    check_tables(members[0], requested)
    searches = _searches(members, requested, declared, formats)
    searches[0].check_declared()
    holding: dict[tuple[str, str], HeldObject] = {}
    elsewhere: dict[tuple[str, str], HeldObject] = {}
    objects = 0
    for search in searches:
        on_progress(f"{search.member.app}: searching its versions")
        for item in chain(find_objects_with_keys(search), find_unread_records(search, kafka)):
            holding.setdefault((item.root, item.object), item)
        objects += search.searched_count
        _check_readable((search,))
        for value, count in decode_in_full(search, on_progress) if deep else ():
            objects += count
            if value is not None:
                elsewhere.setdefault((value.root, value.object), value)
    names, count = tuple(_display_name(member, store) for member in members), sum(map(len, requested.tables.values()))
    text_objects = (item for place, item in elsewhere.items() if place not in holding)
    reach = list_out_of_reach(members, kafka)
    return KeySearchResult(
        app, names, count, deep, tuple(holding.values()), objects, reach, _unproved(searches), tuple(text_objects)
    )


def abandon_erasure(store: ObjectStore, app: str, *, by: str) -> ForgetJournal:
    """End an interrupted erasure whose keys are no longer known. Removed rows and records stay removed.

    Raises `NotFound` if the app does not exist, and `Refused` if no erasure was interrupted.
    """
    members = find_family(store, app)
    note = forgotten.find_journal(store, app)
    if note is None:
        raise Refused(f"no forget of {app} was interrupted: there is nothing to give up")
    record_operation_once(store, app, "forget", f"given up, begun by {note.by}", by, since_ms=note.time_ms)
    for member in reversed(members):
        forgotten.delete_journal(member.store, member.app)
    return note


def find_objects_with_keys(search: KeySearch) -> Iterator[HeldObject]:
    member = search.member
    for stage in member.heads:
        for sst in search.referenced_ssts(stage):
            # Objects in another app's folder are reported by that app's search.
            if (candidate := search.find_held(sst)) is not None and (candidate.root, candidate.app) == (
                member.store.url,
                member.app,
            ):
                yield candidate
    for candidate, _ in search.unreferenced_ssts():
        yield candidate
    yield from _find_records_with_keys(search)


def _find_records_with_keys(search: KeySearch) -> Iterator[HeldObject]:
    store, app = search.member.store, search.member.app
    for archive_index, item, fields in archive.find_objects_with_keys(search):
        yield HeldObject(
            app, store.url, item.object, archive.ARCHIVE_KIND, archive_index.topic, item.bytes, fields=fields
        )
    for candidate, _ in archive.find_unreferenced(search):
        yield candidate
    for key, channel, _, match in search.captured_with_keys():
        yield HeldObject(app, store.url, key, IN_FLIGHT, channel, len(store.get(key)), fields=match.fields)
    for key in search.edit_objects_with_keys():
        yield HeldObject(app, store.url, key, "edit", "", len(store.get(key)))
    for key in (OPERATIONS.key(entry, app) for entry in search.log_entries_with_keys()):
        yield HeldObject(app, store.url, key, "log of operations", "", len(store.get(key)))
    for manifest in search.edited_versions_with_keys():
        key = keys.manifest(app, manifest.stage, manifest.version)
        yield HeldObject(app, store.url, key, "edit", manifest.stage, len(store.get(key)))


def _searches(
    members: Sequence[Member], requested: RequestedKeys, declared: DeclaredFields, formats: MessageDecoder | None
) -> tuple[KeySearch, ...]:
    first, keys = members[0], dict[str, KeyRows]()
    for stage, name in first.requested_tables(requested).items():
        if (table := first.heads[stage].table) is not None and (stage == name or name not in keys):
            keys[name] = KeyRows(HashedKeys.for_table(name, table, requested).rows, bool(requested.other_spellings))
    for (stage, side), name in first.requested_side_tables(requested).items():
        keys[name] = KeyRows(
            HashedKeys.for_table(name, first.heads[stage].side_tables[side].table, requested).rows,
            bool(requested.other_spellings),
        )
    return tuple(KeySearch(member, requested, keys, declared, formats) for member in members)


def _count_rows(items: Iterable[tuple[str, str, Mapping[str, int]]]) -> tuple[RemovedRows, ...]:
    rows, objects = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for kind, of, fields in items:
        for text, count in fields.items():
            rows[kind, of, text] += count
            objects[kind, of, text] += 1
    return tuple(RemovedRows(*place, rows[place], objects[place]) for place in sorted(rows))


def _unproved(searches: Iterable[KeySearch]) -> tuple[UndecidedRecords, ...]:
    return tuple(item for search in searches for items in search.unproved.values() for item in items.values())


def _display_name(member: Member, store: ObjectStore) -> str:
    return member.app if member.store.url == store.url else member.name


def _tables_without_keys(first: Member, requested: RequestedKeys) -> tuple[str, ...]:
    current = [head for head in first.heads.values() if head.table is not None and not head.retired]
    names = [head.stage for head in current if head.stage not in first.requested_tables(requested)]
    names += [
        table_name(stage, side) for stage, head in first.attached_stages for side in head.side_tables if head in current
    ]
    return tuple(sorted({*names} - {*first.requested_side_tables(requested).values()}))


def _check_held(app: str, holding: Sequence[HeldObject], store: ObjectStore) -> None:
    if not holding:
        raise Refused(
            f"no object of {app} under {store.url} holds any of these keys: they were never there, or were forgotten",
            hint=f"`slackwater log {app} --operations` lists what was forgotten; a key must match exactly",
        )


def _check_readable(searches: Sequence[KeySearch]) -> None:
    for search in searches:
        for error in search.damaged.values():
            raise error


def _read_journal(work: Erasure, search: KeySearch) -> ForgetJournal:
    note = forgotten.find_journal(search.member.store, search.member.app)
    if note is None or note.id not in work.journals:
        raise Refused(
            f"another process ended this forget of {search.member.app}: it was typed twice, or given up",
            hint=f"slackwater log {search.member.app} --operations says how it ended; if given up, type it again",
        )
    return note


def _begin(work: Erasure) -> bool:
    first, fresh = work.searches[0].member, True
    ulid, salt = runtime.ulid(), runtime.random_hex(32)
    digest = work.requested.digest(salt)
    new = ForgetJournal(str(ulid), first.app, work.by, ulid.milliseconds, salt, digest, message=operation_message())
    for search in work.searches:
        existing = forgotten.begin_journal(search.member.store, search.member.app, new)
        if existing.digest == work.requested.digest(existing.salt):
            work.journals.add(existing.id)
        if existing.id == new.id:
            continue
        if existing.digest != work.requested.digest(existing.salt):
            if fresh and search is not work.searches[0]:
                _end(work)
            check_exclusion(search.member.store, search.member.app, Intent.FORGET, AppCondition.FORGETTING)
        fresh, new = False, existing
    for search in work.searches:
        # Runners stop acknowledging versions before the store has them.
        notify_runners(search.member.store, search.member.app)
    return fresh


def _end(work: Erasure) -> None:
    for search in reversed(work.searches):
        store, app = search.member.store, search.member.app
        # Another process may have ended this erasure, and begun another.
        if (note := forgotten.find_journal(store, app)) is not None and note.id in work.journals:
            forgotten.delete_journal(store, app)


def _check_no_writers(work: Erasure) -> None:
    for search in work.searches:
        store, app = search.member.store, search.member.app
        # Operations requested from now on see the journal.
        check_exclusion(store, app, Intent.FORGET, AppCondition.SNAPSHOT, AppCondition.EDIT)
    first = work.searches[0].member
    known = {search.member.name for search in work.searches}
    if new := [member.name for member in find_family(first.store, first.app) if member.name not in known]:
        raise Refused(
            f"{first.app} was cloned as {', '.join(new)} while this forget began, and nothing was forgotten yet",
            hint="type the same command again, which includes that clone",
        )
