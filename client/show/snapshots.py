"""Output of snapshots, clones and promotions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from ...common import instants
from ...common.durations import format_ms, format_rounded
from ...errors import SlackwaterError
from ...operations.maintenance.removal import Removed
from ...operations.staging.clone_plan import ClonePlan
from ...operations.staging.listing import KnownClone
from ...operations.staging.promote import PromotionResult
from ...snapshot.cut.graph import Cut
from ...snapshot.cut.in_flight import InFlight
from ...snapshot.cut.stored import Snapshot, SnapshotRequest
from ...snapshot.take.audit_log import Operation
from ...store.versions.apps import take_back_command
from . import formats, values
from .document import Block, Cell, NextCommand, TableBlock, Title
from .formats import plural, size, store_flag
from .history import table_diff_blocks
from .shown import AlreadyDone, BlockGenerator, Result, attributes, operation_result, result_from_blocks


@result_from_blocks
def snapshot_taken_result(snapshot: Snapshot, *, already: bool) -> BlockGenerator:
    """Return the result of taking a snapshot; `already` is True if an earlier call took it."""
    name, took = f"{snapshot.app}@{snapshot.name}", formats.duration(snapshot.completed_ms - snapshot.created_ms)
    done = "is pinned" if snapshot.kind == "instant" else f"is complete after {took}"
    if already:
        done = f"is the one that you took {instants.format_age(snapshot.completed_ms)}"
    yield f"{'done already: ' if already else ''}snapshot {name} {done}: {format_versions(snapshot)}"
    if rows := sum(channel.rows for channel in snapshot.channels):
        yield f"{plural(rows, 'in-flight record')} kept with it"
    yield "query it: ", NextCommand(f'slackwater query {name} "SELECT …"')
    return snapshot


def snapshot_request_result(app_name: str, request: SnapshotRequest, *, already: bool) -> Result:
    """Return the result of requesting a snapshot; `already` is True if an earlier call requested it."""
    name, when = request.name, f" already, {instants.format_age(request.created_ms)}" if already else ""
    return Result(request, f"requested {app_name}@{name}{when}; `slackwater snapshot list {app_name}` shows it")


def snapshot_list_result(
    app_name: str, complete: Sequence[Snapshot], requests: Sequence[SnapshotRequest], waiting: Iterable[str]
) -> Result:
    """Return the list of snapshots and open requests; `waiting` has notes on stages that requests wait for."""
    rows: list[tuple[str, ...]] = [
        (
            s.name,
            instants.format_with_age(s.completed_ms),
            f"{s.kind}, edited" if s.edited_ms else s.kind,
            format_versions(s),
            s.by,
        )
        for s in complete
    ]
    rows += [(r.name, instants.format_with_age(r.created_ms), "requested", "…", r.by) for r in requests]
    none = f"{app_name} has no snapshot; `slackwater snapshot take {app_name} NAME` takes one"
    table = TableBlock.from_rows(("name", "taken", "kind", "versions", "by"), rows)
    return Result({"snapshots": complete, "requests": requests}, table if rows else none, notes=waiting)


@result_from_blocks
def snapshot_result(stored: Snapshot, cut: Cut, flights: Sequence[InFlight]) -> BlockGenerator:
    by = f" by {stored.by}" if stored.by else ""
    yield f"{stored.app}@{stored.name}  {stored.kind}, {instants.format_with_age(stored.completed_ms)}{by}"
    if stored.clone:
        yield f"kept for the clone {stored.clone}"
    if stored.edited_ms:
        gone = sum(sum(channel.forgotten) for channel in stored.channels)
        records = f", {plural(gone, 'in-flight record')} with them" if gone else ""
        yield f"edited {instants.format_with_age(stored.edited_ms)}: keys were forgotten (slackwater forget){records}"
    rows: list[tuple[Cell, ...]] = []
    for stage, version in cut.versions.items():
        at = cut.stages[stage]
        offsets = formats.format_offsets((read.topic, read.offsets) for read in at.inputs.values())
        rows.append((stage, f"v{version}", instants.format_iso(at.time_ms), stage if at.table else "-", offsets))
    yield TableBlock.from_rows(("stage", ">version", "committed", "table", "read up to"), rows)
    if flights:
        yield ""
        windows = ((f, formats.offset_ranges(f.topic, f.starts, f.ends)) for f in flights)
        lines = ((f.channel, f.sender, f.receiver or "-", f.rows, between) for f, between in windows)
        yield TableBlock.from_rows(("in flight", "from", "to", ">rows", "offsets"), lines)
    else:
        yield "no records were in flight between stages"
    inputs = {stage: manifest.inputs for stage, manifest in cut.stages.items()}
    return {"snapshot": stored, "inputs": inputs, "in_flight": flights}


@operation_result
def snapshot_removal_result(ref: str, gone: Snapshot | SnapshotRequest | Operation, *, dry_run: bool) -> BlockGenerator:
    done = "would remove" if dry_run else "removed"
    match gone:
        case Operation():
            yield AlreadyDone(f"{ref} was removed {instants.format_with_age(gone.time_ms)} by {gone.by}")
        case Snapshot():
            yield f"{done} {ref} ({format_versions(gone)})"
        case _:
            yield f"{done} the request for {ref}"
    return {"removed": None if isinstance(gone, Operation) else gone}


def format_versions(snapshot: Snapshot) -> str:
    return ", ".join(f"{stage}@v{version}" for stage, version in snapshot.stages.items())


@operation_result
def clone_result(plan: ClonePlan, source: str, store: str | None, *, runs: bool, dry_run: bool) -> BlockGenerator:
    """Return the result of cloning `source`; `runs` is True if the clone existed before and has run since."""
    origin = plan.info.origin
    if plan.done:
        since = f"{origin.app}@{origin.snapshot}" if origin and origin.snapshot else plan.source.ref
        when = (
            f"the moment of {instants.format_with_age(plan.source.time_ms)}, begun "
            f"{instants.format_age(plan.info.created_ms)}"
        )
        yield AlreadyDone(f"{plan.info.name} in {plan.target_root} is a clone of {since}, {when}")
        if runs:
            yield "it has run since then; for another clone of that moment, choose another name"
    else:
        done = "would clone" if dry_run else "finished cloning" if plan.resumed else "cloned"
        yield Title(f"{done} {source} as {plan.info.name} in {plan.target_root}")
        yield from _contents(plan, store_flag(store), dry_run)
    return _data(plan)


@operation_result
def refresh_result(plan: ClonePlan, called: str, *, dry_run: bool) -> BlockGenerator:
    """Return the result of recreating a clone from its source; `called` is the source's name."""
    done, source = "would recreate" if dry_run else "recreated", formats.name_with_folder(called, plan.source.app)
    yield Title(f"{done} {plan.info.name} from {source}, {instants.format_with_age(plan.source.time_ms)}")
    if dry_run:
        yield "its changes since it was cloned would be lost"
    yield from _contents(plan, "", dry_run)
    return _data(plan)


