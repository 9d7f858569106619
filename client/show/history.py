"""What has happened: the commits of an app, what was done to it, the changes of a key, the rows that differ."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...common import instants
from ...snapshot.bisect.verdict import Guilty
from ...snapshot.cut.graph import Cut
from ...snapshot.diff.key_history import RowHistory
from ...snapshot.diff.moments import TableDiff
from ...snapshot.query.log import LogEntry
from ...snapshot.take.audit_log import Operation
from ...store.versions.kinds import KINDS
from . import formats, values
from .document import Block, Cell, Name, TableBlock, Title
from .shown import Result, fields
from .values import changed_rows, key_word, tolerance, value_lines
from .verdict import record_data


def log(commits: Sequence[LogEntry], app_name: str) -> Result:
    """Commits, newest first."""
    none = f"{app_name} has no commit yet; `slackwater run FILE` makes them"
    return Result(commits, commits_table(commits) if commits else none)


def commits_table(commits: Sequence[LogEntry]) -> TableBlock:
    """A line for each commit, and one for those right before it that are gone."""
    # Kafka was asked whether it still holds what they read.
    with_replays = any(entry.replayable is not None for entry in commits)
    timed = any(entry.watermark_ms is not None for entry in commits)
    rows: list[tuple[Cell, ...]] = []
    for entry in commits:
        watermark = "-" if entry.watermark_ms is None else instants.iso(entry.watermark_ms)
        rows.append(
            (
                instants.when(entry.time_ms),
                entry.stage,
                f"v{entry.version}",
                entry.kind,
                _rows_in(entry),
                formats.duration(entry.duration_ms) if KINDS[entry.kind].shows_reading else "-",
                ", ".join(entry.snapshots),
                *([watermark] if timed else []),
                *([_can_be(entry)] if with_replays else []),
                _read(entry) or "; ".join(_instead(entry)),
            )
        )
        if entry.thinned is not None:
            first, last = entry.thinned
            versions, none = f"v{first}..v{last}" if first < last else f"v{first}", "-" * (timed + with_replays)
            rows.append(("", entry.stage, versions, "gone", "-", "-", "", *none, "thinned out by gc"))
    more = (*(["watermark"] if timed else []), *(["can be"] if with_replays else []))
    return TableBlock.of(("committed", "stage", ">version", "kind", ">rows", ">took", "snapshots", *more, "read"), rows)


def _rows_in(entry: LogEntry) -> Cell:
    if entry.rows_in is None or not KINDS[entry.kind].shows_reading:
        return "-"
    return formats.at_most(entry.rows_in) if entry.attached else entry.rows_in


def _can_be(entry: LogEntry) -> str:
    """Whether a version can be restored alone, or replayed too."""
    if entry.replayable:
        return "restored, replayed"
    return "; ".join(("restored", *map(anew, entry.replaced)))


def anew(topic: str) -> str:
    """Why what was read of a topic cannot be read again, where another topic has its name."""
    return f"topic {topic} is another one now"


def _read(entry: LogEntry) -> str:
    """What it read, and which batches of a query of Spark's that were."""
    return ": ".join(filter(None, (entry.attached, formats.windows(map(str, entry.windows)))))


def _instead(entry: LogEntry) -> Iterator[str]:
    """What a version that read nothing did: what a claim went on without, columns, another name."""
    for lost in entry.lost.values():
        versions = f", v{lost.after + 1} to v{lost.up_to} of its writer" if lost.up_to else ""
        rows = f" ({formats.plural(sum(lost.rows), 'row')}{versions})" if lost.rows else ""
        yield f"lost {formats.between(lost.topic, lost.starts, lost.ends)}{rows}"
    if entry.added:
        yield f"since here: {', '.join(entry.added)}"
    if entry.rewound is not None:
        yield f"as v{entry.rewound} was" if entry.rewound else "as before it began"
    if entry.reset:
        yield f"reads on from elsewhere: {formats.windows(entry.reset)}"
    if entry.edited:
        yield f"by hand: {entry.edited}"
    if entry.deployed:
        yield f"deploy: {entry.deployed}"
    if entry.renamed:
        yield f"{'was called' if KINDS[entry.kind].begins else 'is called'} {entry.renamed}"


