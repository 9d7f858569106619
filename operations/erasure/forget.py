"""`slackwater forget`: takes keys out of all that an app and its clones have stored, in one step for each of them.

1. A note in each app, before anything is looked at: whoever takes a snapshot, collects garbage or forgets other keys
   meanwhile sees it, and is refused. It has a salted hash of the keys, by which the same command finds that it goes on
   with what broke off, and it goes at the end.
2. SSTs and records in flight that hold a key are put once more, without it, under new names.
3. The app's index (`store.versions.forgotten`) says so, of all SSTs that its versions name, be they its own or another
   app's: from that put on no reader finds the key at any of its versions.
4. Each stage gets a version of kind `forget`, behind its newest. What a runner wrote in between is looked at before:
   so all that any version before this one names is without the key. A batch that was computed on rows from before is
   computed once more; what follows from records that come later is a new row.
5. What runners had read before and archive only now is waited for, for a while, and looked through.
6. The objects from before go, and what nothing names and holds a key. Texts of edits that hold one are blotted out.

Each step looks at what there is and not at what an earlier call did, so a call that broke off is finished by the same.
Old objects go last: who still reads by their names finds that they are gone, and asks again (`again_if_forgotten`).
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from time import sleep

from ulid import ULID

from ...common import instants
from ...errors import Refused, SlackwaterError, Usage
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.stored import notify
from ...snapshot.take.audit_log import record_once, why
from ...snapshot.under_way.exclusion import HERE, Intent, UnderWay, check_exclusion
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import keys
from ...store.versions.forgotten import index as forgotten
from ...store.versions.forgotten import under_way
from ...store.versions.forgotten.under_way import Forgetting
from ...store.versions.side_tables import table_name
from . import archive
from .family import Keys, KeysAsked, Member, check_tables, family_of
from .held import IN_FLIGHT, Held, Progress, Search, Unproved, in_full, unread
from .key_fields import NOTHING_DECLARED, DeclaredFields
from .matching import Formats, KeyRows
from .reach import OutOfReach, out_of_reach
from .taking_out import Work, blot, commit, sweep, take_out, take_out_archived


@dataclass(frozen=True, slots=True)
class GoneRows:
    """Rows or records of one place that equal a key in one field."""

    what: str
    """As `Held.what`."""
    of: str
    """The table, channel or topic."""
    field: str
    rows: int
    objects: int


@dataclass(frozen=True, slots=True)
class Forgot:
    """What was taken out, or would be."""

    app: str
    dry_run: bool
    apps: tuple[str, ...]
    """The app, and those that share its SSTs."""
    keys: int
    """Keys that were asked for."""
    held: tuple[Held, ...]
    """Objects that hold a key; only in a dry run."""
    rows: int = 0
    """Stored rows and records that were taken out: of one row several versions may be stored."""
    read_bytes: int = 0
    """Of the objects that held one."""
    written_bytes: int = 0
    """Of those in their place."""
    deleted: int = 0
    """Objects that are gone."""
    versions: tuple[tuple[str, str, int], ...] = ()
    """App, stage and version that say so."""
    snapshots: tuple[tuple[str, str], ...] = ()
    """App and name of the snapshots that were edited."""
    unnamed: tuple[Held, ...] = ()
    """Objects that nothing names, and that a batch under way may yet name, or that gc takes within the hour."""
    others: tuple[str, ...] = ()
    """Tables of the app for which no key was given."""
    out_of_reach: tuple[OutOfReach, ...] = ()
    gone: tuple[GoneRows, ...] = ()
    """What was taken out, or would be, by place and field."""
    unread: tuple[Held, ...] = ()
    """Topics between stages with records of a key that were not read yet: they bring it back."""
    unproved: tuple[Unproved, ...] = ()
    """Records of which nobody can tell."""


def forget(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    asked: KeysAsked,
    *,
    by: str,
    kafka: Topics | None = None,
    declared: DeclaredFields = NOTHING_DECLARED,
    formats: Formats | None = None,
    now_ms: Callable[[], int] = instants.now_ms,
    pause: Callable[[], None] = lambda: sleep(1),
    dry_run: bool = False,
    on_progress: Progress = lambda _line: None,
) -> Forgot:
    """Take keys out of the newest version of an app, and of every other, of snapshots, and of its clones.

    `cache` is this machine's: what it has of the objects goes. Changes nothing in a dry run, which tells what holds a
    key. The log of operations says how many keys of which tables, and not which. `kafka` is asked how long topics keep
    records, and for those that no stage has read yet, if there is one. `declared` are fields that lead to keys, besides
    those that the app's lineage tells; `formats` decodes messages of schemas.
    `pause` is called while a runner is yet to archive what it has read.

    Raises as `StoredApp.forget`, also `Usage` where a key is in the message that is to be kept, and `Corruption`
    where an object is missing or damaged: what was done stays done, and the same call goes on.
    """
    check_exclusion(store, app, Intent.FORGET, *HERE, dry_run=dry_run)
    members = family_of(store, app)
    me = members[0]
    check_tables(me, asked)
    searches = _searches(members, asked, declared, formats)
    searches[0].check_declared()
    for each in searches:
        each.check_clear()
    if searches[0].texts.stand_in(why()):
        raise Usage(
            "the message has a key that is to be forgotten, and would stay in the log of operations",
            hint="name the request by a number",
        )
    work = Work(asked, searches, by, now_ms, on_progress)
    others = _others(me, asked)
    names = tuple(_called(each, store) for each in members)
    count = sum(map(len, asked.tables.values()))
    if dry_run:
        held = tuple(chain.from_iterable(map(holders, searches)))
        _check_told(searches)
        _check_held(app, held, store)
        return Forgot(
            app,
            True,
            names,
            count,
            held,
            others=others,
            out_of_reach=out_of_reach(members, kafka),
            gone=_gone((each.what, each.table, each.fields) for each in held),
            unread=tuple(chain.from_iterable(unread(each, kafka) for each in searches)),
            unproved=_unproved(searches),
        )
    fresh = _begin(work)
    try:
        _check_quiet(work)
        found = take_out(work)
        if fresh and not found:
            _check_told(searches)
            _check_held(app, tuple(chain.from_iterable(map(holders, searches))), store)
    except SlackwaterError:
        if fresh and not work.rewriting.taken:
            _end(work)
        raise
    versions = tuple(chain.from_iterable(commit(work, each) for each in searches))
    archive.await_appended(searches, pause)
    for each in searches:
        take_out_archived(work, each)
    deleted, unnamed = sweep(work, cache)
    blot(work)
    _check_told(searches)
    snapshots = tuple(
        (search.member.app, name)
        for search in searches
        for name, at_ms in forgotten.known(search.member.store, search.member.app).snapshots.items()
        if at_ms >= _note(search).time_ms
    )
    note = _note(searches[0])
    taken, message = note.taken, why() or note.message
    tables = ", ".join(f"{len(some)} of {table}" for table, some in sorted(asked.tables.items()))
    for search in searches:
        made = {stage: (version - 1, version) for owner, stage, version in versions if owner == search.member.app}
        since_ms = _note(search).time_ms
        name = search.member.app
        record_once(search.member.store, name, "forget", tables, by, made, since_ms=since_ms, message=message)
    reach = out_of_reach(members, kafka)
    coming = tuple(chain.from_iterable(unread(each, kafka) for each in searches))
    # Last of all: while the note is there, the same call goes on.
    _end(work)
    return Forgot(
        app,
        False,
        names,
        count,
        (),
        rows=sum(sum(each.fields.values()) for each in taken.values()),
        read_bytes=sum(each.bytes for each in taken.values()),
        written_bytes=sum(each.written_bytes for each in taken.values()),
        deleted=deleted,
        versions=versions,
        snapshots=snapshots,
        unnamed=unnamed,
        others=others,
        out_of_reach=reach,
        gone=_gone((each.what, each.of, each.fields) for each in taken.values()),
        unread=coming,
        unproved=_unproved(searches),
    )


@dataclass(frozen=True, slots=True)
class Looked:
    """Whether anything holds keys any more."""

    app: str
    apps: tuple[str, ...]
    keys: int
    deep: bool
    held: tuple[Held, ...]
    """Objects that hold a key."""
    objects: int
    """That were looked into: SSTs by the hash of the key and, with `deep`, all that there is in full."""
    out_of_reach: tuple[OutOfReach, ...]
    unproved: tuple[Unproved, ...] = ()
    """Records of which nobody can tell whether they hold a key."""
    elsewhere: tuple[Held, ...] = ()
    """Objects in which a key that is text is a value of another field, such as of somebody else's row."""


