"""Snapshots and clones, as they are shown: what one is made of, those that there are, and what went."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from ...common import instants
from ...common.durations import format_ms, rounded
from ...errors import SlackwaterError
from ...operations.maintenance.removal import Removed
from ...operations.staging.clone_plan import ClonePlan
from ...operations.staging.listing import KnownClone
from ...operations.staging.promote import Promoted
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import InFlight
from ...snapshot.cut.stored import Request, Snapshot
from ...snapshot.take.audit_log import Operation
from ...store.versions.apps import taken_back
from ...store.versions.manifest import AppInfo
from . import formats, values
from .document import Block, Cell, NextCommand, TableBlock, Title
from .formats import plural, size, store_flag
from .history import table_diff
from .shown import Already, Result, Words, fields, operation, result


@result
def taken(snapshot: Snapshot, *, already: bool) -> Words:
    """A snapshot that was taken, now or by the same call before."""
    name, took = f"{snapshot.app}@{snapshot.name}", formats.duration(snapshot.completed_ms - snapshot.created_ms)
    done = "is pinned" if snapshot.kind == "instant" else f"is complete after {took}"
    if already:
        done = f"is the one that you took {instants.age(snapshot.completed_ms)}"
    yield f"{'done already: ' if already else ''}snapshot {name} {done}: {versions(snapshot)}"
    if rows := sum(kept.rows for kept in snapshot.channels):
        yield f"{plural(rows, 'record')} on the way between stages kept with it"
    yield "query it: ", NextCommand(f'slackwater query {name} "SELECT …"')
    return snapshot


def requested(app_name: str, request: Request, *, already: bool) -> Result:
    """A snapshot that was asked for, now or by the same call before."""
    name, when = request.name, f" already, {instants.age(request.created_ms)}" if already else ""
    return Result(request, f"asked for {app_name}@{name}{when}; `slackwater snapshot list {app_name}` shows it")


def snapshots(app_name: str, taken: Sequence[Snapshot], asked: Sequence[Request], waiting: Iterable[str]) -> Result:
    """Those that were taken and those that were asked for; `waiting` says what these wait for."""
    rows: list[tuple[str, ...]] = [
        (s.name, instants.when(s.completed_ms), f"{s.kind}, edited" if s.edited_ms else s.kind, versions(s), s.by)
        for s in taken
    ]
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
    if found.edited_ms:
        gone = sum(sum(each.forgotten) for each in found.channels)
        records = f", {plural(gone, 'record')} on the way with them" if gone else ""
        yield f"edited {instants.when(found.edited_ms)}: keys were forgotten (slackwater forget){records}"
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


@operation
def unpinned(what: str, gone: Snapshot | Request | Operation, *, dry_run: bool) -> Words:
    """A snapshot that was removed, or a request that was withdrawn."""
    done = "would remove" if dry_run else "removed"
    match gone:
        case Operation():
            yield Already(f"{what} was removed {instants.when(gone.time_ms)} by {gone.by}")
        case Snapshot():
            yield f"{done} {what} ({versions(gone)})"
        case _:
            yield f"{done} the request for {what}"
    return {"removed": None if isinstance(gone, Operation) else gone}


def versions(snapshot: Snapshot) -> str:
    """The versions of a snapshot in one line."""
    return ", ".join(f"{stage}@v{version}" for stage, version in snapshot.stages.items())


@operation
def cloned(plan: ClonePlan, source: str, store: str | None, *, runs: bool, dry_run: bool) -> Words:
    """A clone of `source`; `runs` says whether one that was there before has run on."""
    origin = plan.info.origin
    if plan.done:
        since = f"{origin.app}@{origin.snapshot}" if origin and origin.snapshot else plan.source.ref
        when = f"the moment of {instants.when(plan.source.time_ms)}, begun {instants.age(plan.info.created_ms)}"
        yield Already(f"{plan.info.name} in {plan.target_root} is a clone of {since}, {when}")
        if runs:
            yield "it has run on since; another clone of that moment needs another name"
    else:
        done = "would clone" if dry_run else "finished cloning" if plan.resumed else "cloned"
        yield Title(f"{done} {source} as {plan.info.name} in {plan.target_root}")
        yield from _made_of(plan, store_flag(store), dry_run)
    return _data(plan)


@operation
def refreshed(plan: ClonePlan, called: str, *, dry_run: bool) -> Words:
    """A clone that was made anew, or would be, from what is `called` so."""
    done, source = "would make" if dry_run else "made", formats.in_folder(called, plan.source.app)
    yield Title(f"{done} {plan.info.name} anew from {source}, {instants.when(plan.source.time_ms)}")
    if dry_run:
        yield "what it has done since it was cloned would be gone"
    yield from _made_of(plan, "", dry_run)
    return _data(plan)


def _data(plan: ClonePlan) -> dict[str, object]:
    origin = plan.info.origin
    source = fields(plan.source, "app", "versions", "time_ms", thinned_out=plan.source.thinned)
    what = {"app": plan.info, "store": plan.target_root, "source": source, "sinks": origin.sinks if origin else {}}
    told = {"bytes_copied": sum(plan.copies.values()), "expires_ms": plan.info.expires_ms or None}
    return what | told | fields(plan, "still_shown", "topics", "copies", "in_flight", "resumed")


def _made_of(plan: ClonePlan, flags: str, dry_run: bool) -> Iterator[Block]:
    origin = plan.info.origin
    rows: list[tuple[Cell, ...]] = []
    for stage, version in plan.source.versions.items():
        at = plan.source.stages[stage]
        shared = "-" if not at.table or stage in plan.copies else size(sum(sst.bytes for sst in at.ssts))
        read = ((name, each) for name, each in at.inputs.items() if not each.upstream)
        topics = ((plan.topics.get(name, each.topic), each.offsets) for name, each in read)
        rows.append((stage, f"v{version}", instants.iso(at.time_ms), shared, formats.offsets(topics)))
    if origin and origin.empty:
        yield f"it begins without state, and reads {', '.join(sorted(set(plan.topics.values())))} from the beginning"
    else:
        yield TableBlock.of(("stage", ">version", "committed", ">state shared", "goes on at"), rows)
    masks = origin.masks if origin else {}
    for table, num_bytes in plan.copies.items():
        hidden = [f"{place.removeprefix(f'{table}.')} ({how})" for place, how in masks.items() if _is_of(place, table)]
        what = f"{size(num_bytes)} to write" if dry_run else f"{size(num_bytes)} written"
        yield f"{table} has SSTs of its own: {what}{', without ' + ', '.join(hidden) if hidden else ''}"
    yield from (f"note: {each}" for each in plan.still_shown)
    if on_the_way := sum(flight.rows for flight in plan.in_flight):
        yield f"{plural(on_the_way, 'row')} on the way between stages {'to copy' if dry_run else 'copied'}"
    publishes = origin.sinks if origin else {}
    silent = sorted({name for at in plan.source.stages.values() for name in at.sinks} - publishes.keys())
    if publishes:
        yield f"it publishes {', '.join(f'{name} to {topic}' for name, topic in publishes.items())}"
    if silent:
        yield f"it does not publish {', '.join(silent)}: --sink {silent[0]}=TOPIC would"
    if plan.info.ttl_ms:
        yield f"{_lease(plan.info)}; `slackwater clone rm --expired` removes it after that"
    if dry_run:
        return
    if origin and origin.snapshot:
        yield f"{plan.source.app}@{origin.snapshot} keeps the state that the clone shares"
    elif origin and origin.deep:
        yield f"nothing of it is in {plan.source.app}, which may go"
    queries = {stage: at.attached for stage, at in plan.source.stages.items() if at.attached is not None}
    for stage, query in queries.items():
        follow = f"slackwater attach {query.checkpoint} --app {plan.info.name} --stage {stage}{flags}"
        yield "to have it follow the query, too: ", NextCommand(follow)
    if not queries:
        yield "run it: ", NextCommand(f"slackwater run FILE --app {plan.info.name}{flags}")


def _is_of(place: str, table: str) -> bool:
    return place.partition(".")[0] == table


def _lease(info: AppInfo) -> str:
    return f"wanted for {format_ms(info.ttl_ms)}, until {instants.iso(info.expires_ms)}"


def listed(found: Sequence[KnownClone], source: str, now_ms: int, root: str) -> Result:
    """The clones that there are, what each keeps, and who has it."""
    headings = ("clone", "of", "owner", "made", "expires", "runs", ">shares", ">keeps alone", "reason")
    rows: list[tuple[Cell, ...]] = []
    for each in found:
        name = each.name if each.root == root else f"{each.name} in {each.root}"
        moment = f"@{each.snapshot}" if each.snapshot else ""
        runs = each.state or {None: "?", False: "not yet", True: "has run"}[each.has_run]
        kept = (size(each.shared_bytes), size(each.kept_bytes)) if each.snapshot else ("-", "-")
        made = instants.age(each.created_ms, now_ms)
        source = each.source_called or each.source
        about = (name, f"{source}{moment}", each.owner or "-", made, _expiry(each, now_ms), runs)
        rows.append((*about, *kept, each.reason or "-"))
    of = f" of {source}" if source else ""
    none = f"no clone{of} is known under {root}; `slackwater clone APP NAME` makes one"
    data = [asdict(each) | {"expired": each.is_expired(now_ms)} for each in found]
    notes = []
    if any(each.is_expired(now_ms) for each in found):
        notes.append("the time of some is over: slackwater clone rm --expired")
    for each in found:
        if each.state == "gone":
            words = f"slackwater snapshot rm {each.source_called or each.source} {each.snapshot}"
            notes.append(f"{each.source} keeps a snapshot for {each.name}, which is gone: {words}")
    return Result({"clones": data}, TableBlock.of(headings, rows) if rows else none, notes=notes)


def _expiry(each: KnownClone, now_ms: int) -> str:
    if each.called:
        return f"is {each.called} since a promotion"
    if not each.expires_ms:
        return "-"
    if each.is_expired(now_ms):
        return f"expired {instants.age(each.expires_ms, now_ms)}"
    return f"in {rounded(each.expires_ms - now_ms)}"


def expired(
    gone: Sequence[Removed], left: Mapping[str, SlackwaterError], promoted: Mapping[str, str], *, dry_run: bool
) -> Result:
    """The clones that went because their time was over, those that could not, and what others are since a promotion."""
    verb = "would remove" if dry_run else "removed"
    lines = [
        f"{verb} {each.removal.app}: {plural(each.contents.objects, 'object')}, {size(each.contents.bytes)}"
        for each in gone
    ]
    lines += [f"{name} stays: {error.message}" for name, error in left.items()]
    lines += [f"{name} stays: it is {called} since a promotion" for name, called in promoted.items()]
    why = {name: error.message for name, error in left.items()}
    data = {"removed": [each.removal.app for each in gone], "left": why, "promoted": promoted, "dry_run": dry_run}
    return Result(data, *(lines or ["no clone's time is over"]), failed=bool(left))


@operation
def promoted(done: Promoted, *, with_values: bool, dry_run: bool) -> Words:
    """An app that was promoted over another one, or would be."""
    plan = done.plan
    if plan.done:
        yield Already(f"the app in folder {plan.to} is {plan.name}, and {plan.name}~1 the one that was before")
    else:
        yield Title(f"{'would promote' if dry_run else 'promoted'} {plan.staging} over {plan.name}")
        if dry_run:
            lag = f"is {plural(done.behind, 'offset')} behind it" if done.behind else "has read as much"
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
        if not dry_run:
            old = f"{plan.name}~1 the one in folder {plan.over}, whose runner stops"
            yield f"{plan.name} is the app in folder {plan.to} from here on, and {old}"
            yield "start it from now on as: ", NextCommand(f"slackwater run FILE --app {plan.name}")
            yield "back: ", NextCommand(taken_back(plan.name, plan.over)), f", once {plan.name}~1 runs again, silent"
    names = ("table", "added", "removed", "changed")
    changes = [
        fields(each, *names, rows=values.changed_rows(each.changes) if with_values else None) for each in done.changes
    ]
    held_s = None if dry_run or plan.done else round(done.held_s, 3)
    told = {"behind": done.behind if dry_run else None, "held_s": held_s}
    return (
        fields(plan, "name", "over", "number", "sinks", app=plan.to, changes=changes, **fields(done, "at", "versions"))
        | told
    )
