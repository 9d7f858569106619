"""`slackwater promote`: waits for the new app to catch up, stops both apps at equal offsets, and moves the name."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from ...common import instants, runtime
from ...errors import Refused
from ...snapshot.change.switch import (
    Switchover,
    SwitchoverFailed,
    SwitchoverPosition,
    highest_offsets,
    max_lag,
    reachable_position,
    why_not_reached,
    withdraw_promotion,
)
from ...snapshot.cut.graph import Cut, topological_order
from ...snapshot.cut.kafka_topics import KafkaTopics
from ...snapshot.cut.moments import heads_of, stages_of
from ...snapshot.cut.stored import open_requests, withdraw_request
from ...snapshot.diff.moments import StoredCut, TableDiff, diff
from ...snapshot.take.audit_log import record_operation, record_operation_once
from ...snapshot.under_way import runners as holds
from ...snapshot.under_way.exclusion import (
    RUNS_ELSEWHERE,
    AppCondition,
    Evidence,
    Intent,
    check_exclusion,
    refusal_error,
)
from ...snapshot.under_way.runners import HOLD_RENEW_S, Hold
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.versions import apps, history
from ...store.versions.manifest import Manifest, Promotion
from .promote_plan import Heads, PromotionPlan, check_running, make_plan

_POLL_S = 0.1
_MAX_CATCH_UPS = 5
_NEAR_S = 1.0
"""Both apps are held once a catch-up takes less than this many seconds, or less than a batch."""
_MIN_HOLD_S = 20.0
"""Minimum time limit of a hold, in seconds. After the limit, the old app continues until the next hold."""
_HOLD_BATCHES = 3
"""Number of batches that fit into a hold: the current batch, and batches that read the remaining records."""
_RECENT = 5


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """Result of a promotion, or of its dry run."""

    plan: PromotionPlan
    at: Mapping[str, tuple[int, ...]]
    """Offsets at which both apps stopped, by users' topic. In a dry run, the old app's highest offsets."""
    lag: int = 0
    """In a dry run, number of records that the old app has read and the new app has not; otherwise 0."""
    changes: tuple[TableDiff, ...] = ()
    """Differences between the apps' tables. Rows that only the new app has count as added."""
    held_s: float = 0.0
    versions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    idle: bool = False
    """True if neither app is running. Nothing is published under the name until a runner starts."""


@dataclass(slots=True)
class _HeadPoller:
    """Poller of the newest versions of both apps. A poll makes one request per stage, and one per new version."""

    store: ObjectStore
    heads: dict[str, Heads]

    def poll(self) -> tuple[Heads, Heads]:
        for app, heads in self.heads.items():
            newest = {stage: history.head(self.store, app, stage, hint=head.version) for stage, head in heads.items()}
            self.heads[app] = {stage: head or heads[stage] for stage, head in newest.items()}
        old, new = self.heads.values()
        return old, new

    def path_duration_s(self) -> float:
        return max(self._batches_s(app, heads) for app, heads in self.heads.items())

    def _batches_s(self, app: str, heads: Heads) -> float:
        seconds: dict[str, float] = {}
        for stage in topological_order(heads):
            head = heads[stage]
            numbers = range(max(1, head.version - _RECENT + 1), head.version + 1)
            recent = filter(None, (history.find(self.store, app, stage, number) for number in numbers))
            senders = (seconds.get(read.upstream, 0.0) for read in head.inputs.values())
            seconds[stage] = max((manifest.duration_ms / 1_000 for manifest in recent), default=0.0) + max(
                senders, default=0.0
            )
        return max(seconds.values(), default=0.0)