def look(
    store: ObjectStore,
    app: str,
    asked: KeysAsked,
    *,
    kafka: Topics | None,
    declared: DeclaredFields = NOTHING_DECLARED,
    formats: Formats | None = None,
    deep: bool = False,
    on_progress: Progress = lambda _line: None,
) -> Looked:
    """Look whether anything of an app and its clones holds one of these keys, and say what cannot be looked into.

    With `deep`, every object in the apps' folders is decoded in full, that of other tables, too: where a key that is
    text is a value of any field. Changes nothing. Raises as `forget`, but `Refused` only where a clone cannot be
    reached or the app shares SSTs of another one.
    """
    members = family_of(store, app)
    check_tables(members[0], asked)
    searches = _searches(members, asked, declared, formats)
    searches[0].check_declared()
    held: dict[tuple[str, str], Held] = {}
    elsewhere: dict[tuple[str, str], Held] = {}
    objects = 0
    for search in searches:
        on_progress(f"{search.member.app}: looking through its versions")
        for found in chain(holders(search), unread(search, kafka)):
            held.setdefault((found.root, found.object), found)
        objects += search.looked_into
        _check_told((search,))
        for one, count in in_full(search, on_progress) if deep else ():
            objects += count
            if one is not None:
                elsewhere.setdefault((one.root, one.object), one)
    names, count = tuple(_called(each, store) for each in members), sum(map(len, asked.tables.values()))
    reach, others = out_of_reach(members, kafka), (one for place, one in elsewhere.items() if place not in held)
    return Looked(app, names, count, deep, tuple(held.values()), objects, reach, _unproved(searches), tuple(others))


