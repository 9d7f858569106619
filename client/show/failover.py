"""Output of replication, recovery and drills: objects copied, offsets to continue at, and data lost.

The result of a drill also becomes a report for auditors.
"""

from collections.abc import Iterator
from dataclasses import asdict

from ...common import instants
from ...operations.disaster_recovery.drill import DrillResult
from ...operations.disaster_recovery.recover import RecoveryResult
from ...operations.disaster_recovery.recover_plan import RecoveryPlan
from ...operations.disaster_recovery.replica_objects import CopyPlan
from ...operations.disaster_recovery.replicate import RoundResult
from ...snapshot.cut.replicas import ReplicaCut
from .document import Block, Facts, Listing, Name, NextCommand, Page, Section, TableBlock, Time, Title, closing_line
from .formats import duration, plural, size
from .shown import AlreadyDone, BlockGenerator, Result, attributes, operation_result
from .status import verification_blocks


def replication_plan_result(app: str, root: str, todo: CopyPlan) -> Result:
    counts = {stage: len(versions) for stage, versions in todo.versions.items() if versions}
    rows = [(stage, plural(count, "version"), f"v{todo.cut[stage].version}") for stage, count in counts.items()]
    blocks: list[Block] = [Title(f"would copy {app} to {root}:")]
    blocks.append(
        TableBlock.from_rows(("stage", ">missing", ">up to"), rows)
        if rows
        else "nothing: the replica has every version"
    )
    data = {"versions": counts, "cut": {stage: head.version for stage, head in todo.cut.items()}, "dry_run": True}
    return Result(data, *blocks)


def replication_result(app: str, root: str, done: RoundResult) -> Result:
    blocks: list[Block] = [round_line(app, root, done)]
    if done.cut.lacks:
        blocks.append(f"incomplete: {done.cut.lacks}")
    blocks.append(f"to fail over to it: slackwater recover {app} --from {root}")
    return Result(round_data(root, done), *blocks)


def round_line(app: str, root: str, done: RoundResult) -> str:
    at = ", ".join(f"{stage}@v{version}" for stage, version in done.cut.stages.items())
    if not done.objects and not done.removed:
        return f"{app} in {root} is up to date: {at}"
    count = sum(done.versions.values())
    gone = f", {plural(done.removed, 'object')} removed" if done.removed else ""
    copied_parts = f"{plural(count, 'version')}, {plural(done.objects, 'object')}, {size(done.bytes)}{gone}"
    return f"copied to {root} in {duration(done.took_ms)}: {copied_parts}; complete up to {at}"


def round_data(root: str, done: RoundResult) -> dict[str, object]:
    names = ("versions", "objects", "bytes", "removed", "took_ms")
    return attributes(done, *names, root=root, cut=_cut_data(done.cut))


def ended_replica_result(app: str, root: str, *, was_known: bool) -> Result:
    done = "is no longer tracked" if was_known else "was not tracked"
    line = f"the replica of {app} in {root} {done}; to delete the copied data: slackwater app rm {app} --store {root}"
    return Result({"root": root, "ended": was_known}, line)


@operation_result
def recovery_result(done: RecoveryResult, *, dry_run: bool) -> BlockGenerator:
    app, root = done.app, done.root
    if done.done:
        yield AlreadyDone(f"{app} was recovered from its replica in {root}, and runs there")
    elif done.plan is None:
        did = "would finish" if dry_run else "finished"
        yield Title(f"{did} the interrupted recovery of {app} from {root}")
    else:
        yield Title(f"{'would recover' if dry_run else 'recovered'} {app} from {root}")
        yield from recovery_plan_blocks(done.plan)
    if done.versions:
        yield f"continues from {', '.join(f'{stage}@v{version}' for stage, version in done.versions.items())}"
    if done.plan is not None and not dry_run:
        yield from _fenced(done)
    if done.steps and not dry_run:
        steps = ", ".join(f"{name} {duration(ms)}" for name, ms in done.steps)
        yield f"in {duration(sum(ms for _, ms in done.steps))}: {steps}"
    if not dry_run:
        yield "run it: ", NextCommand(f"slackwater run FILE --store {root}")
    plan = plan_data(done.plan) if done.plan is not None else None
    copied = round_data(root, done.caught_up) if done.caught_up is not None else None
    data = attributes(
        done, "root", "app", "versions", "fenced", "not_caught_up", "resumed", plan=plan, caught_up=copied
    )
    return data | {"steps_ms": dict(done.steps)}


def _fenced(done: RecoveryResult) -> Iterator[Block]:
    assert done.plan is not None  # noqa: S101  asked before
    old = done.plan.primary
    if done.fenced == "":
        yield f"{old.root}: fenced; a runner there stops, and can commit no more"
    else:
        why = done.fenced or old.unreachable or "it has no stages"
        yield f"{old.root} could not be fenced: {why}"
        yield "  a runner there may still be running: stop it"
    if done.caught_up is not None:
        yield f"newer versions copied from there: {plural(sum(done.caught_up.versions.values()), 'version')}"
    elif done.not_caught_up:
        yield f"newer versions there were not copied: {done.not_caught_up}"


