"""Create the SSTs of a clone: byte-by-byte copies of the source's SSTs, or rewritten SSTs if columns are masked.

A copy keeps the ULID of its source. So a retry finds existing copies, and skips those whose checksum matches.

A masked value is replaced by null, or by a keyed hash (BLAKE2b). The hash key is a random salt per clone, deleted when
the clone is complete. So equal values stay equal within a clone, joins still work, and nobody can find a value by
hashing candidates. Null stays null.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ...errors import NotFound, Refused, Usage
from ...state.kinds.kind import kind_of
from ...store.compaction.merge import encode_blocks
from ...store.objects.many import map_concurrently
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.read.copier import Copier
from ...store.sst.arrow_types import to_arrow
from ...store.sst.schema import visible_columns
from ...store.versions import keys
from ...store.versions.column_types import parse_ddl
from ...store.versions.entries.ssts import Sst, Ssts
from ...store.versions.manifest import Column, Manifest
from ...store.versions.side_tables import map_tables_ssts, tables_of
from ..cut.graph import Cut
from ..cut.in_flight import InFlight

HASH, NULL, PLACEHOLDER = "hash", "null", "{}"
_SHAPE = "TABLE.COLUMN=hash, =null, or =TEXT with {} for the hash"
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class ColumnMask:
    """Mask of one column."""

    table: str
    column: str
    how: str

    def apply(self, values: pa.ChunkedArray, salt: bytes) -> pa.ChunkedArray:
        """Return the masked values of a column. The column's type must have passed `check_masks`."""
        if self.how == NULL:
            return pa.chunked_array([pa.nulls(len(values), values.type)])
        # Hash each distinct value once: BLAKE2b is not vectorized.
        coded = values.combine_chunks().dictionary_encode()
        distinct, kind = coded.dictionary, values.type
        data = distinct if pa.types.is_binary(kind) else distinct.cast(pa.string()).cast(pa.binary())
        keyed, digests = blake2b(digest_size=_DIGEST_BYTES, key=salt), []
        for value in data.to_pylist():
            digest = keyed.copy()
            digest.update(value)
            digests.append(digest.digest())
        return pa.chunked_array([_as_column(digests, kind, self.how).take(coded.indices)])


def _as_column(digests: Sequence[bytes], kind: pa.DataType, how: str) -> pa.Array:
    if pa.types.is_integer(kind):
        whole = np.frombuffer(b"".join(digests), ">u8") >> np.uint64(8 * _DIGEST_BYTES - kind.bit_width + 1)
        return pa.array(whole.astype(kind.to_pandas_dtype()), kind)
    if pa.types.is_binary(kind):
        return pa.array(digests, kind)
    digits = pa.array([digest.hex() for digest in digests], kind)
    return digits if how == HASH else pc.binary_join_element_wise(*_split_text(how, digits), "")


def _split_text(how: str, digits: pa.Array) -> list[Any]:
    prefix, *suffixes = how.split(PLACEHOLDER)
    return [pa.scalar(prefix), *(part for text in suffixes for part in (digits, pa.scalar(text)))]


@dataclass(frozen=True, slots=True)
class Masks:
    """All masks of a clone."""

    column_masks: tuple[ColumnMask, ...] = ()
    salt: str = ""

    @classmethod
    def from_options(cls, options: Mapping[str, str], salt: str = "") -> Self:
        """Parse masks given as a mapping from `table.column` to a mask. Raises `Usage` for a malformed entry."""
        masks = []
        for target, how in sorted(options.items()):
            table, dot, column = target.partition(".")
            if not (table and dot and column) or (how not in (HASH, NULL) and PLACEHOLDER not in how):
                raise Usage(
                    f"--mask {target}={how} is malformed; expected {_SHAPE}",
                    hint="for example --mask customers.email=hash --mask 'customers.name=customer {}'",
                )
            masks.append(ColumnMask(table, column, how))
        return cls(tuple(masks), salt)

    def __bool__(self) -> bool:
        return bool(self.column_masks)

    @property
    def tables(self) -> Collection[str]:
        return {mask.table for mask in self.column_masks}

    def apply(self, table: str, rows: pa.Table) -> pa.Table:
        salt = bytes.fromhex(self.salt)
        for mask in self.column_masks:
            if mask.table == table:
                at = rows.schema.get_field_index(mask.column)
                rows = rows.set_column(at, rows.schema.field(at), mask.apply(rows.column(at), salt))
        return rows

    def check_in_flight(self, states: Iterable[InFlight]) -> None:
        """Raise `Refused` if an in-flight record has a masked column: masks change tables only, not channels."""
        names = {mask.column for mask in self.column_masks}
        for state in states:
            carried = sorted(names & {name for name, _ in parse_ddl(state.schema)}) if names else ()
            if carried:
                raise Refused(
                    f"{state.rows} in-flight rows on {state.channel!r} have {', '.join(carried)} unmasked: masks "
                    "apply to tables only",
                    hint="choose a moment without in-flight rows, for example after "
                    "`slackwater run FILE --until-caught-up`",
                )


