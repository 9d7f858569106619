"""The version that a migration makes of a stage's newest one. Pure."""

from msgspec.structs import replace

from ...errors import Refused
from ...fold.kinds.kind import kind_of
from ...store.sst import ttl
from ...store.sst.types import DUE
from ...store.versions.commit import without_snapshots
from ...store.versions.manifest import EventTime, Manifest, Table
from ...store.versions.migrations import Step


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
