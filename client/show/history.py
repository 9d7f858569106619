"""Output of commits, operations, changes of a key, and rows that differ between moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...common import instants
from ...store.versions.kinds import KINDS
from . import formats, values
from .document import Block, Cell, Name, TableBlock, Title
from .shown import Result, attributes
from .values import changed_rows, format_key_value, tolerance_lines, value_lines

if TYPE_CHECKING:
    from ...snapshot.cut.graph import Cut
    from ...snapshot.diff.key_history import RowHistory
    from ...snapshot.diff.moments import TableDiff
    from ...snapshot.query.log import LogEntry
    from ...snapshot.take.audit_log import Operation


def log_result(commits: Sequence[LogEntry], app_name: str) -> Result:
    none = f"{app_name} has no commit yet; `slackwater run FILE` makes them"
    return Result(commits, commits_table(commits) if commits else none)


def commits_table(commits: Sequence[LogEntry]) -> TableBlock:
    """Return a table with a row per commit, and a row per range of versions that gc removed."""
    # Set only if Kafka was asked.
    with_replays = any(entry.replayable is not None for entry in commits)
    timed = any(entry.watermark_ms is not None for entry in commits)
    rows: list[tuple[Cell, ...]] = []
    for entry in commits:
        watermark = "-" if entry.watermark_ms is None else instants.format_iso(entry.watermark_ms)
        rows.append(
            (
                instants.format_with_age(entry.time_ms),
                entry.stage,
                f"v{entry.version}",
                entry.kind,
                _rows_in(entry),
                formats.duration(entry.duration_ms) if KINDS[entry.kind].shows_reading else "-",
                ", ".join(entry.snapshots),
                *([watermark] if timed else []),
                *([_recovery_options(entry)] if with_replays else []),
                _offsets_read(entry) or "; ".join(_other_effects(entry)),
            )
        )
        if entry.thinned is not None:
            first, last = entry.thinned
            versions, none = f"v{first}..v{last}" if first < last else f"v{first}", "-" * (timed + with_replays)
            rows.append(("", entry.stage, versions, "gone", "-", "-", "", *none, "thinned out by gc"))
    more = (*(["watermark"] if timed else []), *(["available"] if with_replays else []))
    return TableBlock.from_rows(
        ("committed", "stage", ">version", "kind", ">rows", ">took", "snapshots", *more, "read"), rows
    )


def _rows_in(entry: LogEntry) -> Cell:
    if entry.rows_in is None or not KINDS[entry.kind].shows_reading:
        return "-"
    return formats.upper_bound(entry.rows_in) if entry.attached or entry.followed else entry.rows_in


def _recovery_options(entry: LogEntry) -> str:
    if entry.replayable:
        return "restore, replay"
    return "; ".join(("restore", *map(recreated_topic_phrase, entry.replaced)))


def recreated_topic_phrase(topic: str) -> str:
    """Return the reason why input from before the topic's recreation cannot be replayed: "topic … was recreated"."""
    return f"topic {topic} was recreated"


def _offsets_read(entry: LogEntry) -> str:
    return ": ".join(filter(None, (entry.attached, formats.join_ranges(map(str, entry.windows)))))


def _other_effects(entry: LogEntry) -> Iterator[str]:
    for lost in entry.lost.values():
        versions = f", v{lost.after + 1} to v{lost.up_to} of its writer" if lost.up_to else ""
        rows = f" ({formats.plural(sum(lost.rows), 'row')}{versions})" if lost.rows else ""
        yield f"lost {formats.offset_ranges(lost.topic, lost.starts, lost.ends)}{rows}"
    if entry.added:
        yield f"added columns: {', '.join(entry.added)}"
    if entry.rewound is not None:
        yield f"back to the state of v{entry.rewound}" if entry.rewound else "back to before the first version"
    if entry.reset:
        yield f"offsets reset: {formats.join_ranges(entry.reset)}"
    if entry.edited:
        yield f"{entry.kind}: {entry.edited}"
    if entry.deployed:
        yield f"deploy: {entry.deployed}"
    if entry.renamed:
        yield f"{'was called' if KINDS[entry.kind].begins else 'is called'} {entry.renamed}"


def operations_result(done: Sequence[Operation], app_name: str, *, is_filtered: bool = False) -> Result:
    if not done:
        nothing = "no matching operation" if is_filtered else "no operation"
        return Result(done, f"{nothing} on {app_name} yet")
    more = {
        "versions": [", ".join(_version_changes(operation)) for operation in done],
        "why": [operation.message for operation in done],
    }
    more = {heading: column for heading, column in more.items() if any(column)}
    rows = (
        (instants.format_with_age(operation.time_ms), operation.verb, operation.detail, operation.by, *extra_cells)
        for operation, *extra_cells in zip(done, *more.values(), strict=True)
    )
    return Result(done, TableBlock.from_rows(("done", "what", "detail", "by", *more), rows))


def _version_changes(done: Operation) -> Iterator[str]:
    for stage in done.before:
        yield f"{stage} v{done.before[stage]}" + (f" to v{done.after[stage]}" if stage in done.after else "")


