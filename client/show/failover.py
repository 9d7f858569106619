"""Replicas, recoveries and drills, as they are shown: what is copied, where an app goes on, what is lost.

A drill also as an auditor gets it: which cut, how old, how long, and that it is what it was.
"""

from collections.abc import Iterator
from dataclasses import asdict

from ...common import instants
from ...operations.disaster_recovery.drill import Drill
from ...operations.disaster_recovery.recover import Recovered
from ...operations.disaster_recovery.recover_plan import RecoveryPlan
from ...operations.disaster_recovery.replicate import Round
from ...operations.disaster_recovery.replicate_plan import Todo
from ...snapshot.cut.replicas import ReplicaCut
from .document import Block, Cell, Facts, Listing, Name, NextCommand, Page, Section, TableBlock, Time, Title, closing
from .formats import duration, plural, size
from .shown import Already, Result, Words, fields, operation
from .status import verified


def to_copy(app: str, root: str, todo: Todo) -> Result:
    """What a round would copy."""
    counts = {stage: len(each) for stage, each in todo.versions.items() if each}
    rows = [(stage, plural(count, "version"), f"v{todo.cut[stage].version}") for stage, count in counts.items()]
    words: list[Block] = [Title(f"would copy to {root}, of {app}:")]
    words.append(TableBlock.of(("stage", ">lacks", ">up to"), rows) if rows else "nothing: it has every version")
    data = {"versions": counts, "cut": {stage: head.version for stage, head in todo.cut.items()}, "dry_run": True}
    return Result(data, *words)


def copied(app: str, root: str, done: Round) -> Result:
    """What a round copied."""
    words: list[Block] = [round_line(app, root, done)]
    if done.cut.lacks:
        words.append(f"it lacks something: {done.cut.lacks}")
    words.append(f"when this store is lost: slackwater recover {app} --from {root}")
    return Result(round_data(root, done), *words)


def round_line(app: str, root: str, done: Round) -> str:
    """What a round did, in a line."""
    at = ", ".join(f"{stage}@v{version}" for stage, version in done.cut.stages.items())
    if not done.objects and not done.removed:
        return f"{app} in {root} is up to date: {at}"
    count = sum(done.versions.values())
    gone = f", {plural(done.removed, 'object')} removed" if done.removed else ""
    what = f"{plural(count, 'version')}, {plural(done.objects, 'object')}, {size(done.bytes)}{gone}"
    return f"copied to {root} in {duration(done.took_ms)}: {what}; complete up to {at}"


def round_data(root: str, done: Round) -> dict[str, object]:
    """The same for machines."""
    names = ("versions", "objects", "bytes", "removed", "took_ms")
    return fields(done, *names, root=root, cut=_cut_data(done.cut))


def ended(app: str, root: str, *, was_known: bool) -> Result:
    """A replica that is not counted any more."""
    done = "is counted no more" if was_known else "was not counted, or is not any more"
    line = f"the replica of {app} in {root} {done}; what was copied is there: slackwater app rm {app} --store {root}"
    return Result({"root": root, "ended": was_known}, line)


@operation
def recovered(done: Recovered, *, dry_run: bool) -> Words:
    """A recovery."""
    app, root = done.app, done.root
    if done.done:
        yield Already(f"{app} was recovered from its replica in {root}, and runs there")
    elif done.plan is None:
        did = "would finish" if dry_run else "finished"
        yield Title(f"{did} the recovery of {app} from {root}, which was decided")
    else:
        yield Title(f"{'would recover' if dry_run else 'recovered'} {app} from {root}")
        yield from of_plan(done.plan)
    if done.versions:
        yield f"goes on from {', '.join(f'{stage}@v{version}' for stage, version in done.versions.items())}"
    if done.plan is not None and not dry_run:
        yield from _fenced(done)
    if done.steps and not dry_run:
        yield _took(done.steps)
    if not dry_run:
        yield "run it: ", NextCommand(f"slackwater run FILE --store {root}")
    plan = plan_data(done.plan) if done.plan is not None else None
    copied = round_data(root, done.caught_up) if done.caught_up is not None else None
    data = fields(done, "root", "app", "versions", "fenced", "not_caught_up", "resumed", plan=plan, caught_up=copied)
    return data | {"steps_ms": dict(done.steps)}


def _took(steps: tuple[tuple[str, int], ...]) -> str:
    return f"in {duration(sum(ms for _, ms in steps))}: " + ", ".join(f"{name} {duration(ms)}" for name, ms in steps)


def _fenced(done: Recovered) -> Iterator[Block]:
    assert done.plan is not None  # noqa: S101  asked before
    old = done.plan.primary
    if done.fenced == "":
        yield f"{old.root}: fenced; whoever runs it there stops, and is refused from now on"
    else:
        why = done.fenced or old.unreachable or "it has no stages"
        yield f"{old.root} could not be fenced: {why}"
        yield "  whoever still runs it there goes on: see that nobody does"
    if done.caught_up is not None:
        yield f"what it had more was copied: {plural(sum(done.caught_up.versions.values()), 'version')}"
    elif done.not_caught_up:
        yield f"what it had more was not copied: {done.not_caught_up}"


