"""What `adopt` shows: of what a stage's columns are made, each version, and how the stage compares with the query."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from .. import instants
from . import formats
from .document import Block, TableBlock
from .shown import Result

if TYPE_CHECKING:
    from ..keep.adopt.adoption import Adopted, Step
    from ..pipeline.adopt.adopting import Plan
    from ..pipeline.adopt.shadow import ShadowBatch

_MOST_KEYS = 5


def to_adopt(plan: "Plan") -> Result:
    """What an adoption would make, and of what."""
    columns = {column.name: column.type for column in plan.table.columns}
    data = {
        "app": plan.app,
        "stage": plan.stage,
        "query": plan.query,
        "checkpoint": plan.where,
        "batches": [plan.batches[0], plan.batches[-1]],
        "columns": {
            each.column: {"type": columns.get(each.column), "of": list(each.of), "how": each.how} for each in plan.made
        },
        "offsets": plan.offsets,
        "dry_run": True,
    }
    return Result(data, *_plan(plan, columns))


def _plan(plan: "Plan", columns: dict[str, str]) -> Iterator[Block]:
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


def step(found: "Step", batches: range) -> str:
    """A version, in a line of progress."""
    done = found.batch - batches[0] + 1 if batches else 1
    total = len(batches) or 1
    made = f"batch {found.batch}: v{found.manifest.version}, {formats.plural(found.rows, 'row')}"
    return f"{formats.bar(done, total)}  {made}"


def adopted(done: "Adopted", program: str) -> Result:
    """What was made."""
    where = f"{done.app}/{done.stage}"
    lines = [
        f"done already: {where} is the query up to its batch {done.last_batch}, which is v{done.version}"
        if done.already
        else f"{where} is the query: v1 to v{done.version}, up to its batch {done.last_batch}",
        *([] if done.checksum is None else [f"equal to what Spark reads at that batch: {done.checksum}"]),
        f"it reads on from {formats.offsets(done.offsets.items())}",
        f"the first run goes on from there: slackwater run {program} --app {done.app}",
    ]
    checksum = asdict(done.checksum) if done.checksum is not None else None
    return Result(asdict(done) | {"already": done.already, "checksum": checksum, "dry_run": False}, *lines)


def emitted(path: str, stage: str, checkpoint: str) -> Result:
    """A program that was written."""
    return Result(
        {"program": path, "stage": stage},
        f"wrote {path}, which declares the stage {stage}; its function is still to be written",
        f"then: slackwater adopt {checkpoint} {path} --stage {stage} --dry-run",
    )


def shadowed(found: "ShadowBatch", equal: int) -> Result:
    """A batch of the query, compared."""
    different = found.different
    data: dict[str, object] = {
        "batch": found.batch,
        "time_ms": found.time_ms,
        "records": found.records,
        "keys": found.keys,
        "equal_batches": equal,
        "different": [asdict(each) for each in different.head(_MOST_KEYS)] if different is not None else [],
        "different_keys": len(different) if different is not None else 0,
    }
    line = (
        f"{instants.iso(found.time_ms)}  batch {found.batch}: {formats.plural(found.records, 'record')}, "
        f"{formats.plural(found.keys, 'key')} changed: "
    )
    if different is None:
        return Result(data, f"{line}equal for {equal:,} batch{'' if equal == 1 else 'es'}")
    flat = different.head(_MOST_KEYS).flat()
    named = [name.replace("before_", "query_").replace("after_", "stage_") for name in flat.column_names]
    rows = zip(*(map(str, column.to_pylist()) for column in flat.columns), strict=True)
    more = f", the first {_MOST_KEYS}" if len(different) > _MOST_KEYS else ""
    return Result(
        data,
        f"{line}{formats.plural(len(different), 'key')} differ{'s' if len(different) == 1 else ''}{more}",
        TableBlock.of(named, rows),
    )
