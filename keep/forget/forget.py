"""`slackwater forget`: takes keys out of all that an app and its clones have stored, in one step for each of them.

1. A note in each app, before anything is looked at: whoever takes a snapshot, collects garbage or forgets other keys
   meanwhile sees it, and is refused. It has a salted hash of the keys, by which the same command finds that it goes on
   with what broke off, and it goes at the end.
2. SSTs and records in flight that hold a key are put once more, without it, under new names.
3. The app's index (`store.versions.forgotten`) says so: from that put on no reader finds the key at any version. Those
   that live from others come behind them: of a row that is in both, the newest goes last, so that nobody sees an older.
4. Each stage gets a version of kind `forget`, behind its newest. What a runner wrote in between is looked at before:
   so all that any version before this one names is without the key. A batch that was computed on rows from before is
   computed once more; what follows from records that come later is a new row.
5. The objects from before go, and what nothing names and holds a key; statements of edits that hold one are blotted out.

Each step looks at what there is and not at what an earlier call did, so a call that broke off is finished by the same.
Old objects go last: who still reads by their names finds that they are gone, and asks again (`again_if_forgotten`).
"""

import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
from msgspec.structs import replace
from ulid import ULID

from ... import instants
from ...errors import NotFound, Refused, SlackwaterError
from ...moments.cut.stored import open_requests
from ...moments.take.audit_log import OPERATIONS, record_once
from ...store.compaction.merge import merge_rows
from ...store.compaction.plan import newest_first
from ...store.compaction.rewrite import whole_blocks
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, codec, forgotten, history, keys
from ...store.versions.amend import Amendment, amend
from ...store.versions.forgotten import Forgetting, Forgotten, Records
from ...store.versions.manifest import Manifest, Sst
from ...store.versions.side_tables import REJECTED, all_ssts, each_sst
from ..gc.inventory import do_all
from ..rejected.schema import REJECTED_RECORDS
from .asked import Asked, Keys
from .family import Member, check_tables, family_of
from .held import Held, Progress, Search
from .rewrite import Rewriting
from .words import Words

_BLOTTED = "(forgotten)"
"""In the place of a text that had a key."""
_ROUNDS = 100
"""Lost races against a runner that commits, before this gives up."""


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


@dataclass
class _Work:
    """All that a call knows."""

    asked: Asked
    searches: tuple[Search, ...]
    """Those that others live from come first."""
    by: str
    now_ms: Callable[[], int]
    on_progress: Progress
    rewriting: Rewriting = field(default_factory=Rewriting)


def forget(
    store: ObjectStore,
    cache: SstCache,
    app: str,
    asked: Asked,
    *,
    by: str,
    now_ms: Callable[[], int] = instants.now_ms,
    dry_run: bool = False,
    on_progress: Progress = lambda _line: None,
) -> Forgot:
    """Take keys out of the newest version of an app, and of every other, of snapshots, and of its clones.

    `cache` is this machine's: what it has of the objects goes. Changes nothing in a dry run, which tells what holds a
    key. The log of operations says how many keys of which tables, and not which.

    Raises:
        NotFound: there is no such app or table, or nothing holds any of the keys.
        Usage: a key is not of its columns' types.
        Refused: the app shares SSTs with one that it was cloned from; other keys are being forgotten; a snapshot, a
            clone, an edit with the key, or a backfill is under way; a clone cannot be reached.
        Corruption: an object is missing or damaged: what was done stays done, and the same call goes on.
        Unavailable: storage did not answer; the same call goes on.
    """
    members = family_of(store, app)
    me = members[0]
    check_tables(me, asked)
    words = tuple(_words(me, asked))
    searches = tuple(Search(each, asked, words) for each in members)
    work = _Work(asked, searches, by, now_ms, on_progress)
    others = _others(me, asked)
    names = tuple(_called(each, store) for each in members)
    count = sum(map(len, asked.tables.values()))
    if dry_run:
        held = tuple(chain.from_iterable(map(holders, searches)))
        _check_held(app, held, store)
        return Forgot(app, True, names, count, held, others=others)
    fresh = _begin(work)
    try:
        _check_quiet(work)
        found = _take_out(work)
        if fresh and not found:
            _check_held(app, tuple(chain.from_iterable(map(holders, searches))), store)
    except SlackwaterError:
        if fresh and not work.rewriting.rows:
            _end(work)
        raise
    versions = tuple(chain.from_iterable(_commit(work, each) for each in searches))
    deleted, unnamed = _sweep(work, cache)
    _blot(work)
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
    )


