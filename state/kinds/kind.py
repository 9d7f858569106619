"""Base classes of state kinds: a program declares a `Kind`, and workers call a `BoundState`.

Everything that differs between kinds is a method here, with a default that fits most kinds. A declaration is a tagged
struct, which manifests store as JSON (`Table.state`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from ...errors import NotFound, Refused, Usage
from ...store.versions.codec import register_type
from ...store.versions.manifest import Declaration, is_internal

DueBy: TypeAlias = Literal["watermark", "clock"]
Columns: TypeAlias = "Mapping[str, Any] | pa.Table"


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of a batch's rows by key. The rows of a key are adjacent."""

    ids: npt.NDArray[np.int32]
    """int32[rows], the number of each row's key, from 0 to num - 1, ascending."""
    starts: npt.NDArray[np.int64]
    """int64[num], the index of each key's first row."""

    @property
    def num(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class BatchMoment:
    """Times of a batch in ms since 1970 UTC.

    The batch's version records these times, and replays of the batch use the recorded times.
    """

    until_ms: int | None = None
    """Latest due time of rows that fall due in the batch; None while the watermark is unknown."""
    wall_ms: int | None = None
    watermark_ms: int | None = None


NO_MOMENT = BatchMoment()


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of `BoundState.merge`: a row for each key, and the rows to emit."""

    values: pa.Table
    deleted: npt.NDArray[np.bool_] | None = None
    """bool[num], True for keys to remove; None for no key."""
    changed: npt.NDArray[np.bool_] | None = None
    """bool[num], True for keys whose row must be written; None for all keys."""
    emitted: tuple[pa.Table, ...] = ()
    parts: Mapping[str, pa.Table] = field(default_factory=dict)
    """Rows to write to side tables, by the side table's name, with `_op`; tombstones have null values."""


FindParts: TypeAlias = Callable[[str, pa.Table], tuple[npt.NDArray[np.int64], pa.Table]]
"""Function that looks up parts, by side-table name. Keys are distinct keys of the stage's table, or of single parts.

It returns the index of the key, ascending, and the row of each stored part of the keys.
"""


class BoundState:
    """A kind of state, bound to the schema of its rows. Pickled and sent to Spark's workers."""

    __slots__ = ()
    due_by: DueBy | None = None
    """Clock by which rows fall due on passing `_due_at`: wall clock or watermark; None if rows never fall due."""
    may_keep_rows: ClassVar[bool] = False
    """True if `merge` may leave the row of a key unchanged, although the batch has records of the key."""
    if TYPE_CHECKING:  # fields in some subclasses, properties in others

        @property
        def values(self) -> pa.Schema:
            """Value columns of the table; names that start with `_` are internal."""

        @property
        def needed_columns(self) -> tuple[str, ...]:
            """Columns of the rows, besides the key, that `merge` reads."""

        @property
        def emitted_schemas(self) -> tuple[pa.Schema, ...]:
            """Schemas of the rows that the stage emits: one schema for all outputs, or one for each output."""

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        """Merge a batch's rows into the stored rows of their keys, or handle the keys of rows that fall due.

        `rows` has the key and the needed columns, sorted by key in the order of `groups`; it is empty if rows fall due.
        `keys` has the key columns, one row per key. `old` has the value columns, one row per key, with nulls for new
        keys. The result does not depend on the order of a key's rows.
        """
        raise NotImplementedError

    @property
    def side_tables(self) -> Mapping[str, tuple[pa.Schema, pa.Schema]]:
        """Key columns and value columns of each side table, by side-table name.

        Internal key columns are not part of the key hash.
        """
        return {}

    def with_parts(self, _find: FindParts) -> BoundState:
        """Return the state with a function that looks up stored parts. Called only for states with side tables."""
        return self

    @property
    def behind_ms(self) -> int:
        return 0

    def at_moment(self, _moment: BatchMoment) -> BoundState:
        """Return a copy of the state that knows a batch's times. Called only for states whose rows fall due."""
        return self

    def lateness_columns(self, window: str | None) -> tuple[str, ...]:
        """Return the columns that decide whether a row is late. `window` is the window in the key, if any."""
        return (window,) if window else ()

    @property
    def late_rows(self) -> tuple[pa.Schema, Mapping[str, str]] | None:
        """Schema of late rows, and a map of batch columns to its columns; None for the stage's own schema."""
        return None

    @property
    def partial_aggregates(self) -> tuple[tuple[str, Any], ...]:
        """Aggregates, with their columns, that Spark may compute before the shuffle; empty for none."""
        return ()

    def over_partials(self, _columns: tuple[str, ...]) -> BoundState:
        """Return the state for pre-aggregated rows, which have the key and these columns."""
        return self


class Kind(Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """Kind of state, as a program declares it."""

    emits_once: ClassVar[bool] = False
    migrates: ClassVar[bool] = True
    """True if a migration may change the declaration, as far as the columns allow."""
    key_column: ClassVar[bool] = False
    """True if one key column of the stage is stored as a value: a session window, because sessions grow."""
    waiting_rows: ClassVar[str] = ""
    """Text for messages that describes the rows or open sessions waiting in the table; empty if none wait."""
    emission: ClassVar[Literal["table", "rows", "function"]] = "function"
    """Kind of emitted rows: `table` (changed rows), `rows` (independent of batches), or `function` (returned by it)."""
    external_owner: ClassVar[str] = ""
    in_any_order: ClassVar[bool] = False
    not_final: ClassVar[tuple[str, str]] = ("", "")
    """Reason why `emits="final"` is not supported, and an alternative, for messages; both empty if it is supported."""
    no_late_table: ClassVar[str] = ""
    """Reason why a table of late rows is not supported, for messages; empty if it is supported."""
    no_ttl: ClassVar[tuple[str, str]] = ("", "")

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """Bind the kind to the schemas of the DataFrames that the stage's function returns.

        Raises `NotFound` for a missing column, and `Usage` if the state cannot be kept for such rows.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        parameters = {name: value for name, value in self.stored.items() if name != "kind"}
        return f"{self.tag}({', '.join(f'{name}={value}' for name, value in parameters.items())})"

    @property
    def tag(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def declaration(self) -> Kind:
        """Part of the declaration that manifests store: everything that determines the meaning of stored values."""
        return self

    def declaration_over(self, stored: Kind) -> Kind:
        """Return the part of the declaration that manifests store, without using Spark.

        Columns that only Spark could parse are taken from `stored`.
        """
        return self.declaration

    @property
    def stored(self) -> Declaration:
        return msgspec.json.decode(msgspec.json.encode(self.declaration))  # type: ignore[no-any-return]

    @property
    def function(self) -> Callable[..., Any] | None:
        return None

    @property
    def core(self) -> Kind:
        """Kind of the stored rows: this kind, or the nested kind if this kind only decides the time of emission."""
        return self

    @property
    def due_text(self) -> str:
        return ""

    @property
    def due_by(self) -> DueBy:
        return "watermark"

    def due_column(self, _key: pa.Schema) -> str:
        """Return the column that has the due times of rows; empty if rows never fall due."""
        return ""

    def copied_column(self, _column: str) -> str | None:
        """Return the input column that is copied to an emitted column; empty for a computed column, such as a count.

        Returns None if the user's function computes the rows.
        """
        return None

    @property
    def columns(self) -> Mapping[str, str]:
        """Definitions of computed columns, such as `sum(arr_delay)`, by column name. Copied columns are left out."""
        return {}

    def by_session(self, _column: str) -> Kind | None:
        """Return the kind to use instead if this key column is a session window; None if sessions are not supported."""
        return None

    # Rules for migrations.

    def renamed(self, _names: Mapping[str, str]) -> Kind:
        return self

    def internal_renames(self, _names: Mapping[str, str]) -> dict[str, str]:
        """Return the new names of internal columns, by old name, after a renaming of visible columns."""
        return {}

    def is_compatible_with(self, now: Kind) -> bool:
        """Return True if stored values keep their meaning under `now`. Columns are compared elsewhere."""
        return self.stored == now.stored

    def may_become(self, now: Kind) -> bool:
        """Return True if a migration may replace this kind by the kind `now`."""
        return self.migrates and self.tag == now.tag

    def differences(self, now: Kind) -> Iterator[str]:
        """Yield the differences between this declaration and `now`, one line each. Column types are left out."""
        yield from (f"+ {name} = {meaning}" for name, meaning in now.columns.items() if name not in self.columns)
        yield from (f"- {name}" for name in self.columns if name not in now.columns)
        if self.due_text != now.due_text:
            yield from (f"{sign} {text}" for sign, text in (("-", self.due_text), ("+", now.due_text)) if text)

    def why_not_maskable(self, _column: str) -> str:
        """Return the reason why a column must not be masked: later records need its stored value.

        Empty if later records only replace the value. Also empty for a column of a user's function, because the use of
        the value is unknown.
        """
        return f"it holds {self.waiting_rows}" if self.waiting_rows else ""

    def source_columns(self, _column: str) -> tuple[str, ...]:
        """Return the input columns from which an aggregate is computed; empty for other columns of the table."""
        return ()


class OfCode(Kind, frozen=True, kw_only=True, tag=""):
    """Kind that user code defines. The code is not stored, and may change with the next release."""

    code: Any = None

    @property
    def function(self) -> Callable[..., Any] | None:
        return self.code.function if self.code is not None else None


class Attached(Kind, frozen=True, tag="attached"):
    """State of an operator in a Spark query, or rows of a topic, that slackwater follows but does not compute."""

    operator: str = ""
    migrates: ClassVar[bool] = False
    external_owner: ClassVar[str] = "the state of a query or topic that slackwater is attached to"

    @classmethod
    def is_of_topic(cls, declared: Declaration) -> bool:
        return declared == cls("topic").stored

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        raise Refused(
            f"rows are {self.external_owner}, so no program can write them",
            hint="slackwater adopt CHECKPOINT PROGRAM --stage NAME turns them into the state of a stage",
        )


class Unknown(Kind, frozen=True, tag=""):
    """Stored kind that this program does not define. It can only be compared for equality."""

    declared: Declaration
    migrates: ClassVar[bool] = False

    @property
    def stored(self) -> Declaration:
        return self.declared

    def __str__(self) -> str:
        return msgspec.json.encode(self.declared).decode()


def kind_of(declared: Declaration) -> Kind:
    """Decode a stored declaration. Returns `Unknown` for a kind that this program does not define."""
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
        return msgspec.convert(declared, register_type(kind_class))
    except (msgspec.ValidationError, RecursionError):
        return Unknown(declared)


def decode_nested_kind(declared: object) -> Kind:
    """Return a kind nested in a declaration, decoded if it is JSON. Raises `TypeError` for other values."""
    if isinstance(declared, dict):
        return kind_of(declared)
    if not isinstance(declared, Kind):
        raise TypeError(f"{declared!r} declares no state")
    return declared


_INPUT, _TIME = b"slackwater.input", b"slackwater.time"


def with_input_metadata(rows: pa.Schema, name: str, time: str | None) -> pa.Schema:
    """Return the schema with the name of its input and the watermark column as metadata."""
    return rows.with_metadata({_INPUT: name.encode()} | ({_TIME: time.encode()} if time else {}))


def input_and_time_of(rows: pa.Schema) -> tuple[str, str]:
    """Return the input's name and its watermark column from a schema's metadata; empty if not set."""
    metadata = rows.metadata or {}
    return metadata.get(_INPUT, b"").decode(), metadata.get(_TIME, b"").decode()


def single_schema(rows: Sequence[pa.Schema], state: str) -> pa.Schema:
    """Return the schema of the only DataFrame. Raises `Usage` if the stage's function returns several."""
    if len(rows) != 1:
        raise Usage(
            f"the stage's function returns {len(rows)} DataFrames, and {state} takes one",
            hint="return their union: flights.unionByName(weather, allowMissingColumns=True)",
        )
    return rows[0]


def field_of(rows: pa.Schema, column: str) -> pa.Field:
    """Return the field of a column. Raises `NotFound`, with the nearest column names."""
    index = rows.get_field_index(column)
    if index < 0:
        raise NotFound("column", column, rows.names)
    return rows.field(index)


def check_names_once(names: Sequence[str], where: str = "the state") -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Usage(f"{where} has column {twice[0]!r} twice; give one of them another name")


def check_value_names(names: Sequence[str], key: tuple[str, ...]) -> None:
    """Raise `Usage` if a value column's name is repeated, is part of the key, or starts with `_`."""
    check_names_once(names)
    for name in names:
        if name in key:
            raise Usage(f"column {name!r} is part of the key already; give the value another name")
        if is_internal(name):
            raise Usage(f"column {name!r} starts with '_', which is reserved for internal columns; rename it")


def key_of_table(key: Sequence[str], values: Collection[str]) -> tuple[str, ...]:
    """Return the key columns of a stage's table: the stage's key without a session column."""
    return tuple(name for name in key if name not in values)
