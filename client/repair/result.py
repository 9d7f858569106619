"""Output of a repair: changed rows, and rows of sinks that the repair withdraws or adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...store.sst.arrow_types import bytes_to_hex, python_rows
from ..show import values
from ..show.document import Block, Name, NextCommand, TableBlock, Title
from ..show.formats import MAX_SHOWN, plural
from ..show.shown import AlreadyDone, BlockGenerator, attributes, operation_result

if TYPE_CHECKING:
    from ...operations.repair.records.commit import RepairDone


@operation_result
def repair_result(done: RepairDone, *, dry_run: bool) -> BlockGenerator:
    """Return the result of a repair: the changed rows of each stage, and the affected rows of its sinks."""
    from ...operations.repair.records.changes import shown_rows

    plan, app = done.plan, done.plan.app
    rows = sum(map(len, plan.changes.values()))
    what = done.repair.what if done.repair is not None else "the repair"
    if done.repair is None and not rows:
        yield AlreadyDone(f"the tables of {app} are already repaired for these records")
    elif dry_run:
        yield Title(f"{what}: would change {plural(rows, 'row')} of {app}")
    else:
        yield Title(f"{what}: changed {plural(rows, 'row')} of {app}")
    for record, versions in plan.read_by.items():
        yield f"{record} was read by {', '.join(versions)}"
    for stage, newest in sorted(done.repair.since.items()) if done.repair is not None else ():
        yield f"batches of {stage} up to v{newest} are not repaired (--from)"
    for stage, changes in plan.changes.items():
        yield ""
        version = f" v{done.versions[stage][1]}" if stage in done.versions else ""
        yield Title(f"{stage}{version}: {plural(len(changes), 'row')}")
        yield values.key_changes_table(changes)
        if (more := len(changes) - MAX_SHOWN) > 0:
            yield f"and {more:,} more; --json gives all"
    yield from _sink_lines(done)
    for reader, channel, sent in plan.in_flight:
        yield f"{reader} has not read the rows that v{sent} of the sender wrote to {channel}: run the app first"
    if not dry_run and done.versions and not done.undone:
        yield "to undo it: ", NextCommand(f"slackwater repair {app} --undo")
    data = {
        "repair": done.repair.id if done.repair is not None else None,
        "dropped": done.repair.dropped if done.repair is not None else (),
        "replaced": done.repair.replaced if done.repair is not None else {},
        "since": done.repair.since if done.repair is not None else {},
        "read_by": {str(record): versions for record, versions in plan.read_by.items()},
        "changes": {stage: values.changed_rows(changes) for stage, changes in plan.changes.items()},
        "sinks": [
            attributes(sink, "stage", "version", "sink", "is_published", "is_corrected")
            | {
                "withdrawn": bytes_to_hex(python_rows(shown_rows(sink.withdrawn))),
                "new": bytes_to_hex(python_rows(shown_rows(sink.new))),
            }
            for sink in plan.sinks
        ],
        "corrected": {} if done.leaves_sinks else plan.corrected,
        "in_flight": [
            {"stage": stage, "channel": channel, "version": version} for stage, channel, version in plan.in_flight
        ],
        "replayed": plan.versions,
    }
    return attributes(done, "undone", "versions", "held_s", app=app) | data


def _sink_lines(done: RepairDone) -> Iterator[Block]:
    plan = done.plan
    corrected = {} if done.leaves_sinks else plan.corrected
    if any(corrected.values()):
        yield ""
        yield Title("corrections sent to sinks")
        yield TableBlock.from_rows(
            ("sent by", "to", ">rows", ">tombstones"),
            (
                (
                    Name(stage),
                    Name(sink),
                    int(plan.changes[stage].has_row.sum()),
                    int((~plan.changes[stage].has_row).sum()),
                )
                for stage, sinks in corrected.items()
                for sink in sinks
            ),
        )
    if not (left := plan.sinks if done.leaves_sinks else plan.uncorrected):
        return
    yield ""
    yield Title("rows published to sinks that the repair does not correct")
    yield TableBlock.from_rows(
        ("sent by", "to", ">would not be sent", ">would be sent", ""),
        (
            (
                Name(f"{sink.stage}@v{sink.version}"),
                Name(sink.sink),
                sink.withdrawn.num_rows,
                sink.new.num_rows,
                "published" if sink.is_published else "not published, as far as known",
            )
            for sink in left
        ),
    )
