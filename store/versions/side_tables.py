"""Side tables of a stage, such as `<stage>_rejected` for rejected records.

They are part of the stage's manifest, so they change with its table in one commit, and have the same history and
retention. Readers get a side table as a manifest in which it is the main table, so code that reads tables needs no
special case. The stage of a table follows only from manifests: a stage may have the same name as another stage's side
table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import asdict, replace

from .entries.ssts import Sst, Ssts
from .keys import hashed_columns
from .manifest import Column, Manifest, SideTable, Table

REJECTED = "rejected"
"""Name of the side table with the records that the stage rejected, each with its error."""


def table_name(stage: str, name: str) -> str:
    return f"{stage}_{name}"


def has_parts(table: Table) -> bool:
    """Return True for a table with the parts of lists or maps. Its key has an extra last column."""
    names = [column.name for column in table.key]
    return len(hashed_columns(names)) < len(names)


def part_tables(manifest: Manifest) -> dict[str, SideTable]:
    """Return the stage's tables of parts, by side-table name. They belong to the rows of the stage's own table."""
    return {name: side for name, side in manifest.side_tables.items() if has_parts(side.table)}


def with_part_tables(manifest: Manifest, parts: Mapping[str, SideTable]) -> Manifest:
    """Return the version with exactly these tables of parts. Other side tables stay."""
    others = {name: side for name, side in manifest.side_tables.items() if not has_parts(side.table)}
    return replace(manifest, side_tables=others | dict(parts))


class SideManifest(Manifest, frozen=True):
    """A stage's version, shown with a side table as its main table and under that table's name."""

    owner_stage: str = ""
    name: str = ""


def stage_of(manifest: Manifest) -> str:
    return manifest.owner_stage if isinstance(manifest, SideManifest) else manifest.stage


def find_owner(table: str, stages: Mapping[str, Manifest]) -> str:
    """Return the stage whose manifest has a table, as its own or as a side table; `table` itself if none has it."""
    if table in stages:
        return table
    having = (
        stage for stage, manifest in stages.items() for name in manifest.side_tables if table_name(stage, name) == table
    )
    return next(having, table)


def possible_owners(table: str, stages: Iterable[str]) -> tuple[str, ...]:
    """Return the stages that may have a table, by their names alone."""
    return tuple(stage for stage in stages if table == stage or table.startswith(f"{stage}_"))


def tables_of(manifest: Manifest, stage: str = "") -> dict[str, Manifest]:
    """Return a stage's tables by name, its own first, each as a manifest with this table as its main table.

    `stage` is the stage's current name; empty for the name in the manifest.
    """
    name = stage or manifest.stage
    own = {name: manifest} if manifest.table is not None else {}
    return own | {name + side.stage.removeprefix(manifest.stage): side for side in side_manifests(manifest)}


def table_declarations(stages: Mapping[str, Manifest]) -> dict[str, Table]:
    """Return the declarations of all tables, by table name. `stages` maps current stage names to manifests."""
    groups = (tables_of(manifest, stage) for stage, manifest in stages.items())
    return {name: version.table for tables in groups for name, version in tables.items() if version.table is not None}


def side_manifests(manifest: Manifest) -> tuple[SideManifest, ...]:
    if not manifest.side_tables:
        return ()
    only = asdict(manifest) | {"clock_ms": 0, "side_tables": {}, "owner_stage": stage_of(manifest)}
    return tuple(
        SideManifest(
            **only | {"stage": table_name(manifest.stage, name), "name": name, "table": side.table, "ssts": side.ssts}
        )
        for name, side in manifest.side_tables.items()
    )


def as_main_table(manifest: Manifest, table: str) -> Manifest:
    """Return the version with this table as its main table; without a table if the stage lacks this table."""
    if table == manifest.stage:
        return manifest
    side = next((candidate for candidate in side_manifests(manifest) if candidate.stage == table), None)
    return replace(manifest, stage=table, table=None, ssts=(), side_tables={}) if side is None else side


class RejectedCounts(NamedTuple):
    """Counts of records rejected by a stage."""

    rows: int
    total: int
    waiting: int
    """Number of rejected records that were not retried."""


def rejected_counts(manifest: Manifest) -> RejectedCounts:
    side = manifest.side_tables.get(REJECTED)
    return RejectedCounts(side.rows, side.total, side.waiting) if side is not None else RejectedCounts(0, 0, 0)


def tables_ssts(manifest: Manifest) -> Iterator[Ssts]:
    """Yield the SSTs of each of the manifest's tables, its own first."""
    yield manifest.ssts
    yield from (side.ssts for side in manifest.side_tables.values())


