"""Commit the versions of a decided migration, rewind, reset or recovery: one commit for each stage.

All checks were made before the decision, and the steps need no program. Any process that finds stages without their
step, such as a runner or the next migration, first commits these steps.

The history of a renamed stage ends under the old name. It continues under the new name, in a version with an equal
number and equal SSTs. Rows in flight count as sent under the new name: readers keep their offsets, and the manifest
under the new name has the attempts of these rows. Neither the store nor Kafka copies data.

A rewind also passes on in-flight rows by naming their attempts. Messages of undone versions are never read, since
readers continue at offsets after these messages.
"""

from collections.abc import Mapping
from functools import partial

import xxhash
from msgspec.structs import replace

from ...common import runtime
from ...errors import Refused
from ...state import records
from ...state.kinds.kind import kind_of
from ...state.records import NOT_KNOWN
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.sst.schema import DUE
from ...store.versions import commit, history
from ...store.versions.amend import Amendment, amend, commit_first
from ...store.versions.manifest import FormerName, Input, Manifest, Output, Reset, Rewind, SideTable, Table
from ...store.versions.side_tables import part_tables, with_part_tables
from ..cut.graph import topological_order
from ..cut.migrations import MIGRATIONS, MigratedStage, Migration, Unread
from ..cut.moments import heads_of
from ..cut.stored import list_snapshots, open_requests, withdraw_request
from ..take.audit_log import OPERATIONS, record_operation
from ..take.snapshots import delete_snapshot
from .migrate_plan import inputs_of_channel

Heads = Mapping[str, Manifest]  # by stage


def finish_migration(store: ObjectStore, migration: Migration, *, now_ms: int) -> dict[str, int]:
    """Commit the version of each stage that has not applied a migration yet. Idempotent.

    Renamed stages come first, so that readers find the stages under the new names. Then receivers come before senders,
    so that no active stage reads a retired stage. In a rewind, senders come before receivers, since the readers'
    manifests name the senders' new versions. At the end, open snapshot requests that stages can no longer answer are
    withdrawn.

    The call that completes the migration also records it in the audit log under the original author, and unpins the
    target of a rewind.

    Returns the version of each stage that this call committed. Raises `CommitConflict` if other writers kept winning
    the race for a stage's next version, and `Unavailable`; calling again continues.
    """
    # Includes stages that began meanwhile.
    heads = heads_of(store, migration.app, history.list_stages(store, migration.app))
    ended, versions = _rename(store, migration, heads, now_ms)
    # The readers of a renamed stage must commit after its first version under the new name.
    now_ms = max((now_ms, *(last.time_ms + 1 for last in ended.values())))
    # A stage needs the old version of its sender, even if the sender has already been rewound.
    is_done = all(map(migration.is_applied_by, heads.values()))
    targets = {
        stage: history.read(store, migration.app, stage, step.rewound)
        for stage, step in migration.stages.items()
        if step.rewound and not is_done
    }
    newest = dict(heads)

    def change(step: MigratedStage) -> Amendment:
        def update(draft: Manifest) -> Manifest:
            if step.rewound is None:
                return apply_step(_with_renamed_senders(draft, ended), step, migration.number)
            return rewind_version(draft, step, migration.number, targets, newest)

        return Amendment(
            "retire"
            if step.retires
            else "migration"
            if migration.is_rewind and step.rewound is None
            else migration.kind,
            update,
            # Another process may finish it as well.
            requires=lambda newest: not migration.is_applied_by(newest),
        )

    for stage in topological_order({**heads, **targets}) if migration.is_rewind else reversed(topological_order(heads)):
        if stage not in ended and not migration.is_applied_by(heads[stage]):
            step = migration.step_of(stage)
            amended = amend(store, heads[stage], change(step), by=migration.by, now_ms=now_ms)
            newest[stage] = amended.manifest
            if amended.changed:
                versions[stage] = amended.manifest.version
    if any(step.invalidates_requests for step in migration.stages.values()):
        for request in open_requests(store, migration.app):
            if request.migration < migration.number:
                why = (
                    f"the app was {migration.past_participle} before the snapshot was complete; take the snapshot again"
                )
                record_operation(store, migration.app, "snapshot failed", f"{request.name}: {why}", migration.by)
                withdraw_request(store, migration.app, request)
    if OPERATIONS.find(store, migration.id, migration.app) is None:
        unpin_target(store, migration.app, migration.number)
        _record(store, migration, heads, versions)
    return versions


