"""What becomes stored state: by migrations, first versions, batches run again, queries that are followed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from ...common import instants
from ...operations.debugging.check.check import CheckedVersion, Dependence, PassedOver, Reason
from ...operations.debugging.replay.compare import Comparison
from ...operations.exchange.initialise import Initialised
from ...operations.from_spark.adopt.adopting import AdoptionPlan
from ...operations.from_spark.adopt.adoption import Adopted, AdoptedBatch
from ...operations.from_spark.adopt.shadow import ShadowBatch
from ...operations.from_spark.attach.tail import Landed, ToAttach
from ...pipeline.batch.batch_report import BatchReport
from ...snapshot.change.migrate import Migrated, lines
from ...snapshot.query.log import batches_brought
from ...store.sst.arrow_types import python_values
from ...store.versions.manifest import Column
from . import formats, values
from .document import Block, Cell, NextCommand, TableBlock, Title
from .formats import MOST_SHOWN, plural
from .report import Mask
from .shown import Already, Result, Words, fields, operation


@operation
def migrated(done: Migrated, file: str, *, dry_run: bool) -> Words:
    """Changes that a migration makes, or would make."""
    yield from _migrated(done, file, dry_run)
    data = fields(done.plan, "app", "changes", versions=done.versions)
    data |= {"migration": done.number or None, "snapshot": done.snapshot or None, "finished": done.finished or None}
    return data


def _migrated(done: Migrated, file: str, dry_run: bool) -> Iterator[Block]:
    app = done.plan.app
    if done.finished:
        yield f"finished migration {done.finished}, which had been left half done"
    if not done.plan.changes:
        yield f"{app} is as {file} declares it: nothing to migrate"
        return
    for change in done.plan.changes:
        version = done.versions.get(change.stage)
        yield change.stage + (f"  v{version}" if version else f"  v{change.version} now" if change.version else "")
        yield from (f"  {line}" for line in lines(change))
    if dry_run:
        return
    before = f"{app}@{done.snapshot}"
    yield f"migration {done.number} of {app} is done: {plural(len(done.versions), 'commit')}, no data rewritten"
    yield f"before it: {before}"
    yield "run it: ", NextCommand(f"slackwater run {file} --app {app}")
    clone = NextCommand(f"slackwater clone {before} {app}-before")
    yield "back to before, beside it: ", clone, f", and run the old program with --app {app}-before"


@operation
def initialised(done: Initialised, program: str, *, dry_run: bool) -> Words:
    """A table that begins with rows from elsewhere."""
    where = f"{done.app}/{done.stage}"
    held = f"{plural(done.rows, 'row')} in {plural(done.ssts, 'SST')}, {formats.size(done.bytes)}"
    if done.already:
        yield Already(f"{where} v{done.version} has these {held}")
    else:
        yield f"{f'would begin {where}' if dry_run else f'{where} begins'} with v{done.version}: {held}"
    yield f"it reads on from {formats.offsets(done.offsets.items())}"
    if done.others:
        starts = formats.offsets(done.starts.items())
        begins = f"at {starts}" if starts else "where the program says"
        yield f"{', '.join(done.others)} {'begins' if len(done.others) == 1 else 'begin'} without rows, {begins}"
    if not dry_run:
        yield "the first run goes on from here: ", NextCommand(f"slackwater run {program} --app {done.app}")
    return asdict(done)


def replayed(found: Comparison, bundle: Path | None, test: Path | None) -> Result:
    """A batch that was run again beside what was committed; `bundle` and `test` are the files that have it.

    For machines with all keys and rows that differ; bytes are hexadecimal.
    """
    keys = ({"key": each.key, "committed": each.before, "replayed": each.after} for each in found.different or ())
    data = {
        **fields(found, "app", "stage", "version", "time_ms", "same", "hidden"),
        "read": [{"topic": topic, "records": count} for topic, count in found.read],
        "keys_committed": found.committed.num_rows if found.committed is not None else None,
        "keys_replayed": found.num_replayed if found.committed is not None else None,
        "different": values.stream(keys),
        "channels": [
            {
                "name": each.name,
                "committed": each.committed.rows.num_rows if each.committed.rows is not None else None,
                "unknown": each.committed.unknown or None,
                "replayed": each.replayed.num_rows,
                "missing": values.for_json(each.missing)["rows"],
                "added": values.for_json(each.added)["rows"],
            }
            for each in found.channels
        ],
        "bundle": bundle,
        "test": test,
    }
    return Result(data, *_replayed(found, bundle, test), failed=not found.same)


def _replayed(found: Comparison, bundle: Path | None, test: Path | None) -> Iterator[Block]:
    written: list[tuple[Cell, ...]] = []
    if found.committed is not None:
        keys = len(found.different or ()) + found.hidden
        written.append((found.stage, "keys", found.committed.num_rows, found.num_replayed, keys))
    for each in found.channels:
        sent, replayed = each.committed.rows, each.replayed.num_rows
        different = None if sent is None else each.missing.num_rows + each.added.num_rows
        written.append((each.name, "rows sent", None if sent is None else sent.num_rows, replayed, different))
    yield Title(f"{found.ref} gives {'what' if found.same else 'something else than'} was committed")
    yield TableBlock.of(("it read", ">records"), found.read)
    yield ""
    yield TableBlock.of(("it wrote", "", ">committed", ">replayed", ">different"), written)
    if found.different:
        yield ""
        yield values.changes(found.different, "committed", "replayed")
        yield from _more(len(found.different), "key")
    if found.hidden:
        yield ""
        what = "internal columns, or a row that only one of both wrote again as it was"
        yield f"{plural(found.hidden, 'key')} differ in what is not shown: {what}"
    for each in found.channels:
        if each.committed.rows is None:
            yield ""
            yield f"what was sent on {each.name} is not compared: {each.committed.unknown}"
        for rows, what in ((each.missing, "were sent then, and are not now"), (each.added, "were not sent then")):
            if rows.num_rows:
                yield ""
                yield f"rows of {each.name} that {what}:"
                yield values.grid(rows, formats.MOST_SHOWN)
                yield from _more(rows.num_rows, "row")
    if bundle is not None:
        yield ""
        yield f"{bundle} has it all ({formats.size(bundle.stat().st_size)}); to replay it anywhere:"
        yield f"  slackwater replay {bundle}"
    if test is not None:
        yield f"{test} expects what was committed: put right in it what should have been"


def _more(count: int, noun: str) -> Iterator[Block]:
    if count > formats.MOST_SHOWN:
        yield f"and {count - formats.MOST_SHOWN:,} more; --json gives each {noun}"


_REASONS: Mapping[Reason, tuple[str, str]] = {
    "random": (
        "chance",
        "it differs though nothing was another: a random number, an id, what a module remembers between calls, or a "
        "clock that cannot be stopped",
    ),
    "process": (
        "the Python process",
        "it differs only when its Python functions run in another process: a process id, an object's id() or address, "
        "what a module remembers between calls; make each row of its record alone",
    ),
    "clock": ("the clock", "it differs only when it runs at another time: take times from the records"),
    "order": (
        "the order of records",
        "it differs only where they come in another order: order them by a column of theirs, such as order_by= or by=, "
        "in which no two of a key are equal",
    ),
    "batches": (
        "where batches end",
        "it differs only where the same records come in more batches: what it makes of a record must not depend on "
        "those beside it, but on what is stored",
    ),
    "partitions": (
        "partitions",
        "it differs only where the same records are in other partitions: what it makes of a key must not depend on "
        "other keys beside it",
    ),
    "outside": (
        "something that has changed since",
        "run again it gives the same each time, but not what was committed: a file, a table, a setting or a clock that "
        "it reads when it begins, or another program ran",
    ),
}
"""What a program most likely depends on, and what that follows from."""


def checked(file: str, app: str, done: Sequence[CheckedVersion | PassedOver], *, show_values: bool) -> Result:
    """What was found out about these versions; keys and rows are hidden unless `show_values`."""
    ran = [each for each in done if isinstance(each, CheckedVersion)]
    passed = [each for each in done if isinstance(each, PassedOver)]
    found = [one for each in ran for one in each.found]
    mask = Mask(show_values)
    data = {
        "app": app,
        "program": file,
        "same": not found and bool(ran),
        "versions": [fields(each, "stage", "version", "records", "runs", different=bool(each.found)) for each in ran],
        "passed_over": [fields(each, "ref", "why") for each in passed],
        "found": [_dependence(one, mask) for one in found],
    }
    return Result(data, *_checked(file, app, ran, passed, found, mask), failed=bool(found) or not ran)


def _dependence(one: Dependence, mask: Mask) -> dict[str, Any]:
    keys = one.different.keys

    def row(known: Mapping[str, object] | None) -> object:
        if known is None or mask.show:
            return known
        return {name: mask.value(value).text for name, value in known.items()}

    changes = (
        {"key": row(each.key), "first": row(each.before), "second": row(each.after)}
        for each in (keys.head(MOST_SHOWN) if keys is not None else ())
    )
    return fields(one, "stage", "version", "reason", "runs", "plan") | {
        "num_keys": len(keys) if keys is not None else 0,
        "keys": values.stream(changes),
        "sent": {
            name: {"first": rows.missing.num_rows, "second": rows.added.num_rows}
            for name, rows in one.different.sent.items()
        },
        "error": mask.reason(one.different.failed) or None,
    }


def _checked(
    file: str,
    app: str,
    ran: Sequence[CheckedVersion],
    passed: Sequence[PassedOver],
    found: Sequence[Dependence],
    mask: Mask,
) -> Iterator[Block]:
    stages = {each.stage: [one for one in ran if one.stage == each.stage] for each in ran}
    different = dict.fromkeys(one.stage for one in found)
    if not ran:
        yield Title(f"nothing of {app} could be run again, so nobody knows whether {file} is a function of its input")
    elif not found:
        shown = f"as far as seen in {plural(len(ran), 'version')} of {plural(len(stages), 'stage')}"
        yield Title(f"{file} is a function of its input, {shown}")
    else:
        yield Title(f"{file} is no function of its input: {', '.join(different)}")
    if ran:
        rows = (
            (
                stage,
                ", ".join(f"v{each.version}" for each in reversed(each_of)),
                sum(each.records for each in each_of),
                ", ".join(dict.fromkeys(_REASONS[one.reason][0] for each in each_of for one in each.found)) or "-",
            )
            for stage, each_of in stages.items()
        )
        yield TableBlock.of(("stage", "versions", ">records", "depends on"), rows)
        ways = ", ".join(dict.fromkeys(title for each in ran for title in each.runs))
        yield f"run as they were, and compared with: {ways}"
    ordered = sorted(found, key=lambda one: (list(different).index(one.stage), list(_REASONS).index(one.reason)))
    for _, of_reason in groupby(ordered, key=lambda one: (one.stage, one.reason)):
        yield from _finding(tuple(of_reason), mask)
    yield from _passed_over(passed)


def _finding(found: Sequence[Dependence], mask: Mask) -> Iterator[Block]:
    # The one that shows most.
    one = max(found, key=lambda each: len(each.different.keys or ()))
    what, why = _REASONS[one.reason]
    first, second = one.runs
    yield ""
    yield Title(f"{one.stage} depends on {what}")
    versions = ", ".join(f"v{each.version}" for each in sorted(found, key=lambda each: each.version))
    yield f"{versions}: {why}"
    plan = (*one.plan.random, *(one.plan.clocks if one.reason == "clock" else ()))
    if plan:
        yield f"its plan has {', '.join(f'{name}()' for name in plan)}"
    if keys := one.different.keys:
        differ = "differs" if len(keys) == 1 else "differ"
        yield f"v{one.version}, {first} and {second}: {plural(len(keys), 'key')} {differ}"
        yield values.changes(keys, first, second, mask.value)
        if len(keys) > MOST_SHOWN:
            yield f"and {len(keys) - MOST_SHOWN:,} more"
    for name, rows in one.different.sent.items():
        counts = (
            f"{plural(each.num_rows, 'row')} only {title}"
            for each, title in ((rows.missing, first), (rows.added, second))
            if each.num_rows
        )
        yield f"v{one.version}, sent on {name}: {', '.join(counts)}"
    if one.different.failed:
        yield f"v{one.version} fails {second}: {mask.reason(one.different.failed)}"


def _passed_over(passed: Iterable[PassedOver]) -> Iterator[Block]:
    by_reason: dict[str, list[str]] = {}
    for each in passed:
        by_reason.setdefault(each.why, []).append(each.ref)
    for why, refs in by_reason.items():
        yield ""
        yield f"passed over: {', '.join(refs)}: {why}"


def commit_line(commit: BatchReport) -> str:
    """A commit of a run, in one line."""
    rate = commit.rows_in / commit.seconds if commit.seconds else 0
    words = (
        instants.iso(commit.time_ms),
        f"{commit.stage} v{commit.version}",
        plural(commit.rows_in, "row"),
        f"{plural(commit.keys, 'key')} written" if commit.keys else "",
        f"{formats.count(commit.rows_out)} out" if commit.rows_out else "",
        f"{commit.seconds:.1f} s ({rate:,.0f}/s)",
        f"held back {commit.stall_seconds:.1f} s by {commit.state.l0_files} L0 SSTs" if commit.stall_seconds else "",
        f"{commit.unflushed} unflushed" if commit.unflushed else "",
        formats.windows(commit.windows),
        f"snapshot {', '.join(commit.snapshots)}" if commit.snapshots else "",
    )
    return "  ".join(filter(None, words))


def to_attach(found: ToAttach, where: str, query: str) -> Result:
    """What attaching would read, and as what."""
    return Result(_plan_data(found, where, query), *_plan(found, where, query))


def _plan_data(found: ToAttach, where: str, query: str) -> dict[str, object]:
    tables = {
        name: {"operator": found.rows_of[name], "key": _types(table.key), "values": _types(table.values)}
        for name, table in found.tables.items()
    }
    batches = [found.available[0], found.available[-1]] if found.available else []
    return fields(found, "app", "stage", "next_batch", checkpoint=where, query=query, batches=batches, tables=tables)


def _types(columns: Iterable[Column]) -> dict[str, str]:
    return {column.name: column.type for column in columns}


def _plan(found: ToAttach, where: str, query: str) -> Iterator[Block]:
    yield f"{where}, the query {query}, as {found.app}/{found.stage}; nothing was changed"
    yield ""
    rows = (
        (name, found.rows_of[name], _columns(table.key), _columns(table.values)) for name, table in found.tables.items()
    )
    yield TableBlock.of(("table", "of", "key", "columns"), rows)
    yield ""
    if not found.available:
        yield "the query has not committed a batch yet"
        return
    first, last = found.available[0], found.available[-1]
    there = f"batches {first} to {last} can be read" if last > first else f"batch {last} can be read"
    if not found.next_batch:
        yield f"{there}: history begins {instants.iso(found.first_ms)}, with all rows at the end of batch {first}"
    elif found.next_batch > last:
        yield f"{there}, and versions have them all"
    elif found.next_batch >= first:
        yield f"{there}; it goes on with batch {found.next_batch}"
    else:
        yield f"{there}; batches {found.next_batch} to {first} become one version, as those before {first} are gone"


def _columns(columns: Iterable[Column]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in _types(columns).items())


def landed(app: str, found: Landed) -> Result:
    """A version, in a line."""
    made, brought = found.manifest, found.manifest.attached
    batch, batches = (brought.next_batch - 1, brought.batches) if brought else (None, 0)
    data = fields(made, "stage", "version", app=app, batch=batch, batches=batches) | fields(found, "rows", "behind_ms")
    line = (
        f"{instants.iso(made.time_ms)}  {app}/{made.stage}@v{made.version}  {batches_brought(made)}, "
        f"{plural(found.rows, 'row')} changed, {formats.duration(found.behind_ms)} after Spark's commit"
    )
    return Result(data, line)


def caught_up(app: str, stage: str, versions: int, next_batch: int) -> Result:
    """What one call did."""
    upto = f"up to batch {next_batch - 1}" if next_batch else "the query has not committed a batch yet"
    line = f"{app}/{stage}: {plural(versions, 'version')} more, {upto}"
    return Result({"app": app, "stage": stage, "versions": versions, "next_batch": next_batch}, line)


_MOST_DIFFERENT = 5


def to_adopt(plan: AdoptionPlan) -> Result:
    """What an adoption would make, and of what."""
    columns, batches = _types(plan.table.columns), [plan.batches[0], plan.batches[-1]]
    made = {each.column: fields(each, "how", of=list(each.of), type=columns.get(each.column)) for each in plan.made}
    about = {"checkpoint": plan.where, "batches": batches, "columns": made, "dry_run": True}
    return Result(fields(plan, "app", "stage", "query", "offsets") | about, *_adoption(plan, columns))


def _adoption(plan: AdoptionPlan, columns: dict[str, str]) -> Iterator[Block]:
    yield f"{plan.where}, the query {plan.query}, would become {plan.app}/{plan.stage}; nothing was changed"
    yield ""
    rows = (
        (each.column, columns.get(each.column, ""), ", ".join(each.of) or "-", each.how or "as it is")
        for each in plan.made
    )
    yield TableBlock.of(("column", "type", f"of the state ({', '.join(plan.of)})", "how"), rows)
    yield ""
    first, last = plan.batches[0], plan.batches[-1]
    count = formats.plural(len(plan.batches), "version")
    yield f"batches {first} to {last} would become {count}; the first has all rows at the end of batch {first}"
    yield f"it would read on from {formats.offsets(plan.offsets.items())}"


def adopted_batch(found: AdoptedBatch, batches: range) -> str:
    """A version, in a line of progress."""
    done = found.batch - batches[0] + 1 if batches else 1
    total = len(batches) or 1
    made = f"batch {found.batch}: v{found.manifest.version}, {formats.plural(found.rows, 'row')}"
    return f"{formats.bar(done, total)}  {made}"


@operation
def adopted(done: Adopted, program: str) -> Words:
    """What was made."""
    where = f"{done.app}/{done.stage}"
    if done.already:
        yield Already(f"{where} is the query up to its batch {done.last_batch}, which is v{done.version}")
    else:
        yield f"{where} is the query: v1 to v{done.version}, up to its batch {done.last_batch}"
    if done.checksum is not None:
        yield f"equal to what Spark reads at that batch: {done.checksum}"
    yield f"it reads on from {formats.offsets(done.offsets.items())}"
    yield "the first run goes on from there: ", NextCommand(f"slackwater run {program} --app {done.app}")
    checksum = asdict(done.checksum) if done.checksum is not None else None
    return asdict(done) | {"already": done.already, "checksum": checksum}


def emitted(path: str, stage: str, checkpoint: str) -> Result:
    """A program that was written."""
    return Result(
        {"program": path, "stage": stage},
        f"wrote {path}, which declares the stage {stage}; its function is still to be written",
        ("then: ", NextCommand(f"slackwater adopt {checkpoint} {path} --stage {stage} --dry-run")),
    )


def shadowed(found: ShadowBatch, equal: int, equal_ms: int) -> Result:
    """A batch of the query, compared."""
    different = found.different
    first = [asdict(each) for each in different.head(_MOST_DIFFERENT)] if different is not None else []
    data = fields(found, "batch", "time_ms", "records", "keys", equal_batches=equal, equal_ms=equal_ms)
    data |= {"different": first, "different_keys": len(different) if different is not None else 0}
    line = (
        f"{instants.iso(found.time_ms)}  batch {found.batch}: {formats.plural(found.records, 'record')}, "
        f"{formats.plural(found.keys, 'key')} changed: "
    )
    if different is None:
        return Result(
            data, f"{line}equal for {formats.duration(equal_ms)}, {equal:,} batch{'' if equal == 1 else 'es'}"
        )
    flat = different.head(_MOST_DIFFERENT).flat()
    named = [name.replace("before_", "query_").replace("after_", "stage_") for name in flat.column_names]
    rows = zip(*(map(str, python_values(column)) for column in flat.columns), strict=True)
    more = f", the first {_MOST_DIFFERENT}" if len(different) > _MOST_DIFFERENT else ""
    return Result(
        data,
        f"{line}{formats.plural(len(different), 'key')} differ{'s' if len(different) == 1 else ''}{more}",
        TableBlock.of(named, rows),
    )
