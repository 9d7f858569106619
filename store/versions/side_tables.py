"""Tables that a stage has beside its own, such as that of the records it rejected: `<stage>_<name>` to everybody.

They are in the stage's manifest, so they change with its table in one commit, and are as old, as new and as lasting.
Whoever reads tables gets each as a manifest of its own that has it as its table: what reads one reads the others.
Which stage has a table, its manifests say, and no name: a stage may be called as another one's side table would be.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import asdict, replace

from .manifest import Manifest, Sst, Table

REJECTED = "rejected"
"""The records that the stage could not take, each with its error."""


def table_name(stage: str, name: str) -> str:
    """What a table beside that of a stage is called."""
    return f"{stage}_{name}"


class SideManifest(Manifest, frozen=True):
    """A version of a stage that has a table beside the stage's own as its table, and is called as that is."""

    beside: str = ""
    """The stage; `stage` is the name of the table."""
    name: str = ""
    """What the table is called behind the stage's name."""


def stage_of(manifest: Manifest) -> str:
    """The stage of a version, which may be one of `tables_of`."""
    return manifest.beside if isinstance(manifest, SideManifest) else manifest.stage


def owner(table: str, stages: Mapping[str, Manifest]) -> str:
    """The stage of these in whose manifest a table is: its own, or one beside that; else the name itself."""
    if table in stages:
        return table
    having = (stage for stage, each in stages.items() for name in each.side_tables if table_name(stage, name) == table)
    return next(having, table)


def may_have(table: str, stages: Iterable[str]) -> tuple[str, ...]:
    """Of these stages those that may have a table of this name, as far as names say; `owner` knows of their heads."""
    return tuple(stage for stage in stages if table == stage or table.startswith(f"{stage}_"))


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
    if not manifest.side_tables:
        return ()
    only = asdict(manifest) | {"clock_ms": 0, "side_tables": {}, "beside": stage_of(manifest)}
    return tuple(
        SideManifest(
            **only | {"stage": table_name(manifest.stage, name), "name": name, "table": each.table, "ssts": each.ssts}
        )
        for name, each in manifest.side_tables.items()
    )


def table_of(manifest: Manifest, table: str) -> Manifest:
    """A version as `tables_of` gives it of one table; without a table where the stage has none of this name."""
    if table == manifest.stage:
        return manifest
    found = next((each for each in side_manifests(manifest) if each.stage == table), None)
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
