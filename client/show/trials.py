"""Output of a trial: differences of tables and sinks between two programs over the same input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...snapshot.diff.equality import TOLERANCE
from ...snapshot.diff.moments import TableDiff
from ...store.sst.arrow_types import python_rows
from . import values
from .document import Block, Cell, Facts, Name, Page, Section, TableBlock, Time, Title, closing_line
from .formats import MAX_SHOWN, duration, plural
from .report import Mask
from .shown import Result, attributes

if TYPE_CHECKING:
    from ...operations.staging.trial import SinkDiff, TrialResult


def trial_result(outcome: TrialResult, code: str, *, show_values: bool) -> Result:
    """Return the result of a trial; it fails if a row differs or a query of `--allow` failed."""
    blocks: list[Block] = [Title(sentence(outcome)), *_about(outcome)]
    for item in _compared(outcome):
        blocks += ["", *_difference_blocks(item, Mask(show_values), with_values=show_values)]
    data = attributes(outcome, "app", "same", "records", "beside", "migrated", "new_tables", "not_allowed") | {
        "code": code,
        "from": outcome.start.versions,
        "to": outcome.end.versions,
        "seconds": round(outcome.seconds, 3),
        "tables": [_table_data(table, with_values=show_values) for table in outcome.tables],
        "sinks": [_sink_data(sink, with_values=show_values) for sink in outcome.sinks],
        "unknown_sinks": outcome.unknown,
        "kept": outcome.kept or None,
    }
    return Result(data, *blocks, notes=tuple(_notes(outcome)), failed=not outcome.same or bool(outcome.not_allowed))


def sentence(outcome: TrialResult) -> str:
    differing = [_name(item) for item in _compared(outcome) if _has_differences(item)]
    if not differing:
        return f"{outcome.app}: no difference after {plural(outcome.records, 'record')}"
    return f"{outcome.app}: differences in {', '.join(differing)} after {plural(outcome.records, 'record')}"


def trial_page(outcome: TrialResult, code: str, mask: Mask) -> Page:
    shown = "Values are shown as they are." if mask.show else "Values are hidden: their types and lengths are shown."
    facts = (
        ("program", Name(code)),
        ("from", (Name(outcome.start.ref), ", committed ", Time(outcome.start.time_ms))),
        ("to", (Name(outcome.end.ref), ", committed ", Time(outcome.end.time_ms))),
        ("read", f"{plural(outcome.records, 'record')} in {duration(round(outcome.seconds * 1_000))}"),
        ("compared with", "the old program, over the same input" if outcome.beside else "the app itself"),
    )
    sections = [
        Section(_heading(item), tuple(_difference_blocks(item, mask, with_values=True)))
        for item in _compared(outcome)
        if _has_differences(item)
    ]
    if outcome.migrated:
        sections.insert(0, Section("What the migration changes", outcome.migrated))
    if outcome.not_allowed:
        sections.append(Section("Queries of --allow that failed", outcome.not_allowed))
    equal = [_name(item) for item in _compared(outcome) if not _has_differences(item)]
    if equal or outcome.unknown or outcome.new_tables:
        lines = [f"The same: {', '.join(equal)}."] if equal else []
        not_compared = (*_new_table_lines(outcome), *outcome.unknown)
        lines += [f"Not compared: {', '.join(not_compared)}."] if not_compared else []
        sections.append(Section("Other tables and sinks", tuple(lines)))
    return Page(
        title=f"A trial of {outcome.app}",
        sentence=(sentence(outcome), "."),
        facts=Facts(facts),
        sections=tuple(sections),
        closing=closing_line(f" {shown}"),
    )


def _compared(outcome: TrialResult) -> tuple[TableDiff | SinkDiff, ...]:
    return (*outcome.tables, *outcome.sinks)


def _name(item: TableDiff | SinkDiff) -> str:
    return item.table if isinstance(item, TableDiff) else item.sink


def _has_differences(item: TableDiff | SinkDiff) -> bool:
    return bool(len(item.changes)) if isinstance(item, TableDiff) else not item.equal


def _heading(item: TableDiff | SinkDiff) -> str:
    return f"The table {item.table}" if isinstance(item, TableDiff) else f"The sink {item.sink}"


def _about(outcome: TrialResult) -> Iterator[str]:
    baseline = "the old program, over the same input" if outcome.beside else f"{outcome.app} itself"
    yield f"compared with {baseline}, from {outcome.start.ref} to {outcome.end.ref}"
    yield from (f"migrated: {line}" for line in outcome.migrated)
    yield from (f"{line}: not compared" for line in _new_table_lines(outcome))
    if outcome.kept:
        yield f"clone kept: {outcome.kept}"


def _new_table_lines(outcome: TrialResult) -> list[str]:
    return [f"new table {name}, of about {plural(rows, 'row')}" for name, rows in outcome.new_tables.items()]


def _notes(outcome: TrialResult) -> Iterator[str]:
    yield from (
        f"note: a query of --allow failed, so it excludes no difference: {error}" for error in outcome.not_allowed
    )
    if outcome.unknown:
        sinks = ", ".join(outcome.unknown)
        yield f"note: sinks are not compared ({sinks}); to compare them, add --before FILE, the program that ran"


def _difference_blocks(item: TableDiff | SinkDiff, mask: Mask, *, with_values: bool) -> Iterator[Block]:
    if not isinstance(item, TableDiff):
        yield from _sink(item, mask, with_values=with_values)
        return
    counts = ((item.added, "added"), (item.removed, "removed"), (item.changed, "changed"))
    summary = ", ".join(f"{number:,} {label}" for number, label in counts if number)
    yield Title(f"{item.table}: {summary or 'no row differs'}")
    yield from item.unlike
    yield from values.tolerance_lines(item.near)
    for column in item.columns:
        if column.differing:
            yield f"  {column.column} differs in {plural(column.differing, 'row')}"
    if with_values and len(item.changes):
        yield values.key_changes_table(item.changes, "old", "new", mask.value, "(no row)")
        if (more := len(item.changes) - MAX_SHOWN) > 0:
            yield f"and {more:,} more"


def _sink(diff: SinkDiff, mask: Mask, *, with_values: bool) -> Iterator[Block]:
    summary = [
        f"{rows.num_rows:,} {label}" for rows, label in ((diff.added, "added"), (diff.removed, "removed")) if rows
    ]
    yield Title(
        f"sink {diff.sink}: {', '.join(summary) or 'no row differs'} of {diff.rows[0]:,} before, {diff.rows[1]:,} now"
    )
    if diff.near:
        yield f"  {plural(diff.near, 'record')} equal within the tolerance of floats, {TOLERANCE}"
    sides = ((diff.removed.slice(0, MAX_SHOWN), "old"), (diff.added.slice(0, MAX_SHOWN), "new"))
    some = [(row, side) for rows, side in sides for row in python_rows(rows)]
    if with_values and some:

        def cell(value: object) -> Cell:
            return mask.data(value) if isinstance(value, bytes) else mask.value(value)

        names = [name for name in some[0][0] if name != "headers"]
        lines = ((Name(side), *(cell(row.get(name)) for name in names)) for row, side in some)
        yield TableBlock.from_rows(("", *map(Name, names)), lines)


def _table_data(diff: TableDiff, *, with_values: bool) -> Mapping[str, object]:
    rows = values.changed_rows(diff.changes) if with_values else None
    return attributes(diff, "table", "added", "removed", "changed", "columns", "unlike", "near", rows=rows)


def _sink_data(diff: SinkDiff, *, with_values: bool) -> Mapping[str, object]:
    counts = {"added": diff.added.num_rows, "removed": diff.removed.num_rows, "rows": diff.rows}
    sides = (
        {"only_before": values.rows_as_dicts(diff.removed), "only_after": values.rows_as_dicts(diff.added)}
        if with_values
        else {}
    )
    return {"sink": diff.sink, "equal": diff.equal, "near": diff.near, **counts, **sides}