def _data(plan: ClonePlan) -> dict[str, object]:
    origin = plan.info.origin
    source = attributes(plan.source, "app", "versions", "time_ms", thinned_out=plan.source.thinned)
    identity = {"app": plan.info, "store": plan.target_root, "source": source, "sinks": origin.sinks if origin else {}}
    effects = {"bytes_copied": sum(plan.copies.values()), "expires_ms": plan.info.expires_ms or None}
    return identity | effects | attributes(plan, "still_shown", "topics", "copies", "in_flight", "resumed")


def _contents(plan: ClonePlan, flags: str, dry_run: bool) -> Iterator[Block]:
    yield _stages_of(plan)
    yield from _copies_of(plan, dry_run)
    yield from (f"note: {warning}" for warning in plan.still_shown)
    if on_the_way := sum(flight.rows for flight in plan.in_flight):
        yield f"{plural(on_the_way, 'in-flight row')} {'to copy' if dry_run else 'copied'}"
    yield from _sinks_of(plan)
    if plan.info.ttl_ms:
        expiry = f"expires after {format_ms(plan.info.ttl_ms)}, at {instants.format_iso(plan.info.expires_ms)}"
        yield f"{expiry}; then `slackwater clone rm --expired` removes it"
    if not dry_run:
        yield from _next_steps(plan, flags)


