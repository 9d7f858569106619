"""Footers of SSTs, which say where everything is, and Bloom filters: read once and kept by the process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from cachetools import LRUCache

from ..objects.protocol import ObjectStore
from ..sst.bloom import Filter
from ..sst.evolution import Reading
from ..sst.types import HASH
from ..versions.manifest import Sst, Table
from .decode import check_shape, corrupt, file_name
from .range_reads import RangeReader, at_once
from .read_stats import Reads

_WITH_FILTERS_BYTES = 128 << 10
"""Filters up to this come with the footer: cheaper than another round trip."""
_CHECKSUM_BYTES = 8
_MAX_FOOTERS = 1024
_MAX_FILTERS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Footer:
    """Where the row groups of an SST are, and which hashes they hold; arrays have one element a row group."""

    metadata: pq.FileMetaData
    table: Table
    """As which one the rows are read …"""
    reading: Reading | None
    """… and how; None where they have its columns."""
    hash_min: npt.NDArray[np.int64]
    hash_max: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    filter_start: npt.NDArray[np.int64]
    filter_end: npt.NDArray[np.int64]
    checksums: bytes
    """Of the filters, one after the other; empty where there are none."""


# Both by name of the SST's file; filters by row group, too.
_footers: LRUCache[str, Footer] = LRUCache(_MAX_FOOTERS)
_filters: LRUCache[tuple[str, int], Filter] = LRUCache(_MAX_FILTERS_BYTES, getsizeof=lambda one: one.blocks.nbytes)
_lock = Lock()


def footer_of(reader: RangeReader, sst: Sst, table: Table) -> Footer:
    """The SST's footer, kept from before or read now.

    Raises:
        Corruption: the object is missing or its footer is not what the manifest promises.
        Unavailable: the store did not answer.
    """
    name = file_name(sst)
    with _lock:
        footer = _footers.get(name)
    if footer is None:
        footer, filters = _read(reader, sst, table)
        with _lock:
            _footers[name] = footer
            _keep(name, filters)
    elif footer.table != table:
        # At another version, the table may have other columns.
        footer = replace(footer, table=table, reading=_reading(footer.metadata, sst, table))
        with _lock:
            _footers[name] = footer
    return footer


def filters_of(
    reader: RangeReader, sst: Sst, footer: Footer, groups: Sequence[int], *, fetch: bool
) -> dict[int, Filter]:
    """The filters of these row groups (ascending), by row group: those that are kept, and with `fetch` all there are.

    Raises as `footer_of`, also for a damaged filter.
    """
    name = file_name(sst)
    with _lock:
        known = {group: one for group in groups if (one := _filters.get((name, group))) is not None}
    absent = [group for group in groups if group not in known]
    if fetch and absent and footer.checksums:
        starts, ends = footer.filter_start[absent].tolist(), footer.filter_end[absent].tolist()
        found = reader.read(starts, ends)
        for group, start, end in zip(absent, starts, ends, strict=True):
            data = next(part[start - at : end - at] for at, part in found if at <= start < at + len(part))
            known[group] = _decode_filter(data, sst, footer, group)
        with _lock:
            _keep(name, known)
    return known


def fetch_footers(store: ObjectStore, ssts: Sequence[Sst], table: Table, reads: Reads) -> None:
    """Have the footers of all these at hand, in one round trip. Errors as of `footer_of`."""
    with _lock:
        absent = [sst for sst in ssts if file_name(sst) not in _footers]
    if len(absent) > 1:
        counted = [Reads() for _ in absent]
        readers = [RangeReader(store, sst, one) for sst, one in zip(absent, counted, strict=True)]
        for _ in at_once().map(footer_of, readers, absent, repeat(table)):
            pass
        for one in counted:
            reads.add(one)


def _keep(name: str, filters: dict[int, Filter]) -> None:
    for group, one in filters.items():
        if one.blocks.nbytes <= _MAX_FILTERS_BYTES:
            _filters[name, group] = one


def _read(reader: RangeReader, sst: Sst, table: Table) -> tuple[Footer, dict[int, Filter]]:
    with_filters = sst.filter_bytes if sst.filter_bytes <= _WITH_FILTERS_BYTES else 0
    first = sst.bytes - sst.footer_bytes - with_filters
    if sst.footer_bytes <= 0 or with_filters < 0 or first < 0:
        raise corrupt(sst, f"{sst.bytes} bytes cannot end with {with_filters} of filters and {sst.footer_bytes} more")
    return decode_footer(reader.one(first, sst.bytes), first, sst, table)


def decode_footer(data: bytes, first: int, sst: Sst, table: Table) -> tuple[Footer, dict[int, Filter]]:
    """The footer from the object's bytes from `first` on, and by row group those filters that are whole in them.

    Raises:
        Corruption: the footer or a filter is not what was written.
    """
    end = data[len(data) - sst.footer_bytes :]
    found = xxhash.xxh3_128_hexdigest(end)
    # Before anything looks at it: Arrow ends the process over some footers.
    if found != sst.footer_checksum:
        raise corrupt(sst, f"expected checksum {sst.footer_checksum} of its footer, found {found}")
    metadata = pq.read_metadata(pa.BufferReader(end))
    checksums = end[: metadata.num_row_groups * _CHECKSUM_BYTES] if sst.filter_bytes else b""
    footer = _footer(metadata, table, _reading(metadata, sst, table), checksums)
    places = zip(footer.filter_start.tolist(), footer.filter_end.tolist(), strict=True)
    return footer, {
        group: _decode_filter(data[start - first : end - first], sst, footer, group)
        for group, (start, end) in enumerate(places)
        if start >= first
    }


def _decode_filter(data: bytes, sst: Sst, footer: Footer, group: int) -> Filter:
    expected = footer.checksums[group * _CHECKSUM_BYTES : (group + 1) * _CHECKSUM_BYTES]
    if xxhash.xxh3_64_digest(data) != expected:
        raise corrupt(sst, f"the filter of row group {group} is not what was written")
    try:
        return Filter.decode(data)
    except ValueError as error:
        raise corrupt(sst, f"the filter of row group {group}: {error}") from error


def _reading(metadata: pq.FileMetaData, sst: Sst, table: Table) -> Reading | None:
    return check_shape(sst, table, metadata.schema.to_arrow_schema(), metadata.num_rows)


def _footer(metadata: pq.FileMetaData, table: Table, reading: Reading | None, checksums: bytes) -> Footer:
    """What look-ups need of a footer, as arrays."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    hash_column = metadata.schema.names.index(HASH)
    bounds = [group.column(hash_column).statistics for group in groups]
    chunks = [[group.column(i) for i in range(group.num_columns)] for group in groups]
    hashed = [row[hash_column] for row in chunks] if checksums else []
    starts = np.array([one.bloom_filter_offset for one in hashed], np.int64)
    return Footer(
        metadata,
        table,
        reading,
        np.array([bound.min for bound in bounds], np.int64),
        np.array([bound.max for bound in bounds], np.int64),
        np.array([min(_start(chunk) for chunk in row) for row in chunks], np.int64),
        np.array([max(_start(chunk) + chunk.total_compressed_size for chunk in row) for row in chunks], np.int64),
        starts,
        starts + np.array([one.bloom_filter_length for one in hashed], np.int64),
        checksums,
    )


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    dictionary = chunk.dictionary_page_offset
    return int(chunk.data_page_offset if dictionary is None else min(dictionary, chunk.data_page_offset))
