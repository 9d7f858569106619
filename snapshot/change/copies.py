"""SSTs that a clone gets for itself: copies of the source's, byte by byte, or rewritten where something is hidden.

Each lies under the ULID that it has in the source. So whoever goes on with a copy that was broken off finds what is
there already, and passes over it if its checksum is right.

What is hidden: a value becomes null, or a keyed hash of itself (BLAKE2b). The key, a salt, is drawn anew for each
clone, and gone when the clone is whole: the same value is the same everywhere in a clone, so joins still find what
belongs together, and nobody can look one up by hashing all values that it might be. Null stays null.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...errors import NotFound, Refused, Usage
from ...state.kinds.kind import kind_of
from ...store.compaction.rewrite import rewritten
from ...store.objects.many import many
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.copier import Copier
from ...store.sst.arrow_types import to_arrow
from ...store.sst.types import visible_columns
from ...store.versions import keys
from ...store.versions.column_types import parse_ddl
from ...store.versions.manifest import Column, Manifest, Sst
from ...store.versions.side_tables import each_sst, tables_of
from ..cut.graph import Cut
from ..cut.in_flight import InFlight

HASH, NULL, PLACE = "hash", "null", "{}"
_SHAPE = "TABLE.column=hash, =null, or =TEXT with {} where the hash is to stand"
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class ColumnMask:
    """How one column is hidden."""

    table: str
    column: str
    how: str
    """`hash`, `null`, or a text in which `{}` stands for the hash."""

    def over(self, values: pa.ChunkedArray, salt: bytes) -> pa.ChunkedArray:
        """The values, hidden. They have a type that `check_masks` lets through."""
        if self.how == NULL:
            return pa.chunked_array([pa.nulls(len(values), values.type)])
        # Each value once: a hash that nobody can turn round is made one at a time.
        coded = values.combine_chunks().dictionary_encode()
        different, kind = coded.dictionary, values.type
        data = different if pa.types.is_binary(kind) else different.cast(pa.string()).cast(pa.binary())
        keyed, made = blake2b(digest_size=_DIGEST_BYTES, key=salt), []
        for each in data.to_pylist():
            one = keyed.copy()
            one.update(each)
            made.append(one.digest())
        return pa.chunked_array([_shaped(made, kind, self.how).take(coded.indices)])


def _shaped(digests: Sequence[bytes], kind: pa.DataType, how: str) -> pa.Array:
    """Hashes as values of a column's type."""
    if pa.types.is_integer(kind):
        whole = np.frombuffer(b"".join(digests), ">u8") >> np.uint64(8 * _DIGEST_BYTES - kind.bit_width + 1)
        return pa.array(whole.astype(kind.to_pandas_dtype()), kind)
    if pa.types.is_binary(kind):
        return pa.array(digests, kind)
    digits = pa.array([each.hex() for each in digests], kind)
    return digits if how == HASH else pc.binary_join_element_wise(*_around(how, digits), "")


def _around(how: str, digits: pa.Array) -> list[Any]:
    """The parts of a text with hashes in their places."""
    first, *rest = how.split(PLACE)
    return [pa.scalar(first), *(part for text in rest for part in (digits, pa.scalar(text)))]


@dataclass(frozen=True, slots=True)
class Masks:
    """All that a clone hides."""

    each: tuple[ColumnMask, ...] = ()
    salt: str = ""

    @classmethod
    def of(cls, said: Mapping[str, str], salt: str = "") -> Self:
        """From `table.column` and how. Raises `Usage` where one is neither."""
        found = []
        for place, how in sorted(said.items()):
            table, dot, column = place.partition(".")
            if not (table and dot and column) or (how not in (HASH, NULL) and PLACE not in how):
                raise Usage(
                    f"--mask {place}={how} does not say what to hide, and how; expected {_SHAPE}",
                    hint="for example --mask customers.email=hash --mask 'customers.name=customer {}'",
                )
            found.append(ColumnMask(table, column, how))
        return cls(tuple(found), salt)

    def __bool__(self) -> bool:
        return bool(self.each)

    @property
    def tables(self) -> Collection[str]:
        """The tables in which something is hidden."""
        return {mask.table for mask in self.each}

    def over(self, table: str, rows: pa.Table) -> pa.Table:
        """Rows of an SST of a table, with what is hidden in it."""
        salt = bytes.fromhex(self.salt)
        for mask in self.each:
            if mask.table == table:
                at = rows.schema.get_field_index(mask.column)
                rows = rows.set_column(at, rows.schema.field(at), mask.over(rows.column(at), salt))
        return rows

    def check_in_flight(self, states: Iterable[InFlight]) -> None:
        """See that nothing is copied between stages in which the same columns are. Raises `Refused`."""
        names = {mask.column for mask in self.each}
        for state in states:
            carried = sorted(names & {name for name, _ in parse_ddl(state.schema)}) if names else ()
            if carried:
                raise Refused(
                    f"{state.rows} rows are on the way on {state.channel!r}, with {', '.join(carried)} as they are: "
                    "a mask is of tables",
                    hint="choose a moment at which nothing is on the way, such as one after "
                    "`slackwater run FILE --until-caught-up`",
                )


