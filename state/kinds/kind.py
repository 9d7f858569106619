"""Base classes of state kinds: a program declares a `Kind`, workers call a `BoundState`.

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

from ...errors import NotFound, Refused, Usage
from ...store.versions.codec import register_type
from ...store.versions.manifest import Declaration, is_internal

DueBy: TypeAlias = Literal["watermark", "clock"]
Columns: TypeAlias = "Mapping[str, Any] | pa.Table"


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of a batch's rows by key; the rows of a key are adjacent."""

    ids: npt.NDArray[np.int32]
    """int32[rows], key number of each row, 0 to num - 1, ascending."""
    starts: npt.NDArray[np.int64]
    """int64[num], index of each key's first row."""

    @property
    def num(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, slots=True)
class BatchMoment:
    """Times of a batch in ms since 1970 UTC, recorded in the batch's version, so that replays use equal times."""

    until_ms: int | None = None
    """Time up to which rows fall due; None while the watermark is unknown."""
    wall_ms: int | None = None
    watermark_ms: int | None = None


NO_MOMENT = BatchMoment()


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of `BoundState.merge`, by key."""

    values: pa.Table
    deleted: npt.NDArray[np.bool_] | None = None
    """bool[num], True for keys to remove; None for no key."""
    changed: npt.NDArray[np.bool_] | None = None
    """bool[num], True for keys whose row must be written; None for all keys."""
    emitted: tuple[pa.Table, ...] = ()


class BoundState:
    """State bound to the schema of its rows. Sent to workers by pickle."""

    __slots__ = ()
    due_by: DueBy | None = None
    """Clock or watermark that must pass a row's `_due_at` for it to fall due; None if rows never do."""
    if TYPE_CHECKING:  # fields in some subclasses, properties in others

        @property
        def values(self) -> pa.Schema:
            """Value columns of the table; names that start with `_` are internal."""

        @property
        def needed_columns(self) -> tuple[str, ...]:
            """Columns of the rows, besides the key, that `merge` reads."""

        @property
        def emitted_schemas(self) -> tuple[pa.Schema, ...]:
            """Schemas of rows for the stage's outputs: one for all outputs, or one for each."""

    def merge(self, rows: pa.Table, groups: Groups, keys: pa.Table, old: pa.Table) -> MergeResult:
        """Merge a batch's rows into the rows of their keys. The result does not depend on the order of the rows.

        If `rows` is empty, `keys` are the keys of rows that fall due.

        `rows` has the key and the needed columns, sorted by key as in `groups`; `keys` has the key columns, one
        row per key, and `old` the value columns, one row per key, with nulls for new keys.
        """
        raise NotImplementedError

    @property
    def behind_ms(self) -> int:
        return 0

    def at_moment(self, _moment: BatchMoment) -> BoundState:
        """Return the state for a batch at a moment. Called only for states with rows that fall due."""
        return self

    def lateness_columns(self, window: str | None) -> tuple[str, ...]:
        """Return the columns that decide whether rows are late; `window` is the window in the table's key, if any."""
        return (window,) if window else ()

    @property
    def late_rows(self) -> tuple[pa.Schema, Mapping[str, str]] | None:
        """Schema of late rows, and its columns by batch column; None if late rows have the stage's own schema."""
        return None

    @property
    def partial_aggregates(self) -> tuple[tuple[str, Any], ...]:
        """Aggregates by column that Spark may pre-aggregate; empty for none."""
        return ()

    def over_partials(self, _columns: tuple[str, ...]) -> BoundState:
        """Return the state over pre-aggregated rows, which have these columns besides the key."""
        return self


