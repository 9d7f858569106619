"""What a trial found: how tables and what sinks were given differ between two programs over the same input."""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from ...operations.staging.trial import SinkDiff, Trial
from ...snapshot.diff.equality import TOLERANCE
from ...snapshot.diff.moments import TableDiff
from ...store.sst.arrow_types import python_rows
from . import values
from .document import Block, Cell, Facts, Name, Page, Section, TableBlock, Time, Title, closing
from .formats import MOST_SHOWN, duration, plural
from .report import Mask
from .shown import Result, fields


def trial(found: Trial, code: str, *, show_values: bool) -> Result:
    """The differences, for a terminal and for machines; it has failed where there are any, or a query could not say."""
    blocks: list[Block] = [Title(sentence(found)), *_about(found)]
    for each in _all(found):
        blocks += ["", *_differing(each, Mask(show_values), with_values=show_values)]
    data = fields(found, "app", "same", "records", "beside", "migrated", "new_tables", "not_allowed") | {
        "code": code,
        "from": found.start.versions,
        "to": found.end.versions,
        "seconds": round(found.seconds, 3),
        "tables": [_table_data(each, with_values=show_values) for each in found.tables],
        "sinks": [_sink_data(each, with_values=show_values) for each in found.sinks],
        "unknown_sinks": found.unknown,
        "kept": found.kept or None,
    }
    return Result(data, *blocks, notes=tuple(_notes(found)), failed=not found.same or bool(found.not_allowed))


def sentence(found: Trial) -> str:
    """Whether anything differs, and where."""
    differing = [_name(each) for each in _all(found) if _differs(each)]
    if not differing:
        return f"{found.app}: nothing differs over {plural(found.records, 'record')}"
    return f"{found.app}: {', '.join(differing)} differ over {plural(found.records, 'record')}"


def page(found: Trial, code: str, mask: Mask) -> Page:
    """The same to hand on."""
    shown = "Values are shown as they are." if mask.show else "Values are hidden: their types and lengths are shown."
    facts = (
        ("program", Name(code)),
        ("from", (Name(found.start.ref), ", committed ", Time(found.start.time_ms))),
        ("to", (Name(found.end.ref), ", committed ", Time(found.end.time_ms))),
        ("read", f"{plural(found.records, 'record')} in {duration(round(found.seconds * 1_000))}"),
        ("compared with", "the program of before, over the same input" if found.beside else "the app itself"),
    )
    sections = [
        Section(_heading(each), tuple(_differing(each, mask, with_values=True)))
        for each in _all(found)
        if _differs(each)
    ]
    if found.migrated:
        sections.insert(0, Section("What the migration changes", found.migrated))
    if found.not_allowed:
        sections.append(
            Section("Queries for differences that are meant that could not be carried out", found.not_allowed)
        )
    equal = [_name(each) for each in _all(found) if not _differs(each)]
    if equal or found.unknown or found.new_tables:
        words = [f"The same: {', '.join(equal)}."] if equal else []
        others = (*_new(found), *found.unknown)
        words += [f"Not compared: {', '.join(others)}."] if others else []
        sections.append(Section("The others", tuple(words)))
    return Page(
        title=f"A trial of {found.app}",
        sentence=(sentence(found), "."),
        facts=Facts(facts),
        sections=tuple(sections),
        closing=closing(f" {shown}"),
    )


def _all(found: Trial) -> tuple[TableDiff | SinkDiff, ...]:
    return (*found.tables, *found.sinks)


def _name(each: TableDiff | SinkDiff) -> str:
    return each.table if isinstance(each, TableDiff) else each.sink


def _differs(each: TableDiff | SinkDiff) -> bool:
    return bool(len(each.changes)) if isinstance(each, TableDiff) else not each.equal


def _heading(each: TableDiff | SinkDiff) -> str:
    return f"The table {each.table}" if isinstance(each, TableDiff) else f"What the sink {each.sink} is given"


def _about(found: Trial) -> Iterator[str]:
    what = "the program of before, over the same input" if found.beside else f"{found.app} itself"
    yield f"compared with {what}, from {found.start.ref} to {found.end.ref}"
    yield from (f"migrated: {line}" for line in found.migrated)
    yield from (f"{line}: not compared" for line in _new(found))
    if found.kept:
        yield f"the clone stays: {found.kept}"


def _new(found: Trial) -> list[str]:
    return [f"new table {name}, of about {plural(rows, 'row')}" for name, rows in found.new_tables.items()]


def _notes(found: Trial) -> Iterator[str]:
    yield from (
        f"note: --allow could not be carried out, so it leaves nothing out: {each}" for each in found.not_allowed
    )
    if found.unknown:
        sinks = ", ".join(found.unknown)
        yield f"note: what sinks are given is not compared ({sinks}): --before FILE, the program that ran, does"


def _differing(each: TableDiff | SinkDiff, mask: Mask, *, with_values: bool) -> Iterator[Block]:
    if isinstance(each, SinkDiff):
        yield from _sink(each, mask, with_values=with_values)
        return
    counts = ((each.added, "added"), (each.removed, "removed"), (each.changed, "changed"))
    words = ", ".join(f"{number:,} {what}" for number, what in counts if number)
    yield Title(f"{each.table}: {words or 'no row differs'}")
    yield from each.unlike
    yield from values.tolerance(each.near)
    for column in each.columns:
        if column.differing:
            yield f"  {column.column} differs in {plural(column.differing, 'row')}"
    if with_values and len(each.changes):
        yield values.changes(each.changes, "old", "new", mask.value, "(no row)")
        if (more := len(each.changes) - MOST_SHOWN) > 0:
            yield f"and {more:,} more"


def _sink(each: SinkDiff, mask: Mask, *, with_values: bool) -> Iterator[Block]:
    words = [f"{rows.num_rows:,} {what}" for rows, what in ((each.added, "added"), (each.removed, "removed")) if rows]
    yield Title(
        f"sink {each.sink}: {', '.join(words) or 'no row differs'} of {each.rows[0]:,} before, {each.rows[1]:,} now"
    )
    if each.near:
        yield f"  {plural(each.near, 'record')} equal within the tolerance of floats, {TOLERANCE}"
    some = [(row, what) for rows, what in ((each.removed, "old"), (each.added, "new")) for row in _some(rows)]
    if with_values and some:
        names = [name for name in some[0][0] if name != "headers"]
        lines = ((Name(what), *(_cell(row.get(name), mask) for name in names)) for row, what in some)
        yield TableBlock.of(("", *map(Name, names)), lines)


def _some(rows: pa.Table) -> list[dict[str, object]]:
    return python_rows(rows.slice(0, MOST_SHOWN))


def _cell(value: object, mask: Mask) -> Cell:
    return mask.data(value) if isinstance(value, bytes) else mask.value(value)


def _table_data(each: TableDiff, *, with_values: bool) -> Mapping[str, object]:
    rows = values.changed_rows(each.changes) if with_values else None
    return fields(each, "table", "added", "removed", "changed", "columns", "unlike", "near", rows=rows)


def _sink_data(each: SinkDiff, *, with_values: bool) -> Mapping[str, object]:
    counts = {"added": each.added.num_rows, "removed": each.removed.num_rows, "rows": each.rows}
    sides = {"only_before": values.rows(each.removed), "only_after": values.rows(each.added)} if with_values else {}
    return {"sink": each.sink, "equal": each.equal, "near": each.near, **counts, **sides}
