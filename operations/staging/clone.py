"""Clone an app at a moment: new manifests that point at the source's SSTs, and channels of its own.

No byte of state is read or copied, so a clone costs the same at ten thousand keys and at five million; but for a clone
with everything of its own, and for tables in which something is hidden. The order makes it safe to stop anywhere: the
source's cut is pinned first, then a note says that the clone is being made, and from it the same call again rolls
forward. The clone's identity comes last: before it, the clone is there for nobody.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace

from msgspec import structs

from ...common import instants
from ...errors import Forbidden, NotFound, Refused
from ...snapshot.change.copies import Copies, Masks
from ...snapshot.change.first_versions import finish_clone, kept_or_in_kafka
from ...snapshot.cut.graph import Cut, violations
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.refs import parse
from ...snapshot.cut.resolve import telling_if_collected
from ...snapshot.cut.stored import Snapshot, find_snapshot, read_snapshot
from ...snapshot.take.audit_log import record_once
from ...snapshot.take.snapshots import pin, remove_pins_without_clone
from ...snapshot.under_way.exclusion import Intent, Sign, UnderWay, check_exclusion, refusal
from ...snapshot.under_way.runners import lapsed
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, keys
from ...store.versions.apps import Cloning
from ..maintenance.removal import Removal, discard
from .clone_plan import ClonePlan, Terms, make_plan


def clone(
    store: ObjectStore,
    source: str,
    name: str,
    *,
    channels: Topics,
    topics: Mapping[str, str] | None = None,
    sinks: Mapping[str, str] | None = None,
    terms: Terms | None = None,
    target_store: ObjectStore | None = None,
    cache: SstCache | None = None,
    by: str,
    now_ms: int | None = None,
    at: Cut | None = None,
    dry_run: bool = False,
    over: bool = False,
    noted: bool = True,
    on_progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ClonePlan:
    """Make app `name` from another app's moment; the source only gets a snapshot that pins its cut.

    A call that was interrupted is finished by the same call again, which finds nothing to do when the clone is there.

    The clone reads `topics` instead of the source's, by their names as declared, with the same partitions and offsets;
    those that are not named are read on by both. It publishes `sinks`: a topic of its own for each sink by its name as
    declared, where a function gets its own name; those that are not named are not written at all. All that may be asked
    for are `terms`, with these two in them. It lives in `target_store`, or in the source's. Relative refs count from
    `now_ms`, or the wall clock; `at` is what `source` named when the caller looked. With `dry_run`, everything is
    checked and nothing changed; `over` then says that a clone of that name would go first. `cache` is needed where
    something is hidden; `on_progress` is told how many SSTs are copied, and of how many. The source's log of operations
    tells of it if it is `noted`: not of a clone that goes again with the call that wanted it.

    Raises as `StoredApp.clone`. What it began, the same call finishes.
    """
    target = target_store or store
    moment_ms = instants.now_ms() if now_ms is None else now_ms
    terms = terms or Terms(topics or {}, sinks or {})
    plan = make_plan(store, target, parse(source, now_ms=moment_ms), name, terms, channels, moment_ms, over=over, at=at)
    if dry_run:
        return plan
    # How a pin names the clone's root.
    root = "" if target.url == store.url else target.url
    if not plan.done:
        is_new = plan.note is None
        note, keeper = (plan.note, None) if plan.note else _begin(store, target, plan, root, terms, by)
        keeper = keeper or _keeper(store, plan, note)
        plan = replace(plan, info=note.info)
        masks = Masks.of(note.info.origin.masks if note.info.origin else {}, note.salt)
        copies = Copies(store, target, cache, plan.state, name, masks, deep=note.deep, on_progress=on_progress)
        with telling_if_collected(store, plan.state):
            records = kept_or_in_kafka(store, plan.state, keeper)
            finish_clone(target, note.info, plan.state, records, copies, channels, by=by, is_new=is_new)
    since_ms, where = plan.info.created_ms, f"{name} in {root}" if root else name
    detail, same = f"{source} as {where}", f" as {where}"
    with suppress(Forbidden):  # who may pin, or only read, need not be able to write there
        remove_pins_without_clone(store, plan.source.app, name, root)
        if noted:
            app = plan.source.app
            record_once(store, app, "clone", detail, by, since_ms=since_ms, same=lambda had: had.endswith(same))
    # In the logs of both apps, unless it is there: an earlier call may have died before or after it.
    born = f"from {source} in {store.url}"
    made = {stage: (0, version) for stage, version in plan.state.versions.items()}
    record_once(target, name, "clone", born, by, made, since_ms=since_ms, same=lambda _had: True)
    return plan


@dataclass(frozen=True, slots=True)
class ScratchClone:
    """A clone that a trial or a drill makes for itself, in the store of its source."""

    store: ObjectStore
    ref: str
    """The moment as it was said,"""
    start: Cut
    """and what it named then."""
    name: str
    terms: Terms
    """Their reason says what it is for."""
    channels: Topics
    by: str
    outside: Callable[[Removal], None]
    """Removes what it has outside of the store: topics, and groups."""
    pause: Callable[[], None]
    """Called until signs of life of a runner that was killed are old."""

    @contextmanager
    def there(self, ending: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Inside, it is there, made anew; it goes inside what `ending` gives. Raises as `drop` and `clone`."""
        self.drop()
        try:
            self.make(noted=False)
            yield
        finally:
            with ending():
                self.drop()

    def make(self, *, noted: bool) -> None:
        """Make it, or finish making it. Its source's log of operations tells of it if it is `noted`."""
        clone(
            self.store,
            self.ref,
            self.name,
            at=self.start,
            terms=self.terms,
            channels=self.channels,
            by=self.by,
            noted=noted,
        )

    def drop(self) -> None:
        """Remove it, whatever an earlier call has left of it, and its pin. Killed amidst, the next call does.

        Raises `Refused` where the app of that name is another one, or a runner has it.
        """
        source = self.start.app
        info, _ = apps.find_begun(self.store, self.name)
        if info is not None and (info.origin is None or info.origin.app != source):
            raise Refused(
                f"app {self.name!r} is no clone of {source}; its name is needed for this: {self.terms.reason}",
                hint=f"look at it: slackwater status {self.name} --store {self.store.url}",
            )
        if not lapsed(self.store, self.name, self.pause):
            fact = f"this is under way already ({self.terms.reason}): a runner has its clone, {self.name}"
            raise refusal(Intent.REMOVE, Sign(UnderWay.RUNNER, fact, "wait until that has ended"))
        discard(self.store, self.name, self.outside)
        remove_pins_without_clone(self.store, source, self.name, "")


