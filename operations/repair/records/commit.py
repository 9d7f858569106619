"""Repair of an app: takes records out of the tables, or puts others in their place, as one version a stage.

Protocol:

1. Plan the rows of all stages without the records. A dry run ends here.
2. Put the repair (`journal`), which later repairs and an undo read.
3. Beside a runner, hold the app at its offsets until all stages have read their channels, and plan again: only batches
   since the first plan are replayed.
4. Commit each stage's rows, senders first, through its runner, or here if it has none. A stage whose head has read
   records since the plan refuses, and the plan is made again.
5. Mark the repair as done; an undo removes it.

The plan is a function of the history and of the repairs in force, and what it changes is compared with the newest
rows. So the same call after a crash commits only what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from ....common import instants, runtime
from ....errors import Refused, SlackwaterError
from ....pipeline.run.background import background_thread
from ....snapshot.change.edit import finish_repairs, put_rows
from ....snapshot.change.switch import reachable_position, why_not_reached
from ....snapshot.cut.moments import heads_of, stages_of
from ....snapshot.take.audit_log import operation_message
from ....snapshot.under_way import runners
from ....snapshot.under_way.exclusion import RUNS_ELSEWHERE, AppCondition, Intent, check_exclusion
from ....snapshot.under_way.runners import Hold, Outdated, live_heartbeats
from ....store.versions.manifest import Edit, Manifest
from ...debugging.replay.batches import OpenBatches
from ...debugging.replay.program import LoadedProgram
from .journal import REPAIRS, Repair, new_parts, repair_to_undo, substitutes_of
from .plan import RepairPlan, RepairPlanner, Seeds, Substitutes
from .stage_fold import edit_rows

_POLL_S = 0.2
_MAX_KEPT_HASHES = 10_000
"""Maximum number of followed keys that the journal has of a repair; a repair of more is taken to meet all keys."""
_MAX_PLANS = 20
"""Number of plans after which a repair gives up, because other commits come first each time."""


@dataclass(frozen=True, slots=True)
class RepairDone:
    """Result of a repair or a dry run."""

    plan: RepairPlan
    repair: Repair | None
    """The new or undone repair; None if the records' repairs were in force already."""
    undone: bool
    versions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By changed stage, the version before the repair and the repair's version."""
    held_s: float = 0.0
    """Seconds for which runners read nothing."""