def recovery_plan_blocks(plan: RecoveryPlan) -> Iterator[Block]:
    """Yield the blocks of a recovery plan: the offsets at which the app continues, and the data that is lost."""
    cut = plan.replicated
    at = ", ".join(f"{stage}@v{version}" for stage, version in plan.cut.versions.items())
    yield f"the replica's cut {cut.number}: {at}; complete as of {instants.format_with_age(cut.seen_ms)}"
    yield f"lost: {_lost(plan)}"
    rows = []
    for (stage, name), (read, starts) in plan.inputs.items():
        for partition, start in enumerate(starts):
            how = f"{_HOW[start.how]}{', but the topic ends before the records read last' if start.unmirrored else ''}"
            rows.append((stage, f"{name}[{partition}]", f"{read.topic}[{partition}]", start.offset, how))
    if rows:
        yield TableBlock.from_rows(("stage", "topic", "continues in", ">at", "by"), rows)
    for topic, count in plan.again.items():
        yield f"{topic}: {plural(count, 'offset')} may be read a second time"
    rows_on_way = sum(state.rows for state in plan.in_flight)
    yield f"in flight between stages: {plural(rows_on_way, 'row')}, carried over"
    if plan.sink_rows:
        yield f"committed for sinks and not published: {plural(plan.sink_rows, 'row')}, which the new run publishes"
    if cut.lacks:
        yield f"the replica is incomplete: {cut.lacks}"


_HOW = {
    "same offset": "the same offset",
    "records": "the last records read",
    "mirror": "MirrorMaker 2's offsets",
    "end": "the mirror's end",
    "said": "--from-offset",
}


def _lost(plan: RecoveryPlan) -> str:
    tracked = [lost_stage for lost_stage in plan.lost if lost_stage.newest is not None]
    if not tracked:
        return (
            f"at most the commits of the last {duration(plan.lost_ms)}: since then, the replica has not seen the "
            "original store"
        )
    further = ((lost_stage, lost_stage.newest or 0) for lost_stage in tracked)
    more = [
        f"{lost_stage.stage} v{lost_stage.version + 1} to v{newest}"
        for lost_stage, newest in further
        if newest > lost_stage.version
    ]
    return f"{', '.join(more)}: the last {duration(plan.lost_ms)}" if more else "nothing: there were no newer versions"


def plan_data(plan: RecoveryPlan) -> dict[str, object]:
    inputs = [
        {"stage": stage, "declared": name, "topic": read.topic, "partition": number, **asdict(start)}
        for (stage, name), (read, starts) in plan.inputs.items()
        for number, start in enumerate(starts)
    ]
    where = {"cut": _cut_data(plan.replicated), "primary": attributes(plan.primary, "root", "unreachable")}
    rows = sum(state.rows for state in plan.in_flight)
    names = ("lost", "lost_ms", "again", "rereads", "sink_rows", "topics")
    return attributes(plan, *names, **where, inputs=inputs, in_flight_rows=rows)


def _cut_data(cut: ReplicaCut) -> dict[str, object]:
    return attributes(cut, "number", "stages", "time_ms", "seen_ms", "lacks")


def drill_result(result: DrillResult) -> Result:
    reports = {"replica": result.replica, "recovered": result.recovered}
    checked = {
        name: attributes(at, "consistent", "checks", "differences", "bytes_read") for name, at in reports.items()
    }
    names = ("app", "root", "clone", "kept", "passed", "not_compared", "tables", "versions", "ready_ms")
    data = attributes(result, *names, plan=plan_data(result.plan), steps_ms=dict(result.steps), **checked)
    return Result(data, *_drill(result), failed=not result.passed)


def _drill(result: DrillResult) -> Iterator[Block]:
    yield Title(_sentence(result))
    yield from recovery_plan_blocks(result.plan)
    yield ""
    yield _tables(result)
    if result.not_compared:
        yield f"not compared with the app itself: {result.not_compared}"
    yield ""
    yield _steps(result)
    yield ""
    yield from verification_blocks(result.recovered)
    for wrong in (*result.replica.differences, *result.recovered.differences):
        yield f"difference: {wrong.message}"
    if result.kept:
        yield f"clone kept: {result.clone}"


def _sentence(result: DrillResult) -> str:
    if not result.passed:
        return f"{result.app} cannot be fully recovered from {result.root}"
    return f"{result.app} can be recovered from {result.root}: ready to run after {duration(result.ready_ms)}"


def _tables(result: DrillResult) -> TableBlock:
    rows = [
        (Name(table.table), f"v{table.version}", table.rows, table.ssts, size(table.bytes), table.checksums)
        for table in result.tables
    ]
    return TableBlock.from_rows(("table", ">version", ">rows stored", ">SSTs", ">size", "checksums"), rows)


def _steps(result: DrillResult) -> TableBlock:
    return TableBlock.from_rows(("step", ">took"), ((name, duration(ms)) for name, ms in result.steps))


def drill_page(result: DrillResult) -> Page:
    cut = result.plan.replicated
    facts = (
        ("app", Name(result.app)),
        ("replica", Name(result.root)),
        ("original store", Name(result.plan.primary.root)),
        ("cut", (f"{cut.number}: ", Name(", ".join(f"{s}@v{v}" for s, v in cut.stages.items())))),
        ("newest commit in it", Time(cut.time_ms)),
        ("complete as of", Time(cut.seen_ms)),
        ("ready to run after", duration(result.ready_ms)),
        ("bytes read again", size(result.replica.bytes_read + result.recovered.bytes_read)),
    )
    compared = (f"Not compared with the app itself: {result.not_compared}.",) if result.not_compared else ()
    sections = [
        Section("What would be lost, and where the app would continue", tuple(recovery_plan_blocks(result.plan))),
        Section("Tables, by checksum", (_tables(result), *compared)),
        Section("Duration of each step", (_steps(result),)),
        Section("The replica's cut, every byte read again", tuple(verification_blocks(result.replica))),
        Section("The recovered app, every byte read again", tuple(verification_blocks(result.recovered))),
    ]
    if result.kept:
        sections.append(
            Section("The clone is kept", (Listing(f"slackwater status {result.clone} --store {result.root}"),))
        )
    return Page(
        title=f"A recovery drill of {result.app}",
        sentence=(_sentence(result), "."),
        facts=Facts(facts),
        sections=tuple(sections),
        closing=closing_line(),
    )
