"""An app that took over another one's name and sinks, as it is shown."""

from ..keep.promote.promote import Promoted
from ..moments.diff.key_changes import KeyChange
from ..store.versions.apps import taken_back
from . import formats, values
from .document import TableBlock, Title
from .formats import plural
from .history import table_diff
from .shown import Words, fields, result


@result
def promoted(done: Promoted, flags: str, *, with_values: bool, dry_run: bool) -> Words:
    """An app that was promoted over another one, or would be."""
    plan = done.plan
    if plan.done:
        yield f"done already: the app in folder {plan.to} is {plan.name}, and {plan.name}~1 the one that was before"
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
            old = f"{plan.name}~1 the one in folder {plan.over}, whose runner stops"
            yield f"{plan.name} is the app in folder {plan.to} from here on, and {old}"
            yield f"start it from now on as: slackwater run FILE --app {plan.name}{flags}"
            back = taken_back(plan.name, plan.over)
            yield f"back: {back}{flags}, once {plan.name}~1 runs again, silent"
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