def operations(done: Sequence[Operation], app_name: str, *, is_filtered: bool = False) -> Result:
    """What people did to an app: all of it, or some that was asked for."""
    if not done:
        nothing = "nothing of that kind was done" if is_filtered else "nothing was done"
        return Result(done, f"{nothing} to {app_name} from the command line yet")
    more = {"versions": [", ".join(_made(each)) for each in done], "why": [each.message for each in done]}
    more = {heading: column for heading, column in more.items() if any(column)}
    rows = (
        (instants.when(each.time_ms), each.verb, each.detail, each.by, *others)
        for each, *others in zip(done, *more.values(), strict=True)
    )
    return Result(done, TableBlock.of(("done", "what", "detail", "by", *more), rows))


def _made(done: Operation) -> Iterator[str]:
    """The versions of each stage before and after an operation."""
    for stage in done.before:
        yield f"{stage} v{done.before[stage]}" + (f" to v{done.after[stage]}" if stage in done.after else "")


def key_history(
    found: RowHistory, key: str, behind: Sequence[Guilty | None] | None = None, *, limit: int = 0, verbose: bool = False
) -> Result:
    """The changes of a key, which the person who asked wrote as `key`; `behind` is the record behind each."""
    reasons = [each.reason for each in behind or () if each is not None and each.reason]
    notes = [f"note: the record behind one change cannot be told: {reason}" for reason in reasons]
    notes += _notes(found, limit)
    if verbose:
        requests = formats.plural(found.reads.requests, "request")
        notes.append(f"read {formats.size(found.reads.bytes)} of SSTs in {requests}")
    names = ("stage", "version", "after_version", "time_ms", "expired", "gap", "windows", "before", "after")
    changes = (
        fields(each, *names)
        | {"change": each.kind, "inherited": each.inherited or None, "formerly": each.formerly or None}
        | {"record": record_data(record)}
        for each, record in zip(found.changes, behind or (None,) * len(found.changes), strict=True)
    )
    data = {
        **fields(found, "app", "table"),
        "key": values.rows(found.key)[0],
        "changes": values.stream(changes),
        "whole_from": found.whole_from or None,
        "read": fields(found.reads, "requests", "bytes"),
    }
    never = f"table {found.table} of {found.app} never had a key {key}, in the versions that are left"
    return Result(data, changes_table(found, behind) if found.changes else never, notes=notes)


def changes_table(found: RowHistory, behind: Sequence[Guilty | None] | None = None) -> TableBlock:
    """A line for each value that changed; the first of a change says when, by which version, and of what it came."""
    reads = [formats.windows(map(str, change.windows)) for change in found.changes]
    records = reads if behind is None else [record_of_key(each) for each in behind]
    rows: list[tuple[Cell, ...]] = []
    for change, record in zip(found.changes, records, strict=True):
        what = "expired" if change.expired else f"{change.kind} *" if change.gap or change.inherited else change.kind
        first, *others = value_lines(change.before, change.after)
        rows.append((instants.when(change.time_ms), f"v{change.version}", what, *first, record))
        rows += (("", "", "", *line, "") for line in others)
    last = "read" if behind is None else "record"
    return TableBlock.of(("committed", ">version", "", "column", ">before", ">after", last), rows)


def record_of_key(guilty: Guilty | None) -> str:
    """The record of one change of a key, and of how many that reach the key it is the last; `-` for none."""
    if guilty is None or not guilty.hops:
        return "-"
    record = str(guilty.hops[-1].record)
    if guilty.of_key == 1:
        return record
    if not guilty.of_key:
        return f"{record} (the last that changed it)"
    return f"{record} (the last of {guilty.of_key:,} records of this key)"


