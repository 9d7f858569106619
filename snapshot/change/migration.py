"""Doing a migration, a rewind, a reset or a recovery that is decided: a commit for each stage, by whoever comes by.

All that could be refused was refused before, and what it says of a stage needs no program. Who finds stages that did
not go through it (a runner, the next migration) commits these first.

The history of a stage that gets another name ends under the one, and goes on under the other with the same SSTs, in a
version of the same number. What was on its way to its readers counts as sent by that one: they read on where they
stand, and go by the attempts that it names. Nothing is copied, in the store or in Kafka. A rewind hands on what was on
its way in the same manner: the versions that it undoes lie before the ones that readers go on at, so nobody reads them.
"""

from collections.abc import Mapping
from functools import partial

import xxhash
from msgspec.structs import replace
from ulid import ULID

from ...errors import Refused
from ...state import records
from ...state.kinds.kind import kind_of
from ...state.topics import NOT_KNOWN
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.sst.types import DUE
from ...store.versions import commit, history
from ...store.versions.amend import Amendment, amend, begin
from ...store.versions.manifest import Former, Input, Manifest, Output, Reset, Rewind
from ..cut.graph import order
from ..cut.migrations import MIGRATIONS, MigratedStage, Migration, Unread
from ..cut.moments import heads_of
from ..cut.stored import cancel, list_snapshots, open_requests
from ..take.audit_log import OPERATIONS, record
from ..take.remove import remove
from .migrate_plan import readers

Heads = Mapping[str, Manifest]  # by stage


def finish(store: ObjectStore, migration: Migration, *, now_ms: int) -> dict[str, int]:
    """Commit what is left of a migration: a version for each stage that does not name it. Done again, it does nothing.

    Stages that get another name come first, so that who reads them finds them under it; of the others receivers: a
    stage that is retired is read by none that has not gone through it. Of a rewind senders come first: their readers
    say up to which of their versions they have read. At last, snapshots are withdrawn that were asked
    for before it was done and that stages cannot answer any more; no stage answers before that under another name.

    Whoever ends it notes it in the app's log, as of who decided it, and gives up the moment that it went to.

    Returns the version of each stage that this call committed, and none of those that were there. Raises
    `CommitConflict` where others kept winning the race for the next version of a stage, and `Unavailable`: the same
    call again goes on.
    """
    # Also stages that began while it was decided: they name it with nothing else changed.
    heads = heads_of(store, migration.app, history.list_stages(store, migration.app))
    ended, versions = _rename(store, migration, heads, now_ms)
    # Who reads one of them under its new name is later than its first version under that.
    now_ms = max((now_ms, *(each.time_ms + 1 for each in ended.values())))
    # What its sender was then, a stage needs also when that has gone through it already.
    is_done = all(map(migration.is_through, heads.values()))
    then = {
        stage: history.read(store, migration.app, stage, step.rewound)
        for stage, step in migration.stages.items()
        if step.rewound and not is_done
    }
    newest = dict(heads)

    def change(stage: str, step: MigratedStage) -> Amendment:
        def update(draft: Manifest) -> Manifest:
            if step.rewound is None:
                return applied(_reading(draft, ended), step, migration.number)
            return rewound(draft, step, migration.number, then, newest)

        return Amendment(
            "retire" if step.retires else "migration" if migration.rewinds and step.rewound is None else migration.kind,
            update,
            # Somebody else may finish it, too.
            requires=lambda newest: not migration.is_through(newest),
        )

    for stage in order({**heads, **then}) if migration.rewinds else reversed(order(heads)):
        if stage not in ended and not migration.is_through(heads[stage]):
            step = migration.stages.get(stage, MigratedStage())
            made = amend(store, heads[stage], change(stage, step), by=migration.by, now_ms=now_ms)
            newest[stage] = made.manifest
            if made.changed:
                versions[stage] = made.manifest.version
    if any(step.answers_otherwise for step in migration.stages.values()):
        for request in open_requests(store, migration.app):
            if request.migration < migration.number:
                why = f"the app was {migration.did} while it was under way: take it again"
                record(store, migration.app, "snapshot failed", f"{request.name}: {why}", migration.by)
                cancel(store, migration.app, request)
    if OPERATIONS.find(store, migration.id, migration.app) is None:
        unpin_target(store, migration.app, migration.number)
        _record(store, migration, heads, versions)
    return versions


def _record(store: ObjectStore, migration: Migration, heads: Heads, versions: Mapping[str, int]) -> None:
    """Note a migration in the app's log; `versions` are those that this call made, an earlier one made the others."""
    app, verb = migration.app, migration.verb
    read, first = partial(history.read, store, app), partial(history.first_version, store, app)
    made = dict(versions)
    for stage, head in heads.items():
        if stage not in made and head.migration >= migration.number:
            made[stage] = history.first_where(read, first, head, lambda each: each.migration >= migration.number)
    changed = {stage: (version - 1, version) for stage, version in made.items()}
    who, why = migration.by, migration.message
    record(store, app, verb, migration.detail, who, changed, id_=migration.id, message=why)


