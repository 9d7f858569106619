"""Recoveries, as they are shown: where an app goes on, what is lost, who was fenced."""

from collections.abc import Iterator
from dataclasses import asdict

from ... import instants
from ...keep.recover.plan import RecoveryPlan
from ...keep.recover.recover import Recovered
from ..document import Block, TableBlock, Title
from ..formats import duration, plural
from ..shown import Words, fields, result
from .replicas import round_data


@result
def recovered(done: Recovered, *, dry_run: bool) -> Words:
    """A recovery."""
    app, root = done.app, done.root
    if done.done:
        yield f"done already: {app} was recovered from its replica in {root}, and runs there"
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
        yield f"run it: slackwater run FILE --store {root}"
    plan = plan_data(done.plan) if done.plan is not None else None
    return {
        "root": root,
        "plan": plan,
        **fields(done, "app", "versions", "fenced", "not_caught_up", "resumed"),
        "caught_up": round_data(root, done.caught_up) if done.caught_up is not None else None,
        "steps_ms": dict(done.steps),
        "done_already": done.done,
        "dry_run": dry_run,
    }


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
        yield f"{topic}: {plural(count, 'record')} behind that, which the app may have read before"
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
    cut = fields(plan.replicated, "number", "stages", "time_ms", "seen_ms", "lacks")
    inputs = [
        {"stage": stage, "declared": name, "topic": read.topic, "partition": number, **asdict(each)}
        for (stage, name), (read, found) in plan.inputs.items()
        for number, each in enumerate(found)
    ]
    return {
        "cut": cut,
        "primary": {"root": plan.primary.root, "unreachable": plan.primary.unreachable},
        "inputs": inputs,
        "in_flight_rows": sum(state.rows for state in plan.in_flight),
        **fields(plan, "lost", "lost_ms", "again", "rereads", "sink_rows", "topics"),
    }