class Kind(Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """Declared kind of state."""

    emits_once: ClassVar[bool] = False
    migrates: ClassVar[bool] = True
    """True if a migration may change the declaration, as far as the columns allow."""
    key_column: ClassVar[bool] = False
    """True if one key column of the stage is stored as a value, as session windows are, since they grow."""
    waiting_rows: ClassVar[str] = ""
    """Description of rows or open sessions that wait in lists; empty if none wait."""
    emission: ClassVar[Literal["table", "rows", "function"]] = "function"
    """Emitted rows: changed rows of the table, rows that do not depend on batch boundaries, or a function's rows."""
    external_owner: ClassVar[str] = ""
    in_any_order: ClassVar[bool] = False
    not_final: ClassVar[tuple[str, str]] = ("", "")
    """Reason why rows cannot be emitted only once, and an alternative; both empty if rows can."""
    no_late_table: ClassVar[str] = ""
    """Content of a table of late rows, to explain why it is unsupported; empty if it is supported."""
    no_ttl: ClassVar[tuple[str, str]] = ("", "")

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        """Bind the kind to the schemas of its rows, one schema for each DataFrame that the stage's function returns.

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
        """Declaration to store, without parts that may change while stored values keep their meaning."""
        return self

    def declaration_over(self, stored: Kind) -> Kind:
        """Return the declaration, without using Spark.

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
        """Kind of the stored rows: this kind, or the inner one if this kind only decides when rows are emitted."""
        return self

    @property
    def due_text(self) -> str:
        return ""

    @property
    def due_by(self) -> DueBy:
        return "watermark"

    def due_column(self, _key: pa.Schema) -> str:
        """Return the column with the due time of rows; empty for none."""
        return ""

    def copied_column(self, _column: str) -> str | None:
        """Return the input column that an emitted column copies; empty for a computed column, such as a count.

        Returns None if only the user's function knows.
        """
        return None

    @property
    def columns(self) -> Mapping[str, str]:
        """Computed columns by name, such as `sum(arr_delay)`, without columns copied from rows."""
        return {}

    def by_session(self, _column: str) -> Kind | None:
        """Return the kind to use if this key column is a session window; None if sessions are not supported."""
        return None

    # Rules for migrations.

    def renamed(self, _names: Mapping[str, str]) -> Kind:
        return self

    def internal_renames(self, _names: Mapping[str, str]) -> dict[str, str]:
        """Return the renames of internal columns that follow from these renames, old to new."""
        return {}

    def is_compatible_with(self, now: Kind) -> bool:
        """Return True if stored values keep their meaning under `now`; columns are compared separately."""
        return self.stored == now.stored

    def may_become(self, now: Kind) -> bool:
        """Return True if a migration may replace this kind by the kind `now`."""
        return self.migrates and self.tag == now.tag

    def differences(self, now: Kind) -> Iterator[str]:
        """Yield the differences to the declaration `now`, one line each, without column types."""
        yield from (f"+ {name} = {meaning}" for name, meaning in now.columns.items() if name not in self.columns)
        yield from (f"- {name}" for name in self.columns if name not in now.columns)
        if self.due_text != now.due_text:
            yield from (f"{sign} {text}" for sign, text in (("-", self.due_text), ("+", now.due_text)) if text)

    def why_not_maskable(self, _column: str) -> str:
        """Return the reason why this column must not be masked: later records need its stored value.

        Empty if later records only replace the value, or if only the user's function knows.
        """
        return f"it holds {self.waiting_rows}" if self.waiting_rows else ""

    def source_columns(self, _column: str) -> tuple[str, ...]:
        """Return the input columns from which an aggregate is computed; empty for other table columns."""
        return ()


class OfCode(Kind, frozen=True, kw_only=True, tag=""):
    """Kind defined by user code. The code is not stored, and may change with the next release."""

    code: Any = None

    @property
    def function(self) -> Callable[..., Any] | None:
        return self.code.function if self.code is not None else None


class Attached(Kind, frozen=True, tag="attached"):
    """Rows of a stateful operator in a Spark query that slackwater does not run."""

    operator: str = ""
    migrates: ClassVar[bool] = False
    external_owner: ClassVar[str] = "the state of a Spark query that slackwater is attached to"

    def bind(self, rows: Sequence[pa.Schema], key: tuple[str, ...]) -> BoundState:
        raise Refused(
            f"rows are {self.external_owner}, so no program can write them",
            hint="slackwater adopt CHECKPOINT PROGRAM --stage NAME turns them into the state of a stage",
        )


class Unknown(Kind, frozen=True, tag=""):
    """Stored kind that this program does not know; can only be compared for equality."""

    declared: Declaration
    migrates: ClassVar[bool] = False

    @property
    def stored(self) -> Declaration:
        return self.declared

    def __str__(self) -> str:
        return msgspec.json.encode(self.declared).decode()


def kind_of(declared: Declaration) -> Kind:
    """Decode a stored declaration; `Unknown` for a kind that neither slackwater nor the user's program defines."""
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
    """Decode a kind nested in a declaration, stored or not. Raises `TypeError` for other values."""
    if isinstance(declared, dict):
        return kind_of(declared)
    if not isinstance(declared, Kind):
        raise TypeError(f"{declared!r} declares no state")
    return declared


_INPUT, _TIME = b"slackwater.input", b"slackwater.time"


def with_input_metadata(rows: pa.Schema, name: str, time: str | None) -> pa.Schema:
    """Return the schema with an input's name and watermark column as metadata."""
    return rows.with_metadata({_INPUT: name.encode()} | ({_TIME: time.encode()} if time else {}))


def input_and_time_of(rows: pa.Schema) -> tuple[str, str]:
    """Return the input and the watermark column from a schema's metadata; empty if the input has no watermark."""
    metadata = rows.metadata or {}
    return metadata.get(_INPUT, b"").decode(), metadata.get(_TIME, b"").decode()


def single_schema(rows: Sequence[pa.Schema], state: str) -> pa.Schema:
    """Return the only schema. Raises `Usage` if the stage's function returns several DataFrames."""
    if len(rows) != 1:
        raise Usage(
            f"the stage's function returns {len(rows)} DataFrames, and {state} takes one",
            hint="return their union: flights.unionByName(weather, allowMissingColumns=True)",
        )
    return rows[0]


def field_of(rows: pa.Schema, column: str) -> pa.Field:
    """Return the field of a column. Raises `NotFound`, with the nearest names."""
    index = rows.get_field_index(column)
    if index < 0:
        raise NotFound("column", column, rows.names)
    return rows.field(index)


def check_names_once(names: Sequence[str], where: str = "the state") -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Usage(f"{where} has column {twice[0]!r} twice; give one of them another name")


def check_value_names(names: Sequence[str], key: tuple[str, ...]) -> None:
    """Raise `Usage` for names of value columns that repeat, are part of the key, or start with `_`."""
    check_names_once(names)
    for name in names:
        if name in key:
            raise Usage(f"column {name!r} is part of the key already; give the value another name")
        if is_internal(name):
            raise Usage(f"column {name!r} starts with '_', which is reserved for internal columns; rename it")


def key_of_table(key: Sequence[str], values: Collection[str]) -> tuple[str, ...]:
    """Return a table's key columns: the stage's key without a session column, which is stored as a value."""
    return tuple(name for name in key if name not in values)