def give_up(store: ObjectStore, app: str, *, by: str) -> Forgetting:
    """End what broke off and nobody can finish, as the keys are not known any more. It may have been done in part.

    Raises `NotFound` where there is no such app, and `Refused` where nothing broke off.
    """
    members = family_of(store, app)
    note = under_way.find(store, app)
    if note is None:
        raise Refused(f"no keys of {app} are being forgotten: there is nothing to give up")
    record_once(store, app, "forget", f"given up, begun by {note.by}", by, since_ms=note.time_ms)
    for each in reversed(members):
        under_way.end(each.store, each.app)
    return note


def holders(search: Search) -> Iterator[Held]:
    """All objects of an app that hold a key, named or not."""
    member = search.member
    for stage in member.heads:
        for one in search.named(stage):
            # What lies in another app's folder is told there.
            if (found := search.held_by(one)) is not None and (found.root, found.app) == (member.store.url, member.app):
                yield found
    for found, _ in search.unnamed():
        yield found
    yield from _loose(search)


def _loose(search: Search) -> Iterator[Held]:
    """Records and texts of an app that hold a key."""
    store, app = search.member.store, search.member.app
    for found, one, fields in archive.holders(search):
        yield Held(app, store.url, one.object, archive.WHAT, found.topic, one.bytes, fields=fields)
    for held, _ in archive.unnamed(search):
        yield held
    for key, channel, _, mine in search.captured():
        yield Held(app, store.url, key, IN_FLIGHT, channel, len(store.get(key)), fields=mine.fields)
    for key in search.edits():
        yield Held(app, store.url, key, "edit", "", len(store.get(key)))
    for key in search.operations():
        yield Held(app, store.url, key, "log of operations", "", len(store.get(key)))
    for manifest in search.edited():
        key = keys.manifest(app, manifest.stage, manifest.version)
        yield Held(app, store.url, key, "edit", manifest.stage, len(store.get(key)))


