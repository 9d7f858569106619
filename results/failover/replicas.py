"""Replicas, as they are shown: what is to be copied, and what was."""

from ...keep.replicate.plan import Todo
from ...keep.replicate.replicate import Round
from ..document import Block, TableBlock, Title
from ..formats import duration, plural, size
from ..shown import Result, fields


def to_copy(app: str, root: str, todo: Todo) -> Result:
    """What a round would copy."""
    counts = {stage: len(each) for stage, each in todo.versions.items() if each}
    rows = [(stage, plural(count, "version"), f"v{todo.cut[stage].version}") for stage, count in counts.items()]
    words: list[Block] = [Title(f"would copy to {root}, of {app}:")]
    words.append(TableBlock.of(("stage", ">lacks", ">up to"), rows) if rows else "nothing: it has every version")
    data = {"versions": counts, "cut": {stage: head.version for stage, head in todo.cut.items()}, "dry_run": True}
    return Result(data, *words, notes=_crossing(todo.crossing))


def copied(app: str, root: str, done: Round) -> Result:
    """What a round copied."""
    words = [round_line(app, root, done)]
    if done.cut.lacks:
        words.append(f"it lacks something: {done.cut.lacks}")
    words.append(f"when this store is lost: slackwater recover {app} --from {root}")
    return Result(round_data(root, done), *words, notes=_crossing(done.crossing))


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
    cut = fields(done.cut, "number", "stages", "time_ms", "seen_ms", "lacks")
    return {"root": root, "cut": cut, **fields(done, "versions", "objects", "bytes", "removed", "took_ms", "crossing")}


def _crossing(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    return (f"note: left out, as neither before nor after the newest snapshot: {', '.join(names)}",)


def ended(app: str, root: str, *, was_known: bool) -> Result:
    """A replica that is not counted any more."""
    done = "is counted no more" if was_known else "was not counted, or is not any more"
    line = f"the replica of {app} in {root} {done}; what was copied is there: slackwater app rm {app} --store {root}"
    return Result({"root": root, "ended": was_known}, line)
