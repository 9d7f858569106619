"""From the columns that a table has to those that a program declares: what changes, or why it cannot. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from msgspec.structs import replace

from ..errors import NotFound, Refused
from ..store.sst import ttl
from ..store.sst.arrow_types import to_arrow
from ..store.sst.evolution import default_of, default_text, widens
from ..store.versions.manifest import Column, Table, Ttl
from .kinds.kind import Kind, kind_of

ANOTHER_STAGE = (
    "give the changed stage a new name: it begins anew, and the old one is retired; or run the program as another app "
    "(`slackwater run FILE --app NAME`)"
)


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """What becomes of one column, as users see it."""

    kind: Literal["added", "removed", "renamed", "widened"]
    column: str
    """Its name from then on; of a removed one the name that it had."""
    before: str = ""
    """Of a renamed column its name before, of a widened one its type."""
    type: str = ""
    """Its type from then on; of a removed one the type that it had."""
    default: str | None = None
    """Of an added one what rows from before have in it; None for null."""
    meaning: str = ""
    """Of an aggregate: `count()`."""


def evolve(
    stage: str, stored: Table, declared: Table, renames: Mapping[str, str]
) -> tuple[Table, tuple[ColumnChange, ...]]:
    """The stored table as the program declares it, and what that changes of its columns; itself where nothing does.

    Args:
        stage: the stage's name.
        stored: the table as it is.
        declared: the table as the program would make it. Its number of state partitions does not count.
        renames: what the user says of columns of this table: old name to new.

    Raises:
        NotFound: a rename names a column that is not there; the nearest are told.
        Refused: what is stored means something else under the new declaration, or does not fit it.
    """
    _check_renames(stage, stored, declared, renames)
    kept, now = kind_of(stored.state), kind_of(declared.state)
    renamed = {**kept.internal(renames), **renames}
    was = kept.renamed(renamed)
    _check_kind(stage, kept, was, now)
    had = tuple(replace(column, id=number) for number, column in zip(stored.ids, stored.columns, strict=True))
    known = {name: replace(each, name=name) for each in had for name in (renamed.get(each.name, each.name),)}
    keys = _keys(stage, stored, declared, known)
    _check_sessions(stage, kept, stored, declared, known)
    next_id = stored.next_id or len(stored.columns) + 1
    values = []
    for column in declared.values:
        before = known.get(column.name)
        if before is None or before in keys:
            values.append(replace(column, id=next_id, since=0))
            next_id += 1
        else:
            _check_same(stage, column, before, was, now)
            values.append(_widened(column, before))
    lifetime = ttl.agree(stage, _renamed_ttl(stored.ttl, renamed, declared), declared.ttl)
    if (*keys, *values) == had:
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
    return table, tuple(changes(stored, table, was, now))


def changes(before: Table, after: Table, was_meant: Kind, is_meant: Kind) -> Iterator[ColumnChange]:
    """What users see of a migration of a table, of these meanings before and after: internal columns are left out."""
    had = dict(zip(before.ids, before.columns, strict=True))
    for number, column in zip(after.ids, after.columns, strict=True):
        if column.name.startswith("_"):
            continue
        was = had.get(number)
        if was is None:
            told = is_meant.columns.get(column.name, "")
            yield ColumnChange("added", column.name, type=column.type, default=column.default, meaning=told)
            continue
        if was.name != column.name:
            yield ColumnChange("renamed", column.name, was.name, column.type)
        if was.type != column.type:
            yield ColumnChange("widened", column.name, was.type, column.type)
    for number, column in had.items():
        if number not in after.ids and not column.name.startswith("_"):
            yield ColumnChange("removed", column.name, type=column.type, meaning=was_meant.columns.get(column.name, ""))


def _check_kind(stage: str, kept: Kind, was: Kind, now: Kind) -> None:
    if was.goes_on_as(now):
        return
    if was.once != now.once and was.core.goes_on_as(now.core):
        told = "now, and had not" if now.once else "no more, and had"
        raise Refused(
            f'stage {stage!r} has event_time(emits="final") {told}: the rows of windows that are open would never be '
            "emitted",
            hint=ANOTHER_STAGE,
        )
    raise Refused(
        f"stage {stage!r}: its state is {now} now, and what is stored is of {kept}",
        hint=ANOTHER_STAGE,
    )


def _check_renames(stage: str, stored: Table, declared: Table, renames: Mapping[str, str]) -> None:
    there = [column.name for column in stored.columns if not column.name.startswith("_")]
    wanted = [column.name for column in declared.columns if not column.name.startswith("_")]
    for old, new in renames.items():
        if old not in there:
            raise NotFound(
                f"column of table {stage!r}", old, there, hint="--rename OLD=NEW names a stored column first"
            )
        if new not in wanted:
            raise NotFound(
                f"column that the program declares of table {stage!r}",
                new,
                wanted,
                hint="--rename OLD=NEW names it last",
            )
        if new in there and new not in renames:
            raise Refused(
                f"table {stage!r} has a column {new!r} already, so {old!r} cannot become that",
                hint=f"rename that one, too: --rename {new}=NAME",
            )
        if list(renames.values()).count(new) > 1:
            raise Refused(f"two columns of table {stage!r} cannot both become {new!r}")


def _keys(stage: str, stored: Table, declared: Table, known: Mapping[str, Column]) -> tuple[Column, ...]:
    """The key, which may have other names and nothing else."""
    keys = tuple(known.values())[: len(stored.key)]
    if [(c.name, c.type) for c in keys] != [(c.name, c.type) for c in declared.key]:
        before, now = (", ".join(f"{c.name} {c.type}" for c in each) for each in (stored.key, declared.key))
        same_types = [c.type for c in keys] == [c.type for c in declared.key]
        way = " ".join(
            f"--rename {one.name}={other.name}"
            for one, other in zip(stored.key, declared.key, strict=False)
            if one.name != other.name
        )
        raise Refused(
            f"stage {stage!r}: its key is ({now}), and the stored table has ({before}): its rows are of other keys",
            hint=f"where only names changed: {way}" if same_types and way else ANOTHER_STAGE,
        )
    return keys


def _check_sessions(stage: str, kept: Kind, stored: Table, declared: Table, known: Mapping[str, Column]) -> None:
    """See that sessions stay in their column: they are still to be emitted, with what is kept of them beside it."""
    if not kept.key_column:
        return
    (before,), (now,) = (
        [column.name for column in table.values if not column.name.startswith("_")] for table in (stored, declared)
    )
    if now not in known:
        raise Refused(
            f"stage {stage!r}: its sessions are {now!r} now, and those that are open are stored as {before!r}",
            hint=f"where only the name changed: --rename {before}={now}",
        )


def _check_same(stage: str, column: Column, before: Column, was: Kind, now: Kind) -> None:
    """See that what is stored in a column is what the program takes it for."""
    meant, means = (each.columns.get(column.name, "") for each in (was, now))
    if meant != means:
        raise Refused(
            f"stage {stage!r}: column {column.name!r} is {means} now, and what is stored is {meant}",
            hint="give it another name: that is a new column, which counts from the migration on, and the old one goes",
        )
    if not widens(to_arrow(before.type), to_arrow(column.type)):
        # Their columns are those of inputs and of the key, which have no other name.
        way = (
            "keep the fields that there are, and rename or cast them in the stage that reads what this one sends"
            if was.waiting
            else "anything else is a new column, under another name"
        )
        raise Refused(
            f"stage {stage!r}: column {column.name!r} is {column.type} now, and what is stored is {before.type}, which "
            "may not fit",
            hint="an integer may become a larger one, float double, a decimal a larger one, a struct may get fields; "
            f"{way}",
        )


def _widened(column: Column, before: Column) -> Column:
    """The stored column under its name and type from now on; its default is the same value."""
    default = before.default
    if default is not None and column.type != before.type:
        kind = to_arrow(column.type)
        default = default_text(default_of(before).cast(kind), kind)
    return replace(before, name=column.name, type=column.type, default=default)


def _renamed_ttl(stored: Ttl | None, renamed: Mapping[str, str], declared: Table) -> Ttl | None:
    """The time to live under the names of now. Where its column goes, no row gets one any more."""
    if stored is None or not stored.column:
        return stored
    name = renamed.get(stored.column, stored.column)
    gone = name not in {column.name for column in declared.values} and declared.ttl is None
    return Ttl(0, gone=True) if gone else replace(stored, column=name)


def likely_renames(found: tuple[ColumnChange, ...]) -> tuple[tuple[str, str], ...]:
    """Removed columns that may be added ones under another name: the only ones of their type and meaning."""
    gone, new = (
        [(each.type, each.meaning, each.column) for each in found if each.kind == kind] for kind in ("removed", "added")
    )
    likely = []
    for kind in dict.fromkeys(each[:2] for each in gone):
        old, now = ([name for *of, name in each if tuple(of) == kind] for each in (gone, new))
        if len(old) == len(now) == 1:
            likely.append((old[0], now[0]))
    return tuple(likely)


def check_default(stage: str, column: str, value: object, kind: pa.DataType) -> str:
    """A default that a program declares, as a manifest keeps it. Raises `Refused` unless it is of the column's type."""
    try:
        return default_text(value, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise Refused(
            f"stage {stage!r}: the default of column {column!r} is {value!r}; expected a value of type {kind}",
            hint=f"defaults={{{column!r}: …}} in table(...); leave it out for null ({error})",
        ) from error