def target_name(number: int, versions: Mapping[str, int]) -> str:
    """What the snapshot is called that pins the moment that a rewind of that number goes to, while it is done."""
    return f"{_TARGET}{number}-{xxhash.xxh32_hexdigest(repr(sorted(versions.items())).encode())}"


def unpin_target(store: ObjectStore, app: str, number: int) -> None:
    """Remove such snapshots, also of calls that decided nothing. A listing, and a read for each snapshot."""
    for each in list_snapshots(store, app):
        if each.name.startswith(f"{_TARGET}{number}-"):
            remove(store, app, each.name)


_TARGET = "rewinding-to-"


def finish_newest(store: ObjectStore, app: str, *, now_ms: int) -> int:
    """Finish the app's newest migration, if it is not done; its number, 0 when there is none. Raises as `finish`."""
    migration = MIGRATIONS.newest(store, app)
    if migration is None:
        return 0
    finish(store, migration, now_ms=now_ms)
    return migration.number


def rewound(draft: Manifest, step: MigratedStage, number: int, then: Heads, now: Heads) -> Manifest:
    """The version that makes a stage what it was `then`: empty where that has no version of it. Pure.

    `draft` has everything as it is; of the stages that it read, `now` has the newest versions, which went through the
    same rewind. Rows for sinks that are not published are given up: a sink begins anew.
    """
    was = then.get(draft.stage)
    mark = Rewind(draft.version, was.version if was is not None else 0, step.table_only)
    draft = commit.without_snapshots(replace(draft, migration=number, rewinds=(*draft.rewinds, mark)))
    if was is None:
        empty = Manifest(draft.app, draft.stage, draft.version, draft.epoch, draft.writer, draft.time_ms, draft.kind)
        kept = ("by", "migration", "rewinds", "totals", "formerly", "promotion")
        return replace(empty, **{name: getattr(draft, name) for name in kept})
    was = commit.carried(was)
    changed = replace(draft, table=was.table, ssts=was.ssts)
    if step.table_only:
        times = draft.event_time
        if times is not None and was.event_time is not None:
            # What fell due since is in the table again, and falls due once more.
            times = replace(times, due_ms=was.event_time.due_ms, next_due_ms=was.event_time.next_due_ms)
        return replace(changed, event_time=times)

    def output(name: str, known: Output) -> Output:
        """The channel as of then, behind all that lies in its topic by now."""
        if name in step.outputs:
            return step.outputs[name]
        unread, now = step.unread.get(name, Unread()), draft.outputs.get(name, known)
        return replace(known, ends=now.ends, attempts=unread.attempts, rows=unread.rows, topic_id=now.topic_id)

    def source(name: str, known: Input) -> Input:
        """Where the stage stood, by the version that its sender has now."""
        sender, was = now.get(known.upstream), then.get(known.upstream)
        moved = step.inputs.get(name, known)
        if sender is None or was is None or name not in was.outputs:
            return moved
        if moved is not known:
            read_all = moved.offsets == sender.outputs[name].ends and known.watermark_ms == was.handed_on_ms
            return replace(moved, version=sender.version if read_all else sender.version - 1)
        if known.offsets == was.outputs[name].ends and known.watermark_ms == was.handed_on_ms:
            at = sender.outputs[name]
            return replace(known, offsets=at.ends, version=sender.version, topic_id=at.topic_id)
        return replace(known, version=sender.version - 1)

    return replace(
        changed,
        inputs={name: source(name, each) for name, each in was.inputs.items()},
        outputs={name: output(name, each) for name, each in was.outputs.items()},
        sinks={name: replace(each, since=draft.version) for name, each in step.sinks.items()},
        clock_ms=was.clock_ms,
        side_tables=was.side_tables,
        stopped=was.stopped,
        program=was.program,
        event_time=was.event_time,
    )


def applied(draft: Manifest, step: MigratedStage, number: int) -> Manifest:
    """The version that a step makes: `draft` has everything as it was. Pure.

    Raises `Refused` where the table is not the one that the step was planned for.
    """
    inputs = {name: each for name, each in draft.inputs.items() if name not in step.gone} | step.inputs
    stopped = {name: each for name, each in {**draft.stopped, **draft.inputs}.items() if name not in inputs}
    inputs |= {
        name: _reset(inputs[name], offsets, step.reset_ids.get(name, ""), draft.version)
        for name, offsets in step.reset.items()
    }
    changed = replace(draft, inputs=inputs, stopped=stopped, migration=number)
    if step.retires or step.inputs or step.gone:
        # A snapshot under way waits for markers on the inputs that there were.
        changed = commit.without_snapshots(changed)
    if step.retires or step.table is None:
        return changed
    if draft.table is None or draft.table.schema != step.schema:
        raise Refused(f"migration {number} was planned for another table of {draft.app}/{draft.stage} than it has now")
    had = draft.table.ids
    values = (one if one.id in had or not one.id else replace(one, since=draft.version) for one in step.table.values)
    table = replace(step.table, partitions=draft.table.partitions, values=tuple(values))
    event_time = draft.event_time
    due_before, due_after = (any(column.name == DUE for column in each.values) for each in (draft.table, table))
    if event_time is not None and due_before:
        by_clock = due_after and kind_of(table.state).due_by == "clock"
        # Where no row falls due any more, none is waited for.
        next_ms = event_time.next_due_ms if due_after else None
        event_time = replace(event_time, next_due_ms=next_ms, by_clock=by_clock)
    clock_ms = ttl.first_clock_ms(draft.table, table, draft.clock_ms)
    return replace(changed, table=table, clock_ms=clock_ms, event_time=event_time)


