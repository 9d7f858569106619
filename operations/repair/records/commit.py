"""Repair of an app: removes or replaces records in the tables, with one new version per stage.

Protocol:

1. Plan the rows of all stages without the records. A dry run ends here.
2. Put the repair into the journal (`journal`), which later repairs and an undo read.
3. If a runner is alive, hold the app at its offsets until all stages have read their channels, and plan again. The
   second plan replays only batches that were committed since the first plan.
4. Commit each stage's rows, senders first, through the stage's runner, or here without a runner. The same version has
   the records for sinks that can be corrected; the sink's publisher publishes them like records of a batch. If a
   stage has read records since the plan, it refuses the rows, and the plan is made again.
5. Mark the repair as done, or as undone.

The plan depends only on the history and on the repairs in force. Planned rows are compared with the newest rows, so a
repeated call after a crash commits only the missing versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from msgspec.structs import replace

from ....common import instants, runtime
from ....errors import BadRecord, Refused, SlackwaterError
from ....pipeline.messages.outbox import send_for_repair
from ....snapshot.bisect.verdict import RecordLocation
from ....snapshot.change.edit import finish_repairs, put_rows
from ....snapshot.change.edited import Change
from ....snapshot.cut.moments import heads_of, stages_of
from ....snapshot.take.audit_log import operation_message
from ....snapshot.under_way.exclusion import RUNS_ELSEWHERE, AppCondition, Intent, check_exclusion
from ....snapshot.under_way.runners import Outdated, live_heartbeats
from ....store.versions.manifest import Edit, Manifest, Sink
from ...debugging.replay.batches import OpenBatches
from ...debugging.replay.program import LoadedProgram
from .corrections import records_for_sinks
from .hold import await_rest, holding
from .journal import (
    REPAIRS,
    Repair,
    joined_seeds,
    new_parts,
    repair_to_undo,
    seeds_of_undone,
    standing_repairs,
    substitutes_of,
)
from .plan import RepairPlan, RepairPlanner, Seeds, readings
from .stage_fold import edit_rows

_MAX_KEPT_HASHES = 10_000
"""Maximum number of followed keys that the journal stores. A repair with more keys is assumed to affect all keys."""
_MAX_PLANS = 20
"""Maximum number of plans of one repair. A plan is outdated if another commit comes first."""


@dataclass(frozen=True, slots=True)
class RepairDone:
    """Result of a repair or a dry run."""

    plan: RepairPlan
    repair: Repair | None
    """The new or undone repair; None if an earlier repair has already changed these records."""
    undone: bool
    versions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Version before the repair and version of the repair, by changed stage."""
    held_s: float = 0.0
    """Seconds during which runners were held."""
    leaves_sinks: bool = False


