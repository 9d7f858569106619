"""`slackwater promote`: wait until the new app is near, hold both at the same offsets, and have the name go over."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from ...common import instants
from ...errors import Refused
from ...snapshot.change.switch import MovedOn, Standing, Switch, behind, furthest, place_of, short_of, withdraw
from ...snapshot.cut.graph import Cut, order
from ...snapshot.cut.kafka_topics import Topics
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.cut.stored import cancel, open_requests
from ...snapshot.diff.moments import StoredCut, TableDiff, diff
from ...snapshot.take.audit_log import record, record_once
from ...snapshot.under_way import runners as holds
from ...snapshot.under_way.exclusion import HERE, Intent, Sign, UnderWay, check_exclusion, refusal
from ...snapshot.under_way.runners import HOLD_RENEW_S, Hold
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Promotion
from .promote_plan import Heads, PromotionPlan, check_runs, plan

_LOOK_S = 0.1
_ROUNDS = 5
_NEAR_S = 1.0
"""The new app is near when it has caught up within this time, within that of its batches, or so often."""
_HELD_S = 20.0
"""How long the old app may at least be held: what the new one then lacks it reads while the old one goes on."""
_HELD_BATCHES = 3
"""Batches that each stage may make meanwhile: the one under way, and those that read what is left."""
_RECENT = 5
"""Versions of each stage of which the longest batch counts."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a promotion did, or would do."""

    plan: PromotionPlan
    at: Mapping[str, tuple[int, ...]]
    """Where both stand, by users' topic; where the one that is further does, where it was only looked at."""
    behind: int = 0
    """Records that the new app had still to read up to where the old one stood, where it was only looked at."""
    changes: tuple[TableDiff, ...] = ()
    """How tables differ: what only the new app has was added."""
    held_s: float = 0.0
    """How long the old app was held."""
    versions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By app and stage, the versions that this call committed."""
    idle: bool = False
    """Whether nobody ran either of the two: what has the name then publishes nothing until it is started."""


@dataclass(slots=True)
class _Watch:
    """The newest versions of an app, looked at again and again. A request a stage, and one for each new version."""

    store: ObjectStore
    heads: dict[str, Heads]

    def look(self) -> tuple[Heads, Heads]:
        """Those of the old app, and of the new one."""
        for app, heads in self.heads.items():
            newest = {stage: history.head(self.store, app, stage, hint=head.version) for stage, head in heads.items()}
            self.heads[app] = {stage: head or heads[stage] for stage, head in newest.items()}
        old, new = self.heads.values()
        return old, new

    def batches_s(self) -> float:
        """Seconds that a record takes through the longest way of stages of either app, by their longest batches."""
        return max(self._batches_s(app, heads) for app, heads in self.heads.items())

    def _batches_s(self, app: str, heads: Heads) -> float:
        ways: dict[str, float] = {}
        for stage in order(heads):
            head = heads[stage]
            numbers = range(max(1, head.version - _RECENT + 1), head.version + 1)
            recent = filter(None, (history.find(self.store, app, stage, number) for number in numbers))
            senders = (ways.get(read.upstream, 0.0) for read in head.inputs.values())
            ways[stage] = max((each.duration_ms / 1_000 for each in recent), default=0.0) + max(senders, default=0.0)
        return max(ways.values(), default=0.0)


def promote(
    store: ObjectStore,
    kafka: Topics,
    name: str,
    staging: str,
    *,
    by: str,
    cache: SstCache | None,
    timeout_s: float = 600,
    dry_run: bool = False,
    allowed: Callable[[], None] = lambda: None,
    on_wait: Callable[[str], None] = lambda _what: None,
    pause: Callable[[], None] = lambda: time.sleep(_LOOK_S),
    clock: Callable[[], float] = time.monotonic,
) -> Promoted:
    """Give an app the name of another one, its sinks, and the right to write to them; the other is `NAME~1` then.

    Both have to stand at the same offsets of their topics, with all that follows from them done: it waits until the new
    app has read what the old one had, holds both, and goes on once they do. Without `staging` the name goes back to the
    app that had it before. `allowed` is asked before anything is done, and may raise; `on_wait` is told how far they
    are, `pause` is called between two looks, `clock` gives seconds. With a `cache`, tables are compared. A call that
    was interrupted is finished by the same call.

    Raises as `StoredApp.promote`; what is refused has changed nothing, and both go on.
    """
    check_exclusion(store, apps.folder_of(store, name), Intent.PROMOTE, *HERE, dry_run=dry_run)
    found, old, new = plan(store, name, staging, kafka)
    if dry_run:
        at, goes_on = furthest(old.values()), found.done or _begun(found, (old, new)) is not None
        idle = not goes_on and not check_runs(store, found, new, pause, clock)
        return Promoted(found, at, behind(new.values(), at), _compared(store, cache, old, new), idle=idle)
    if found.done:
        _finish(store, found.name, found.number, by)
        return Promoted(found, {})
    allowed()
    watch = _Watch(store, {found.over: old, found.to: new})
    done = _resumed(store, kafka, found, watch, by)
    held_s, idle = 0.0, False
    if isinstance(done, int):
        idle = not check_runs(store, found, watch.look()[1], pause, clock)
        _check_alone(store, found, pause, clock)
        patience = _Patience(timeout_s, clock, on_wait, pause)
        done, held_s = _together(store, kafka, replace(found, number=done), watch, patience, by)
    _finish(store, found.name, done.promote.number, by)
    at = done.promote.at
    cuts = [_at_switch(store, app, heads, done) for app, heads in watch.heads.items()]
    versions = {app: {stage: after for stage, (_, after) in made.items()} for app, made in done.made.items()}
    return Promoted(found, at, changes=_compared(store, cache, *cuts), held_s=held_s, versions=versions, idle=idle)


@dataclass(slots=True)
class _Patience:
    """Tells how far it is, and gives up in time."""

    timeout_s: float
    clock: Callable[[], float]
    on_wait: Callable[[str], None]
    pause: Callable[[], None]
    batches_s: float = 0.0
    """How long batches took: `_Watch.batches_s`."""
    _until: float = 0.0
    _told: str = ""

    def __post_init__(self) -> None:
        self._until = self.clock() + self.timeout_s

    def wait(self, why: str, found: PromotionPlan) -> None:
        """Let some time go by. Raises `Refused` when there is none left."""
        if self.clock() > self._until:
            slow = f"; batches took up to {self.batches_s:.0f} s on their way through all stages: a higher --timeout "
            slow += "gives them time, and a lower --max-records of both runs makes them shorter"
            raise Refused(
                f"{found.staging} and {found.name} did not come to stand at the same offsets within "
                f"{self.timeout_s:g} s: {why}",
                hint=f"nothing has gone over. Do both run? `slackwater status {found.staging}` shows how far it is"
                f"{slow if _HELD_BATCHES * self.batches_s > min(_HELD_S, self.timeout_s) else ''}",
            )
        if why != self._told:
            self.on_wait(why)
            self._told = why
        self.pause()


def _resumed(store: ObjectStore, kafka: Topics, found: PromotionPlan, watch: _Watch, by: str) -> Switch | int:
    """The switch that an earlier call had begun, finished; else the number of the one that is to be made.

    Raises `Refused` where that was of another app.
    """
    number = found.number
    begun = _begun(found, watch.heads.values())
    if begun is None:
        return number
    if begun.to != found.to:
        fact = f"the promotion of {begun.to} over {found.name} was begun, and is not decided"
        hint = f"finish it by the same command; or run {found.over} again, which withdraws it"
        raise refusal(Intent.PROMOTE, Sign(UnderWay.PROMOTION, fact, hint))
    switch = found.switch(number, Standing(begun.at, begun.clock_ms), by)
    try:
        return _switched(store, kafka, switch, watch)
    except MovedOn:
        withdraw(store, switch.promote, found.over, by=by, now_ms=instants.now_ms())
        if apps.folder_of(store, found.name) == found.to:
            return switch
        return number + 1


def _begun(found: PromotionPlan, each: Iterable[Heads]) -> Promotion | None:
    """The mark of an earlier call, which had begun the promotion, in the newest versions of either app."""
    marks = (head.promotion for heads in each for head in heads.values() if head.promotion is not None)
    return next((mark for mark in marks if (mark.name, mark.number) == (found.name, found.number)), None)


def _check_alone(
    store: ObjectStore, found: PromotionPlan, pause: Callable[[], None], clock: Callable[[], float]
) -> None:
    """Raise `Refused` where somebody else holds one of the two for another promotion, and is alive."""
    for app in (found.over, found.to):
        first, until = holds.find_hold(store, app), clock() + 2 * HOLD_RENEW_S
        while first is not None and (first.name, first.to) != (found.name, found.to) and clock() < until:
            pause()
            if (now := holds.find_hold(store, app)) is None:
                break
            if now != first:
                fact = f"{now.by} promotes {now.to} over {now.name} at this moment, and holds {app} for it"
                raise refusal(Intent.PROMOTE, Sign(UnderWay.PROMOTION, fact, "wait until that has ended"))


def _together(
    store: ObjectStore, kafka: Topics, found: PromotionPlan, watch: _Watch, patience: _Patience, by: str
) -> tuple[Switch, float]:
    """Bring both to the same offsets, and switch; and for how long the old app was held."""
    number = found.number
    while True:
        # What comes while the new app catches up is to be read while the old one is held: let that be little.
        for _ in range(_ROUNDS):
            began, near = patience.clock(), furthest(watch.look()[0].values())
            while left := behind(watch.look()[1].values(), near):
                patience.wait(f"{found.staging} has {left:,} records to read up to where {found.name} was", found)
            patience.batches_s = watch.batches_s()
            if patience.clock() - began < max(_NEAR_S, patience.batches_s):
                break
        began, until, renewed = patience.clock(), None, 0
        held_s = max(_HELD_S, _HELD_BATCHES * patience.batches_s)
        with _holding(store, found) as write:
            due = began
            while (now := patience.clock()) < began + held_s:
                old, new = watch.look()
                at = place_of((*old.values(), *new.values()))
                if at != until or now >= due:
                    renewed += 1
                    write(renewed, at, by, tell=at != until)
                    until, due = at, now + HOLD_RENEW_S
                each = (short_of(store, head, at) for heads in (new, old) for head in heads.values())
                if why := next(filter(None, each), ""):
                    patience.wait(why, found)
                    continue
                switch = found.switch(number, at, by)
                try:
                    return _switched(store, kafka, switch, watch), patience.clock() - began
                except MovedOn as error:
                    if not withdraw(store, switch.promote, found.over, by=by, now_ms=instants.now_ms()):
                        return switch, patience.clock() - began
                    if (has := apps.folder_of(store, found.name)) != found.over:
                        raise Refused(f"{found.name} went over to {has} meanwhile", hint="say it again") from error
                    number += 1
                    patience.wait(error.message, found)
        patience.wait(f"{found.staging} did not follow {found.name} within {held_s:.0f} s, and tries again", found)


@contextmanager
def _holding(store: ObjectStore, found: PromotionPlan) -> Iterator[Callable[..., None]]:
    """Hold both apps inside, as often as what this gives is called."""

    def write(renewed: int, at: Standing, by: str, *, tell: bool) -> None:
        until, apps_ = dict(at.offsets), (found.over, found.to)
        each = (Hold(app, found.name, found.to, by, renewed, until, at.clock_ms) for app in apps_)
        holds.put_holds(store, each, tell=tell)

    try:
        yield write
    finally:
        holds.release_holds(store, (found.over, found.to))


def _switched(store: ObjectStore, kafka: Topics, switch: Switch, watch: _Watch) -> Switch:
    now_ms = instants.now_ms()
    switch.prepare(store, kafka, watch.look(), now_ms)
    switch.decide(store, now_ms)
    return switch


def _finish(store: ObjectStore, name: str, number: int, by: str) -> None:
    """What is left to do of a promotion once it is decided: done again, it does nothing more."""
    done = apps.NAMES.find(store, number, name)
    if done is None or done.withdrawn:
        return
    became = f"the app in folder {done.folder} over {name}, until then the one in folder {done.over}"
    for app, detail in ((done.folder, became), (done.over, "")):
        for request in open_requests(store, app) if app == done.over else ():
            why = f"the app in folder {done.folder} was promoted over this one while it was under way"
            record(store, app, "snapshot failed", f"{request.name}: {why}", by)
            cancel(store, app, request)
        said, made = detail or f"the app in folder {done.folder} has the name {name}", _versions(store, app, number)
        record_once(store, app, "promote", said, by, made, since_ms=done.time_ms)
    holds.release_holds(store, (done.over, done.folder))


def _versions(store: ObjectStore, app: str, number: int) -> dict[str, tuple[int, int]]:
    """By stage of an app, the version before a promotion of that number and the one that it made."""

    def is_through(head: Manifest) -> bool:
        return head.promotion is not None and head.promotion.number >= number

    read, first = partial(history.read, store, app), partial(history.first_version, store, app)
    through = filter(is_through, heads_of(store, app, stages_of(store, app)).values())
    made = {head.stage: history.first_where(read, first, head, is_through) for head in through}
    return {stage: (version - 1, version) for stage, version in made.items()}


def _at_switch(store: ObjectStore, app: str, heads: Heads, switch: Switch) -> Heads:
    """An app's versions of the switch, or the newest where an earlier call made them."""
    made = switch.made.get(app, {})
    return {stage: history.read(store, app, stage, made[stage][1]) if stage in made else head
            for stage, head in heads.items()}  # fmt: skip


def _compared(store: ObjectStore, cache: SstCache | None, old: Heads, new: Heads) -> tuple[TableDiff, ...]:
    if cache is None:
        return ()
    cuts = (
        Cut(next(iter(heads.values())).app, {s: h for s, h in heads.items() if not h.retired}) for heads in (old, new)
    )
    one, other = (StoredCut(store, cut) for cut in cuts)
    return diff(cache, one, other)