@dataclass
class RepairCall:
    """Call of a repair.

    Args:
        program: The program that ran, open for replays.
        requested: Records to take out or to replace; for an undo, the values of replaced records.
        undo: True to undo the newest repair.
        max_keys: Maximum number of keys of all stages whose past is changed.
        no_sinks: True to leave what sinks got as it is; else a repair that changes what they got is refused.
        on_wait: Called with the reason of a wait.
        on_version: Called before each version is replayed.
    """

    program: LoadedProgram
    requested: Substitutes
    by: str
    undo: bool = False
    max_keys: int = 1_000
    no_sinks: bool = False
    timeout_s: float = 60.0
    on_wait: Callable[[str], None] = lambda _why: None
    on_version: Callable[[Manifest], None] = lambda _manifest: None

    def __post_init__(self) -> None:
        self._planner = RepairPlanner(OpenBatches(self.program), self.max_keys, self.on_version)
        self._versions: dict[str, tuple[int, int]] = {}
        self._followed: Mapping[str, frozenset[int]] = {}
        self._others: list[Repair] = []
        self._repair: Repair | None = None
        self._has_asked = False
        self._held_s = 0.0

    @property
    def app(self) -> str:
        return self.program.app.name

    def run(self, *, dry_run: bool = False) -> RepairDone:
        """Carry the repair out.

        Raises:
            NotFound: No stage has read a record, or versions that did were collected; or there is nothing to undo.
            Refused: See `RepairPlanner.plan` and `substitutes_of`; sinks got rows that are to be others; a stage has
                rows to read that are to be others and no runner; another repair is under way; or others kept
                committing.
        """
        store, undo, heads = self.program.store, self.undo, self._heads()
        check_exclusion(store, self.app, Intent.EDIT, *RUNS_ELSEWHERE, AppCondition.FORGETTING, dry_run=dry_run)
        self._others = [other for other in REPAIRS.all(store, self.app) if other.is_in_force(heads)]
        former = repair_to_undo(self.app, self._others) if undo else self._check_alone()
        if undo and former is not None:
            repair: Repair | None = replace(former, state="undoing")
        else:
            dropped, replaced = new_parts(self._others, self.requested)
            new = Repair(str(runtime.ulid()), self.by, instants.now_ms(), dropped, replaced)
            repair = new if dropped or replaced else former
        self._repair = repair
        plan = self._plan(heads)
        if dry_run:
            return RepairDone(plan, repair, undo)
        self._check_sinks(plan)
        finish_repairs(store, self.app, plan.heads)
        with self._journal(former):
            plan = self._commit_all(plan)
        return RepairDone(plan, repair, undo, self._versions, self._held_s)

    def _check_alone(self) -> Repair | None:
        """Return the interrupted repair that this call finishes, or None. Raises `Refused` if there is another one."""
        for other in self._others:
            if other.state == "begun" and other.records == self._names:
                return other
            if other.state != "done":
                raise Refused(
                    f"repair {other.id}, by {other.by}, is under way or was interrupted: {other.what}",
                    hint="wait for it; if it was interrupted, repeat its command, or `slackwater repair APP --undo`",
                )
        return None

    @contextmanager
    def _journal(self, former: Repair | None) -> Iterator[None]:
        """Put the repair before its rows are committed, and write its end afterwards.

        If no rows were requested to be committed because of an error, the journal is then as it was before.
        """
        store, repair = self.program.store, self._repair
        if repair is None:
            yield
            return
        REPAIRS.put(store, repair, self.app)
        try:
            if any(other.state != "done" and other.id != repair.id for other in REPAIRS.all(store, self.app)):
                raise Refused(f"another repair of {self.app} begins at the same time", hint="repeat the command")
            yield
        except SlackwaterError:
            if not self._has_asked:
                if former is None:
                    REPAIRS.remove(store, repair.id, self.app)
                else:
                    REPAIRS.put(store, former, self.app)
            raise
        if self.undo:
            REPAIRS.remove(store, repair.id, self.app)
            return
        versions = repair.versions | {stage: version for stage, (_, version) in self._versions.items()}
        touched = {stage: tuple(sorted(hashes)) for stage, hashes in self._followed.items() if hashes}
        is_small = sum(map(len, touched.values())) <= _MAX_KEPT_HASHES
        REPAIRS.put(
            store, replace(repair, state="done", versions=versions, touched=touched if is_small else None), self.app
        )

    def _heads(self) -> dict[str, Manifest]:
        store = self.program.store
        heads = heads_of(store, self.app, stages_of(store, self.app))
        return {stage: head for stage, head in heads.items() if not head.retired}

    def _plan(self, heads: Mapping[str, Manifest]) -> RepairPlan:
        """Plan the rows without the records of this repair, and of earlier repairs that followed one of its keys."""
        if unknown := [stage for stage in heads if stage not in self.program.app.stages]:
            raise Refused(
                f"the program has no stage {', '.join(unknown)}, which {self.app} has",
                hint="give the program that runs: --code FILE",
            )
        own = self._repair
        included = [own] if own is not None else [other for other in self._others if other.records & self._names]
        while True:
            seeds: Seeds = {}
            followed: dict[str, frozenset[int]] = {}
            if self.undo:
                # What the repair changed is to be changed back.
                before = self._planner.plan(heads, substitutes_of(included, self.requested), {})
                seeds, followed = before.begun, dict(before.followed)
            after = [repair for repair in included if not (self.undo and repair is own)]
            plan = self._planner.plan(heads, substitutes_of(after, self.requested), seeds)
            for stage, hashes in plan.followed.items():
                followed[stage] = followed.get(stage, frozenset()) | hashes
            known = {repair.id for repair in included}
            more = [other for other in self._others if other.id not in known and other.meets(followed)]
            if not more:
                self._followed = followed
                return plan
            included = sorted((*included, *more), key=lambda repair: repair.id)

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(map(str, self.requested))

    def _check_sinks(self, plan: RepairPlan) -> None:
        if plan.sinks and not self.no_sinks:
            names = ", ".join(dict.fromkeys(f"{sink.stage}@v{sink.version} to {sink.sink!r}" for sink in plan.sinks))
            raise Refused(
                f"sinks of {self.app} got rows that the repair would change: {names}; a repair sends nothing to sinks",
                hint="--dry-run shows these rows; --no-sinks repairs the tables, and leaves the sinks to you",
            )

    def _commit_all(self, plan: RepairPlan) -> RepairPlan:
        if not live_heartbeats(self.program.store, self.app, instants.now_ms()):
            return self._commit(plan)
        began = runtime.monotonic()
        with self._holding():
            self._await_quiet(began + self.timeout_s)
            try:
                return self._commit(self._plan(self._heads()))
            finally:
                self._held_s = runtime.monotonic() - began

    def _commit(self, plan: RepairPlan) -> RepairPlan:
        whole, what = plan, self._repair.what if self._repair is not None else ""
        for _ in range(_MAX_PLANS):
            self._check_sinks(plan)
            if plan.in_flight:
                reader, channel, version = plan.in_flight[0]
                raise Refused(
                    f"{self.app}/{reader} has still to read what v{version} of the sender sent to {channel!r}, which "
                    "the records went into",
                    hint=f"run the app until it has read it, and repeat the command: slackwater status {self.app}",
                )
            try:
                for stage, changes in plan.changes.items():
                    edit = Edit(str(runtime.ulid()), self.by, what, operation_message())
                    head = plan.heads[stage]
                    rows = edit_rows(changes)
                    self._has_asked = True
                    done = put_rows(
                        self.program.store,
                        self.program.cache,
                        head,
                        rows,
                        edit,
                        timeout_s=self.timeout_s,
                        on_wait=lambda runner: self.on_wait(f"waiting for {runner} to apply the repair"),
                    )
                    self._versions[stage] = done.version - 1, done.version
                return whole
            except Outdated as error:
                self.on_wait(f"{error.message}; planning again")
                plan = self._plan(self._heads())
        raise Refused(f"other commits of {self.app} came first {_MAX_PLANS} times", hint="repeat the command")

    def _await_quiet(self, until_s: float) -> None:
        told = ""
        while True:
            heads = self._heads()
            at = reachable_position(heads.values())
            reasons = (why_not_reached(self.program.store, head, at) for head in heads.values())
            if not (why := next(filter(None, reasons), "")):
                return
            if runtime.monotonic() > until_s:
                raise Refused(
                    f"the stages of {self.app} did not come to rest within {self.timeout_s:g} s: {why}",
                    hint="repeat the command, with a longer --timeout",
                )
            if why != told:
                self.on_wait(why)
                told = why
            runtime.sleep(_POLL_S)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Hold the app's runners where they are."""
        store, app, renewed, lock = self.program.store, self.app, 0, runtime.lock()

        def renew() -> None:
            nonlocal renewed
            with lock:
                at = reachable_position(self._heads().values())
                hold = Hold(app, app, app, self.by, renewed, dict(at.offsets), at.clock_ms)
                runners.put_holds(store, [hold], wake_runners=not renewed)
                renewed += 1

        def keep_renewing(over: runtime.Event) -> None:
            # A replay may take longer than a hold lasts.
            while not over.wait(runners.HOLD_RENEW_S):
                with suppress(SlackwaterError):
                    renew()

        try:
            renew()
            with background_thread("repair-hold", keep_renewing):
                yield
        finally:
            runners.release_holds(store, [app])
