"""The versions that a migration makes of a stage's newest one, also of a stage that gets another name.

Its history ends under the one, and goes on under the other with the same SSTs. The version that retires it says what it
is called from then on, and the first under the new name has the same number and holds the same. What was on its way to
its readers counts as sent by that one: they read on where they stand, and go by the attempts that it names. Nothing is
copied, in the store or in Kafka.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace
from ulid import ULID

from ...errors import Refused
from ...fold import records
from ...fold.kinds.kind import kind_of
from ...moments.cut.graph import order
from ...store.objects.protocol import ObjectStore
from ...store.sst import ttl
from ...store.sst.types import DUE
from ...store.versions import history
from ...store.versions.amend import Amendment, amend, begin
from ...store.versions.commit import without_snapshots
from ...store.versions.manifest import EventTime, Former, Input, Manifest, Output, Table
from ...store.versions.migrations import Migration, Step


def applied(draft: Manifest, step: Step, number: int) -> Manifest:
    """The version that a step makes: `draft` has everything as it was. Pure.

    Raises:
        Refused: the table is not the one that the step was planned for.
    """
    inputs = {name: each for name, each in draft.inputs.items() if name not in step.gone} | step.inputs
    stopped = {name: each for name, each in {**draft.stopped, **draft.inputs}.items() if name not in inputs}
    changed = replace(draft, inputs=inputs, stopped=stopped, migration=number)
    if step.retires or step.inputs or step.gone:
        # A snapshot under way waits for markers on the inputs that there were.
        changed = without_snapshots(changed)
    if step.retires:
        return changed
    if step.table is None:
        return changed
    if draft.table is None or draft.table.schema != step.schema:
        raise Refused(f"migration {number} was planned for another table of {draft.app}/{draft.stage} than it has now")
    had = draft.table.ids
    values = (
        each if each.id in had or not each.id else replace(each, since=draft.version) for each in step.table.values
    )
    table = replace(step.table, partitions=draft.table.partitions, values=tuple(values))
    return replace(
        changed,
        table=table,
        clock_ms=ttl.first_clock_ms(draft.table, table, draft.clock_ms),
        event_time=_event_time(draft.event_time, draft.table, table),
    )


def _event_time(known: EventTime | None, before: Table, after: Table) -> EventTime | None:
    """What a version says of event time under another table: where no row falls due any more, none is waited for."""
    if known is None or not _falls_due(before):
        return known
    if _falls_due(after):
        return replace(known, by_clock=kind_of(after.state).due_by == "clock")
    return replace(known, next_due_ms=None, by_clock=False)


def _falls_due(table: Table) -> bool:
    return any(column.name == DUE for column in table.values)


def rename(
    store: ObjectStore, migration: Migration, heads: Mapping[str, Manifest], *, now_ms: int
) -> tuple[dict[str, Manifest], dict[str, int]]:
    """Give each stage that a migration renames its last version under the old name, and its first under the new one.

    Done again, it does nothing.

    Returns:
        The last versions, by old name, and the first ones that this call committed, by new name.

    Raises:
        CommitConflict: others kept winning the race for the next version of a stage.
        Unavailable: storage did not answer; the same call again goes on.
    """
    ended: dict[str, Manifest] = {}
    versions: dict[str, int] = {}
    # Senders first: who reads one, and is renamed itself, reads it under its new name.
    for stage in order(heads):
        step = migration.stages.get(stage, Step())
        if not step.called:
            continue
        last = heads[stage] if heads[stage].retired else _end(store, migration, heads[stage], step, now_ms)
        if step.called not in heads:
            first = _first(store, migration, last, step, heads, ended, now_ms)
            if begin(store, first):
                versions[step.called] = first.version
        ended[stage] = replace(last, called=step.called)
    return ended, versions


def reading(manifest: Manifest, ended: Mapping[str, Manifest]) -> Manifest:
    """A manifest whose stage reads senders under their new names, by the last versions under their old ones."""
    return replace(
        manifest,
        inputs={name: _reading(name, each, ended) for name, each in manifest.inputs.items()},
        stopped={name: _reading(name, each, ended) for name, each in manifest.stopped.items()},
    )


def _reading(name: str, source: Input, ended: Mapping[str, Manifest]) -> Input:
    last = ended.get(source.upstream)
    if last is None:
        return source
    sent = last.outputs.get(name)
    # What the sender's first version brings is read, when nothing of it is left.
    is_read = sent is None or source.offsets == sent.ends
    return replace(source, upstream=last.called, version=last.version if is_read else last.version - 1)


def _end(store: ObjectStore, migration: Migration, head: Manifest, step: Step, now_ms: int) -> Manifest:
    def update(draft: Manifest) -> Manifest:
        return replace(without_snapshots(draft), migration=migration.number, called=step.called)

    # Somebody else may finish it, too.
    change = Amendment("retire", update, requires=lambda newest: newest.called != step.called)
    return amend(store, head, change, by=migration.by, now_ms=now_ms).manifest


def _first(
    store: ObjectStore,
    migration: Migration,
    last: Manifest,
    step: Step,
    heads: Mapping[str, Manifest],
    ended: Mapping[str, Manifest],
    now_ms: int,
) -> Manifest:
    """The first version under the new name, which holds what the last under the old one does."""
    read = {name: _read_up_to(name, last.stage, heads.values()) for name in last.outputs}
    unread = range(min((at for at in read.values() if at is not None), default=last.version) + 1, last.version)
    sent = [history.read(store, last.app, last.stage, version) for version in unread]
    began = replace(
        reading(last, ended),
        stage=step.called,
        kind="rename",
        time_ms=max(now_ms, last.time_ms + 1),
        writer=str(ULID()),
        outputs={name: _unread(name, each, read[name], sent) for name, each in last.outputs.items()},
        sinks={},
        called="",
        formerly=(*last.formerly, Former(last.stage, last.version)),
    )
    return applied(began, replace(step, called=""), migration.number)


def _read_up_to(channel: str, sender: str, heads: Iterable[Manifest]) -> int | None:
    """Up to which of its sender's versions a channel is read by all that read it; None where nobody does."""
    found = [
        source.version
        for head in heads
        if not head.retired
        for source in (head.inputs.get(channel), head.stopped.get(channel))
        if source is not None and source.upstream == sender
    ]
    return min(found, default=None)


def _unread(channel: str, output: Output, read: int | None, sent: list[Manifest]) -> Output:
    """What versions sent that not everybody has read, as one version would have sent it."""
    left = records.sent(channel, (each for each in sent if read is not None and each.version > read))
    return replace(output, attempts=tuple(left.attempts), rows=left.rows, markers={})