def _stages_of(plan: ClonePlan) -> Block:
    origin = plan.info.origin
    if origin and origin.is_empty:
        return f"it begins without state, and reads {', '.join(sorted(set(plan.topics.values())))} from the beginning"
    rows: list[tuple[Cell, ...]] = []
    for stage, version in plan.source.versions.items():
        at = plan.source.stages[stage]
        shared = "-" if not at.table or stage in plan.copies else size(sum(sst.bytes for sst in at.ssts))
        read = ((name, read_topic) for name, read_topic in at.inputs.items() if not read_topic.upstream)
        topics = ((plan.topics.get(name, read_topic.topic), read_topic.offsets) for name, read_topic in read)
        rows.append((stage, f"v{version}", instants.format_iso(at.time_ms), shared, formats.format_offsets(topics)))
    return TableBlock.from_rows(("stage", ">version", "committed", ">state shared", "continues at"), rows)


def _copies_of(plan: ClonePlan, dry_run: bool) -> Iterator[Block]:
    masks = plan.info.origin.masks if plan.info.origin else {}
    for table, num_bytes in plan.copies.items():
        prefix = f"{table}."
        hidden = [f"{at.removeprefix(prefix)} ({how})" for at, how in masks.items() if at.startswith(prefix)]
        written = f"{size(num_bytes)} to write" if dry_run else f"{size(num_bytes)} written"
        yield f"{table} has its own SSTs: {written}{', without ' + ', '.join(hidden) if hidden else ''}"


def _sinks_of(plan: ClonePlan) -> Iterator[Block]:
    publishes = plan.info.origin.sinks if plan.info.origin else {}
    silent = sorted({name for at in plan.source.stages.values() for name in at.sinks} - publishes.keys())
    if publishes:
        yield f"it publishes {', '.join(f'{name} to {topic}' for name, topic in publishes.items())}"
    if silent:
        yield f"it does not publish {', '.join(silent)}; to publish: --sink {silent[0]}=TOPIC"


def _next_steps(plan: ClonePlan, flags: str) -> Iterator[Block]:
    origin = plan.info.origin
    if origin and origin.snapshot:
        yield f"{plan.source.app}@{origin.snapshot} keeps the state that the clone shares"
    elif origin and origin.is_deep:
        yield f"independent copy: {plan.source.app} can be deleted"
    queries = {stage: at.attached for stage, at in plan.source.stages.items() if at.attached is not None}
    for stage, query in queries.items():
        follow = f"slackwater attach {query.checkpoint} --app {plan.info.name} --stage {stage}{flags}"
        what = "topic" if query.follows_topic else "query"
        yield f"to have it follow the {what} as well: ", NextCommand(follow)
    if not queries:
        yield "run it: ", NextCommand(f"slackwater run FILE --app {plan.info.name}{flags}")


def clone_list_result(clones: Sequence[KnownClone], source: str, now_ms: int, root: str) -> Result:
    """Return the list of clones, each with its owner, the bytes that it shares, and the bytes kept only for it."""
    headings = ("clone", "of", "owner", "made", "expires", "runs", ">shares", ">keeps alone", "reason")
    rows: list[tuple[Cell, ...]] = []
    for clone in clones:
        name = clone.name if clone.root == root else f"{clone.name} in {clone.root}"
        moment = f"@{clone.snapshot}" if clone.snapshot else ""
        runs = clone.state or {None: "?", False: "not yet", True: "has run"}[clone.has_run]
        storage = (size(clone.shared_bytes), size(clone.kept_bytes)) if clone.snapshot else ("-", "-")
        created = instants.format_age(clone.created_ms, now_ms)
        source = clone.source_called or clone.source
        about = (name, f"{source}{moment}", clone.owner or "-", created, _expiry(clone, now_ms), runs)
        rows.append((*about, *storage, clone.reason or "-"))
    of = f" of {source}" if source else ""
    none = f"no clone{of} is known under {root}; `slackwater clone APP NAME` makes one"
    data = [asdict(clone) | {"expired": clone.is_expired(now_ms)} for clone in clones]
    notes = []
    if any(clone.is_expired(now_ms) for clone in clones):
        notes.append("some clones have expired; to remove them: slackwater clone rm --expired")
    for clone in clones:
        if clone.state == "gone":
            command = f"slackwater snapshot rm {clone.source_called or clone.source} {clone.snapshot}"
            notes.append(
                f"{clone.source} keeps a snapshot for {clone.name}, which no longer exists; to remove it: {command}"
            )
    return Result({"clones": data}, TableBlock.from_rows(headings, rows) if rows else none, notes=notes)


