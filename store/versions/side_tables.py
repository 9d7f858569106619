"""Tables that a stage has beside its own, such as that of the records it rejected: `<stage>_<name>` to everybody.

They are in the stage's manifest, so they change with its table in one commit, and are as old, as new and as lasting.
Whoever reads tables gets each as a manifest of its own that has it as its table: what reads one reads the others.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from .manifest import Manifest, Sst, Table

REJECTED = "rejected"
"""The records that the stage could not take, each with its error."""


def table_name(stage: str, name: str) -> str:
    """What a table beside that of a stage is called."""
    return f"{stage}_{name}"


def may_be_side_table(table: str) -> bool:
    """Whether a table of this name may be beside a stage's own."""
    return table.endswith(f"_{REJECTED}")


def owner(table: str, stages: Collection[str]) -> str:
    """The stage in whose manifests a table is: it bears its name, or the table is beside it; else the name itself."""
    stage = table.removesuffix(f"_{REJECTED}")
    return stage if table not in stages and stage in stages else table


def tables_of(manifest: Manifest, stage: str = "") -> dict[str, Manifest]:
    """A stage's tables by name, its own first, each as a version that has it as its table; `stage` is its name now."""
    name = stage or manifest.stage
    own = {name: manifest} if manifest.table is not None else {}
    return own | {name + each.stage.removeprefix(manifest.stage): each for each in side_manifests(manifest)}


def columns_of(stages: Mapping[str, Manifest]) -> dict[str, Table]:
    """By name, what the tables of these stages are declared as, the stages being called as they are here."""
    each = (tables_of(manifest, stage) for stage, manifest in stages.items())
    return {name: one.table for tables in each for name, one in tables.items() if one.table is not None}


def side_manifests(manifest: Manifest) -> tuple[Manifest, ...]:
    """The tables beside the stage's own, each as a version that has it as its table."""
    only = replace(manifest, clock_ms=0, side_tables={}, backfills=())
    return tuple(
        replace(only, stage=table_name(manifest.stage, name), table=each.table, ssts=each.ssts)
        for name, each in manifest.side_tables.items()
    )


def table_of(manifest: Manifest, table: str) -> Manifest:
    """A version as `tables_of` gives it of one table; without a table where the stage has none of this name."""
    if table == manifest.stage:
        return manifest
    found = tables_of(manifest).get(table)
    return replace(manifest, stage=table, table=None, ssts=(), side_tables={}) if found is None else found


class Rejected(NamedTuple):
    """Numbers of records that a stage rejected."""

    rows: int
    """By this version."""
    total: int
    """Since it began."""
    waiting: int
    """Of all, those that were not retried."""


def rejected_of(manifest: Manifest) -> Rejected:
    """How many records a stage has rejected at a version."""
    found = manifest.side_tables.get(REJECTED)
    return Rejected(found.rows, found.total, found.waiting) if found is not None else Rejected(0, 0, 0)


def all_ssts(manifest: Manifest) -> tuple[Sst, ...]:
    """The SSTs of all of its tables."""
    return (*manifest.ssts, *(sst for each in manifest.side_tables.values() for sst in each.ssts))


def each_sst(manifest: Manifest, change: Callable[[Sst], Sst | None]) -> Manifest:
    """The manifest with each SST of its tables changed; without those for which `change` gives None."""

    def changed(ssts: tuple[Sst, ...]) -> tuple[Sst, ...]:
        return tuple(made for made in map(change, ssts) if made is not None)

    others = {name: replace(each, ssts=changed(each.ssts)) for name, each in manifest.side_tables.items()}
    return replace(manifest, ssts=changed(manifest.ssts), side_tables=others)


def without_ssts(manifest: Manifest) -> Manifest:
    """The manifest with its tables as they are declared, and nothing in them."""
    return each_sst(manifest, lambda _sst: None)
