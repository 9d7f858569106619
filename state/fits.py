"""Comparison of a program's stage with its stored history: unchanged, changed or incompatible.

Pure functions. `run` compares before it claims a stage, and accepts only an unchanged stage; `migrate` carries out
changes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from ..errors import NotFound, Refused
from ..store.sst import ttl
from ..store.sst.arrow_types import from_arrow, to_arrow
from ..store.sst.schema import can_widen, default_text, default_value
from ..store.versions.manifest import Column, Manifest, SideTable, Table, Ttl, is_internal
from .kinds.kind import BoundState, Kind, kind_of

ANOTHER_STAGE = (
    "give the changed stage a new name: it starts empty, and the old one is retired; or run the program as another app "
    "(`slackwater run FILE --app NAME`)"
)


NO_PARTS: Mapping[str, Table] = {}
NO_RENAMES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """A stage, as a program declares it."""

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    table: Table | None
    parts: Mapping[str, Table] = field(default_factory=dict)
    """Tables of parts that the state declares, by side-table name."""


@dataclass(frozen=True, slots=True)
class Declared:
    """All stages of a program that was loaded under an app name."""

    app: str
    stages: Mapping[str, DeclaredStage]


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """Change of one visible column of a table."""

    kind: Literal["added", "removed", "renamed", "widened"]
    column: str
    before: str = ""
    type: str = ""
    default: str | None = None
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class TableFit:
    """Difference between a stage's stored table and the declared table."""

    table: Table | None = None
    columns: tuple[ColumnChange, ...] = ()
    is_redeclared: bool = False
    refused: Refused | None = None
    parts: Mapping[str, Table] = field(default_factory=dict)
    """Stored tables of parts, changed to the declared columns, by declared side-table name."""
    renamed_parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        return self.refused is None and not self.columns and not self.is_redeclared


def fit_table(
    stage: str,
    stored: Table | None,
    declared: Table | None,
    renames: Mapping[str, str],
    *,
    stored_parts: Mapping[str, Table] = NO_PARTS,
    declared_parts: Mapping[str, Table] = NO_PARTS,
) -> TableFit:
    """Compare a stage's stored table with the declared table. `renames` maps old column names to new ones.

    Tables of parts, by side-table name, are compared as well. Raises `NotFound` if a rename names a missing column.
    """
    if (stored is None) != (declared is None):
        change = "now keeps state, but stored none" if stored is None else "no longer keeps state, but has stored some"
        return TableFit(refused=Refused(f"stage {stage!r} {change}", hint=ANOTHER_STAGE))
    if stored is None or declared is None:
        return TableFit()
    try:
        table, columns = evolve(stage, stored, declared, renames)
        parts, changes, renamed = _evolve_parts(stage, stored, stored_parts, declared_parts, renames)
    except Refused as error:
        return TableFit(refused=error)
    columns += changes
    others = (stored.columns, stored.state) != (table.columns, table.state) or stored_parts.keys() != parts.keys()
    return TableFit(table, columns, others and not columns, None, parts, renamed)


def _evolve_parts(
    stage: str,
    table: Table,
    stored: Mapping[str, Table],
    declared: Mapping[str, Table],
    renames: Mapping[str, str],
) -> tuple[dict[str, Table], tuple[ColumnChange, ...], dict[str, str]]:
    """Return the declared tables of parts, their column changes, and the former names of renamed tables."""
    parts: dict[str, Table] = {}
    changes: list[ColumnChange] = []
    renamed: dict[str, str] = {}
    internal = kind_of(table.state).core.internal_renames(renames)
    for name, now in declared.items():
        variable = variable_of_parts(now)
        before = next((old for old, new in renames.items() if new == variable), variable)
        side = next((side for side, old in stored.items() if variable_of_parts(old) == before), "")
        if not side:
            parts[name] = now
            continue
        own = {old: new for old, new in renames.items() if old in visible_names(stored[side].columns)}
        parts[name], part_changes = evolve(f"{stage}_{side}", stored[side], now, own, internal)
        # A rename is already reported as a change of the stage's own table.
        changes += (change for change in part_changes if change.kind == "widened")
        if side != name:
            renamed[name] = side
    return parts, tuple(changes), renamed


def variable_of_parts(table: Table) -> str:
    """Return the name of the state variable whose parts are in a table."""
    return table.values[0].name


class InputsFit(NamedTuple):
    """Difference between a stage's stored inputs and the declared inputs, by declared name."""

    new: tuple[str, ...]
    removed: tuple[str, ...]
    writers: Mapping[str, tuple[str, str]]
    """Stored and declared upstream stage of each input for which the two differ; "" stands for a user's topic."""


def fit_inputs(head: Manifest, declared: Mapping[str, str]) -> InputsFit:
    """Compare the stored inputs of a stage's newest version with the declared inputs.

    `declared` maps each input to its upstream stage, and a user's topic to "".
    """
    stored = {name: source.upstream for name, source in head.inputs.items()}
    new, gone = (tuple(sorted(names)) for names in (declared.keys() - stored, stored.keys() - declared))
    both = {name: (stored[name], writer) for name, writer in declared.items() if name in stored}
    return InputsFit(new, gone, {name: writers for name, writers in both.items() if writers[0] != writers[1]})