def _searches(
    members: Sequence[Member], asked: KeysAsked, declared: DeclaredFields, formats: Formats | None
) -> tuple[Search, ...]:
    """A search in each app for the keys as the first one's newest tables have them. Raises `Usage`."""
    me, keys = members[0], dict[str, KeyRows]()
    for stage, name in me.tables(asked).items():
        if (table := me.heads[stage].table) is not None and (stage == name or name not in keys):
            keys[name] = KeyRows(Keys.of(name, table, asked).rows, bool(asked.also))
    for (stage, side), name in me.sides(asked).items():
        keys[name] = KeyRows(Keys.of(name, me.heads[stage].side_tables[side].table, asked).rows, bool(asked.also))
    return tuple(Search(each, asked, keys, declared, formats) for each in members)


def _gone(each: Iterable[tuple[str, str, Mapping[str, int]]]) -> tuple[GoneRows, ...]:
    """What goes, by place and field, out of objects that hold a key."""
    rows, objects = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for what, of, fields in each:
        for text, count in fields.items():
            rows[what, of, text] += count
            objects[what, of, text] += 1
    return tuple(GoneRows(*place, rows[place], objects[place]) for place in sorted(rows))


def _unproved(searches: Iterable[Search]) -> tuple[Unproved, ...]:
    return tuple(one for search in searches for some in search.unproved.values() for one in some.values())


def _called(each: Member, store: ObjectStore) -> str:
    return each.app if each.store.url == store.url else each.name


def _others(me: Member, asked: KeysAsked) -> tuple[str, ...]:
    there = [head for head in me.heads.values() if head.table is not None and not head.retired]
    names = [head.stage for head in there if head.stage not in me.tables(asked)]
    names += [table_name(stage, side) for stage, head in me.copies for side in head.side_tables if head in there]
    return tuple(sorted({*names} - {*me.sides(asked).values()}))


def _check_held(app: str, held: Sequence[Held], store: ObjectStore) -> None:
    if not held:
        raise Refused(
            f"no object of {app} under {store.url} holds any of these keys: they were never there, or were forgotten",
            hint=f"`slackwater log {app} --operations` tells what was forgotten; a key is meant to the letter",
        )


def _check_told(searches: Sequence[Search]) -> None:
    """Raise `Corruption` where there is an archive of which nobody can tell whether it holds a key."""
    for search in searches:
        for error in search.damaged.values():
            raise error


def _note(search: Search) -> Forgetting:
    found = under_way.find(search.member.store, search.member.app)
    assert found is not None  # noqa: S101  it goes at the end
    return found


def _begin(work: Work) -> bool:
    """Put the notes; whether none was there. Raises `Refused` where other keys are being forgotten."""
    me, fresh = work.searches[0].member, True
    ulid, salt = ULID(), secrets.token_hex(32)
    digest = work.asked.digest(salt)
    new = Forgetting(str(ulid), me.app, work.by, ulid.milliseconds, salt, digest, message=why())
    for search in work.searches:
        found = under_way.begin(search.member.store, search.member.app, new)
        if found.id == new.id:
            continue
        if found.digest != work.asked.digest(found.salt):
            if fresh and search is not work.searches[0]:
                _end(work, only=new.id)
            check_exclusion(search.member.store, search.member.app, Intent.FORGET, UnderWay.FORGETTING)
        fresh, new = False, found
    for search in work.searches:
        # Runners that run ahead of the store stop doing so.
        notify(search.member.store, search.member.app)
    return fresh


def _end(work: Work, only: str = "") -> None:
    """Take the notes away, the first app's last."""
    for search in reversed(work.searches):
        store, app = search.member.store, search.member.app
        if not only or ((found := under_way.find(store, app)) is not None and found.id == only):
            under_way.end(store, app)


def _check_quiet(work: Work) -> None:
    """See that nothing is under way that could make another object with a key."""
    for search in work.searches:
        store, app = search.member.store, search.member.app
        # What is asked for from now on sees the note.
        check_exclusion(store, app, Intent.FORGET, UnderWay.SNAPSHOT, UnderWay.EDIT)