def _keeper(store: ObjectStore, plan: ClonePlan, note: Cloning) -> Snapshot | None:
    """The snapshot that may keep what is in flight."""
    name = note.snapshot or plan.state.snapshot
    return find_snapshot(store, plan.source.app, name) if name else None


def _begin(
    store: ObjectStore, target: ObjectStore, plan: ClonePlan, root: str, terms: Terms, by: str
) -> tuple[Cloning, Snapshot | None]:
    """Pin the source's cut and write the clone's note: from here on the name is its own. That, and the pin.

    An earlier clone of that name, or a call that stopped before the clone was begun, may have left its own pin. That is
    not ours to remove: whoever made it may be just about to go on.
    """
    cut, info, origin = plan.source, plan.info, plan.info.origin
    assert origin is not None  # noqa: S101  every clone has one
    try:
        pinned = _pin(store, plan, root, by) if plan.state.stages else ""  # without state, nothing is to be kept
    except Forbidden as error:
        if not terms.deep:
            raise Forbidden(
                f"the moment of {cut.app} cannot be pinned under {store.url}, and nothing else would keep what the "
                f"clone shares: {error.message}",
                hint="a clone with everything of its own needs no right to write there: --deep --to ROOT",
            ) from error
        pinned = ""  # what is collected while it is copied, is missed then
    if not terms.deep:
        info = structs.replace(info, origin=structs.replace(origin, snapshot=pinned))
    salt = secrets.token_hex(16) if terms.masks else ""
    wanted = Cloning(info, store.url, pinned, salt, terms.deep)
    try:
        apps.begin_clone(target, wanted)
        kept = find_snapshot(store, cut.app, pinned) if pinned else None
        if pinned and kept is None:
            target.delete(keys.cloning(info.name))
            raise Refused(
                f"snapshot {pinned!r} of {cut.app} was removed before the clone was begun: an earlier one of that name "
                "was just removed",
                hint="say it again",
            )
    except Refused:
        # Somebody else was faster: what was pinned for this call keeps nothing alive.
        with suppress(Forbidden):
            remove_pins_without_clone(store, origin.app, info.name, root)
        raise
    return wanted, kept


def _pin(store: ObjectStore, plan: ClonePlan, root: str, by: str) -> str:
    """Pin the cut in the source; the snapshot's name."""
    cut, name = plan.source, plan.info.name
    keeper = read_snapshot(store, cut.app, cut.snapshot) if cut.snapshot else None
    if keeper is not None and keeper.stages != cut.versions:
        found = "there is another one of that name since this clone was planned"
        raise NotFound(f"snapshot of app {cut.app!r}", cut.snapshot, found=found, hint="say it again to clone that one")
    check_exclusion(store, cut.app, Intent.CLONE)  # else each name below would seem to be taken
    base = f"clone-{name}"[:56]
    candidates = (base, *(f"{base}-{number}" for number in range(2, 1000)))
    for candidate in candidates:
        try:
            return pin(store, cut, candidate, "clone", by=by, clone=name, clone_root=root, keeper=keeper).name
        except Forbidden:
            raise
        except Refused:
            if violations(cut.stages) or not cut.stages:
                raise
    raise Refused(
        f"all snapshot names from {base} to {candidates[-1]} of {cut.app} are taken",
        hint=f"`slackwater snapshot list {cut.app}` shows them; remove those whose clones are gone",
    )
