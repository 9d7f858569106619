"""A kind of state, for others to derive from: `Kind` is what a program declares, `Bound` what workers call.

Everything that is asked of a kind is here, with what most of them answer. A declaration is a struct with a tag; what a
manifest keeps of it (`Table.state`) is that struct as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from ...common.learned import learned
from ...errors import NotFound, Usage
from ...store.versions.manifest import Declaration, is_internal

DueBy: TypeAlias = Literal["watermark", "clock"]
Columns: TypeAlias = "Mapping[str, Any] | pa.Table"
"""Arrow columns by their names."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A batch's rows by key: rows are sorted so that each key's rows are neighbours."""

    ids: npt.NDArray[np.int32]
    """int32[rows], the key's position, 0 to num - 1, ascending."""
    starts: npt.NDArray[np.int64]
    """int64[num], each key's first row."""

    @property
    def num(self) -> int:
        """Number of different keys."""
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class BatchMoment:
    """When a batch is, as its version says: a replay is at the same moment. Milliseconds since 1970 UTC."""

    until_ms: int | None = None
    """Up to when rows fall due; None where nobody knows yet how late it is."""
    wall_ms: int | None = None
    """The wall clock at the batch's start; None where rows are changed and no batch is."""
    watermark_ms: int | None = None
    """The stage's watermark before the batch; None where there is none."""


NO_MOMENT = BatchMoment()


@dataclass(frozen=True, slots=True)
class Merged:
    """What `Bound.merge` gives, key by key."""

    values: pa.Table
    """One row per key of the batch, the table's value columns."""
    deleted: npt.NDArray[np.bool_] | None = None
    """bool[num], keys to remove; None for none."""
    changed: npt.NDArray[np.bool_] | None = None
    """bool[num], keys whose row must be written; None for all."""
    emitted: tuple[pa.Table, ...] = ()
    """Rows for the stage's outputs: one table for all of them, or one for each; empty when it emits none."""


class Bound:
    """A state that knows its rows' schema. Crosses to workers by pickle."""

    __slots__ = ()
    due_by: DueBy | None = None
    """What passes the time in `_due_at` at which rows fall due; None where they never do."""
    if TYPE_CHECKING:  # fields of some, properties of others

        @property
        def values(self) -> pa.Schema:
            """The table's value columns; names that start with `_` are internal."""

        @property
        def needs(self) -> tuple[str, ...]:
            """Columns of the rows, besides the key, that `merge` reads."""

        @property
        def emits(self) -> tuple[pa.Schema, ...]:
            """Schemas of the rows this state sends to the stage's outputs: one for all of them, or one for each."""

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """Merge a batch's rows into the rows of its keys; the same rows in any order give the same result.

        With rows for none of the groups, these are rows that fall due.

        `rows` are the batch's (key and needed columns), sorted by key as `groups` says; `keys` has the key columns, one
        row per key, and `old` the value columns, one row per key, with nulls where the key is new.
        """
        raise NotImplementedError

    @property
    def behind_ms(self) -> int:
        """How much earlier than the watermark the times may be of rows that are still to be emitted."""
        return 0

    def at_moment(self, _moment: BatchMoment) -> Bound:
        """The state for a batch at this moment; asked of states that have rows which fall due."""
        return self

    def late_by(self, window: str | None) -> tuple[str, ...]:
        """The columns of a batch's rows by which they are late; `window` is the one in the table's key, if there is."""
        return (window,) if window else ()

    @property
    def late_rows(self) -> tuple[pa.Schema, Mapping[str, str]] | None:
        """Late rows as they go on, and which columns of a batch's become theirs; None for just what the stage made."""
        return None

    @property
    def added_up(self) -> tuple[tuple[str, Any], ...]:
        """The aggregates (`Aggregate`), by column, whose rows Spark may add up before; none of other states."""
        return ()

    def over_partials(self, _columns: tuple[str, ...]) -> Bound:
        """The same state over rows that are added up, which have these columns besides the key; where they may be."""
        return self