def key_history_result(
    row_history: RowHistory,
    key: str,
    *,
    limit: int = 0,
    verbose: bool = False,
) -> Result:
    """Return the result of `history`. `key` is as the user typed it."""
    notes = [*_notes(row_history, limit)]
    if verbose:
        requests = formats.plural(row_history.reads.requests, "request")
        notes.append(f"read {formats.size(row_history.reads.bytes)} of SSTs in {requests}")
    names = ("stage", "version", "after_version", "time_ms", "expired", "gap", "windows", "before", "after")
    changes = (
        attributes(change, *names)
        | {name: getattr(change, name) or None for name in ("inherited", "formerly", "record")}
        | {"change": change.kind}
        for change in row_history.changes
    )
    data = {
        **attributes(row_history, "app", "table"),
        "key": values.rows_as_dicts(row_history.key)[0],
        "changes": values.encode_array(changes),
        "whole_from": row_history.whole_from or None,
        "read": attributes(row_history.reads, "requests", "bytes"),
    }
    never = f"table {row_history.table} of {row_history.app} has no key {key} in any kept version"
    return Result(data, changes_table(row_history) if row_history.changes else never, notes=notes)


def changes_table(row_history: RowHistory) -> TableBlock:
    """Return a table with a row per changed value; the first row of a change has its time, version and offsets."""
    rows: list[tuple[Cell, ...]] = []
    for change in row_history.changes:
        kind = "expired" if change.expired else f"{change.kind} *" if change.gap or change.inherited else change.kind
        first, *more_lines = value_lines(change.before, change.after)
        read = change.record or formats.join_ranges(map(str, change.windows))
        rows.append((instants.format_with_age(change.time_ms), f"v{change.version}", kind, *first, read))
        rows += (("", "", "", *line, "") for line in more_lines)
    return TableBlock.from_rows(("committed", ">version", "", "column", ">before", ">after", "read"), rows)


def _notes(row_history: RowHistory, limit: int) -> Iterator[str]:
    if row_history.changes and len(row_history.changes) == limit:
        yield f"the newest {formats.plural(limit, 'change')}; --limit 0 shows all"
    for change in row_history.changes:
        if change.inherited == "clone":
            older = "the row is older than the clone, and its earlier history is in the source"
            yield f"* {row_history.app} is a clone: {older}"
        elif change.inherited == "renamed":
            goes_on = f"slackwater history {row_history.app}/{change.formerly} KEY"
            until = f"* {row_history.table} was called {change.formerly} until v{change.version}"
            yield f"{until}; for the earlier history: {goes_on}"
        elif change.inherited:
            yield f"* the row existed at v{change.version}; gc has removed its earlier history"
    if any(change.gap for change in row_history.changes):
        yield "* gc has removed the versions right before: their changes are shown as one"
    if row_history.whole_from:
        whole = f"complete from v{row_history.whole_from} on; gc has thinned out older versions"
        yield f"note: the history of {row_history.app}/{row_history.table} is {whole}"


def diff_result(
    refs: Sequence[str],
    cuts: Sequence[Cut],
    tables: Sequence[TableDiff],
    *,
    with_rows: bool = True,
    with_values: bool = True,
    out: Path | None = None,
    max_rows: int = 0,
) -> Result:
    """Return the result of `diff` between two moments, named by `refs`. `out` is the file with all differing rows.

    In JSON, a table has at most `max_rows` rows; 0 is no limit.
    """
    names = ("table", "added", "removed", "changed", "rows_in_both", "about", "columns", "unlike", "near")
    equal = all(table.is_equal for table in tables)
    sides = zip("ab", refs, cuts, strict=True)
    data = {
        **{side: {"ref": ref, "cut": cut.versions, "thinned_out": cut.thinned} for side, ref, cut in sides},
        "equal": equal,
        "tables": [
            attributes(table, *names, rows=changed_rows(some, with_values=with_values) if with_rows else None)
            for table, some in (
                (table, table.changes.head(max_rows) if max_rows else table.changes) for table in tables
            )
        ],
        "file": out,
    }
    blocks: list[Block] = []
    for table in tables:
        blocks += ["", *table_diff_blocks(table, with_rows=with_rows, with_values=with_values, out=out)]
    return Result(data, *blocks[1:], failed=not equal)


def table_diff_blocks(
    diff: TableDiff, *, with_rows: bool = True, with_values: bool = True, out: Path | None = None
) -> Iterator[Block]:
    counts = ((diff.added, "added"), (diff.removed, "removed"), (diff.changed, "changed"))
    differing = ", ".join(f"{number:,} {label}" for number, label in counts if number)
    yield Title(f"{diff.table}: {differing or 'no row differs'}")
    yield from diff.unlike
    yield from tolerance_lines(diff.near)
    if diff.changed and diff.columns:
        about = f"of {'about ' if diff.about else ''}{formats.plural(diff.rows_in_both, 'row')}"
        # Rounded down, so that 100 % means that all are equal.
        equal = [(diff.rows_in_both - column.differing) * 1_000_000 // diff.rows_in_both for column in diff.columns]
        counted = zip(diff.columns, equal, strict=True)
        lines = ((column.column, column.differing, f"{parts / 10_000:g} %") for column, parts in counted)
        yield TableBlock.from_rows(("column", ">differ", f">{about} equal"), lines)
    if not (with_rows and len(diff.changes)):
        return
    yield ""
    some = diff.changes.head(formats.MAX_SHOWN)
    headings: tuple[str | Name, ...] = ("", *map(Name, diff.changes.keys.column_names))
    keys = [(change, (change.kind, *map(format_key_value, change.key.values()))) for change in some]
    if with_values:
        # One line per differing value. For a row on one side only, one line per value.
        rows = ((*key, *line) for change, key in keys for line in value_lines(change.before, change.after))
        yield TableBlock.from_rows((*headings, "column", ">before", ">after"), rows)
    else:
        yield TableBlock.from_rows(headings, (key for _, key in keys))
    if (more := len(diff.changes) - formats.MAX_SHOWN) > 0:
        yield f"and {more:,} more; {f'all are in {out}' if out else '--json and --out FILE give all'}"
    elif out is not None:
        yield f"{formats.plural(len(diff.changes), 'row')} in {out}"