def give_up(store: ObjectStore, app: str, *, by: str) -> Forgetting:
    """End what broke off and nobody can finish, as the keys are not known any more. It may have been done in part.

    Raises `NotFound` where there is no such app, and `Refused` where nothing broke off.
    """
    members = family_of(store, app)
    note = forgotten.find_forgetting(store, app)
    if note is None:
        raise Refused(f"no keys of {app} are being forgotten: there is nothing to give up")
    record_once(store, app, "forget", f"given up, begun by {note.by}", by, since_ms=note.time_ms)
    for each in reversed(members):
        forgotten.end(each.store, each.app)
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
    for key, _, _ in search.captured():
        yield Held(app, store.url, key, "records in flight", "", len(store.get(key)))
    for key in search.edits():
        yield Held(app, store.url, key, "edit", "", len(store.get(key)))
    for key in search.operations():
        yield Held(app, store.url, key, "log of operations", "", len(store.get(key)))
    for manifest in search.edited():
        key = keys.manifest(app, manifest.stage, manifest.version)
        yield Held(app, store.url, key, "edit", manifest.stage, len(store.get(key)))


def _words(me: Member, asked: Asked) -> Iterator[Words]:
    """What is looked for in records, of the keys as the tables' newest versions have them. Raises `Usage`."""
    for stage, name in me.tables(asked).items():
        table = me.heads[stage].table
        if table is not None and stage == name:
            yield from Keys.of(name, table, asked).words()


def _called(each: Member, store: ObjectStore) -> str:
    return each.app if each.store.url == store.url else each.name


def _others(me: Member, asked: Asked) -> tuple[str, ...]:
    there = (head for head in me.heads.values() if head.table is not None and not head.retired)
    return tuple(sorted(head.stage for head in there if head.stage not in me.tables(asked)))


def _check_held(app: str, held: Sequence[Held], store: ObjectStore) -> None:
    if not held:
        raise NotFound(
            f"key of app {app!r}",
            "that was given",
            found=f"no object under {store.url} holds it: it was never there, or was forgotten",
            hint=f"`slackwater log {app} --operations` tells what was forgotten; keys are told from each other to the letter",
        )


def _note(search: Search) -> Forgetting:
    found = forgotten.find_forgetting(search.member.store, search.member.app)
    assert found is not None  # noqa: S101  it goes at the end
    return found


def _begin(work: _Work) -> bool:
    """Put the notes; whether none was there. Raises `Refused` where other keys are being forgotten."""
    me, fresh = work.searches[0].member, True
    ulid, salt = ULID(), secrets.token_hex(32)
    new = Forgetting(str(ulid), me.app, work.by, ulid.milliseconds, salt, work.asked.digest(salt))
    for search in work.searches:
        found = forgotten.begin(search.member.store, search.member.app, new)
        if found.id == new.id:
            continue
        if found.digest != work.asked.digest(found.salt):
            if fresh and search is not work.searches[0]:
                _end(work, only=new.id)
            forgotten.check_none(search.member.store, search.member.app, "no others are")
        fresh, new = False, found
    return fresh


def _end(work: _Work, only: str = "") -> None:
    """Take the notes away, the first app's last."""
    for search in reversed(work.searches):
        store, app = search.member.store, search.member.app
        if not only or ((found := forgotten.find_forgetting(store, app)) is not None and found.id == only):
            forgotten.end(store, app)


def _check_quiet(work: _Work) -> None:
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
        if next(search.edits(), None) is not None:
            raise Refused(
                f"an edit of {app} is under way that names what is to be forgotten",
                hint="let it end: the same `slackwater edit` again finishes it; then forget the key",
            )
        for other in store.list_folders(""):
            if other.startswith(f"{app}-backfill-") and apps.find_app(store, other) is not None:
                raise Refused(
                    f"a backfill of {app} is under way, in {other}: it computes from records that may be of the key",
                    hint="let it end: the same `slackwater migrate --backfill` again finishes it; then forget the key",
                )


def _take_out(work: _Work) -> bool:
    """Rewrite what holds a key in all apps, and have their indexes say so; whether there was anything."""
    for search in work.searches:
        work.rewriting.learn(search, forgotten.newest(search.member.store, search.member.app))
    found = False
    for search in work.searches:
        ssts: dict[str, Sst | None] = {}
        for stage in search.member.heads:
            work.on_progress(f"{search.member.app}/{stage}: looking through its versions")
            for one in search.named(stage):
                ssts |= work.rewriting.change(search, one)
        records = dict(work.rewriting.records(search))
        found = _publish(work, search, ssts, records) or found
    return found


def _publish(work: _Work, search: Search, ssts: dict[str, Sst | None], records: dict[str, Records]) -> bool:
    """Have an app's index say what became of these objects; whether there are any."""
    if not ssts and not records:
        return False
    store, app = search.member.store, search.member.app
    now_ms = work.now_ms()
    edited = {
        snapshot.name: max(now_ms, snapshot.completed_ms)
        for snapshot in search.snapshots()
        if not records.keys().isdisjoint(snapshot.object_keys) or _names_any(store, app, snapshot.stages.items(), ssts)
    }

    def update(head: Forgotten) -> Forgotten | None:
        return head.with_changes(ssts, records, edited)

    forgotten.change(store, app, update, by=work.by, now_ms=now_ms)
    return True