def _notes(found: RowHistory, limit: int) -> Iterator[str]:
    """What the list does not say: older changes, and versions that are not there any more."""
    if found.changes and len(found.changes) == limit:
        yield f"the newest {formats.plural(limit, 'change')}; --limit 0 shows all"
    for change in found.changes:
        if change.inherited == "clone":
            yield f"* {found.app} is a clone: the row was there when it was made, and its history is the source's"
        elif change.inherited == "renamed":
            goes_on = f"slackwater history {found.app}/{change.formerly} KEY goes on"
            until = f"* {found.table} was called {change.formerly} until v{change.version}"
            yield f"{until}, and the row was there: {goes_on}"
        elif change.inherited:
            yield f"* the row was there at v{change.version}, and what was before that gc has collected"
    if any(change.gap for change in found.changes):
        yield "* gc collected versions right before: what changed in them shows as one change"
    if found.whole_from:
        whole = f"whole from v{found.whole_from} on; older versions were thinned out by gc"
        yield f"note: the history of {found.app}/{found.table} is {whole}"


def diff(
    refs: Sequence[str],
    cuts: Sequence[Cut],
    found: Sequence[TableDiff],
    *,
    with_rows: bool = True,
    with_values: bool = True,
    out: Path | None = None,
    most: int = 0,
) -> Result:
    """The rows that differ between two moments, named by `refs`; `out` is the file that has all of them.

    For machines, of each table at most so many as `most` says; 0 for all.
    """
    names = ("table", "added", "removed", "changed", "rows_in_both", "about", "columns", "unlike", "near")
    equal = all(each.equal for each in found)
    sides = zip("ab", refs, cuts, strict=True)
    data = {
        **{side: {"ref": ref, "cut": cut.versions, "thinned_out": cut.thinned} for side, ref, cut in sides},
        "equal": equal,
        "tables": [
            fields(each, *names, rows=changed_rows(some, with_values=with_values) if with_rows else None)
            for each, some in ((each, each.changes.head(most) if most else each.changes) for each in found)
        ],
        "file": out,
    }
    blocks: list[Block] = []
    for each in found:
        blocks += ["", *table_diff(each, with_rows=with_rows, with_values=with_values, out=out)]
    return Result(data, *blocks[1:], failed=not equal)


def table_diff(
    each: TableDiff, *, with_rows: bool = True, with_values: bool = True, out: Path | None = None
) -> Iterator[Block]:
    """How one table differs."""
    counts = ((each.added, "added"), (each.removed, "removed"), (each.changed, "changed"))
    differing = ", ".join(f"{number:,} {what}" for number, what in counts if number)
    yield Title(f"{each.table}: {differing or 'no row differs'}")
    yield from each.unlike
    yield from tolerance(each.near)
    if each.changed and each.columns:
        about = f"of {'about ' if each.about else ''}{formats.plural(each.rows_in_both, 'row')}"
        # Rounded down: all are equal only where all are.
        equal = [(each.rows_in_both - one.differing) * 1_000_000 // each.rows_in_both for one in each.columns]
        counted = zip(each.columns, equal, strict=True)
        lines = ((one.column, one.differing, f"{parts / 10_000:g} %") for one, parts in counted)
        yield TableBlock.of(("column", ">differ", f">{about} equal"), lines)
    if not (with_rows and len(each.changes)):
        return
    yield ""
    some = each.changes.head(formats.MOST_SHOWN)
    headings: tuple[str | Name, ...] = ("", *map(Name, each.changes.keys.column_names))
    keys = [(change, (change.kind, *map(key_word, change.key.values()))) for change in some]
    if with_values:
        # A line for each value that differs; of a row that one side has, for each that it has.
        rows = ((*key, *line) for change, key in keys for line in value_lines(change.before, change.after))
        yield TableBlock.of((*headings, "column", ">before", ">after"), rows)
    else:
        yield TableBlock.of(headings, (key for _, key in keys))
    if (more := len(each.changes) - formats.MOST_SHOWN) > 0:
        yield f"and {more:,} more; {f'all are in {out}' if out else '--json and --out FILE give all'}"
    elif out is not None:
        yield f"{formats.plural(len(each.changes), 'row')} in {out}"
