"""Base classes of kinds of state: a program declares a `Kind`, workers call a `Bound`.

All questions about a kind are methods here, with the common answers as defaults. A declaration is a tagged struct;
manifests store that struct as JSON (`Table.state`).
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

from ...errors import NotFound, Usage
from ...store.versions.codec import learned
from ...store.versions.manifest import Declaration, is_internal

DueBy: TypeAlias = Literal["watermark", "clock"]
Columns: TypeAlias = "Mapping[str, Any] | pa.Table"
"""Arrow columns by name."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows of a batch by key: rows are sorted so that the rows of a key are adjacent."""

    ids: npt.NDArray[np.int32]
    """int32[rows], position of the row's key, 0 to num - 1, ascending."""
    starts: npt.NDArray[np.int64]
    """int64[num], first row of each key."""

    @property
    def num(self) -> int:
        """Number of distinct keys."""
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class BatchMoment:
    """Times of a batch in ms since 1970 UTC, recorded in its version so that a replay uses the same times."""

    until_ms: int | None = None
    """Time up to which rows fall due; None while the watermark is unknown."""
    wall_ms: int | None = None
    """Wall clock at the batch's start; None for changes outside a batch."""
    watermark_ms: int | None = None
    """Watermark of the stage before the batch; None if it has none."""


NO_MOMENT = BatchMoment()


@dataclass(frozen=True, slots=True)
class Merged:
    """Results of `Bound.merge`, by key."""

    values: pa.Table
    """Value columns of the table, one row for each key of the batch."""
    deleted: npt.NDArray[np.bool_] | None = None
    """bool[num], keys to remove; None for no key."""
    changed: npt.NDArray[np.bool_] | None = None
    """bool[num], keys whose row must be written; None for all."""
    emitted: tuple[pa.Table, ...] = ()
    """Rows for the stage's outputs: one table for all outputs, or one for each; empty if it emits none."""


class Bound:
    """A state bound to the schema of its rows. Sent to workers by pickle."""

    __slots__ = ()
    due_by: DueBy | None = None
    """Clock or watermark, by which rows fall due at the time in `_due_at`; None if they never do."""
    if TYPE_CHECKING:  # fields in some subclasses, properties in others

        @property
        def values(self) -> pa.Schema:
            """Value columns of the table; names that start with `_` are internal."""

        @property
        def needs(self) -> tuple[str, ...]:
            """Columns of the rows, besides the key, that `merge` reads."""

        @property
        def emits(self) -> tuple[pa.Schema, ...]:
            """Schemas of the rows sent to the stage's outputs: one for all outputs, or one for each."""

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> Merged:
        """Merge a batch's rows into the rows of their keys; the order of the rows does not affect the result.

        If `rows` is empty, `keys` are the keys of rows that fall due.

        `rows` has the key and the needed columns, sorted by key as in `groups`; `keys` has the key columns, one
        row per key, and `old` the value columns, one row per key, with nulls for new keys.
        """
        raise NotImplementedError

    @property
    def behind_ms(self) -> int:
        """Most by which the event times of rows that are still to be emitted may lie before the watermark."""
        return 0

    def at_moment(self, _moment: BatchMoment) -> Bound:
        """Return the state for a batch at this moment. Called for states with rows that fall due."""
        return self

    def late_by(self, window: str | None) -> tuple[str, ...]:
        """Return the columns that decide whether rows are late; `window` is the window in the table's key, if any."""
        return (window,) if window else ()

    @property
    def late_rows(self) -> tuple[pa.Schema, Mapping[str, str]] | None:
        """Schema of late rows, and a mapping from batch columns to its columns; None for the stage's own schema."""
        return None

    @property
    def added_up(self) -> tuple[tuple[str, Any], ...]:
        """Aggregates (`Aggregate`) by column, if Spark may pre-aggregate the rows for them; else empty."""
        return ()

    def over_partials(self, _columns: tuple[str, ...]) -> Bound:
        """Return the state over pre-aggregated rows, which have these columns besides the key."""
        return self