def check_masks(cut: Cut, masks: Masks) -> None:
    """See that a moment's tables have these columns, and that they may be hidden.

    Raises `NotFound` for a table or a column, and `Refused` where it is part of the key, where later records need what
    is stored, or where it is of a type that cannot be hidden so.
    """
    tables = cut.tables
    for mask in masks.each:
        if mask.table not in tables or (table := tables[mask.table].table) is None:
            raise NotFound(f"table of {cut.ref}", mask.table, tables, hint=f"--mask takes {_SHAPE}")
        visible = {column.name: column for column in visible_columns(table)}
        what = f"{mask.table}.{mask.column}"
        if mask.column not in visible:
            raise NotFound(f"column of {mask.table}", mask.column, visible)
        if mask.column in {column.name for column in table.key}:
            raise Refused(
                f"{what} is part of the key, by which rows lie where they lie; expected a column beside the key",
                hint="key the stage by something that may be seen, or clone without this table's people: hide the rest",
            )
        if table.state and (why := kind_of(table.state).core.needed_in(mask.column)):
            raise Refused(
                f"{what} cannot be hidden: {why}; expected a column that later records only replace",
                hint="of an upsert all but by=, of an aggregate first and last, of an update what its function takes",
            )
        _check_type(what, mask, visible[mask.column])


def _check_type(what: str, mask: ColumnMask, column: Column) -> None:
    kind, types = to_arrow(column.type), pa.types
    text = types.is_string(kind)
    fits = mask.how == NULL or text or (mask.how == HASH and (types.is_integer(kind) or types.is_binary(kind)))
    if not fits:
        takes = "text, whole numbers and bytes" if mask.how == HASH else "text"
        raise Refused(f"{what} is {kind}, and {mask.how!r} takes {takes}", hint=f"--mask {what}=null takes all")


_WORKERS = min(os.cpu_count() or 1, 4)
"""Each has an SST in memory."""


def sizes(cut: Cut, masks: Masks, *, deep: bool) -> dict[str, int]:
    """The tables whose SSTs a clone of this cut gets for itself, and the bytes of the source's."""
    each = {name: sum(sst.bytes for sst in at.ssts) for name, at in cut.tables.items()}
    return {name: size for name, size in each.items() if deep or name in masks.tables}


@dataclass(frozen=True, slots=True)
class Copies:
    """How a clone gets the SSTs of its first versions: shared, copied, or rewritten."""

    store: ObjectStore
    target: ObjectStore
    cache: SstCache | None
    cut: Cut
    app: str
    masks: Masks
    deep: bool
    on_progress: Callable[[int, int], None]

    def made(self, stages: Iterable[str]) -> dict[str, Manifest]:
        """The cut's version of each of these stages, with the SSTs that the clone's first versions name.

        All of them are there, then. Raises `Corruption` where one of the source's is missing or not what was written,
        and `Unavailable`.
        """
        wanted = {stage: self.cut.stages[stage] for stage in stages}
        own = [one for stage, manifest in wanted.items() for one in self._own(stage, manifest)]
        copier, made = Copier(self.store, self.target), dict[tuple[str, str], Sst]()

        def one(place: tuple[str, Manifest, Sst]) -> Sst:
            stage, table, sst = place
            if table.stage in self.masks.tables:
                return self._hidden(stage, table, sst)
            copier.sst_as(sst, key := keys.sst(self.app, stage, _ulid(sst)))
            return replace(sst, object=key, root="")

        for (_, _, sst), copy in zip(own, many(one, own, _WORKERS), strict=True):
            made[_name(sst)] = copy
            self.on_progress(len(made), len(own))
        return {
            stage: each_sst(manifest, lambda sst: made.get(_name(sst)) or self._shared(sst))
            for stage, manifest in wanted.items()
        }

    def _own(self, stage: str, manifest: Manifest) -> Iterator[tuple[str, Manifest, Sst]]:
        for name, table in tables_of(manifest).items():
            if self.deep or name in self.masks.tables:
                yield from ((stage, table, sst) for sst in table.ssts)

    def _shared(self, sst: Sst) -> Sst:
        """As a manifest under the clone's root names it."""
        held_by = sst.root or self.store.url
        return replace(sst, root="" if held_by == self.target.url else held_by)

    def _hidden(self, stage: str, table: Manifest, sst: Sst) -> Sst:
        assert table.table is not None  # noqa: S101  it has SSTs
        assert self.cache is not None  # noqa: S101  whoever hides something gives one
        writer = rewritten(self.store, self.cache, sst, table.table, lambda rows: self.masks.over(table.stage, rows))
        return writer.put(
            self.target, app=self.app, stage=stage, partition=sst.partition, level=sst.level, ulid=_ulid(sst)
        )


def _name(sst: Sst) -> tuple[str, str]:
    return sst.root, sst.object


def _ulid(sst: Sst) -> str:
    return sst.object.rpartition("/")[2].removesuffix(".parquet")
