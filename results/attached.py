"""What `attach` shows: the tables of a query, and each version that was made of its batches."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import instants
from . import formats
from .document import Block, TableBlock
from .shown import Result

if TYPE_CHECKING:
    from ..keep.attach.tail import Landed, Plan


def to_attach(found: "Plan", where: str, query: str) -> Result:
    """What attaching would read, and as what."""
    return Result(_plan_data(found, where, query), *_plan(found, where, query))


def _plan_data(found: "Plan", where: str, query: str) -> dict[str, object]:
    return {
        "checkpoint": where,
        "query": query,
        "app": found.app,
        "stage": found.stage,
        "next_batch": found.next_batch,
        "batches": [found.available[0], found.available[-1]] if found.available else [],
        "tables": {
            name: {
                "operator": found.rows_of[name],
                "key": {column.name: column.type for column in table.key},
                "values": {column.name: column.type for column in table.values},
            }
            for name, table in found.tables.items()
        },
    }


def _plan(found: "Plan", where: str, query: str) -> Iterator[Block]:
    yield f"{where}, the query {query}, as {found.app}/{found.stage}; nothing was changed"
    yield ""
    rows = (
        (name, found.rows_of[name], _columns(table.key), _columns(table.values)) for name, table in found.tables.items()
    )
    yield TableBlock.of(("table", "of", "key", "columns"), rows)
    yield ""
    if not found.available:
        yield "the query has not committed a batch yet"
        return
    first, last = found.available[0], found.available[-1]
    there = f"batches {first} to {last} can be read" if last > first else f"batch {last} can be read"
    if found.next_batch > last:
        yield f"{there}, and versions have them all"
    elif found.next_batch >= first:
        yield f"{there}; it goes on with batch {found.next_batch}"
    elif found.next_batch:
        yield f"{there}; batches {found.next_batch} to {first} become one version, as those before {first} are gone"
    else:
        yield f"{there}: history begins {instants.iso(found.first_ms)}, with all rows at the end of batch {first}"


def _columns(columns: object) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in columns)  # type: ignore[attr-defined]


def landed(app: str, found: "Landed") -> Result:
    """A version, in a line."""
    made = found.manifest
    data = {
        "app": app,
        "stage": made.stage,
        "version": made.version,
        "batch": made.attached.next_batch - 1 if made.attached else None,
        "batches": made.attached.batches if made.attached else 0,
        "rows": found.rows,
        "behind_ms": found.behind_ms,
    }
    line = (
        f"{instants.iso(made.time_ms)}  {app}/{made.stage}@v{made.version}  {made.attached}, "
        f"{formats.plural(found.rows, 'row')} changed, {formats.duration(found.behind_ms)} after Spark's commit"
    )
    return Result(data, line)


def caught_up(app: str, stage: str, versions: int, next_batch: int) -> Result:
    """What one call did."""
    upto = f"up to batch {next_batch - 1}" if next_batch else "the query has not committed a batch yet"
    line = f"{app}/{stage}: {formats.plural(versions, 'version')} more, {upto}"
    return Result({"app": app, "stage": stage, "versions": versions, "next_batch": next_batch}, line)