@dataclass
class RepairCall:
    """Call of a repair.

    Args:
        program: The program that ran, open for replays.
        requested: Records to remove (None), or to replace by a value; for an undo, the values of replaced records.
        undo: True to undo the newest repair.
        max_keys: Maximum number of keys, in all stages, whose past is changed.
        no_sinks: True to leave published rows of sinks unchanged. Otherwise a repair that cannot correct them is
            refused.
        since: Version up to which the original records stay in effect, by stage.
        on_wait: Called with the reason of a wait.
        on_version: Called before each version is replayed.
    """

    program: LoadedProgram
    requested: Mapping[RecordLocation, bytes | None]
    by: str
    undo: bool = False
    max_keys: int = 1_000
    no_sinks: bool = False
    since: Mapping[str, int] = field(default_factory=dict)
    timeout_s: float = 60.0
    on_wait: Callable[[str], None] = lambda _why: None
    on_version: Callable[[Manifest], None] = lambda _manifest: None

    def __post_init__(self) -> None:
        self._planner = RepairPlanner(OpenBatches(self.program), self.max_keys, self.on_version)
        self._versions: dict[str, tuple[int, int]] = {}
        self._followed: Mapping[str, frozenset[int]] = {}
        self._others: list[Repair] = []
        self._undone: list[Repair] = []
        self._heads_of_plan: Mapping[str, Manifest] = {}
        self._repair: Repair | None = None
        self._has_asked = False
        self._held_s = 0.0

    @property
    def app(self) -> str:
        return self.program.app.name

    def run(self, *, dry_run: bool = False) -> RepairDone:
        """Carry out the repair.

        Raises:
            NotFound: No stage has read a record since `since`, or versions that did were collected; or there is no
                repair to undo.
            Refused: See `RepairPlanner.plan` and `substitutes_of`. Also if published rows of sinks cannot be corrected;
                if a sink would refuse corrected records; if unread rows of a channel would change and their reader has
                no runner; if another repair is in progress; or if other writers kept committing.
        """
        store, undo, heads = self.program.store, self.undo, self._heads()
        check_exclusion(store, self.app, Intent.REPAIR, *RUNS_ELSEWHERE, AppCondition.FORGETTING, dry_run=dry_run)
        repairs = [repair for repair in REPAIRS.all(store, self.app) if repair.is_in_force(heads)]
        self._others = [repair for repair in repairs if repair.state != "undone"]
        self._undone = [repair for repair in repairs if repair.state == "undone"]
        former = repair_to_undo(self.app, self._others) if undo else self._check_alone(heads)
        if undo and former is not None:
            repair: Repair | None = replace(former, state="undoing")
        else:
            dropped, replaced = new_parts(
                self._others, self.requested, lambda record, other: self._are_same(heads, record, other)
            )
            new = Repair(str(runtime.ulid()), self.by, instants.now_ms(), dropped, replaced, dict(self.since))
            repair = new if dropped or replaced else former
        self._repair = repair
        plan = self._plan(heads)
        if dry_run:
            if not self.no_sinks:
                self._records(plan)
            return RepairDone(plan, repair, undo, leaves_sinks=self.no_sinks)
        self._check_sinks(plan)
        finish_repairs(store, self.app, plan.heads)
        with self._journal(former):
            plan = self._commit_all(plan)
        return RepairDone(plan, repair, undo, self._versions, self._held_s, self.no_sinks)

    def _check_alone(self, heads: Mapping[str, Manifest]) -> Repair | None:
        """Return the interrupted repair that this call finishes, or None.

        Raises `Refused` for any other unfinished repair.
        """
        done = frozenset[str]().union(*(other.records for other in self._others if other.state == "done"))
        for other in self._others:
            is_own = other.state == "begun" and other.records == self._names - done
            if is_own and all(self._are_same(heads, RecordLocation.parse(name), other) for name in other.records):
                return other
            if other.state != "done":
                raise Refused(
                    f"repair {other.id}, by {other.by}, is under way or was interrupted: {other.what}",
                    hint="wait for it; if it was interrupted, repeat its command, or `slackwater repair APP --undo`",
                )
        return None

    def _are_same(self, heads: Mapping[str, Manifest], record: RecordLocation, other: Repair) -> bool:
        """Return True if another repair affects the same reads of a record as this call."""
        if self.since == other.since:
            return True
        own, theirs = ([*readings(self.program.store, heads, record, since)] for since in (self.since, other.since))
        return own == theirs

    @contextmanager
    def _journal(self, former: Repair | None) -> Iterator[None]:
        """Write the repair to the journal before its rows are committed, and its end afterwards.

        If an error occurs before the first commit, the former journal entry is restored.
        """
        store, repair = self.program.store, self._repair
        if repair is None:
            yield
            return
        REPAIRS.put(store, repair, self.app)
        try:
            if any(other.state != "done" and other.id != repair.id for other in standing_repairs(store, self.app)):
                raise Refused(f"another repair of {self.app} begins at the same time", hint="repeat the command")
            yield
        except SlackwaterError:
            if not self._has_asked:
                if former is None:
                    REPAIRS.remove(store, repair.id, self.app)
                else:
                    REPAIRS.put(store, former, self.app)
            raise
        if self.undo and repair.versions:
            planned = {stage: head.version for stage, head in self._heads_of_plan.items() if stage in repair.versions}
            now = planned | {stage: version for stage, (_, version) in self._versions.items()}
            REPAIRS.put(store, replace(repair, state="undone", undone=now), self.app)
            return
        if self.undo:
            REPAIRS.remove(store, repair.id, self.app)
            return
        # A stage whose rows a call that was killed committed, or nobody, has at least the versions of the plan.
        planned = {stage: self._heads_of_plan[stage].version for stage, hashes in self._followed.items() if hashes}
        versions = planned | repair.versions | {stage: version for stage, (_, version) in self._versions.items()}
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
        """Plan the rows without the records of this repair, and of earlier repairs that share a followed key."""
        if unknown := [stage for stage in heads if stage not in self.program.app.stages]:
            raise Refused(
                f"the program has no stage {', '.join(unknown)}, which {self.app} has",
                hint="give the app's current program: --code FILE",
            )
        own = self._repair
        included = [own] if own is not None else [other for other in self._others if other.records & self._names]
        self._heads_of_plan = heads
        earlier: Seeds = {}
        while True:
            seeds, followed = earlier, dict[str, frozenset[int]]()
            in_force = included if self.undo else [repair for repair in included if repair is not own]
            if in_force:
                # Keys whose rows the repairs in force changed are followed again: with the new substitutes, a batch may
                # give them the rows that it committed at first, although a repair has changed their newest rows.
                before = self._planner.plan(heads, substitutes_of(in_force, self.requested), earlier)
                seeds, followed = before.begun, dict(before.followed)
            after = [repair for repair in included if not (self.undo and repair is own)]
            plan = self._planner.plan(heads, substitutes_of(after, self.requested), seeds)
            for stage, hashes in plan.followed.items():
                followed[stage] = followed.get(stage, frozenset()) | hashes
            included_ids = {repair.id for repair in included}
            more = [other for other in self._others if other.id not in included_ids and other.meets(followed)]
            further = seeds_of_undone(self._undone, plan.begun, earlier)
            if not more and not further:
                self._followed = followed
                return plan
            included = sorted((*included, *more), key=lambda repair: repair.id)
            earlier = joined_seeds(earlier, further)

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(map(str, self.requested))

    def _check_sinks(self, plan: RepairPlan) -> None:
        counts = Counter[tuple[str, str]]()
        for sink in plan.uncorrected if not self.no_sinks else ():
            counts[sink.stage, sink.sink] += sink.withdrawn.num_rows + sink.new.num_rows
        if counts:
            names = ", ".join(f"{rows:,} of {stage} to {sink!r}" for (stage, sink), rows in counts.items())
            raise Refused(
                f"sinks of {self.app} published rows that a repair cannot correct, because they are not the newest "
                f"rows of a table's keys: {names}",
                hint="--dry-run shows these rows; --no-sinks repairs the tables, and sends nothing to sinks",
            )

    def _commit_all(self, plan: RepairPlan) -> RepairPlan:
        if not live_heartbeats(self.program.store, self.app, instants.now_ms()):
            return self._commit(plan)
        began = runtime.monotonic()
        with holding(self.program.store, self.app, self.by, self._heads):
            await_rest(self.program.store, self.app, self._heads, self.timeout_s, self.on_wait)
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
                    f"{self.app}/{reader} has not yet read rows of these records, which v{version} of the sender wrote "
                    f"to {channel!r}",
                    hint=f"run the app until `slackwater status {self.app}` shows no lag there, and repeat the command",
                )
            try:
                records = {} if self.no_sinks else self._records(plan)
                self._note_versions(plan)
                for stage, changes in plan.changes.items():
                    edit = Edit(str(runtime.ulid()), self.by, what, operation_message())
                    head = plan.heads[stage]
                    change = Change(rows=edit_rows(changes), records=records.get(stage, {}))
                    self._has_asked = True
                    done = put_rows(
                        self.program.store,
                        self.program.cache,
                        head,
                        change,
                        edit,
                        send=self._send,
                        timeout_s=self.timeout_s,
                        on_wait=lambda runner: self.on_wait(f"waiting for {runner} to apply the repair"),
                    )
                    self._versions[stage] = done.version - 1, done.version
                return whole
            except Outdated as error:
                self.on_wait(f"{error.message}; planning again")
                plan = self._plan(self._heads())
        raise Refused(f"other commits of {self.app} came first {_MAX_PLANS} times", hint="repeat the command")

    def _note_versions(self, plan: RepairPlan) -> None:
        """Write the versions that the repair is about to commit to the journal, in case this call is killed."""
        if self._repair is not None and not self.undo:
            coming = {stage: plan.heads[stage].version + 1 for stage in plan.changes}
            self._repair = replace(self._repair, versions=self._repair.versions | coming)
            REPAIRS.put(self.program.store, self._repair, self.app)

    def _records(self, plan: RepairPlan) -> dict[str, dict[str, pa.Table]]:
        """Return the corrections for sinks, by stage and sink."""
        try:
            return {
                stage: records_for_sinks(self.program, plan.heads[stage], changes)
                for stage, changes in plan.changes.items()
            }
        except BadRecord as error:
            raise Refused(error.message, hint="--no-sinks repairs the tables, and sends nothing to sinks") from error

    def _send(self, base: Manifest, records: Mapping[str, pa.Table]) -> Mapping[str, Sink]:
        return send_for_repair(self.program.kafka, base, records, patience_s=self.program.patience_s)
