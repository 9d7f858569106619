"""Whether a program is a function of its input: what was run again, what differs, and why most likely."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..pipeline.check.check import CheckedVersion, Found, PassedOver, Reason
from . import values
from .document import Block, TableBlock, Title
from .formats import MOST_SHOWN, plural
from .report import Mask
from .shown import Result, fields

_REASONS: Mapping[Reason, tuple[str, str]] = {
    "random": (
        "chance",
        "it differs though nothing was another: a random number, an id, or a clock that cannot be stopped",
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
        "versions": [
            fields(each, "stage", "version", "records", "runs") | {"different": bool(each.found)} for each in ran
        ],
        "passed_over": [fields(each, "ref", "why") for each in passed],
        "found": [_data(one, mask) for one in found],
    }
    return Result(data, *_blocks(file, app, ran, passed, found, mask), failed=bool(found) or not ran)


def _data(one: Found, mask: Mask) -> dict[str, Any]:
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
            name: {"first": rows.first.num_rows, "second": rows.second.num_rows}
            for name, rows in one.different.sent.items()
        },
        "error": mask.reason(one.different.failed) or None,
    }


def _blocks(
    file: str,
    app: str,
    ran: Sequence[CheckedVersion],
    passed: Sequence[PassedOver],
    found: Sequence[Found],
    mask: Mask,
) -> Iterator[Block]:
    stages = {each.stage: [one for one in ran if one.stage == each.stage] for each in ran}
    different = dict.fromkeys(one.stage for one in found)
    if not ran:
        yield Title(f"nothing of {app} could be run again, so nobody knows whether {file} is a function of its input")
    elif not found:
        shown = f"as far as {plural(len(ran), 'version')} of {plural(len(stages), 'stage')} show"
        yield Title(f"{file} is a function of its input, {shown}")
    else:
        yield Title(f"{file} is no function of its input: {', '.join(different)}")
    if ran:
        rows = (
            (
                stage,
                ", ".join(f"v{each.version}" for each in reversed(each_of)),
                sum(each.records for each in each_of),
                ", ".join(dict.fromkeys(title for each in each_of for title in each.runs)),
                ", ".join(dict.fromkeys(_REASONS[one.reason][0] for each in each_of for one in each.found)) or "-",
            )
            for stage, each_of in stages.items()
        )
        yield TableBlock.of(("stage", "versions", ">records", "run", "depends on"), rows)
    ordered = sorted(found, key=lambda one: (list(different).index(one.stage), list(_REASONS).index(one.reason)))
    for (_, _), of_reason in groupby(ordered, key=lambda one: (one.stage, one.reason)):
        yield from _finding(tuple(of_reason), mask)
    yield from _passed_over(passed)


def _finding(found: Sequence[Found], mask: Mask) -> Iterator[Block]:
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
            for each, title in ((rows.first, first), (rows.second, second))
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