def promote(
    store: ObjectStore,
    kafka: KafkaTopics,
    name: str,
    staging: str,
    *,
    by: str,
    cache: SstCache | None,
    timeout_s: float = 600,
    dry_run: bool = False,
    check_allowed: Callable[[], None] = lambda: None,
    on_wait: Callable[[str], None] = lambda _reason: None,
    pause: Callable[[], None] = lambda: runtime.sleep(_POLL_S),
    clock: Callable[[], float] = runtime.monotonic,
) -> PromotionResult:
    """Give an app the name and sinks of a second app, which is then called `NAME~1`.

    Both apps must stop at equal offsets of their topics with no records in flight. So the call waits until the new app
    has read all records that the old app has read, holds both, and switches over once their offsets agree. Without
    `staging`, the name is given back to the app that had it before. Four parameters are functions: `check_allowed` is
    called before any change, and may raise an error; `on_wait` receives the progress; `pause` is called between two
    polls; `clock` returns seconds. With a `cache`, tables are compared. An interrupted call is finished by the same
    call.

    Raises the errors of `StoredApp.promote`. A refused promotion changes nothing, and both apps continue.
    """
    check_exclusion(store, apps.folder_of(store, name), Intent.PROMOTE, *RUNS_ELSEWHERE, dry_run=dry_run)
    planned, old, new = make_plan(store, name, staging, kafka)
    if dry_run:
        at, resumes = highest_offsets(old.values()), planned.done or _find_begun(planned, (old, new)) is not None
        idle = not resumes and not check_running(store, planned, new, pause, clock)
        return PromotionResult(planned, at, max_lag(new.values(), at), _compare(store, cache, old, new), idle=idle)
    if planned.done:
        _finish(store, planned.name, planned.number, by)
        return PromotionResult(planned, {})
    check_allowed()
    watch = _HeadPoller(store, {planned.over: old, planned.to: new})
    done = _resume(store, kafka, planned, watch, by)
    held_s, idle = 0.0, False
    if isinstance(done, int):
        idle = not check_running(store, planned, watch.poll()[1], pause, clock)
        _check_no_other_promotion(store, planned, pause, clock)
        patience = _Waiter(timeout_s, clock, on_wait, pause)
        done, held_s = _catch_up_and_switch_over(store, kafka, replace(planned, number=done), watch, patience, by)
    _finish(store, planned.name, done.promote.number, by)
    at = done.promote.at
    cuts = [_heads_at_switchover(store, app, heads, done) for app, heads in watch.heads.items()]
    versions = {
        app: {stage: after for stage, (_, after) in by_stage.items()}
        for app, by_stage in done.committed_versions.items()
    }
    return PromotionResult(
        planned, at, changes=_compare(store, cache, *cuts), held_s=held_s, versions=versions, idle=idle
    )


@dataclass(slots=True)
class _Waiter:
    """Waits until a deadline, and reports the progress."""

    timeout_s: float
    clock: Callable[[], float]
    on_wait: Callable[[str], None]
    pause: Callable[[], None]
    batches_s: float = 0.0
    _until: float = 0.0
    _last_reason: str = ""

    def __post_init__(self) -> None:
        self._until = self.clock() + self.timeout_s

    def wait(self, why: str, planned: PromotionPlan) -> None:
        """Call `pause` once. Raises `Refused` after the deadline."""
        if self.clock() > self._until:
            slow = f"; batches took up to {self.batches_s:.0f} s through all stages: a higher --timeout "
            slow += "gives them time, and a lower --max-records of both runs makes them shorter"
            raise Refused(
                f"{planned.staging} and {planned.name} did not reach the same offsets within "
                f"{self.timeout_s:g} s: {why}",
                hint=f"nothing was changed. Are both running? `slackwater status {planned.staging}` shows its lag"
                f"{slow if _HOLD_BATCHES * self.batches_s > min(_MIN_HOLD_S, self.timeout_s) else ''}",
            )
        if why != self._last_reason:
            self.on_wait(why)
            self._last_reason = why
        self.pause()


def _resume(
    store: ObjectStore, kafka: KafkaTopics, planned: PromotionPlan, watch: _HeadPoller, by: str
) -> Switchover | int:
    number = planned.number
    begun = _find_begun(planned, watch.heads.values())
    if begun is None:
        return number
    if begun.to != planned.to:
        fact = f"the promotion of {begun.to} over {planned.name} is unfinished"
        hint = f"repeat the command that started it, or run {planned.over} again, which withdraws it"
        raise refusal_error(Intent.PROMOTE, Evidence(AppCondition.PROMOTION, fact, hint))
    switch = planned.switchover(number, SwitchoverPosition(begun.at, begun.clock_ms), by)
    try:
        return _run_switchover(store, kafka, switch, watch)
    except SwitchoverFailed:
        withdraw_promotion(store, switch.promote, planned.over, by=by, now_ms=instants.now_ms())
        if apps.folder_of(store, planned.name) == planned.to:
            return switch
        return number + 1


def _find_begun(planned: PromotionPlan, apps_heads: Iterable[Heads]) -> Promotion | None:
    marks = (head.promotion for heads in apps_heads for head in heads.values() if head.promotion is not None)
    return next(
        (promotion for promotion in marks if (promotion.name, promotion.number) == (planned.name, planned.number)), None
    )


def _check_no_other_promotion(
    store: ObjectStore, planned: PromotionPlan, pause: Callable[[], None], clock: Callable[[], float]
) -> None:
    for app in (planned.over, planned.to):
        first, until = holds.find_hold(store, app), clock() + 2 * HOLD_RENEW_S
        while first is not None and (first.name, first.to) != (planned.name, planned.to) and clock() < until:
            pause()
            if (now := holds.find_hold(store, app)) is None:
                break
            if now != first:
                fact = f"{now.by} is promoting {now.to} over {now.name} right now, and holds {app}"
                raise refusal_error(Intent.PROMOTE, Evidence(AppCondition.PROMOTION, fact, "wait until that has ended"))