def of_plan(plan: RecoveryPlan) -> Iterator[Block]:
    """Where an app goes on, and what is lost."""
    cut = plan.replicated
    at = ", ".join(f"{stage}@v{version}" for stage, version in plan.cut.versions.items())
    yield f"the replica's cut {cut.number}: {at}; it lacked nothing {instants.when(cut.seen_ms)}"
    yield f"lost: {_lost(plan)}"
    rows = []
    for (stage, name), (read, found) in plan.inputs.items():
        for partition, each in enumerate(found):
            how = f"{_HOW[each.how]}{', which ends before what was read' if each.unmirrored else ''}"
            rows.append((stage, f"{name}[{partition}]", f"{read.topic}[{partition}]", each.offset, how))
    if rows:
        yield TableBlock.of(("stage", "topic", "read on in", ">at", "by"), rows)
    for topic, count in plan.again.items():
        yield f"{topic}: {plural(count, 'offset')} behind that, which the app may have read before"
    rows_on_way = sum(state.rows for state in plan.in_flight)
    yield f"on the way between stages: {plural(rows_on_way, 'row')}, carried over"
    if plan.sink_rows:
        yield f"committed for sinks and not published: {plural(plan.sink_rows, 'row')}, published from here"
    if cut.lacks:
        yield f"the replica lacks something: {cut.lacks}"


_HOW = {
    "same offset": "the same offset",
    "records": "the records that were read last",
    "mirror": "MirrorMaker 2's offsets",
    "end": "the mirror's end",
    "said": "what was said",
}


def _lost(plan: RecoveryPlan) -> str:
    known = [each for each in plan.lost if each.newest is not None]
    if not known:
        return (
            f"what was committed in the last {duration(plan.lost_ms)}, at most: since then nobody has seen whether "
            "there was anything"
        )
    further = ((each, each.newest or 0) for each in known)
    more = [f"{each.stage} v{each.version + 1} to v{newest}" for each, newest in further if newest > each.version]
    return f"{', '.join(more)}: the last {duration(plan.lost_ms)}" if more else "nothing: it had no later versions"


def plan_data(plan: RecoveryPlan) -> dict[str, object]:
    """The same for machines."""
    inputs = [
        {"stage": stage, "declared": name, "topic": read.topic, "partition": number, **asdict(each)}
        for (stage, name), (read, found) in plan.inputs.items()
        for number, each in enumerate(found)
    ]
    where = {"cut": _cut_data(plan.replicated), "primary": fields(plan.primary, "root", "unreachable")}
    rows = sum(state.rows for state in plan.in_flight)
    names = ("lost", "lost_ms", "again", "rereads", "sink_rows", "topics")
    return fields(plan, *names, **where, inputs=inputs, in_flight_rows=rows)


def _cut_data(cut: ReplicaCut) -> dict[str, object]:
    return fields(cut, "number", "stages", "time_ms", "seen_ms", "lacks")


def drilled(found: Drill) -> Result:
    """A drill."""
    return Result(_drill_data(found), *_drill(found), failed=not found.passed)


def _drill(found: Drill) -> Iterator[Block]:
    yield Title(_sentence(found))
    yield from of_plan(found.plan)
    yield ""
    yield _tables(found)
    if found.not_compared:
        yield f"not compared with the app itself: {found.not_compared}"
    yield ""
    yield TableBlock.of(("step", ">took"), _steps(found))
    yield ""
    yield from verified(found.recovered)
    for wrong in (*found.replica.differences, *found.recovered.differences):
        yield f"wrong: {wrong.message}"
    if found.kept:
        yield f"the clone stays: {found.clone}"


def _sentence(found: Drill) -> str:
    ready = f"ready to run after {duration(found.ready_ms)}"
    did = f"{found.app} can be recovered from {found.root}: {ready}" if found.passed else ""
    return did or f"{found.app} cannot be recovered from {found.root} as it was"


def _tables(found: Drill) -> TableBlock:
    rows = [
        (Name(each.table), f"v{each.version}", each.rows, each.ssts, size(each.bytes), each.checksums)
        for each in found.tables
    ]
    return TableBlock.of(("table", ">version", ">rows stored", ">SSTs", ">size", "checksums"), rows)


def _steps(found: Drill) -> list[tuple[Cell, ...]]:
    return [(name, duration(ms)) for name, ms in found.steps]


def _drill_data(found: Drill) -> dict[str, object]:
    reports = {"replica": found.replica, "recovered": found.recovered}
    checked = {name: fields(at, "consistent", "checks", "differences", "bytes_read") for name, at in reports.items()}
    names = ("app", "root", "clone", "kept", "passed", "not_compared", "tables", "versions", "ready_ms")
    return fields(found, *names, plan=plan_data(found.plan), steps_ms=dict(found.steps), **checked)


def page(found: Drill) -> Page:
    """A drill, to hand on."""
    cut = found.plan.replicated
    facts = (
        ("app", Name(found.app)),
        ("replica", Name(found.root)),
        ("where it runs", Name(found.plan.primary.root)),
        ("cut", (f"{cut.number}: ", Name(", ".join(f"{s}@v{v}" for s, v in cut.stages.items())))),
        ("newest commit in it", Time(cut.time_ms)),
        ("lacked nothing at", Time(cut.seen_ms)),
        ("ready to run after", duration(found.ready_ms)),
        ("bytes read again", size(found.replica.bytes_read + found.recovered.bytes_read)),
    )
    compared = (f"Not compared with the app itself: {found.not_compared}.",) if found.not_compared else ()
    sections = [
        Section("What would be lost, and where it would go on", tuple(of_plan(found.plan))),
        Section("Tables, by checksum", (_tables(found), *compared)),
        Section("What each step took", (TableBlock.of(("step", ">took"), _steps(found)),)),
        Section("The replica's cut, every byte read again", tuple(verified(found.replica))),
        Section("What would run, every byte read again", tuple(verified(found.recovered))),
    ]
    if found.kept:
        sections.append(Section("The clone stays", (Listing(f"slackwater status {found.clone} --store {found.root}"),)))
    return Page(
        title=f"A recovery drill of {found.app}",
        sentence=(_sentence(found), "."),
        facts=Facts(facts),
        sections=tuple(sections),
        closing=closing(),
    )