def _expiry(clone: KnownClone, now_ms: int) -> str:
    if clone.called:
        return f"is {clone.called} since a promotion"
    if not clone.expires_ms:
        return "-"
    if clone.is_expired(now_ms):
        return f"expired {instants.format_age(clone.expires_ms, now_ms)}"
    return f"in {format_rounded(clone.expires_ms - now_ms)}"


def expired_clones_result(
    gone: Sequence[Removed], errors: Mapping[str, SlackwaterError], promoted: Mapping[str, str], *, dry_run: bool
) -> Result:
    """Return the result of removing expired clones: removed clones, failures, and promoted clones, which are kept."""
    verb = "would remove" if dry_run else "removed"
    lines = [
        f"{verb} {done.removal.app}: {plural(done.contents.objects, 'object')}, {size(done.contents.bytes)}"
        for done in gone
    ]
    lines += [f"{name} stays: {error.message}" for name, error in errors.items()]
    lines += [f"{name} stays: it is {called} since a promotion" for name, called in promoted.items()]
    why = {name: error.message for name, error in errors.items()}
    data = {"removed": [done.removal.app for done in gone], "left": why, "promoted": promoted, "dry_run": dry_run}
    return Result(data, *(lines or ["no clone has expired"]), failed=bool(errors))


@operation_result
def promotion_result(done: PromotionResult, *, with_values: bool, dry_run: bool) -> BlockGenerator:
    plan = done.plan
    if plan.done:
        yield AlreadyDone(f"the app in folder {plan.to} has the name {plan.name}; its former owner is {plan.name}~1")
    else:
        yield Title(f"{'would promote' if dry_run else 'promoted'} {plan.staging} over {plan.name}")
        if dry_run:
            lag = f"is {plural(done.lag, 'offset')} behind it" if done.lag else "has caught up"
            yield f"{plan.name} is at {formats.format_offsets(done.at.items())}; {plan.staging} {lag}"
        else:
            yield (
                f"both were at {formats.format_offsets(done.at.items())}; {plan.name} was paused for "
                f"{done.held_s:.1f} s"
            )
        rows = (
            (sink.stage, sink.sink, sink.topic or f"a {sink.kind}", "new" if sink.new else "taken over")
            for sink in plan.sinks
        )
        if plan.sinks:
            yield TableBlock.from_rows(("stage", "sink", "publishes to", ""), rows)
        else:
            yield f"{plan.name} has no sinks"
        for table in done.changes:
            yield ""
            yield from table_diff_blocks(table, with_rows=with_values, with_values=with_values)
        yield ""
        if not dry_run:
            old = f"{plan.name}~1 the one in folder {plan.over}, whose runner stops"
            yield f"{plan.name} is now the app in folder {plan.to}, and {old}"
            yield "from now on, run it as: ", NextCommand(f"slackwater run FILE --app {plan.name}")
            yield (
                "to undo: ",
                NextCommand(take_back_command(plan.name, plan.over)),
                f", while {plan.name}~1 runs, without publishing",
            )
    names = ("table", "added", "removed", "changed")
    changes = [
        attributes(table_changes, *names, rows=values.changed_rows(table_changes.changes) if with_values else None)
        for table_changes in done.changes
    ]
    held_s = None if dry_run or plan.done else round(done.held_s, 3)
    cut_over = {"behind": done.lag if dry_run else None, "held_s": held_s}
    return (
        attributes(
            plan, "name", "over", "number", "sinks", app=plan.to, changes=changes, **attributes(done, "at", "versions")
        )
        | cut_over
    )