class Kind(Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """A declared state."""

    once: ClassVar[bool] = False
    """Whether each row is emitted once, when its window has ended."""
    migrates: ClassVar[bool] = True
    """Whether a migration can make another of the same kind of it, as far as its columns go."""
    key_column: ClassVar[bool] = False
    """Whether one column of the stage's key is among the table's values: that of sessions, which grow."""
    waiting: ClassVar[str] = ""
    """In words, what its rows hold that waits for others, in lists; empty for nothing."""
    emission: ClassVar[Literal["table", "rows", "function"]] = "function"
    """What it emits: with each batch the rows of its table that this changed (`table`); rows that are the same in how
    many batches ever the input comes (`rows`); or what only a function of the program knows."""
    elsewhere: ClassVar[str] = ""
    """In words, whose rows its table has, where no program of ours makes them; empty where one does."""
    in_any_order: ClassVar[bool] = False
    """Whether lists in its rows have no order that means anything."""
    not_final: ClassVar[tuple[str, str]] = ("", "")
    """Why its rows cannot be emitted once, and what to do instead; empty where they can."""
    no_late_table: ClassVar[str] = ""
    """What a table of its late rows would be, which there cannot be; empty where there can."""
    no_ttl: ClassVar[tuple[str, str]] = ("", "")
    """Why its rows cannot have a time to live, and what to do instead; empty where they can."""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """Fix the table's columns for rows of these schemas, one for each DataFrame that the stage's function gives.

        Raises `NotFound` where it names a column that there is not, and `Usage` where it cannot be kept of such rows.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        """The declaration in a line, for messages."""
        said = {name: value for name, value in self.stored.items() if name != "kind"}
        return f"{self.tag}({', '.join(f'{name}={value}' for name, value in said.items())})"

    @property
    def tag(self) -> str:
        """The kind's name."""
        return str(self.__struct_config__.tag)

    @property
    def declaration(self) -> Kind:
        """What of it is stored: without what may change while stored values keep their meaning."""
        return self

    def declaration_over(self, kept: Kind) -> Kind:
        """The declaration without Spark: where columns are only known with it, those of `kept` stand for them."""
        return self.declaration

    @property
    def stored(self) -> Declaration:
        """The declaration as a manifest keeps it."""
        return msgspec.json.decode(msgspec.json.encode(self.declaration))  # type: ignore[no-any-return]

    @property
    def function(self) -> Callable[..., Any] | None:
        """The user's function in it; None where there is none."""
        return None

    @property
    def core(self) -> Kind:
        """The kind of the rows that are kept; it differs where this one only says when they are emitted."""
        return self

    @property
    def due_text(self) -> str:
        """By what rows fall due, as it is declared; empty where that follows from the rest, and where they never do."""
        return ""

    @property
    def due_by(self) -> DueBy:
        """What passes the time of rows, where they fall due."""
        return "watermark"

    def due_column(self, _key: pa.Schema) -> str:
        """The column with the time at which a row falls due; empty where there is none."""
        return ""

    def carried(self, _column: str) -> str | None:
        """The column of the stage's rows whose values an emitted column has; empty for one that counts or adds up.

        None where only a function of the program knows.
        """
        return None

    @property
    def columns(self) -> Mapping[str, str]:
        """What columns are, by name, such as `sum(arr_delay)`; without those that are what the program puts there."""
        return {}

    def by_session(self, _column: str) -> Kind | None:
        """What is kept where this column of the key is a session window; None where that cannot be."""
        return None

    # What a migration may do.

    def renamed(self, _names: Mapping[str, str]) -> Kind:
        """The declaration with columns of the table under these names, old to new."""
        return self

    def internal(self, _names: Mapping[str, str]) -> dict[str, str]:
        """The internal columns that get another name when columns do, old to new."""
        return {}

    def goes_on_as(self, now: Kind) -> bool:
        """Whether stored values keep their meaning under another declaration, but for columns with one of their own."""
        return self.stored == now.stored

    def may_become(self, now: Kind) -> bool:
        """Whether a migration may have it go on so, as far as their kinds say."""
        return self.migrates and self.tag == now.tag

    def differences(self, now: Kind) -> Iterator[str]:
        """What another declaration changes, without the types of columns."""
        yield from (f"+ {name} = {said}" for name, said in now.columns.items() if name not in self.columns)
        yield from (f"- {name}" for name in self.columns if name not in now.columns)
        if self.due_text != now.due_text:
            yield from (f"{sign} {text}" for sign, text in (("-", self.due_text), ("+", now.due_text)) if text)

    def needed_in(self, _column: str) -> str:
        """In words, what later records make of a stored value of this column, so that hiding it would falsify them.

        Empty where they only replace it, and where a function of the program alone knows.
        """
        return f"it holds {self.waiting}" if self.waiting else ""

    def made_of(self, _column: str) -> tuple[str, ...]:
        """The columns of rows whose values a column of the table has, where these have other names."""
        return ()


class OfCode(Kind, frozen=True, kw_only=True, tag=""):
    """What code of the user's says alone. It is not stored: it may do something else in the next release."""

    code: Any = None
    """It has the user's own `function`; None of a state as it is stored."""

    @property
    def function(self) -> Callable[..., Any] | None:
        return self.code.function if self.code is not None else None


class Unknown(Kind, frozen=True, tag=""):
    """What was stored of a kind that this program does not know: it is the same, or it is not."""

    declared: Declaration
    migrates: ClassVar[bool] = False

    @property
    def stored(self) -> Declaration:
        """As it stands in the manifest."""
        return self.declared

    def __str__(self) -> str:
        return msgspec.json.encode(self.declared).decode()


def kind_of(declared: Declaration) -> Kind:
    """The kind that a manifest says, of those that are defined by now: here, and in the user's program."""
    tag = declared.get("kind")
    known: dict[str, type[Kind]] = {}
    found: list[type[Kind]] = [Kind]
    while found:
        one = found.pop(0)
        known[str(one.__struct_config__.tag)] = one
        found += one.__subclasses__()
    made = known.get(tag) if isinstance(tag, str) and tag else None
    if made in (None, Kind):
        return Unknown(declared)
    try:
        return msgspec.convert(declared, learned(made))
    except (msgspec.ValidationError, RecursionError):
        return Unknown(declared)


def as_kind(declared: object) -> Kind:
    """A kind inside of another one's declaration, stored or not. Raises `TypeError` for anything else."""
    if isinstance(declared, dict):
        return kind_of(declared)
    if not isinstance(declared, Kind):
        raise TypeError(f"{declared!r} declares no state")
    return declared


_INPUT, _TIME = b"slackwater.input", b"slackwater.time"


def of_input(rows: pa.Schema, name: str, time: str | None) -> pa.Schema:
    """The schema of a DataFrame of the stage's function, marked with its input and the column of its watermark."""
    return rows.with_metadata({_INPUT: name.encode()} | ({_TIME: time.encode()} if time else {}))


def input_of(rows: pa.Schema) -> tuple[str, str]:
    """The input that `of_input` marked a schema with, and the column with its time; empty where it has no watermark."""
    known = rows.metadata or {}
    return known.get(_INPUT, b"").decode(), known.get(_TIME, b"").decode()


def only(rows: Sequence[pa.Schema], state: str) -> pa.Schema:
    """The schema of a state that takes rows of one kind. Raises `Usage` when there are several."""
    if len(rows) != 1:
        raise Usage(
            f"the stage's function returns {len(rows)} DataFrames, and {state} takes one",
            hint="return their union: flights.unionByName(weather, allowMissingColumns=True)",
        )
    return rows[0]


def field_of(rows: pa.Schema, column: str) -> pa.Field:
    """The field of a column. Raises `NotFound` with the nearest names."""
    index = rows.get_field_index(column)
    if index < 0:
        raise NotFound("column", column, rows.names)
    return rows.field(index)


def check_names_once(names: Sequence[str], where: str = "the state") -> None:
    """Refuse columns of which two have one name. Raises `Usage`."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Usage(f"{where} has column {twice[0]!r} twice; give one of them another name")


def check_value_names(names: Sequence[str], key: tuple[str, ...]) -> None:
    """Refuse value columns that hide the key, have one name, or look internal. Raises `Usage`."""
    check_names_once(names)
    for name in names:
        if name in key:
            raise Usage(f"column {name!r} is part of the key already; give the value another name")
        if is_internal(name):
            raise Usage(f"column {name!r} starts with '_', which is kept for internal columns; rename it")


def key_of_table(key: Sequence[str], values: Collection[str]) -> tuple[str, ...]:
    """The key columns of a table with these value columns, of a stage with this key: all but that of its sessions."""
    return tuple(name for name in key if name not in values)
