"""Migration of an app to a changed program: pin the state, decide the migration, commit a version of each stage.

Also describes each change in one line, for the output of `migrate` and for the error of `run` if the program changed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ...common import instants, runtime
from ...common.durations import format_ms
from ...errors import Refused
from ...state.fits import ColumnChange, Declared
from ...store.objects.protocol import ObjectStore
from ...store.versions import published
from ...store.versions.manifest import Input, Manifest, Ttl
from ..cut.kafka_topics import KafkaTopics
from ..cut.migrations import MIGRATIONS, MigratedStage, Migration
from ..cut.moments import heads_of, newest_cut, stages_of
from ..take.audit_log import operation_message
from ..take.snapshots import delete_snapshot, pin_cut
from ..under_way.exclusion import AppCondition, Intent, check_exclusion, evidence_of_incomplete, refusal_error
from .migrate_plan import Plan, StageChange, plan_changes
from .migration import finish_migration, unpin_target

MIGRATION_SNAPSHOT_PREFIX = "before-migration-"
"""Prefix of the names of snapshots that pin the state before a migration."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """Result of a migration or a dry run."""

    plan: Plan
    number: int
    snapshot: str
    versions: Mapping[str, int]
    finished: int = 0


def find_plan(
    store: ObjectStore, declared: Declared, renames: Mapping[str, str], *, stages: Mapping[str, str] | None = None
) -> Plan:
    """Return the changes that a program makes to the stored app.

    `renames` maps old to new names of columns, `stages` old to new names of stages. Raises the errors of
    `plan_changes`, `NotFound` if the app does not exist, and `Refused` if an earlier migration is incomplete.
    """
    heads = heads_of(store, declared.app, stages_of(store, declared.app))
    after = check_migration_complete(store, declared.app, heads, Intent.MIGRATE)
    result = plan_changes(heads, declared, renames, stages=stages or {}, after=after)
    for name in heads.keys() - declared.stages.keys():
        # A renamed stage starts new sinks, and a retired stage publishes nothing, so all rows must be published before.
        if not heads[name].retired:
            published.check_all_published(store, heads[name])
    return result


def check_migration_complete(store: ObjectStore, app: str, heads: Mapping[str, Manifest], intent: Intent) -> int:
    """Return the number of the newest migration; 0 for none. Raises `Refused` if a stage has not applied it."""
    last = MIGRATIONS.newest(store, app)
    if last is not None and (missing := last.missing_stages(heads)):
        raise refusal_error(intent, evidence_of_incomplete(last, missing))
    return last.number if last is not None else 0


def check_no_newer_migration(store: ObjectStore, app: str, number: int) -> None:
    """Raise `Refused` if the app was migrated or rewound since the migration `number`."""
    last = MIGRATIONS.newest(store, app)
    if last is not None and last.number > number:
        program = "it was migrated to" if last.verb == "migrate" else "that continues from there"
        raise Refused(
            f"app {app!r} was {last.past_participle} by {last.by} while this run started",
            hint=f"start it again, with the program {program}",
        )


def finish_earlier(store: ObjectStore, app: str, *, now_ms: int) -> int:
    """Finish an incomplete migration; returns the number of the migration, 0 for none.

    Raises the errors of `finish_migration`.
    """
    last = MIGRATIONS.newest(store, app)
    return last.number if last is not None and finish_migration(store, last, now_ms=now_ms) else 0


def migrate(
    store: ObjectStore,
    decided_plan: Plan,
    starts: Mapping[str, Mapping[str, Input]],
    *,
    by: str,
    now_ms: int,
    reader: KafkaTopics | None = None,
) -> Migrated:
    """Carry out a plan from `find_plan` for all stages or none. Neither reads nor writes table data.

    `starts` has the start positions of new inputs, by stage and declared name (`Plan.unread`); `by` is user@host. With
    a `reader`, the snapshot keeps in-flight records; otherwise Kafka keeps them until its retention ends.

    Raises `Refused`, without a change, if another migration was decided first, or if stages could not answer an open
    snapshot request with their new inputs or names. After `Unavailable`, the next call finishes the migration.
    """
    if not decided_plan.changes:
        return Migrated(decided_plan, 0, "", {})
    steps = {
        old: replace(step, inputs=dict(starts.get(step.called or old, {}))) for old, step in decided_plan.steps.items()
    }
    if any(step.invalidates_requests for step in steps.values()):
        check_exclusion(store, decided_plan.app, Intent.MIGRATE, AppCondition.SNAPSHOT)
    number = decided_plan.after + 1
    cut = newest_cut(store, decided_plan.app, stages_of(store, decided_plan.app))
    name = f"{MIGRATION_SNAPSHOT_PREFIX}{number}-{instants.format_iso(now_ms).translate(_DIGITS)}"
    pin_cut(store, cut, name, by=by, reader=reader)
    summary = ", ".join(
        f"{change.stage} {change.kind}" + (f", until now {change.formerly}" if change.formerly else "")
        for change in decided_plan.changes
    )
    return Migrated(
        decided_plan,
        number,
        name,
        carry_out(store, decided_plan.app, number, steps, name, summary, by=by, now_ms=now_ms),
    )


def carry_out(
    store: ObjectStore,
    app: str,
    number: int,
    steps: Mapping[str, MigratedStage],
    snapshot: str,
    summary: str,
    *,
    by: str,
    now_ms: int,
    recovery: str = "",
) -> dict[str, int]:
    """Decide a migration with these steps, and commit its versions. Returns the new version of each stage.

    `snapshot` pins the state before the migration, and `summary` is the text for the audit log. `recovery` is the id of
    the recovery that the migration implements. After the migration is decided, later commands complete it if this call
    is interrupted. Raises `Refused` if a concurrent migration was decided first; then nothing changed, and the snapshot
    is deleted. Also raises the errors of `finish_migration`.
    """
    detail = f"{number}: {summary}; before it {app}@{snapshot}"
    id_ = recovery or str(runtime.ulid())
    migration = Migration(
        app, number, id_, by, now_ms, snapshot, dict(steps), detail, operation_message(), bool(recovery)
    )
    # Create-if-absent: the first migration with this number wins.
    decided = MIGRATIONS.add(store, migration)
    versions = finish_migration(store, decided, now_ms=now_ms)
    if decided.id == migration.id:
        return versions
    # The winning migration may use the same snapshot. If it is a rewind, it is complete and needs no pin.
    if decided.snapshot != snapshot:
        delete_snapshot(store, app, snapshot)
    unpin_target(store, app, number)
    raise Refused(
        f"app {app!r} was {decided.past_participle} at the same time by {decided.by}, so this command changed nothing",
        hint=f"see the result with `slackwater log {app}`, and repeat this command if it is still needed",
    )


_DIGITS = str.maketrans({"-": "", ":": "", "T": "-", "Z": ""})


def describe_stage_change(change: StageChange) -> Iterator[str]:
    """Yield one line of text for each change of a stage."""
    if change.formerly:
        yield f"renamed from {change.formerly}: earlier history keeps the old name"
    if change.kind == "retired":
        yield "retired: no longer in the program; its history and table are kept"
        if change.may_be:
            yield f"if it was renamed to {change.may_be}, add --rename-stage {change.stage}={change.may_be}"
    if change.kind == "added":
        yield "new: starts with the next run"
    yield from map(describe_column_change, change.columns)
    if change.due is not None:
        old_due, new_due = change.due
        if not old_due:
            yield f"+ {new_due}: new rows fall due; existing ones once they are rewritten"
        elif not new_due:
            yield f"- {old_due}: rows no longer fall due"
        else:
            yield f"~ {new_due}, was {old_due}; existing rows keep their due times"
    elif change.others:
        yield "columns are declared in another order or form; rows do not change"
    if change.ttl is not None:
        yield f"time to live: {_span(change.ttl[1])}, was {_span(change.ttl[0])}"
    yield from (f"starts to read {name}" for name in change.inputs)
    yield from (f"stops reading {name}" for name in change.gone)
    yield from (f"starts to write {name} at its next start" for name in change.outputs)
    yield from (f"stops writing {name} at its next start" for name in change.dropped)
    for old, new in change.guesses:
        yield f"if {old} was renamed to {new}, add --rename {old}={new}; otherwise {old} is dropped"


def describe_column_change(change: ColumnChange) -> str:
    match change.kind:
        case "added":
            meaning = f" = {change.meaning}, from now on" if change.meaning else ""
            value = "null" if change.default is None else change.default
            return f"+ {change.column} {change.type}{meaning}; existing rows have {value}"
        case "removed":
            return f"- {change.column} {change.type}"
        case "renamed":
            return f"~ {change.before} is renamed to {change.column}"
        case "widened":
            return f"~ {change.column} is {change.type}, was {change.before}"


def _span(ttl: Ttl | None) -> str:
    if ttl is None or not ttl.ms:
        return "none"
    return f"{format_ms(ttl.ms)}{f' by {ttl.column}' if ttl.column else ''}"