def _names_any(store: ObjectStore, app: str, versions: Iterable[tuple[str, int]], ssts: dict[str, Sst | None]) -> bool:
    found = (history.find(store, app, stage, version) for stage, version in versions)
    return any(sst.object in ssts for manifest in found if manifest is not None for sst in all_ssts(manifest))


def _commit(work: _Work, search: Search) -> Iterator[tuple[str, str, int]]:
    """Give each stage that is concerned its version, behind which nothing of before comes any more."""
    store, app = search.member.store, search.member.app
    index = forgotten.known(store, app)
    concerned = {*search.tables, *(name.split("/")[2] for name in index.ssts)}
    for stage, head in search.member.heads.items():
        if head.retired or concerned.isdisjoint((stage, *(each.stage for each in head.formerly))):
            continue
        after = head.version
        waiting = 0

        def requires(head: Manifest, stage: str = stage) -> bool:
            """Look at what came since, and whether there is anything to say."""
            nonlocal after, waiting
            ssts: dict[str, Sst | None] = {}
            for one in search.named(stage, after):
                ssts |= work.rewriting.change(search, one)
            after = max(after, head.version)
            _publish(work, search, ssts, {})
            number = forgotten.known(store, app).number
            if head.forgotten >= number:
                return False
            waiting = _waiting(store, head, forgotten.known(store, app))
            return True

        def update(draft: Manifest) -> Manifest:
            index = forgotten.known(store, app)
            made = each_sst(draft, index.sst)
            if REJECTED in made.side_tables:
                side = replace(made.side_tables[REJECTED], waiting=waiting)
                made = replace(made, side_tables=made.side_tables | {REJECTED: side})
            return replace(made, forgotten=index.number)

        done = amend(store, (app, stage), Amendment("forget", update, requires), by=work.by, now_ms=work.now_ms)
        if done.changed:
            yield app, stage, done.manifest.version


def _waiting(store: ObjectStore, head: Manifest, index: Forgotten) -> int:
    """How many rejected records of a stage wait to be retried, of those that are left."""
    side = head.side_tables.get(REJECTED)
    ssts = [now for sst in (side.ssts if side is not None else ()) if (now := index.sst(sst)) is not None]
    blocks = (block for sst in newest_first(ssts) for block in whole_blocks(store, sst, REJECTED_RECORDS))
    parts = [pa.Table.from_batches([block.stored]) for block in blocks]
    return merge_rows(parts, REJECTED_RECORDS, drop_tombstones=True)["retried"].null_count if parts else 0


def _sweep(work: _Work, cache: SstCache) -> tuple[int, tuple[Held, ...]]:
    """Delete what was replaced, here and in this machine's cache, and what nothing names and holds a key."""
    deleted, left = 0, []
    for search in work.searches:
        store, app = search.member.store, search.member.app
        index = forgotten.known(store, app)
        cache.drop(index.ssts)
        there = {info.key for stage in search.member.heads for info in store.list(keys.ssts(app, stage))}
        there |= {info.key for info in store.list(keys.snapshots(app))}
        old = [name for name in (*index.ssts, *index.records) if name in there]
        do_all(store.delete, old)
        deleted += len(old)
        for found, written_ms in search.unnamed(index.ssts):
            # A batch that was computed before the stage's newest version of this kind is not committed any more.
            if written_ms < _since_ms(store, app, found.table):
                store.delete(found.object)
                deleted += 1
            else:
                left.append(found)
    return deleted, tuple(left)


def _since_ms(store: ObjectStore, app: str, stage: str) -> int:
    """When, by storage's clock, a stage got its newest version of kind `forget`; 0 for never."""
    head = history.head(store, app, stage)
    if head is not None and head.retired:
        return sys.maxsize  # nobody is to name anything
    while head is not None and head.kind != "forget":
        head = history.before(store, head)
    if head is None:
        return 0
    key = keys.manifest(app, stage, head.version)
    return next((info.modified_ms for info in store.list(key) if info.key == key), 0)


def _blot(work: _Work) -> None:
    """Take the keys out of what people wrote of edits."""
    for search in work.searches:
        store, app = search.member.store, search.member.app
        for done in OPERATIONS.all(store, app):
            detail, message = (_BLOTTED if search.in_text(text) else text for text in (done.detail, done.message))
            if (detail, message) != (done.detail, done.message):
                OPERATIONS.put(store, replace(done, detail=detail, message=message), app)
        for manifest in search.edited():
            edit = manifest.edited
            assert edit is not None  # noqa: S101  what `edited` gives
            what, message = (_BLOTTED if search.in_text(text) else text for text in (edit.what, edit.message))
            made = replace(manifest, edited=replace(edit, what=what, message=message))
            store.put(keys.manifest(app, manifest.stage, manifest.version), codec.encode(made))
        history.forget(store, app)