class Kind(Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """A declared kind of state."""

    once: ClassVar[bool] = False
    """True if each row is emitted once, after its window has ended."""
    migrates: ClassVar[bool] = True
    """True if a migration may change the declaration, as far as its columns allow."""
    key_column: ClassVar[bool] = False
    """True if one column of the stage's key is stored among the values: that of session windows, which grow."""
    waiting: ClassVar[str] = ""
    """Description of the rows that wait in lists for other rows; empty if none wait."""
    emission: ClassVar[Literal["table", "rows", "function"]] = "function"
    """Emitted rows: the changed rows of the table per batch (`table`); rows that do not depend on how the input is
    split into batches (`rows`); or rows that the user's function decides (`function`).
    """
    elsewhere: ClassVar[str] = ""
    """Description of the owner of the rows, if no slackwater program writes them; otherwise empty."""
    in_any_order: ClassVar[bool] = False
    """True if lists in its rows are unordered."""
    not_final: ClassVar[tuple[str, str]] = ("", "")
    """Reason why its rows cannot be emitted once, and what to do instead; empty if they can."""
    no_late_table: ClassVar[str] = ""
    """Content that a table of late rows would have, if such a table is not supported; empty if it is."""
    no_ttl: ClassVar[tuple[str, str]] = ("", "")
    """Reason why its rows cannot have a time to live, and what to do instead; empty if they can."""

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> Bound:
        """Fix the table's columns for rows of these schemas, one for each DataFrame that the stage's function returns.

        Raises `NotFound` for a missing column, and `Usage` if the state cannot be kept for such rows.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        """Return the declaration as one line, for messages."""
        parameters = {name: value for name, value in self.stored.items() if name != "kind"}
        return f"{self.tag}({', '.join(f'{name}={value}' for name, value in parameters.items())})"

    @property
    def tag(self) -> str:
        """Name of the kind."""
        return str(self.__struct_config__.tag)

    @property
    def declaration(self) -> Kind:
        """Declaration to store: without parts that may change while stored values keep their meaning."""
        return self

    def declaration_over(self, stored: Kind) -> Kind:
        """Return the declaration, found without Spark: columns that only Spark knows are those of `stored`."""
        return self.declaration

    @property
    def stored(self) -> Declaration:
        """Declaration as JSON, as manifests store it."""
        return msgspec.json.decode(msgspec.json.encode(self.declaration))  # type: ignore[no-any-return]

    @property
    def function(self) -> Callable[..., Any] | None:
        """The user's function; None if there is none."""
        return None

    @property
    def core(self) -> Kind:
        """Kind of the stored rows: this kind, or the wrapped one if this kind only decides when rows are emitted."""
        return self

    @property
    def due_text(self) -> str:
        """Declared due time as text; empty if it follows from the rest, or if rows never fall due."""
        return ""

    @property
    def due_by(self) -> DueBy:
        """Clock or watermark, by which rows fall due."""
        return "watermark"

    def due_column(self, _key: pa.Schema) -> str:
        """Return the column with the time at which rows fall due; empty without one."""
        return ""

    def carried(self, _column: str) -> str | None:
        """Return the input column that an emitted column copies; empty for a computed column, such as a count.

        Returns None if only the user's function knows.
        """
        return None

    @property
    def columns(self) -> Mapping[str, str]:
        """Computed columns by name, such as `sum(arr_delay)`; excludes columns copied from the program's rows."""
        return {}

    def by_session(self, _column: str) -> Kind | None:
        """Return the kind to use if this key column is a session window; None if it does not support sessions."""
        return None

    # Rules for migrations.

    def renamed(self, _names: Mapping[str, str]) -> Kind:
        """Return the declaration with columns renamed, old to new."""
        return self

    def internal(self, _names: Mapping[str, str]) -> dict[str, str]:
        """Return the internal columns to rename with these columns, old to new."""
        return {}

    def goes_on_as(self, now: Kind) -> bool:
        """Return True if stored values keep their meaning under `now`; columns are compared separately."""
        return self.stored == now.stored

    def may_become(self, now: Kind) -> bool:
        """Return True if a migration may replace this kind by `now`."""
        return self.migrates and self.tag == now.tag

    def differences(self, now: Kind) -> Iterator[str]:
        """Yield the differences to another declaration, one line each, without column types."""
        yield from (f"+ {name} = {meaning}" for name, meaning in now.columns.items() if name not in self.columns)
        yield from (f"- {name}" for name in self.columns if name not in now.columns)
        if self.due_text != now.due_text:
            yield from (f"{sign} {text}" for sign, text in (("-", self.due_text), ("+", now.due_text)) if text)

    def needed_in(self, _column: str) -> str:
        """Return, in words, why later records need the stored value of this column, so that masking falsifies them.

        Empty if later records only replace the value, or if only the user's function knows.
        """
        return f"it holds {self.waiting}" if self.waiting else ""

    def made_of(self, _column: str) -> tuple[str, ...]:
        """Return the input columns from which a table column is computed, if they have other names than the column."""
        return ()


class OfCode(Kind, frozen=True, kw_only=True, tag=""):
    """A kind defined by user code. The code is not stored: it may change with the next release."""

    code: Any = None
    """The user's code, with its `function`; None for a stored declaration."""

    @property
    def function(self) -> Callable[..., Any] | None:
        return self.code.function if self.code is not None else None


class Unknown(Kind, frozen=True, tag=""):
    """A stored kind that this program does not know. It can only be compared for equality."""

    declared: Declaration
    migrates: ClassVar[bool] = False

    @property
    def stored(self) -> Declaration:
        """Declaration as the manifest has it."""
        return self.declared

    def __str__(self) -> str:
        return msgspec.json.encode(self.declared).decode()


def kind_of(declared: Declaration) -> Kind:
    """Decode a stored declaration; `Unknown` for kinds defined neither here nor in the user's program."""
    tag = declared.get("kind")
    kinds_by_tag: dict[str, type[Kind]] = {}
    pending: list[type[Kind]] = [Kind]
    while pending:
        kind = pending.pop(0)
        kinds_by_tag[str(kind.__struct_config__.tag)] = kind
        pending += kind.__subclasses__()
    kind_class = kinds_by_tag.get(tag) if isinstance(tag, str) and tag else None
    if kind_class in (None, Kind):
        return Unknown(declared)
    try:
        return msgspec.convert(declared, learned(kind_class))
    except (msgspec.ValidationError, RecursionError):
        return Unknown(declared)


def as_kind(declared: object) -> Kind:
    """Decode a kind nested in another declaration, stored or not. Raises `TypeError` for anything else."""
    if isinstance(declared, dict):
        return kind_of(declared)
    if not isinstance(declared, Kind):
        raise TypeError(f"{declared!r} declares no state")
    return declared


_INPUT, _TIME = b"slackwater.input", b"slackwater.time"


def of_input(rows: pa.Schema, name: str, time: str | None) -> pa.Schema:
    """Return the schema with its input and watermark column as metadata."""
    return rows.with_metadata({_INPUT: name.encode()} | ({_TIME: time.encode()} if time else {}))


def input_of(rows: pa.Schema) -> tuple[str, str]:
    """Return the input and the watermark column from the metadata of `of_input`; empty without a watermark."""
    metadata = rows.metadata or {}
    return metadata.get(_INPUT, b"").decode(), metadata.get(_TIME, b"").decode()


def only(rows: Sequence[pa.Schema], state: str) -> pa.Schema:
    """Return the schema of a state that takes rows of one DataFrame. Raises `Usage` if there are several."""
    if len(rows) != 1:
        raise Usage(
            f"the stage's function returns {len(rows)} DataFrames, and {state} takes one",
            hint="return their union: flights.unionByName(weather, allowMissingColumns=True)",
        )
    return rows[0]


def field_of(rows: pa.Schema, column: str) -> pa.Field:
    """Return the field of a column. Raises `NotFound` with the nearest names."""
    index = rows.get_field_index(column)
    if index < 0:
        raise NotFound("column", column, rows.names)
    return rows.field(index)


def check_names_once(names: Sequence[str], where: str = "the state") -> None:
    """Raise `Usage` if two columns have the same name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Usage(f"{where} has column {twice[0]!r} twice; give one of them another name")


def check_value_names(names: Sequence[str], key: tuple[str, ...]) -> None:
    """Raise `Usage` for value columns that repeat a key column or another name, or look internal."""
    check_names_once(names)
    for name in names:
        if name in key:
            raise Usage(f"column {name!r} is part of the key already; give the value another name")
        if is_internal(name):
            raise Usage(f"column {name!r} starts with '_', which is reserved for internal columns; rename it")


def key_of_table(key: Sequence[str], values: Collection[str]) -> tuple[str, ...]:
    """Return a table's key columns: those of the stage, except a session column, which is stored as a value."""
    return tuple(name for name in key if name not in values)