def has_ssts(manifest: Manifest) -> bool:
    return any(tables_ssts(manifest))


def all_ssts(manifest: Manifest) -> tuple[Sst, ...]:
    return tuple(sst for ssts in tables_ssts(manifest) for sst in ssts)


def leaf_keys(manifest: Manifest) -> Iterator[str]:
    """Yield the keys of the leaves under the manifest's own root."""
    return (leaf.object for ssts in tables_ssts(manifest) for leaf in ssts.leaves if not leaf.root)


def named_objects(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield pairs of store root and key for each SST and leaf of the manifest's tables.

    The root is empty for the manifest's own root.
    """
    for ssts in tables_ssts(manifest):
        yield from ((sst.root, sst.object) for sst in ssts)
        yield from ((leaf.root, leaf.object) for leaf in ssts.leaves)


def added_ssts(previous: Manifest, manifest: Manifest) -> tuple[Sst, ...]:
    """Return the SSTs of a version that an earlier version lacks. Does not read leaves that both versions have."""
    earlier = {"": previous.ssts} | {name: side.ssts for name, side in previous.side_tables.items()}
    later = {"": manifest.ssts} | {name: side.ssts for name, side in manifest.side_tables.items()}
    return tuple(sst for name, ssts in later.items() for sst in ssts.changes_since(earlier.get(name, Ssts()))[0])


def map_ssts(manifest: Manifest, change: Callable[[Sst], Sst | None]) -> Manifest:
    """Return the manifest with `change` applied to each SST of its tables.

    If `change` returns None, the SST is removed.
    """
    return map_tables_ssts(manifest, lambda ssts: ssts.mapped(change))


def map_tables_ssts(manifest: Manifest, change: Callable[[Ssts], Ssts]) -> Manifest:
    sides = {name: replace(side, ssts=change(side.ssts)) for name, side in manifest.side_tables.items()}
    return replace(manifest, ssts=change(manifest.ssts), side_tables=sides)


def without_ssts(manifest: Manifest) -> Manifest:
    return map_tables_ssts(manifest, lambda _ssts: Ssts())


REJECTED_RECORDS = Table(
    key=(
        Column("topic", "string"),
        Column("partition", "int32"),
        Column("offset", "int64"),
        # Position of the row in a message of a repartition topic; 0 for a user's topic.
        Column("row", "int32"),
    ),
    values=(
        Column("input", "string"),
        Column("time", "timestamp[us, tz=UTC]"),
        Column("key", "binary"),
        Column("value", "binary"),
        Column("headers", "list<struct<name: string, value: binary>>"),
        Column("error", "string"),
        Column("message", "string"),
        Column("stack", "string"),
        Column("version", "int64"),
        Column("rejected_at", "timestamp[us, tz=UTC]"),
        Column("attempts", "int32"),
        Column("retried", "int64"),
    ),
    partitions=1,
)
"""Schema of rejected records.

`input` is the declared name of the topic or channel, and `time` the record's timestamp. `key`, `value` and `headers`
are those of the Kafka message; for a channel's row, `value` is an Arrow stream of that row. `error` is the error's
class, `version` is the version that left the record out, `attempts` is the number of failures, and `retried` is the
version that applied the record.
"""
