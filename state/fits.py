"""Whether a stage of a program fits the history that is stored of it: the same, what it changes, or why it cannot.

A run asks before it claims a stage, and takes nothing but the same; a migration carries out what changes. Values only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from ..errors import NotFound, Refused
from ..store.sst import ttl
from ..store.sst.arrow_types import to_arrow
from ..store.sst.evolution import default_of, default_text, widens
from ..store.versions.manifest import Column, Manifest, Table, Ttl, is_internal
from .kinds.kind import Kind, kind_of

ANOTHER_STAGE = (
    "give the changed stage a new name: it begins anew, and the old one is retired; or run the program as another app "
    "(`slackwater run FILE --app NAME`)"
)


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """One stage of a program."""

    name: str
    inputs: Mapping[str, str]
    """By declared name the stage that writes it; empty for a user's topic."""
    outputs: Mapping[str, str]
    """The channels that it writes, by declared name, and their columns as Spark DDL."""
    table: Table | None
    """As the program would make it. `Column.default` is what it says of rows from before."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A program, as an app of some name."""

    app: str
    stages: Mapping[str, DeclaredStage]


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


@dataclass(frozen=True, slots=True)
class TableFit:
    """What a program makes of a stage's table."""

    table: Table | None = None
    """As it is from then on; None where the stage keeps none."""
    columns: tuple[ColumnChange, ...] = ()
    others: bool = False
    """Whether the order of its columns, or how it is declared, is another, and nothing else of it is."""
    refused: Refused | None = None
    """Why what is stored cannot be kept; None where it can."""

    @property
    def same(self) -> bool:
        """Whether the stage goes on as it is."""
        return self.refused is None and not self.columns and not self.others


def fit_table(stage: str, stored: Table | None, declared: Table | None, renames: Mapping[str, str]) -> TableFit:
    """What a program makes of a stage's table, where columns have other names in it, old to new.

    Raises `NotFound` where a rename names a column that is not there.
    """
    if (stored is None) != (declared is None):
        change = "keeps state now, and had none" if stored is None else "kept state, and has none now"
        return TableFit(refused=Refused(f"stage {stage!r} {change}", hint=ANOTHER_STAGE))
    if stored is None or declared is None:
        return TableFit()
    try:
        table, columns = evolve(stage, stored, declared, renames)
    except Refused as error:
        return TableFit(refused=error)
    others = (stored.columns, stored.state) != (table.columns, table.state) and not columns
    return TableFit(table, columns, others)


class InputsFit(NamedTuple):
    """What a program makes of a stage's inputs, by their declared names."""

    new: tuple[str, ...]
    """What it reads from then on, and did not before."""
    gone: tuple[str, ...]
    writers: Mapping[str, tuple[str, str]]
    """Of those that another stage writes now, or nobody of the app, that stage before and now."""


def fit_inputs(head: Manifest, declared: Mapping[str, str]) -> InputsFit:
    """What becomes of a stage's inputs; `declared` has the stage that writes each, empty for a user's topic."""
    known = {name: source.upstream for name, source in head.inputs.items()}
    new, gone = (tuple(sorted(each)) for each in (declared.keys() - known, known.keys() - declared))
    both = {name: (known[name], writer) for name, writer in declared.items() if name in known}
    return InputsFit(new, gone, {name: each for name, each in both.items() if each[0] != each[1]})


def visible(columns: Iterable[Column]) -> tuple[str, ...]:
    """The names of columns that users see: internal ones begin with `_`."""
    return tuple(column.name for column in columns if not is_internal(column.name))


def evolve(
    stage: str, stored: Table, declared: Table, renames: Mapping[str, str]
) -> tuple[Table, tuple[ColumnChange, ...]]:
    """The stored table as the program declares it, and what that changes of its columns; itself where nothing does.

    Its number of state partitions does not count. The renames are what the user says of columns, old to new.

    Raises `NotFound` where a rename names a column that is not there, with the nearest, and `Refused` where what is
    stored means something else under the new declaration, or does not fit it.
    """
    _check_renames(stage, stored, declared, renames)
    kept, now = kind_of(stored.state), kind_of(declared.state)
    renamed = {**kept.core.internal(renames), **renames}
    was = kept.renamed(renamed)
    _check_kind(stage, kept, was, now)
    had = tuple(replace(column, id=number) for number, column in zip(stored.ids, stored.columns, strict=True))
    known = {name: replace(each, name=name) for each in had for name in (renamed.get(each.name, each.name),)}
    keys = _keys(stage, stored, declared, known)
    if kept.key_column:
        # Sessions stay in their column: they are still to be emitted, with what is kept of them beside it.
        (before_name,), (now_name,) = visible(stored.values), visible(declared.values)
        if now_name not in known:
            raise Refused(
                f"stage {stage!r}: its sessions are {now_name!r} now, and those that are open are stored as "
                f"{before_name!r}",
                hint=f"where only the name changed: --rename {before_name}={now_name}",
            )
    next_id = stored.next_id or len(stored.columns) + 1
    values = []
    for column in declared.values:
        before = known.get(column.name)
        if before is None or before in keys:
            values.append(replace(column, id=next_id, since=0))
            next_id += 1
        else:
            values.append(_carried(stage, column, before, was, now))
    lived = stored.ttl
    if lived is not None and lived.column:
        name = renamed.get(lived.column, lived.column)
        # Where its column goes, no row gets one any more.
        gone = name not in {column.name for column in declared.values} and declared.ttl is None
        lived = Ttl(0, gone=True) if gone else replace(lived, column=name)
    lifetime = ttl.agree(stage, lived, declared.ttl)
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
    return table, tuple(_changes(stored, table, was, now))


