"""Snapshots, clones and what became of them, and verified moments, as they are shown."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from .. import instants
from ..keep.clone.clone import ClonePlan
from ..keep.promote.promote import Promoted
from ..keep.verify.report import CHECKS
from ..keep.verify.verify import Report
from ..moments.cut.graph import Cut
from ..moments.cut.in_flight import InFlight
from ..moments.cut.stored import Request, Snapshot
from ..moments.diff.key_changes import KeyChange
from ..moments.take.audit_log import Operation
from . import formats, values
from .document import Block, Cell, TableBlock, Title
from .formats import plural, size
from .history import table_diff
from .shown import Result, Words, fields, result


def verification(report: Report) -> Result:
    """Whether a moment is whole."""
    ledger = [asdict(entry) | {"difference": entry.difference} for entry in report.ledger]
    data = {"consistent": report.consistent, **asdict(report), "ledger": ledger}
    return Result(data, *verified(report), failed=not report.consistent)


def verified(report: Report) -> Iterator[Block]:
    """The ledger of each channel, and what was checked."""
    yield Title(report.ref)
    # Most apps never lose a record: a column for it is there only where one did.
    lossy = any(any(entry.lost) for entry in report.ledger)
    if report.ledger:
        counted = (">sent", ">consumed", *((">lost",) if lossy else ()), ">in flight", ">difference", "counted in")
        yield TableBlock.of(("channel", "from", "to", "partition", *counted), _ledger(report, lossy=lossy))
    yield ""
    accepted = {"channels": "sent = consumed + lost + in flight"} if lossy else {}
    rows = []
    for each in report.checks:
        noun, law = CHECKS[each.check]
        law = accepted.get(each.check, law)
        rows.append((each.check, plural(each.checked, noun), law, str(each.differences)))
    yield TableBlock.of(("", ">checked", "", ">differences"), rows)
    yield ""
    yield from report.not_reread
    if report.consistent:
        yield f"consistent ({plural(report.requests, 'request')}, {size(report.bytes_read)} read)"
        return
    yield f"not consistent: {report.differences[0].message}"
    if more := len(report.differences) - 1:
        yield f"and {plural(more, 'more difference')}; --json has them all"


def _ledger(report: Report, *, lossy: bool) -> Iterator[tuple[Cell, ...]]:
    """One line for each channel, and one for each partition where it does not add up."""
    for entry in report.ledger:
        counted, where = entry.in_flight, entry.in_flight.where
        where = f"{where} (not re-read)" if where and counted.not_reread else where or "not re-read"
        ends = (f"{entry.sender}@v{entry.sender_version}", f"{entry.receiver}@v{entry.receiver_version}")
        sent, consumed = (sum(each) if each else None for each in (entry.sent, entry.consumed))
        lost = (sum(entry.lost),) if lossy else ()
        yield (entry.channel, *ends, "all", sent, consumed, *lost, counted.rows, entry.difference, where)
        for partition, (*passed, gone, rows, difference) in enumerate(entry.partitions):
            if difference:
                yield ("", "", "", str(partition), *passed, *((gone,) if lossy else ()), rows, difference, "")


@result
def taken(snapshot: Snapshot, flags: str, *, already: bool) -> Words:
    """A snapshot that was taken, now or by the same call before."""
    name, took = f"{snapshot.app}@{snapshot.name}", formats.duration(snapshot.completed_ms - snapshot.created_ms)
    done = "is pinned" if snapshot.kind == "instant" else f"is complete after {took}"
    if already:
        done = f"is the one that you took {instants.age(snapshot.completed_ms)}"
    yield f"{'done already: ' if already else ''}snapshot {name} {done}: {versions(snapshot)}"
    if rows := sum(kept.rows for kept in snapshot.channels):
        yield f"{plural(rows, 'record')} on the way between stages kept with it"
    yield f'query it: slackwater query {name} "SELECT …"{flags}'
    return snapshot


def requested(app_name: str, request: Request, *, already: bool) -> Result:
    """A snapshot that was asked for, now or by the same call before."""
    name, when = request.name, f" already, {instants.age(request.created_ms)}" if already else ""
    return Result(request, f"asked for {app_name}@{name}{when}; `slackwater snapshot list {app_name}` shows it")


def snapshots(app_name: str, taken: Sequence[Snapshot], asked: Sequence[Request], waiting: Iterable[str]) -> Result:
    """Those that were taken and those that were asked for; `waiting` says what these wait for."""
    rows: list[tuple[str, ...]] = [(s.name, instants.when(s.completed_ms), s.kind, versions(s), s.by) for s in taken]
    rows += [(r.name, instants.when(r.created_ms), "asked for", "…", r.by) for r in asked]
    none = f"{app_name} has no snapshot; `slackwater snapshot take {app_name} NAME` takes one"
    table = TableBlock.of(("name", "taken", "kind", "versions", "by"), rows)
    return Result({"snapshots": taken, "requests": asked}, table if rows else none, notes=waiting)


@result
def snapshot(found: Snapshot, cut: Cut, flights: Sequence[InFlight]) -> Words:
    """The versions of a snapshot, where its inputs stood, and what was on the way."""
    by = f" by {found.by}" if found.by else ""
    yield f"{found.app}@{found.name}  {found.kind}, {instants.when(found.completed_ms)}{by}"
    if found.clone:
        yield f"kept for the clone {found.clone}"
    rows: list[tuple[Cell, ...]] = []
    for stage, version in cut.versions.items():
        at = cut.stages[stage]
        offsets = formats.offsets((read.topic, read.offsets) for read in at.inputs.values())
        rows.append((stage, f"v{version}", instants.iso(at.time_ms), stage if at.table else "-", offsets))
    yield TableBlock.of(("stage", ">version", "committed", "table", "read up to"), rows)
    if flights:
        yield ""
        windows = ((f, formats.between(f.topic, f.starts, f.ends)) for f in flights)
        lines = ((f.channel, f.sender, f.receiver or "-", f.rows, between) for f, between in windows)
        yield TableBlock.of(("on the way", "from", "to", ">rows", "offsets"), lines)
    else:
        yield "nothing was on the way between stages"
    inputs = {stage: manifest.inputs for stage, manifest in cut.stages.items()}
    return {"snapshot": found, "inputs": inputs, "in_flight": flights}


def unpinned(what: str, gone: Snapshot | Request | Operation, *, dry_run: bool) -> Result:
    """A snapshot that was removed, or a request that was withdrawn."""
    done = "would remove" if dry_run else "removed"
    match gone:
        case Operation():
            line = f"done already: {what} was removed {instants.when(gone.time_ms)} by {gone.by}"
            return Result({"removed": None, "dry_run": dry_run, "done_already": True}, line)
        case Snapshot():
            line = f"{done} {what} ({versions(gone)})"
        case _:
            line = f"{done} the request for {what}"
    return Result({"removed": gone, "dry_run": dry_run, "done_already": False}, line)


def versions(snapshot: Snapshot) -> str:
    """The versions of a snapshot in one line."""
    return ", ".join(f"{stage}@v{version}" for stage, version in snapshot.stages.items())


@result
def cloned(plan: ClonePlan, source: str, flags: str, *, runs: bool, dry_run: bool) -> Words:
    """A clone of `source`; `runs` says whether one that was there before has run on."""
    origin = plan.info.origin
    if plan.done:
        since = f"{origin.app}@{origin.snapshot}" if origin else plan.source.ref
        when = f"the moment of {instants.when(plan.source.time_ms)}, begun {instants.age(plan.info.created_ms)}"
        yield f"done already: {plan.info.name} in {plan.target_root} is a clone of {since}, {when}"
        if runs:
            yield "it has run on since; another clone of that moment needs another name"
    else:
        yield from _cloned(plan, source, flags, dry_run)
    return {
        "app": plan.info,
        "store": plan.target_root,
        "source": fields(plan.source, "app", "versions", "time_ms") | {"thinned_out": plan.source.thinned},
        "topics": plan.topics,
        "sinks": origin.sinks if origin else {},
        **fields(plan, "in_flight", "resumed"),
        "done_already": plan.done,
        "dry_run": dry_run,
    }


def _cloned(plan: ClonePlan, source: str, flags: str, dry_run: bool) -> Iterator[Block]:
    done = "would clone" if dry_run else "finished cloning" if plan.resumed else "cloned"
    yield Title(f"{done} {source} as {plan.info.name} in {plan.target_root}")
    rows: list[tuple[Cell, ...]] = []
    for stage, version in plan.source.versions.items():
        at = plan.source.stages[stage]
        shared = size(sum(sst.bytes for sst in at.ssts)) if at.table else "-"
        topics = ((plan.topics[name], read.offsets) for name, read in at.inputs.items() if not read.upstream)
        rows.append((stage, f"v{version}", instants.iso(at.time_ms), shared, formats.offsets(topics)))
    yield TableBlock.of(("stage", ">version", "committed", ">state shared", "goes on at"), rows)
    if on_the_way := sum(flight.rows for flight in plan.in_flight):
        yield f"{plural(on_the_way, 'row')} on the way between stages {'to copy' if dry_run else 'copied'}"
    publishes = plan.info.origin.sinks if plan.info.origin else {}
    silent = sorted({name for at in plan.source.stages.values() for name in at.sinks} - publishes.keys())
    if publishes:
        yield f"it publishes {', '.join(f'{name} to {topic}' for name, topic in publishes.items())}"
    if silent:
        yield f"it does not publish {', '.join(silent)}: --sink {silent[0]}=TOPIC would"
    if dry_run:
        return
    if plan.info.origin:
        yield f"{plan.source.app}@{plan.info.origin.snapshot} keeps the state that the clone shares"
    yield f"run it: slackwater run FILE --app {plan.info.name}{flags}"


@result
def promoted(done: Promoted, flags: str, *, with_values: bool, dry_run: bool) -> Words:
    """An app that was promoted over another one, or would be."""
    plan = done.plan
    if plan.done:
        yield f"done already: {plan.to} has the name {plan.name}, and {plan.name}~1 is the app that had it before"
    else:
        yield Title(f"{'would promote' if dry_run else 'promoted'} {plan.staging} over {plan.name}")
        if dry_run:
            lag = f"is {plural(done.behind, 'record')} behind it" if done.behind else "has read as much"
            yield f"{plan.name} stands at {formats.offsets(done.at.items())}; {plan.staging} {lag}"
        else:
            yield f"both stood at {formats.offsets(done.at.items())}; {plan.name} was held for {done.held_s:.1f} s"
        rows = (
            (each.stage, each.sink, each.topic or "a function", "begins" if each.new else "goes over")
            for each in plan.sinks
        )
        if plan.sinks:
            yield TableBlock.of(("stage", "sink", "publishes to", ""), rows)
        else:
            yield f"{plan.name} has no sinks"
        for table in done.changes:
            yield ""
            yield from table_diff(table, with_rows=with_values, with_values=with_values)
        yield ""
        if dry_run:
            yield "nothing was changed (--dry-run)"
        else:
            yield f"{plan.name} is {plan.to} from here on, and {plan.name}~1 is {plan.over}, whose runner stops"
            yield f"start it from now on as: slackwater run FILE --app {plan.name}{flags}"
            yield f"back: slackwater promote --back --over {plan.name}{flags}, once {plan.name}~1 runs again, silent"
    names = ("table", "added", "removed", "changed")
    return {
        "name": plan.name,
        "app": plan.to,
        "over": plan.over,
        "number": plan.number,
        "at": done.at,
        "behind": done.behind if dry_run else None,
        "held_s": None if dry_run or plan.done else round(done.held_s, 3),
        "sinks": plan.sinks,
        "changes": [
            fields(each, *names) | {"rows": values.stream(map(_row, each.changes)) if with_values else None}
            for each in done.changes
        ],
        "versions": done.versions,
        "done_already": plan.done,
        "dry_run": dry_run,
    }


def _row(change: KeyChange) -> dict[str, object]:
    return {"key": change.key, "change": change.kind, **fields(change, "before", "after")}