def _record(store: ObjectStore, migration: Migration, heads: Heads, versions: Mapping[str, int]) -> None:
    app, verb = migration.app, migration.verb
    read, first = partial(history.read, store, app), partial(history.first_version, store, app)
    committed = dict(versions)
    for stage, head in heads.items():
        if stage not in committed and head.migration >= migration.number:
            committed[stage] = history.first_where(
                read, first, head, lambda version: version.migration >= migration.number
            )
    changed = {stage: (version - 1, version) for stage, version in committed.items()}
    who, why = migration.by, migration.message
    record_operation(store, app, verb, migration.detail, who, changed, id_=migration.id, message=why)


def target_name(number: int, versions: Mapping[str, int]) -> str:
    return f"{_TARGET}{number}-{xxhash.xxh32_hexdigest(repr(sorted(versions.items())).encode())}"


def unpin_target(store: ObjectStore, app: str, number: int) -> None:
    """Remove all snapshots that pin the target of a rewind, including snapshots of calls that lost the race.

    Makes one list request, and one read for each snapshot.
    """
    for snapshot in list_snapshots(store, app):
        if snapshot.name.startswith(f"{_TARGET}{number}-"):
            delete_snapshot(store, app, snapshot.name)


_TARGET = "rewinding-to-"


def finish_newest_migration(store: ObjectStore, app: str, *, now_ms: int) -> int:
    migration = MIGRATIONS.newest(store, app)
    if migration is None:
        return 0
    finish_migration(store, migration, now_ms=now_ms)
    return migration.number


def rewind_version(
    draft: Manifest, step: MigratedStage, number: int, target_heads: Heads, newest_heads: Heads
) -> Manifest:
    """Return the version that rewinds a stage to its version in `target_heads`, by default to an empty table.

    A pure function. `draft` is the successor of the stage's newest version. `newest_heads` has the senders' newest
    versions, which are already rewound. Unpublished rows of sinks are dropped, so every sink is empty afterwards.
    """
    target = target_heads.get(draft.stage)
    rewind = Rewind(draft.version, target.version if target is not None else 0, step.table_only)
    draft = commit.without_open_snapshots(replace(draft, migration=number, rewinds=(*draft.rewinds, rewind)))
    if target is None:
        empty = Manifest(draft.app, draft.stage, draft.version, draft.epoch, draft.writer, draft.time_ms, draft.kind)
        fields = ("by", "migration", "rewinds", "totals", "formerly", "promotion")
        return replace(empty, **{name: getattr(draft, name) for name in fields})
    target = commit.without_version_fields(target)
    changed = with_part_tables(replace(draft, table=target.table, ssts=target.ssts), part_tables(target))
    if step.table_only:
        times = draft.event_time
        if times is not None and target.event_time is not None:
            # Rows that fell due after the target are in the table again, and will fall due again.
            times = replace(times, due_ms=target.event_time.due_ms, next_due_ms=target.event_time.next_due_ms)
        return replace(changed, event_time=times)

    def output(name: str, old: Output) -> Output:
        if name in step.outputs:
            return step.outputs[name]
        in_flight, current = step.unread.get(name, Unread()), draft.outputs.get(name, old)
        return replace(
            old, ends=current.ends, attempts=in_flight.attempts, rows=in_flight.rows, topic_id=current.topic_id
        )

    def source(name: str, old: Input) -> Input:
        sender, old_sender = newest_heads.get(old.upstream), target_heads.get(old.upstream)
        moved = step.inputs.get(name, old)
        if sender is None or old_sender is None or name not in old_sender.outputs:
            return moved
        if moved is not old:
            read_all = (
                moved.offsets == sender.outputs[name].ends and old.watermark_ms == old_sender.downstream_watermark_ms
            )
            return replace(moved, version=sender.version if read_all else sender.version - 1)
        if old.offsets == old_sender.outputs[name].ends and old.watermark_ms == old_sender.downstream_watermark_ms:
            at = sender.outputs[name]
            return replace(old, offsets=at.ends, version=sender.version, topic_id=at.topic_id)
        return replace(old, version=sender.version - 1)

    return replace(
        changed,
        inputs={name: source(name, read) for name, read in target.inputs.items()},
        outputs={name: output(name, written) for name, written in target.outputs.items()},
        sinks={name: replace(sink, since=draft.version) for name, sink in step.sinks.items()},
        clock_ms=target.clock_ms,
        attached=target.attached,
        side_tables=target.side_tables,
        stopped=target.stopped,
        program=target.program,
        event_time=target.event_time,
    )


