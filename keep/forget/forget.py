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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from time import sleep

from ulid import ULID

from ... import instants
from ...errors import Refused, SlackwaterError, Usage
from ...moments.cut.stored import notify, open_requests
from ...moments.take.audit_log import record_once, why
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, keys
from ...store.versions.forgotten import index as forgotten
from ...store.versions.forgotten import under_way
from ...store.versions.forgotten.under_way import Forgetting
from ...store.versions.side_tables import table_name
from ..clone.first_versions import Topics
from ..edit.request import EDITS
from . import archive
from .family import Keys, KeysAsked, Member, check_tables, family_of
from .held import Held, Progress, Search, in_full
from .reach import OutOfReach, out_of_reach
from .taking_out import Work, blot, commit, sweep, take_out, take_out_archived
from .words import Words


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


def forget(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    asked: KeysAsked,
    *,
    by: str,
    kafka: Topics | None = None,
    now_ms: Callable[[], int] = instants.now_ms,
    pause: Callable[[], None] = lambda: sleep(1),
    dry_run: bool = False,
    on_progress: Progress = lambda _line: None,
) -> Forgot:
    """Take keys out of the newest version of an app, and of every other, of snapshots, and of its clones.

    `cache` is this machine's: what it has of the objects goes. Changes nothing in a dry run, which tells what holds a
    key. The log of operations says how many keys of which tables, and not which. `kafka` is asked how long topics keep
    records, if there is one.
    `pause` is called while a runner is yet to archive what it has read.

    Raises as `StoredApp.forget`, also `Usage` where a key is in the message that is to be kept, and `Corruption`
    where an object is missing or damaged: what was done stays done, and the same call goes on.
    """
    members = family_of(store, app)
    me = members[0]
    check_tables(me, asked)
    words = tuple(_words(me, asked))
    searches = tuple(Search(each, asked, words) for each in members)
    if searches[0].in_text(why()):
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
        reach = out_of_reach(members, kafka)
        return Forgot(app, True, names, count, held, others=others, out_of_reach=reach)
    fresh = _begin(work)
    try:
        _check_quiet(work)
        found = take_out(work)
        if fresh and not found:
            _check_told(searches)
            _check_held(app, tuple(chain.from_iterable(map(holders, searches))), store)
    except SlackwaterError:
        if fresh and not work.rewriting.rows:
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
    tables = ", ".join(f"{len(some)} of {table}" for table, some in sorted(asked.tables.items()))
    for search in searches:
        made = {stage: (version - 1, version) for owner, stage, version in versions if owner == search.member.app}
        since_ms = _note(search).time_ms
        record_once(search.member.store, search.member.app, "forget", tables, by, made, since_ms=since_ms)
    reach = out_of_reach(members, kafka)
    # Last of all: while the note is there, the same call goes on.
    _end(work)
    rewriting = work.rewriting
    return Forgot(
        app,
        False,
        names,
        count,
        (),
        rows=rewriting.rows,
        read_bytes=rewriting.read_bytes,
        written_bytes=rewriting.written_bytes,
        deleted=deleted,
        versions=versions,
        snapshots=snapshots,
        unnamed=unnamed,
        others=others,
        out_of_reach=reach,
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


def look(
    store: ObjectStore,
    app: str,
    asked: KeysAsked,
    *,
    kafka: Topics | None,
    deep: bool = False,
    on_progress: Progress = lambda _line: None,
) -> Looked:
    """Look whether anything of an app and its clones holds one of these keys, and say what cannot be looked into.

    With `deep`, every object in the apps' folders is decoded in full, that of other tables, too: where a key that is
    text stands in a value. Changes nothing. Raises as `forget`, but `Refused` only where a clone cannot be reached or
    the app shares SSTs of another one.
    """
    members = family_of(store, app)
    check_tables(members[0], asked)
    words = tuple(_words(members[0], asked))
    held: dict[tuple[str, str], Held] = {}
    objects = 0
    for each in members:
        search = Search(each, asked, words)
        on_progress(f"{each.app}: looking through its versions")
        for found in holders(search):
            held.setdefault((found.root, found.object), found)
        objects += search.looked_into
        _check_told((search,))
        if deep:
            for one, count in in_full(each, words, on_progress):
                objects += count
                if one is not None:
                    held.setdefault((one.root, one.object), one)
    names, count = tuple(_called(each, store) for each in members), sum(map(len, asked.tables.values()))
    return Looked(app, names, count, deep, tuple(held.values()), objects, out_of_reach(members, kafka))


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
    for found, one in archive.holders(search):
        yield Held(app, store.url, one.object, "input archive", found.topic, one.bytes)
    for held, _ in archive.unnamed(search):
        yield held
    for key, channel, _, _ in search.captured():
        yield Held(app, store.url, key, "records in flight", channel, len(store.get(key)))
    for key in search.edits():
        yield Held(app, store.url, key, "edit", "", len(store.get(key)))
    for key in search.operations():
        yield Held(app, store.url, key, "log of operations", "", len(store.get(key)))
    for manifest in search.edited():
        key = keys.manifest(app, manifest.stage, manifest.version)
        yield Held(app, store.url, key, "edit", manifest.stage, len(store.get(key)))


def _words(me: Member, asked: KeysAsked) -> Iterator[Words]:
    """What is looked for in records, of the keys as the tables' newest versions have them. Raises `Usage`."""
    for stage, name in me.tables(asked).items():
        table = me.heads[stage].table
        if table is not None and stage == name:
            yield from Keys.of(name, table, asked).words()
    for (stage, side), name in me.sides(asked).items():
        yield from Keys.of(name, me.heads[stage].side_tables[side].table, asked).words()


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
    new = Forgetting(str(ulid), me.app, work.by, ulid.milliseconds, salt, work.asked.digest(salt))
    for search in work.searches:
        found = under_way.begin(search.member.store, search.member.app, new)
        if found.id == new.id:
            continue
        if found.digest != work.asked.digest(found.salt):
            if fresh and search is not work.searches[0]:
                _end(work, only=new.id)
            under_way.check_none(search.member.store, search.member.app, "no others are")
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
        if asked := open_requests(store, app):
            raise Refused(
                f"snapshot {asked[0].name!r} of {app} is under way, asked for by {asked[0].by}: it may keep records in "
                "flight that hold what is to be forgotten",
                hint="wait until it is complete, or withdraw it "
                f"(slackwater snapshot rm {app} {asked[0].name}); then forget the key",
            )
        # One that is asked for from now on sees the note.
        if EDITS.all(store, app):
            raise Refused(
                f"an edit of {app} is under way: it may make a row of what is to be forgotten",
                hint="let it end: the same `slackwater edit` again finishes it; then forget the key",
            )
        for other in store.list_folders(""):
            if other.startswith(f"{app}-backfill-") and apps.find_app(store, other) is not None:
                raise Refused(
                    f"a backfill of {app} is under way, in {other}: it computes from records that may be of the key",
                    hint="let it end: the same `slackwater migrate --backfill` again finishes it; then forget the key",
                )