def _changes(before: Table, after: Table, was_meant: Kind, is_meant: Kind) -> Iterator[ColumnChange]:
    """What users see of a migration of a table, of these meanings before and after: internal columns are left out."""
    had = dict(zip(before.ids, before.columns, strict=True))
    for number, column in zip(after.ids, after.columns, strict=True):
        if is_internal(column.name):
            continue
        was = had.get(number)
        if was is None:
            meaning = is_meant.columns.get(column.name, "")
            yield ColumnChange("added", column.name, type=column.type, default=column.default, meaning=meaning)
            continue
        if was.name != column.name:
            yield ColumnChange("renamed", column.name, was.name, column.type)
        if was.type != column.type:
            yield ColumnChange("widened", column.name, was.type, column.type)
    for number, column in had.items():
        if number not in after.ids and not is_internal(column.name):
            yield ColumnChange("removed", column.name, type=column.type, meaning=was_meant.columns.get(column.name, ""))


def _check_kind(stage: str, kept: Kind, was: Kind, now: Kind) -> None:
    if was.goes_on_as(now):
        return
    if was.once != now.once and was.core.goes_on_as(now.core):
        change = "now, and had not" if now.once else "no more, and had"
        raise Refused(
            f'stage {stage!r} has event_time(emits="final") {change}: the rows of windows that are open would never be '
            "emitted",
            hint=ANOTHER_STAGE,
        )
    raise Refused(f"stage {stage!r}: its state is {now} now, and what is stored is of {kept}", hint=ANOTHER_STAGE)


def _check_renames(stage: str, stored: Table, declared: Table, renames: Mapping[str, str]) -> None:
    there, named = visible(stored.columns), visible(declared.columns)
    for old, new in renames.items():
        if old not in there:
            hint = "--rename OLD=NEW names a stored column first"
            raise NotFound(f"column of table {stage!r}", old, there, hint=hint)
        if new not in named:
            hint = "--rename OLD=NEW names it last"
            raise NotFound(f"column that the program declares of table {stage!r}", new, named, hint=hint)
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
        pairs = zip(stored.key, declared.key, strict=False)
        options = " ".join(f"--rename {one.name}={other.name}" for one, other in pairs if one.name != other.name)
        raise Refused(
            f"stage {stage!r}: its key is ({now}), and the stored table has ({before}): its rows are of other keys",
            hint=f"where only names changed: {options}" if same_types and options else ANOTHER_STAGE,
        )
    return keys


def _carried(stage: str, column: Column, before: Column, was: Kind, now: Kind) -> Column:
    """A stored column under its name and type from now on, if what is stored in it is what the program takes it for."""
    meant, means = (each.columns.get(column.name, "") for each in (was, now))
    if meant != means:
        raise Refused(
            f"stage {stage!r}: column {column.name!r} is {means} now, and what is stored is {meant}",
            hint="give it another name: that is a new column, which counts from the migration on, and the old one goes",
        )
    kind = to_arrow(column.type)
    if not widens(to_arrow(before.type), kind):
        # Columns that wait for others are those of inputs and of the key, which have no other name.
        otherwise = (
            "keep the fields that there are, and rename or cast them in the stage that reads what this one sends"
            if was.waiting
            else "anything else is a new column, under another name"
        )
        raise Refused(
            f"stage {stage!r}: column {column.name!r} is {column.type} now, and what is stored is {before.type}, which "
            "may not fit",
            hint="an integer may become a larger one, float double, a decimal a larger one, a struct may get fields; "
            f"{otherwise}",
        )
    default = before.default
    if default is not None and column.type != before.type:
        default = default_text(default_of(before).cast(kind), kind)
    return replace(before, name=column.name, type=column.type, default=default)


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