def apply_step(draft: Manifest, step: MigratedStage, number: int) -> Manifest:
    """Apply a migration step to `draft`, the successor of the stage's newest version. A pure function.

    Raises `Refused` if the step was planned for a different table.
    """
    inputs = {name: source for name, source in draft.inputs.items() if name not in step.gone} | step.inputs
    stopped = {name: source for name, source in {**draft.stopped, **draft.inputs}.items() if name not in inputs}
    inputs |= {
        name: _reset(inputs[name], offsets, step.reset_ids.get(name, ""), draft.version)
        for name, offsets in step.reset.items()
    }
    changed = replace(draft, inputs=inputs, stopped=stopped, migration=number)
    if step.retires or step.inputs or step.gone:
        # A snapshot in progress waits for markers on the old inputs.
        changed = commit.without_open_snapshots(changed)
    if step.retires or step.table is None:
        return changed
    if draft.table is None or draft.table.schema != step.schema:
        raise Refused(f"the table of {draft.app}/{draft.stage} changed since migration {number} was planned")
    old_parts = part_tables(draft)
    parts = {
        name: replace(old, table=_migrated_table(draft, old.table, table))
        for name, table in step.parts.items()
        for old in [old_parts.get(step.renamed_parts.get(name, name)) or SideTable(table)]
    }
    return with_part_tables(_with_columns(changed, draft.table, step.table), parts)


def _migrated_table(draft: Manifest, old: Table, new: Table) -> Table:
    old_ids = old.column_ids
    values = (
        column if column.id in old_ids or not column.id else replace(column, since=draft.version)
        for column in new.values
    )
    return replace(new, partitions=old.partitions, tasks=old.tasks, values=tuple(values))


def _with_columns(draft: Manifest, old: Table, new: Table) -> Manifest:
    table = _migrated_table(draft, old, new)
    event_time = draft.event_time
    due_before, due_after = (any(column.name == DUE for column in declared.values) for declared in (old, table))
    if event_time is not None and due_before:
        by_clock = due_after and kind_of(table.state).due_by == "clock"
        # Without a due column, no row will fall due.
        next_ms = event_time.next_due_ms if due_after else None
        event_time = replace(event_time, next_due_ms=next_ms, by_clock=by_clock)
    clock_ms = ttl.claim_clock_ms(old, table, draft.clock_ms)
    return replace(draft, table=table, clock_ms=clock_ms, event_time=event_time)