def visible_names(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the names of the visible columns: those that do not begin with `_`."""
    return tuple(column.name for column in columns if not is_internal(column.name))


def evolve(
    stage: str,
    stored: Table,
    declared: Table,
    renames: Mapping[str, str],
    internal: Mapping[str, str] = NO_RENAMES,
) -> tuple[Table, tuple[ColumnChange, ...]]:
    """Return two values: the stored table, changed to the declared columns; and the column changes.

    The number of state partitions is ignored. `renames` maps old to new names of visible columns. `internal` does the
    same for internal columns, in addition to the renames that follow from the stored kind of state.

    Raises `NotFound` if a rename names a missing column, with the nearest match, and `Refused` if stored values have
    another meaning under the new declaration, or do not fit it.
    """
    _check_renames(stage, stored, declared, renames)
    stored_kind, declared_kind = kind_of(stored.state), kind_of(declared.state)
    renamed = {**stored_kind.core.internal_renames(renames), **internal, **renames}
    renamed_kind = stored_kind.renamed(renamed)
    _check_kind(stage, stored_kind, renamed_kind, declared_kind)
    old_columns = tuple(
        replace(column, id=number) for number, column in zip(stored.column_ids, stored.columns, strict=True)
    )
    stored_columns = {
        name: replace(column, name=name) for column in old_columns for name in (renamed.get(column.name, column.name),)
    }
    keys = _keys(stage, stored, declared, stored_columns)
    if stored_kind.key_column:
        # Open sessions stay in their column, because they have not been emitted yet.
        (before_name,), (now_name,) = visible_names(stored.values), visible_names(declared.values)
        if now_name not in stored_columns:
            raise Refused(
                f"stage {stage!r}: its sessions are now {now_name!r}, but open ones are stored as {before_name!r}",
                hint=f"if only the name changed: --rename {before_name}={now_name}",
            )
    next_id = stored.next_id or len(stored.columns) + 1
    values = []
    for column in declared.values:
        stored_column = stored_columns.get(column.name)
        if stored_column is None or stored_column in keys:
            values.append(replace(column, id=next_id, since=0))
            next_id += 1
        else:
            values.append(_carry_over(stage, column, stored_column, renamed_kind, declared_kind))
    stored_ttl = stored.ttl
    if stored_ttl is not None and stored_ttl.column:
        name = renamed.get(stored_ttl.column, stored_ttl.column)
        # If the event time column is removed, new rows have no expiry.
        gone = name not in {column.name for column in declared.values} and declared.ttl is None
        stored_ttl = Ttl(0, gone=True) if gone else replace(stored_ttl, column=name)
    lifetime = ttl.reconcile_ttl(stage, stored_ttl, declared.ttl)
    if (*keys, *values) == old_columns:
        return replace(stored, ttl=lifetime, state=declared.state), ()
    table = replace(
        stored,
        key=keys,
        values=tuple(values),
        state=declared.state,
        ttl=lifetime,
        schema=stored.schema + 1,
        next_id=next_id,
    )
    return table, tuple(_changes(stored, table, renamed_kind, declared_kind))


def _changes(old_table: Table, new_table: Table, old_kind: Kind, new_kind: Kind) -> Iterator[ColumnChange]:
    old_columns = dict(zip(old_table.column_ids, old_table.columns, strict=True))
    for number, column in zip(new_table.column_ids, new_table.columns, strict=True):
        if is_internal(column.name):
            continue
        old_column = old_columns.get(number)
        if old_column is None:
            meaning = new_kind.columns.get(column.name, "")
            yield ColumnChange("added", column.name, type=column.type, default=column.default, meaning=meaning)
            continue
        if old_column.name != column.name:
            yield ColumnChange("renamed", column.name, old_column.name, column.type)
        if old_column.type != column.type:
            yield ColumnChange("widened", column.name, old_column.type, column.type)
    for number, column in old_columns.items():
        if number not in new_table.column_ids and not is_internal(column.name):
            yield ColumnChange("removed", column.name, type=column.type, meaning=old_kind.columns.get(column.name, ""))


def _check_kind(stage: str, stored: Kind, renamed: Kind, declared: Kind) -> None:
    if renamed.is_compatible_with(declared):
        return
    if renamed.emits_once != declared.emits_once and renamed.core.is_compatible_with(declared.core):
        change = "was added" if declared.emits_once else "was removed"
        raise Refused(
            f'stage {stage!r}: event_time(emits="final") {change}, so that rows of open windows would never be emitted',
            hint=ANOTHER_STAGE,
        )
    raise Refused(f"stage {stage!r}: its state is now {declared}, but the stored state is {stored}", hint=ANOTHER_STAGE)


def _check_renames(stage: str, stored: Table, declared: Table, renames: Mapping[str, str]) -> None:
    stored_names, declared_names = visible_names(stored.columns), visible_names(declared.columns)
    for old, new in renames.items():
        if old not in stored_names:
            hint = "in --rename OLD=NEW, OLD is a stored column"
            raise NotFound(f"column of table {stage!r}", old, stored_names, hint=hint)
        if new not in declared_names:
            hint = "in --rename OLD=NEW, NEW is a column that the program declares"
            raise NotFound(f"column in the program's table {stage!r}", new, declared_names, hint=hint)
        if new in stored_names and new not in renames:
            raise Refused(
                f"table {stage!r} already has a column {new!r}, so {old!r} cannot be renamed to it",
                hint=f"rename {new!r} as well: --rename {new}=NAME",
            )
        if list(renames.values()).count(new) > 1:
            raise Refused(f"two columns of table {stage!r} cannot both be renamed to {new!r}")


def _keys(stage: str, stored: Table, declared: Table, stored_columns: Mapping[str, Column]) -> tuple[Column, ...]:
    keys = tuple(stored_columns.values())[: len(stored.key)]
    if [(c.name, c.type) for c in keys] != [(c.name, c.type) for c in declared.key]:
        stored_key, declared_key = (
            ", ".join(f"{c.name} {c.type}" for c in columns) for columns in (stored.key, declared.key)
        )
        same_types = [c.type for c in keys] == [c.type for c in declared.key]
        pairs = zip(stored.key, declared.key, strict=False)
        options = " ".join(f"--rename {old.name}={new.name}" for old, new in pairs if old.name != new.name)
        raise Refused(
            f"stage {stage!r}: its key is now ({declared_key}), but the key of the stored table is ({stored_key})",
            hint=f"if only names changed: {options}" if same_types and options else ANOTHER_STAGE,
        )
    return keys


def _carry_over(stage: str, column: Column, stored: Column, old_kind: Kind, new_kind: Kind) -> Column:
    old_meaning, new_meaning = (kind.columns.get(column.name, "") for kind in (old_kind, new_kind))
    if old_meaning != new_meaning:
        raise Refused(
            f"stage {stage!r}: column {column.name!r} is now {new_meaning}, but stored values are {old_meaning}",
            hint="give it another name: the new column counts from the migration on, and the old one is dropped",
        )
    arrow_type = to_arrow(column.type)
    if not can_widen(to_arrow(stored.type), arrow_type):
        # Waiting rows have the columns of inputs and of the key, which cannot be renamed.
        otherwise = (
            "keep the existing fields, and rename or cast them in the next stage"
            if old_kind.waiting_rows
            else "for any other change, add a column with another name"
        )
        raise Refused(
            f"stage {stage!r}: column {column.name!r} is now {column.type}, but stored values are {stored.type}, which "
            "may not fit",
            hint=f"allowed: a larger integer, float to double, a larger decimal, more fields of a struct; {otherwise}",
        )
    default = stored.default
    if default is not None and column.type != stored.type:
        default = default_text(default_value(stored).cast(arrow_type), arrow_type)
    return replace(stored, name=column.name, type=column.type, default=default)


def likely_renames(changes: tuple[ColumnChange, ...]) -> tuple[tuple[str, str], ...]:
    """Return likely renames, as pairs of a removed and an added column.

    Both columns of a pair have the same type and meaning, and no other removed or added column has them.
    """
    removed, added = (
        [(change.type, change.meaning, change.column) for change in changes if change.kind == kind]
        for kind in ("removed", "added")
    )
    likely = []
    for kind in dict.fromkeys(column[:2] for column in removed):
        old_names, new_names = (
            [name for *signature, name in columns if tuple(signature) == kind] for columns in (removed, added)
        )
        if len(old_names) == len(new_names) == 1:
            likely.append((old_names[0], new_names[0]))
    return tuple(likely)


def check_default(stage: str, column: str, value: object, kind: pa.DataType) -> str:
    """Return a column's default in the format that manifests store. Raises `Refused` if it does not fit the type."""
    try:
        return default_text(value, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise Refused(
            f"stage {stage!r}: the default of column {column!r} is {value!r}; expected a value of type {kind}",
            hint=f"defaults={{{column!r}: …}} in table(...); leave it out for null ({error})",
        ) from error


def declare_parts(bound: BoundState, table: Table) -> dict[str, Table]:
    """Return the tables of parts that a state declares, by side-table name, with the hash ranges of its table."""
    return {
        name: Table(
            _columns(key),
            _columns(values),
            table.partitions,
            tasks=table.tasks,
            compaction=table.compaction,
        )
        for name, (key, values) in bound.side_tables.items()
    }


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    return tuple(Column(column.name, from_arrow(column.type)) for column in schema)


def reconcile_parts(
    declared: Mapping[str, Table], table: Table, stored: Mapping[str, SideTable]
) -> dict[str, SideTable]:
    """Return the side tables of the next version: stored tables of parts, with the hash ranges of `table`.

    `declared` must have the columns of the stored tables (`fit_table`). A declared table that is not stored is empty.
    """
    return {
        name: replace(
            side, table=replace(side.table, partitions=table.partitions, tasks=table.tasks, compaction=table.compaction)
        )
        for name, now in declared.items()
        for side in [stored.get(name) or SideTable(now)]
    }