def _catch_up_and_switch_over(
    store: ObjectStore, kafka: KafkaTopics, planned: PromotionPlan, watch: _HeadPoller, patience: _Waiter, by: str
) -> tuple[Switchover, float]:
    number = planned.number
    while True:
        # Records arrive during catch-up and must be read while the old app is held, so repeat until few are left.
        for _ in range(_MAX_CATCH_UPS):
            began, near = patience.clock(), highest_offsets(watch.poll()[0].values())
            while remaining := max_lag(watch.poll()[1].values(), near):
                patience.wait(f"{planned.staging} is {remaining:,} records behind {planned.name}", planned)
            patience.batches_s = watch.path_duration_s()
            if patience.clock() - began < max(_NEAR_S, patience.batches_s):
                break
        began, until, renewed = patience.clock(), None, 0
        held_s = max(_MIN_HOLD_S, _HOLD_BATCHES * patience.batches_s)
        with _holding(store, planned) as write:
            due = began
            while (now := patience.clock()) < began + held_s:
                old, new = watch.poll()
                at = reachable_position((*old.values(), *new.values()))
                if at != until or now >= due:
                    renewed += 1
                    write(renewed, at, by, tell=at != until)
                    until, due = at, now + HOLD_RENEW_S
                reasons = (why_not_reached(store, head, at) for heads in (new, old) for head in heads.values())
                if why := next(filter(None, reasons), ""):
                    patience.wait(why, planned)
                    continue
                switch = planned.switchover(number, at, by)
                try:
                    return _run_switchover(store, kafka, switch, watch), patience.clock() - began
                except SwitchoverFailed as error:
                    if not withdraw_promotion(store, switch.promote, planned.over, by=by, now_ms=instants.now_ms()):
                        return switch, patience.clock() - began
                    if (has := apps.folder_of(store, planned.name)) != planned.over:
                        raise Refused(
                            f"another promotion gave the name {planned.name} to {has}", hint="repeat the command"
                        ) from error
                    number += 1
                    patience.wait(error.message, planned)
        patience.wait(
            f"{planned.staging} did not catch up with {planned.name} within {held_s:.0f} s; trying again", planned
        )


@contextmanager
def _holding(store: ObjectStore, planned: PromotionPlan) -> Iterator[Callable[..., None]]:
    def write(renewed: int, at: SwitchoverPosition, by: str, *, tell: bool) -> None:
        until, apps_ = dict(at.offsets), (planned.over, planned.to)
        new_holds = (Hold(app, planned.name, planned.to, by, renewed, until, at.clock_ms) for app in apps_)
        holds.put_holds(store, new_holds, wake_runners=tell)

    try:
        yield write
    finally:
        holds.release_holds(store, (planned.over, planned.to))


def _run_switchover(store: ObjectStore, kafka: KafkaTopics, switch: Switchover, watch: _HeadPoller) -> Switchover:
    now_ms = instants.now_ms()
    switch.prepare(store, kafka, watch.poll(), now_ms)
    switch.decide(store, now_ms)
    return switch


def _finish(store: ObjectStore, name: str, number: int, by: str) -> None:
    promotion = apps.PROMOTION_OUTCOMES.find(store, number, name)
    if promotion is None or promotion.withdrawn:
        return
    became = f"the app in folder {promotion.folder} over {name}, until then the one in folder {promotion.over}"
    for app, detail in ((promotion.folder, became), (promotion.over, "")):
        for request in open_requests(store, app) if app == promotion.over else ():
            why = f"the app in folder {promotion.folder} was promoted over this one while it was under way"
            record_operation(store, app, "snapshot failed", f"{request.name}: {why}", by)
            withdraw_request(store, app, request)
        detail_text = detail or f"the app in folder {promotion.folder} has the name {name}"
        versions = _versions(store, app, number)
        record_operation_once(store, app, "promote", detail_text, by, versions, since_ms=promotion.time_ms)
    holds.release_holds(store, (promotion.over, promotion.folder))


def _versions(store: ObjectStore, app: str, number: int) -> dict[str, tuple[int, int]]:
    def is_through(head: Manifest) -> bool:
        return head.promotion is not None and head.promotion.number >= number

    read, first = partial(history.read, store, app), partial(history.first_version, store, app)
    promoted = filter(is_through, heads_of(store, app, stages_of(store, app)).values())
    first_versions = {head.stage: history.first_where(read, first, head, is_through) for head in promoted}
    return {stage: (version - 1, version) for stage, version in first_versions.items()}


def _heads_at_switchover(store: ObjectStore, app: str, heads: Heads, switch: Switchover) -> Heads:
    committed = switch.committed_versions.get(app, {})
    return {stage: history.read(store, app, stage, committed[stage][1]) if stage in committed else head
            for stage, head in heads.items()}  # fmt: skip


def _compare(store: ObjectStore, cache: SstCache | None, old: Heads, new: Heads) -> tuple[TableDiff, ...]:
    if cache is None:
        return ()
    cuts = (
        Cut(next(iter(heads.values())).app, {s: h for s, h in heads.items() if not h.retired}) for heads in (old, new)
    )
    before, after = (StoredCut(store, cut) for cut in cuts)
    return diff(cache, before, after)