def _reset(at: Input, offsets: tuple[int, ...], topic_id: str, version: int) -> Input:
    """Return an input that continues at `offsets`; if given, `topic_id` is the new id of the topic.

    Partitions that were added to the topic later are read from the beginning.
    """
    if topic_id:
        reset = Reset(version, at.offsets, offsets, at.topic_id or NOT_KNOWN)
        new_id = "" if topic_id == NOT_KNOWN else topic_id
        return replace(at, offsets=offsets, lost=(), topic_id=new_id, resets=(*at.resets, reset))
    old_offsets = at.offsets + (0,) * (len(offsets) - len(at.offsets))
    if old_offsets == offsets:
        return replace(at, offsets=offsets)
    return replace(at, offsets=offsets, resets=(*at.resets, Reset(version, old_offsets, offsets)))


def _rename(
    store: ObjectStore, migration: Migration, heads: Heads, now_ms: int
) -> tuple[dict[str, Manifest], dict[str, int]]:
    """Commit each renamed stage's last version under the old name, and first version under the new name.

    Returns the last versions by old name, and the first versions that this call committed by new name.
    """
    ended: dict[str, Manifest] = {}
    versions: dict[str, int] = {}
    # Senders first, because the manifest of a renamed reader has the new name of its sender.
    for stage in topological_order(heads):
        step = migration.stages.get(stage, MigratedStage())
        if not step.called:
            continue
        last = heads[stage] if heads[stage].retired else _end_history(store, migration, heads[stage], step, now_ms)
        if step.called not in heads:
            first = _first_renamed(store, migration, last, step, heads, ended, now_ms)
            if commit_first(store, first):
                versions[step.called] = first.version
        ended[stage] = replace(last, called=step.called)
    return ended, versions


def _with_renamed_senders(head: Manifest, ended: Heads) -> Manifest:
    def of(name: str, source: Input) -> Input:
        last = ended.get(source.upstream)
        if last is None:
            return source
        sent = last.outputs.get(name)
        # If no rows are unread, the sender's first version counts as read as well.
        is_read = sent is None or source.offsets == sent.ends
        return replace(source, upstream=last.called, version=last.version if is_read else last.version - 1)

    inputs, stopped = (
        {name: of(name, source) for name, source in inputs.items()} for inputs in (head.inputs, head.stopped)
    )
    return replace(head, inputs=inputs, stopped=stopped)


def _end_history(
    store: ObjectStore, migration: Migration, head: Manifest, step: MigratedStage, now_ms: int
) -> Manifest:
    def update(draft: Manifest) -> Manifest:
        return replace(commit.without_open_snapshots(draft), migration=migration.number, called=step.called)

    # Another process may finish it as well.
    change = Amendment("retire", update, requires=lambda newest: newest.called != step.called)
    return amend(store, head, change, by=migration.by, now_ms=now_ms).manifest


def _first_renamed(
    store: ObjectStore,
    migration: Migration,
    last: Manifest,
    step: MigratedStage,
    heads: Heads,
    ended: Heads,
    now_ms: int,
) -> Manifest:
    # Version up to which all readers have read each channel; None without readers.
    readers = {name: inputs_of_channel(heads, name, last.stage) for name in last.outputs}
    read = {name: min((at.version for at in inputs), default=None) for name, inputs in readers.items()}
    lowest = min((at for at in read.values() if at is not None), default=last.version)
    sent = [version for version in history.iter_base_versions(store, last, lowest) if version is not last]

    def output(name: str, old: Output) -> Output:
        up_to = read[name]
        unread = records.sent_messages(
            name, (version for version in sent if up_to is not None and version.version > up_to)
        )
        return replace(old, attempts=tuple(unread.attempts), rows=unread.rows, markers={})

    base = replace(
        _with_renamed_senders(last, ended),
        stage=step.called,
        kind="rename",
        time_ms=max(now_ms, last.time_ms + 1),
        writer=str(runtime.ulid()),
        outputs={name: output(name, written) for name, written in last.outputs.items()},
        sinks={},
        called="",
        formerly=(*last.formerly, FormerName(last.stage, last.version)),
    )
    return apply_step(base, replace(step, called=""), migration.number)
