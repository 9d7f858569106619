"""The ends of SSTs, which say where everything is: footers and filters, read once and kept by the process."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from ..objects.protocol import ObjectStore
from ..sst.bloom import Filter
from ..sst.types import HASH, sst_schema
from ..versions.manifest import Sst, Table
from .decode import check_shape, corrupt, file_name
from .range_reads import Pieces, at_once
from .read_stats import Reads

__all__ = ["Tail", "decode_tail", "fetch_tails", "tail_of"]

_WITH_FILTERS_BYTES = 128 << 10
"""Filters up to this come with the footer: cheaper than another round trip."""
_CHECKSUM_BYTES = 8
_MAX_TAILS = 1024
"""Tails this process keeps, …"""
_MAX_FILTERS_BYTES = 64 << 20
"""… with filters of so many bytes together."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Where the row groups of an SST are, and which hashes they hold; arrays have one element a row group."""

    metadata: pq.FileMetaData
    hash_min: npt.NDArray[np.int64]
    hash_max: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    filter_start: npt.NDArray[np.int64]
    filter_end: npt.NDArray[np.int64]
    checksums: bytes
    """Of the filters, one after the other; empty where there are none."""
    filters: list[Filter | None] = field(default_factory=list)
    """Those that were read so far."""

    @property
    def has_filters(self) -> bool:
        """Whether the SST has filters, read or not."""
        return bool(self.checksums)

    def keep(self, sst: Sst, group: int, data: bytes) -> None:
        """Check and keep the filter of a row group.

        Raises:
            Corruption: it is not what was written.
        """
        expected = self.checksums[group * _CHECKSUM_BYTES : (group + 1) * _CHECKSUM_BYTES]
        if xxhash.xxh3_64_digest(data) != expected:
            raise corrupt(sst, f"the filter of row group {group} is not what was written")
        try:
            self.filters[group] = Filter.decode(data)
        except ValueError as error:
            raise corrupt(sst, f"the filter of row group {group}: {error}") from error

    @property
    def memory_bytes(self) -> int:
        """Bytes of the filters read so far."""
        return sum(one.blocks.nbytes for one in self.filters if one is not None)


_tails: OrderedDict[str, Tail] = OrderedDict()
_lock = Lock()


def tail_of(pieces: Pieces, sst: Sst, table: Table) -> Tail:
    """The SST's tail, kept from before or read now.

    Raises:
        Corruption: the object is missing or its footer is not what the manifest promises.
        Unavailable: the store did not answer.
    """
    name = file_name(sst)
    with _lock:
        tail = _tails.get(name)
        if tail is not None:
            _tails.move_to_end(name)
            return tail
    tail = _read(pieces, sst, table)
    with _lock:
        _tails[name] = tail
        memory = sum(one.memory_bytes for one in _tails.values())
        while len(_tails) > 1 and (len(_tails) > _MAX_TAILS or memory > _MAX_FILTERS_BYTES):
            _, dropped = _tails.popitem(last=False)
            memory -= dropped.memory_bytes
    return tail


def fetch_tails(store: ObjectStore, ssts: Sequence[Sst], table: Table, reads: Reads) -> None:
    """Have the tails of all these at hand, in one round trip. Errors as of `tail_of`."""
    with _lock:
        absent = [sst for sst in ssts if file_name(sst) not in _tails]
    if len(absent) > 1:
        counted = [Reads() for _ in absent]
        pieces = [Pieces(store, sst, one) for sst, one in zip(absent, counted, strict=True)]
        for _ in at_once().map(tail_of, pieces, absent, repeat(table)):
            pass
        for one in counted:
            reads.add(one)


def _read(pieces: Pieces, sst: Sst, table: Table) -> Tail:
    with_filters = sst.filter_bytes if sst.filter_bytes <= _WITH_FILTERS_BYTES else 0
    first = sst.bytes - sst.footer_bytes - with_filters
    if sst.footer_bytes <= 0 or with_filters < 0 or first < 0:
        raise corrupt(sst, f"{sst.bytes} bytes cannot end with {with_filters} of filters and {sst.footer_bytes} more")
    return decode_tail(pieces.one(first, sst.bytes), first, sst, table)


def decode_tail(data: bytes, first: int, sst: Sst, table: Table) -> Tail:
    """The tail from the object's bytes from `first` on, with those filters that are whole in them.

    Raises:
        Corruption: the footer or a filter is not what was written.
    """
    footer = data[len(data) - sst.footer_bytes :]
    found = xxhash.xxh3_128_hexdigest(footer)
    # Before anything looks at it: Arrow ends the process over some footers.
    if found != sst.footer_checksum:
        raise corrupt(sst, f"expected checksum {sst.footer_checksum} of its footer, found {found}")
    metadata = pq.read_metadata(pa.BufferReader(footer))
    check_shape(sst, sst_schema(table), metadata.schema.to_arrow_schema(), metadata.num_rows)
    tail = _tail(metadata, footer[: metadata.num_row_groups * _CHECKSUM_BYTES] if sst.filter_bytes else b"")
    for group, (start, end) in enumerate(zip(tail.filter_start.tolist(), tail.filter_end.tolist(), strict=True)):
        if start >= first:
            tail.keep(sst, group, data[start - first : end - first])
    return tail


def _tail(metadata: pq.FileMetaData, checksums: bytes) -> Tail:
    """What look-ups need of a footer, as arrays."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    hash_column = metadata.schema.names.index(HASH)
    bounds = [group.column(hash_column).statistics for group in groups]
    chunks = [[group.column(i) for i in range(group.num_columns)] for group in groups]
    hashed = [row[hash_column] for row in chunks] if checksums else []
    starts = np.array([one.bloom_filter_offset for one in hashed], np.int64)
    return Tail(
        metadata,
        np.array([bound.min for bound in bounds], np.int64),
        np.array([bound.max for bound in bounds], np.int64),
        np.array([min(_start(chunk) for chunk in row) for row in chunks], np.int64),
        np.array([max(_start(chunk) + chunk.total_compressed_size for chunk in row) for row in chunks], np.int64),
        starts,
        starts + np.array([one.bloom_filter_length for one in hashed], np.int64),
        checksums,
        [None] * len(groups),
    )


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset
    return int(chunk.data_page_offset if dictionary is None else min(dictionary, chunk.data_page_offset))
