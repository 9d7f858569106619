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
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from ....common import instants, runtime
from ....errors import Refused
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
from .plan import RepairPlan, RepairPlanner, Substitutes
from .stage_fold import edit_rows

_POLL_S = 0.2
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
        self._held_s = 0.0

    @property
    def app(self) -> str:
        return self.program.app.name

    def run(self, *, dry_run: bool = False) -> RepairDone:
        """Carry the repair out.

        Raises:
            NotFound: No stage has read a record, or versions that did were collected; or there is nothing to undo.
            Refused: See `RepairPlanner.plan` and `substitutes_of`; sinks got rows that are to be others; a stage has
                rows to read that are to be others and no runner; or others kept committing.
        """
        store, undo = self.program.store, self.undo
        check_exclusion(store, self.app, Intent.EDIT, *RUNS_ELSEWHERE, AppCondition.FORGETTING, dry_run=dry_run)
        before = REPAIRS.all(store, self.app)
        if undo:
            repair: Repair | None = replace(repair_to_undo(store, self.app), state="undoing")
        else:
            dropped, replaced = new_parts(before, self.requested)
            new = Repair(str(runtime.ulid()), self.by, instants.now_ms(), dropped, replaced)
            repair = new if dropped or replaced else None
        others = [other for other in before if repair is None or other.id != repair.id]
        after = [other for other in (*others, *([repair] if repair else ())) if other.state != "undoing"]
        sets = substitutes_of(before, self.requested), substitutes_of(after, self.requested)
        plan = self._plan(self._heads(), *sets)
        if dry_run:
            return RepairDone(plan, repair, undo)
        self._check_sinks(plan)
        finish_repairs(store, self.app, plan.heads)
        if repair is not None:
            REPAIRS.put(store, repair, self.app)
        plan = self._commit_all(plan, sets, (repair or (*before,)[-1]).what)
        for other in REPAIRS.all(store, self.app):
            if other.state == "undoing":
                REPAIRS.remove(store, other.id, self.app)
            elif other.state == "begun":
                REPAIRS.put(store, replace(other, state="done"), self.app)
        return RepairDone(plan, repair, undo, self._versions, self._held_s)

    def _heads(self) -> dict[str, Manifest]:
        store = self.program.store
        heads = heads_of(store, self.app, stages_of(store, self.app))
        return {stage: head for stage, head in heads.items() if not head.retired}

    def _plan(self, heads: Mapping[str, Manifest], before: Substitutes, after: Substitutes) -> RepairPlan:
        if unknown := [stage for stage in heads if stage not in self.program.app.stages]:
            raise Refused(
                f"the program has no stage {', '.join(unknown)}, which {self.app} has",
                hint="give the program that runs: --code FILE",
            )
        # What earlier repairs changed may have to be changed back.
        seeds = self._planner.plan(heads, before, {}).begun if before else {}
        return self._planner.plan(heads, after, seeds)

    def _check_sinks(self, plan: RepairPlan) -> None:
        if plan.sinks and not self.no_sinks:
            names = ", ".join(dict.fromkeys(f"{sink.stage}@v{sink.version} to {sink.sink!r}" for sink in plan.sinks))
            raise Refused(
                f"sinks of {self.app} got rows that the repair would change: {names}; a repair sends nothing to sinks",
                hint="--dry-run shows these rows; --no-sinks repairs the tables, and leaves the sinks to you",
            )

    def _commit_all(self, plan: RepairPlan, sets: tuple[Substitutes, Substitutes], what: str) -> RepairPlan:
        if not live_heartbeats(self.program.store, self.app, instants.now_ms()):
            return self._commit(plan, sets, what)
        began = runtime.monotonic()
        with self._holding() as renew:
            self._await_quiet(renew, began + self.timeout_s)
            try:
                return self._commit(self._plan(self._heads(), *sets), sets, what, renew)
            finally:
                self._held_s = runtime.monotonic() - began

    def _commit(
        self,
        plan: RepairPlan,
        sets: tuple[Substitutes, Substitutes],
        what: str,
        renew: Callable[[], None] = lambda: None,
    ) -> RepairPlan:
        whole = plan
        for _ in range(_MAX_PLANS):
            if plan.in_flight:
                reader, channel, version = plan.in_flight[0]
                raise Refused(
                    f"{self.app}/{reader} has still to read what v{version} of the sender sent to {channel!r}, which "
                    "the records went into",
                    hint=f"run the app until it has read it, and repeat the command: slackwater status {self.app}",
                )
            try:
                for stage, changes in plan.changes.items():
                    renew()
                    edit = Edit(str(runtime.ulid()), self.by, what, operation_message())
                    head = plan.heads[stage]
                    rows = edit_rows(changes)
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
                plan = self._plan(self._heads(), *sets)
        raise Refused(f"other commits of {self.app} came first {_MAX_PLANS} times", hint="repeat the command")

    def _await_quiet(self, renew: Callable[[], None], until_s: float) -> None:
        told = ""
        while True:
            renew()
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
    def _holding(self) -> Iterator[Callable[[], None]]:
        """Hold the app's runners where they are. Yields a function that renews the hold."""
        store, app, renewed, due_s = self.program.store, self.app, 0, 0.0

        def renew() -> None:
            nonlocal renewed, due_s
            if runtime.monotonic() < due_s:
                return
            at = reachable_position(self._heads().values())
            hold = Hold(app, app, app, self.by, renewed, dict(at.offsets), at.clock_ms)
            runners.put_holds(store, [hold], wake_runners=not renewed)
            renewed, due_s = renewed + 1, runtime.monotonic() + runners.HOLD_RENEW_S

        try:
            yield renew
        finally:
            runners.release_holds(store, [app])