def _reset(at: Input, offsets: tuple[int, ...], topic_id: str, version: int) -> Input:
    """An input that is read on from these offsets, and of another topic where there is a `topic_id`.

    Partitions that its topic got since stood at their beginning.
    """
    if topic_id:
        left = Reset(version, at.offsets, offsets, at.topic_id or NOT_KNOWN)
        known = "" if topic_id == NOT_KNOWN else topic_id
        return replace(at, offsets=offsets, lost=(), topic_id=known, resets=(*at.resets, left))
    stood = at.offsets + (0,) * (len(offsets) - len(at.offsets))
    if stood == offsets:
        return replace(at, offsets=offsets)
    return replace(at, offsets=offsets, resets=(*at.resets, Reset(version, stood, offsets)))


def _rename(
    store: ObjectStore, migration: Migration, heads: Heads, now_ms: int
) -> tuple[dict[str, Manifest], dict[str, int]]:
    """Give each stage that is renamed its last version under the old name, and its first under the new one.

    Returns the last versions, by old name, and the first ones that this call committed, by new name.
    """
    ended: dict[str, Manifest] = {}
    versions: dict[str, int] = {}
    # Senders first: who reads one, and is renamed itself, reads it under its new name.
    for stage in order(heads):
        step = migration.stages.get(stage, MigratedStage())
        if not step.called:
            continue
        last = heads[stage] if heads[stage].retired else _end(store, migration, heads[stage], step, now_ms)
        if step.called not in heads:
            first = _first(store, migration, last, step, heads, ended, now_ms)
            if begin(store, first):
                versions[step.called] = first.version
        ended[stage] = replace(last, called=step.called)
    return ended, versions


def _reading(head: Manifest, ended: Heads) -> Manifest:
    """A manifest whose stage reads senders under their new names, by the last versions under their old ones."""

    def of(name: str, source: Input) -> Input:
        last = ended.get(source.upstream)
        if last is None:
            return source
        sent = last.outputs.get(name)
        # What the sender's first version brings is read, when nothing of it is left.
        is_read = sent is None or source.offsets == sent.ends
        return replace(source, upstream=last.called, version=last.version if is_read else last.version - 1)

    inputs, stopped = ({name: of(name, one) for name, one in some.items()} for some in (head.inputs, head.stopped))
    return replace(head, inputs=inputs, stopped=stopped)


def _end(store: ObjectStore, migration: Migration, head: Manifest, step: MigratedStage, now_ms: int) -> Manifest:
    def update(draft: Manifest) -> Manifest:
        return replace(commit.without_snapshots(draft), migration=migration.number, called=step.called)

    # Somebody else may finish it, too.
    change = Amendment("retire", update, requires=lambda newest: newest.called != step.called)
    return amend(store, head, change, by=migration.by, now_ms=now_ms).manifest


def _first(
    store: ObjectStore,
    migration: Migration,
    last: Manifest,
    step: MigratedStage,
    heads: Heads,
    ended: Heads,
    now_ms: int,
) -> Manifest:
    """The first version under the new name, which holds what the last under the old one does."""
    # Up to which of its versions each channel is read by all that read it; None where nobody does.
    read = {name: min((at.version for at in readers(heads, name, last.stage)), default=None) for name in last.outputs}
    behind = min((at for at in read.values() if at is not None), default=last.version)
    sent = [each for each in history.followed(store, last, behind) if each is not last]

    def output(name: str, known: Output) -> Output:
        """What versions sent that not everybody has read, as one version would have sent it."""
        up_to = read[name]
        left = records.sent(name, (each for each in sent if up_to is not None and each.version > up_to))
        return replace(known, attempts=tuple(left.attempts), rows=left.rows, markers={})

    began = replace(
        _reading(last, ended),
        stage=step.called,
        kind="rename",
        time_ms=max(now_ms, last.time_ms + 1),
        writer=str(ULID()),
        outputs={name: output(name, each) for name, each in last.outputs.items()},
        sinks={},
        called="",
        formerly=(*last.formerly, Former(last.stage, last.version)),
    )
    return applied(began, replace(step, called=""), migration.number)