def check_masks(cut: Cut, masks: Masks) -> None:
    """Check that the masked columns exist at a cut, and that they may be masked.

    Raises `NotFound` for a missing table or column. Raises `Refused` for a key column, for a column whose
    stored value is needed to process later records, and for a column type that the mask does not support.
    """
    tables = cut.tables
    for mask in masks.column_masks:
        if mask.table not in tables or (table := tables[mask.table].table) is None:
            raise NotFound(f"table of {cut.ref}", mask.table, tables, hint=f"--mask takes {_SHAPE}")
        visible = {column.name: column for column in visible_columns(table)}
        label = f"{mask.table}.{mask.column}"
        if mask.column not in visible:
            raise NotFound(f"column of {mask.table}", mask.column, visible)
        if mask.column in {column.name for column in table.key}:
            raise Refused(
                f"{label} cannot be masked: it is part of the key, which decides where rows are stored",
                hint="key the stage by a column without personal data, or mask only the other columns",
            )
        if table.state and (why := kind_of(table.state).core.why_not_maskable(mask.column)):
            raise Refused(
                f"{label} cannot be masked: {why}; later records need the stored value",
                hint="columns that can be masked: of an upsert all except by=, of an aggregate first and last, of an "
                "update all except due=",
            )
        _check_type(label, mask, visible[mask.column])


def _check_type(label: str, mask: ColumnMask, column: Column) -> None:
    kind, types = to_arrow(column.type), pa.types
    text = types.is_string(kind)
    fits = mask.how == NULL or text or (mask.how == HASH and (types.is_integer(kind) or types.is_binary(kind)))
    if not fits:
        takes = "text, integers and bytes" if mask.how == HASH else "text"
        raise Refused(
            f"{label} is {kind}, but {mask.how!r} masks only {takes}", hint=f"--mask {label}=null masks any type"
        )


_WORKERS = min(os.cpu_count() or 1, 4)
"""Number of SSTs copied in parallel; all are in memory at the same time."""


def bytes_to_copy(cut: Cut, masks: Masks, *, deep: bool) -> dict[str, int]:
    """Return the size in bytes of the SSTs that the clone must copy or rewrite, by table."""
    table_bytes = {name: sum(sst.bytes for sst in at.ssts) for name, at in cut.tables.items()}
    return {name: size for name, size in table_bytes.items() if deep or name in masks.tables}


@dataclass(frozen=True, slots=True)
class CloneSsts:
    """Creates the SSTs of a clone's first versions: shared with the source, copied, or rewritten with masks."""

    store: ObjectStore
    target: ObjectStore
    cache: SstCache | None
    cut: Cut
    app: str
    masks: Masks
    deep: bool
    on_progress: Callable[[int, int], None]

    def create_ssts(self, stages: Iterable[str]) -> dict[str, Manifest]:
        """Share, copy or rewrite SSTs, and return the cut's version of each stage with the clone's SSTs.

        Raises `Corruption` if an SST of the source is missing or damaged, and `Unavailable`.
        """
        manifests = {stage: self.cut.stages[stage] for stage in stages}
        to_copy = [
            (stage, table, sst)
            for stage, manifest in manifests.items()
            for name, table in tables_of(manifest).items()
            if self.deep or name in self.masks.tables
            for sst in table.ssts
        ]
        copier, copies = Copier(self.store, self.target), dict[tuple[str, str], Sst]()

        def one(place: tuple[str, Manifest, Sst]) -> Sst:
            stage, table, sst = place
            if table.stage in self.masks.tables:
                return self._masked(stage, table, sst)
            copier.copy_sst_to(sst, key := keys.sst(self.app, stage, _ulid(sst)))
            return replace(sst, object=key, root="")

        for (_, _, sst), copy in zip(to_copy, map_concurrently(one, to_copy, _WORKERS), strict=True):
            copies[_name(sst)] = copy
            self.on_progress(len(copies), len(to_copy))
        return {
            stage: map_tables_ssts(manifest, lambda ssts: self._in_clone(ssts, copies))
            for stage, manifest in manifests.items()
        }

    def _in_clone(self, ssts: Ssts, copies: Mapping[tuple[str, str], Sst]) -> Ssts:
        changed = ssts.mapped(lambda sst: copies.get(_name(sst), sst)) if copies else ssts
        copied = frozenset(copies.values())
        # Copies are in the target; all other objects stay in the source's root.
        shared = Ssts((sst for sst in changed.inline if sst not in copied), changed.leaves).at_roots(self._shared_root)
        return shared.plus(sst for sst in changed.inline if sst in copied)

    def _shared_root(self, root: str) -> str:
        root = root or self.store.url
        return "" if root == self.target.url else root

    def _masked(self, stage: str, table: Manifest, sst: Sst) -> Sst:
        assert table.table is not None  # noqa: S101  it has SSTs
        assert self.cache is not None  # noqa: S101  masks need a cache
        blocks = self.cache.open(self.store, sst, table.table).blocks
        writer = encode_blocks(table.table, blocks, change=lambda rows: self.masks.apply(table.stage, rows))
        return writer.put(
            self.target, app=self.app, stage=stage, partition=sst.partition, level=sst.level, ulid=_ulid(sst)
        )


def _name(sst: Sst) -> tuple[str, str]:
    return sst.root, sst.object


def _ulid(sst: Sst) -> str:
    return sst.object.rpartition("/")[2].removesuffix(".parquet")
