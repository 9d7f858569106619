"""Reads an SST by ranges: its footer, then only the pages that may have the requested keys or values.

Used with a cold cache and for single look-ups. The checksum of the whole file cannot be verified this way. Instead, the
footer, the page index of each row group and each chunk of a filter have their own checksums, and each page has a CRC.

A look-up of few keys takes three round trips: for the footer; for the page indexes and filter chunks of the row groups
whose hash ranges have the keys; and for the pages of the keys that pass the filter. Row groups with many of the keys
are read whole, without index and filter.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..objects.counting import ReadCounters
from ..objects.protocol import ObjectStore
from ..sst.parquet_index import DECODE_ERRORS, MAX_INT64, MIN_INT64, build_file_of_pages, probe_filter, probed_chunks
from ..sst.schema import HASH
from ..sst.writer import PAGE_ROWS, release_unused_memory
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from .decode import Block, read_groups
from .fetch import ByteRanges, RangeReader, corruption_error, read_ranges
from .footers import LoadedIndexes, load_footer

_MAX_KEYS_PER_PAGE = 16
"""Number of keys per page up to which a row group's index and filter are read.

A filter has 1/20 of a row group's bytes, and excludes all of 16 absent keys with a probability of 0.6.
"""
SMALL_BYTES = 128 << 10
_WINDOW_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class PageSelection:
    """Selected pages of a row group; all its pages if `pages` is None."""

    group: int
    pages: npt.NDArray[np.int64] | None


class RangedSst:
    """One SST in the store that is read by byte ranges."""

    def __init__(self, store: ObjectStore, sst: Sst, table: Table, reads: ReadCounters, tail: bytes = b"") -> None:
        """Read the footer, unless it is cached or in `tail` (from `fetch_tails`). `reads` counts requests."""
        self._sst, self._reads = sst, reads
        self._reader = RangeReader(store, sst, reads)
        self._footer = load_footer(self._reader, sst, table, tail)
        self._indexes = LoadedIndexes(sst, self._footer, tail)

    def find_hashes(
        self, hashes: npt.NDArray[np.int64], *, filtered: bool = True
    ) -> tuple[npt.NDArray[np.bool_], list[PageSelection]]:
        """Return a mask of the hashes that the SST may have, and the pages that may have these hashes.

        The hashes are ascending. With `filtered=False`, no filter is read. Raises `Corruption` if footer, index or
        filter are damaged.
        """
        load_indexes([(self, hashes)], filtered=filtered)
        first, end = self._positions_by_group(hashes)
        # A hash that ends one row group and starts the next one passes if either group's filter passes it.
        passed, parts = np.zeros(len(hashes), np.bool_), []
        for group in np.flatnonzero(first < end).tolist():
            group_hashes = hashes[first[group] : end[group]]
            index = self._indexes.indexes.get(group) if self._is_index_worthwhile(group, len(group_hashes)) else None
            if index is None:
                passed[first[group] : end[group]] = True
                parts.append(PageSelection(group, None))
                continue
            passing = np.ones(len(group_hashes), np.bool_)
            if filtered:
                passing = probe_filter(self._indexes.chunks[group], group_hashes, self._footer.filter_bytes(group))
            passed[first[group] : end[group]] |= passing
            least, most = index.ranges[HASH]
            inside = np.searchsorted(group_hashes[passing], least) < np.searchsorted(
                group_hashes[passing], most, side="right"
            )
            pages = np.flatnonzero(inside)
            parts += [PageSelection(group, pages)] if pages.size else []
        return passed, parts

    def _is_index_worthwhile(self, group: int, num_keys: int) -> bool:
        return num_keys <= _MAX_KEYS_PER_PAGE * (1 + self._footer.groups[group].num_rows // PAGE_ROWS)

    def _positions_by_group(self, hashes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        first = np.searchsorted(hashes, self._footer.hash_min, side="left")
        return first, np.searchsorted(hashes, self._footer.hash_max, side="right")

    @property
    def row_bytes(self) -> float:
        """Mean size of a row, before compression."""
        return sum(group.total_byte_size for group in self._footer.groups) / self._sst.rows

    @property
    def max_group_bytes(self) -> int:
        """Size of the largest row group, before compression."""
        return max(group.total_byte_size for group in self._footer.groups)

    def compression_ratio(self, group: int) -> float:
        columns = [column.meta_data for column in self._footer.groups[group].columns]
        return self._footer.groups[group].total_byte_size / sum(column.total_compressed_size for column in columns)

    def touched_bytes(self, hashes: npt.NDArray[np.int64]) -> int:
        first, end = self._positions_by_group(hashes)
        return int((self._footer.end - self._footer.start)[first < end].sum())

    def find_values(self, column: str, low: int, high: int) -> list[PageSelection]:
        """Return the pages that may have values from `low` to `high` (inclusive) of an int64 column.

        Only `_hash`, `_seq`, `_expires_at` and `_due_at` have statistics; for other columns all pages are returned.
        Raises `Corruption` if footer or index are damaged.
        """
        least, most = self._ranges_of(column)
        groups = np.flatnonzero((least <= high) & (most >= low)).tolist()
        partly = [group for group in groups if not low <= least[group] <= most[group] <= high]
        _load_parts([(self, {group: [] for group in partly})])
        parts = []
        for group in groups:
            index = self._indexes.indexes.get(group) if group in partly else None
            if index is None or column not in index.ranges:
                parts.append(PageSelection(group, None))
            else:
                least_of, most_of = index.ranges[column]
                pages = np.flatnonzero((least_of <= high) & (most_of >= low))
                parts += [PageSelection(group, pages)] if pages.size else []
        return parts

    def next_value_after(self, column: str, high: int) -> int | None:
        """Return the smallest value above `high` in the pages that `find_values` excluded, or None."""
        ranges = [self._ranges_of(column)]
        ranges += [index.ranges[column] for index in self._indexes.indexes.values() if column in index.ranges]
        # All-null row groups and pages have empty ranges.
        later = [least[(least > high) & (least <= most)] for least, most in ranges]
        return min((int(values.min()) for values in later if values.size), default=None)

    def _ranges_of(self, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the least and the largest value of an int64 column in each row group.

        Without statistics, the range covers all possible values. If all values are null, or the SST is older than the
        column, the range is empty: its least value is above its largest value.
        """
        metadata, ranges = self._footer.metadata, []
        index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column), None)
        for group in range(metadata.num_row_groups):
            statistics = None if index is None else metadata.row_group(group).column(index).statistics
            if statistics is not None and statistics.has_min_max:
                ranges.append((int(statistics.min), int(statistics.max)))
            elif index is None or (statistics is not None and not statistics.num_values):
                ranges.append((MAX_INT64, MIN_INT64))
            else:
                ranges.append((MIN_INT64, MAX_INT64))
        least, most = np.array(ranges, np.int64).T
        return least, most

    def bytes_of(self, parts: Sequence[PageSelection]) -> int:
        size = 0
        for part in parts:
            if part.pages is None:
                size += int(self._footer.end[part.group] - self._footer.start[part.group])
            else:
                index = self._indexes.indexes[part.group]
                size += int((index.end[:, part.pages] - index.start[:, part.pages]).sum())
        return size

    def read(
        self, parts: Sequence[PageSelection], names: Sequence[str] | None = None, *, window_bytes: int = _WINDOW_BYTES
    ) -> Iterator[Block]:
        """Yield the rows of these pages, which are from `find_hashes` or `find_values`, in SST order.

        `names` are the needed columns, including internal columns; None for all. Columns that the SST lacks are left
        out. Pages are read in windows of up to `window_bytes`; a larger element of `parts` is read alone. Raises
        `Corruption`.
        """
        waiting = deque((part, self.bytes_of([part])) for part in parts)
        while waiting:
            part, size = waiting.popleft()
            window = [part]
            while waiting and size + waiting[0][1] <= window_bytes:
                part, more = waiting.popleft()
                window.append(part)
                size += more
            (blocks,) = read_together([(self, window)], names)
            yield from blocks

    def _stored_names(self, names: Sequence[str]) -> list[str]:
        reading, schema = self._footer.conversion, self._footer.schema
        own = [name for name in names if reading is None or (name in schema.names and name not in reading.sources)]
        converted = [] if reading is None else reading.stored_names([name for name in names if name in reading.sources])
        return [name for name in schema.names if name in {*own, *converted, HASH}]

    def _page_ranges(self, part: PageSelection, names: Sequence[str] | None) -> list[list[tuple[int, int]]]:
        stored = None if names is None else {name.encode() for name in self._stored_names(names)}
        ranges: list[list[tuple[int, int]]] = []
        for number, chunk in enumerate(self._footer.groups[part.group].columns):
            column = chunk.meta_data
            if stored is not None and column.path[0] not in stored:
                ranges.append([])
                continue
            at = column.data_page_offset
            pages = [] if column.dictionary_page_offset is None else [(column.start, at)]
            if part.pages is None:
                pages.append((at, column.end))
            else:
                index = self._indexes.indexes[part.group]
                starts, ends = index.start[number, part.pages], index.end[number, part.pages]
                pages += zip(starts.tolist(), ends.tolist(), strict=True)
            ranges.append(pages)
        return ranges

    def _decode(self, parts: Sequence[PageSelection], names: Sequence[str] | None, pieces: ByteRanges) -> list[Block]:
        self._reads.row_groups += len(parts)
        schema, groups = self._footer.metadata.schema, [part.group for part in parts]
        nested = [schema.column(number).max_repetition_level > 0 for number in range(len(schema))]
        counts = [self._counts_and_hashes(part) for part in parts]
        chosen = [
            (self._footer.groups[part.group], int(num_rows.sum()), self._page_ranges(part, names))
            for part, (num_rows, _, _) in zip(parts, counts, strict=True)
        ]
        try:
            data = build_file_of_pages(self._footer.schema, chosen, pieces.view_at, nested)
            del pieces
            file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            rows = read_groups(file, range(len(parts)), None if names is None else self._stored_names(names))
        except DECODE_ERRORS as error:
            raise corruption_error(self._sst, f"pages of row groups {groups} cannot be decoded ({error})") from error
        rows = rows.combine_chunks()
        # Intact pages of another object have valid CRCs, so check that these are the expected pages.
        num_rows, least, most = (np.concatenate(arrays) for arrays in zip(*counts, strict=True))
        hashes, ends = rows.column(HASH).to_numpy(), np.cumsum(num_rows)
        if len(hashes) != ends[-1] or (hashes[ends - num_rows] != least).any() or (hashes[ends - 1] != most).any():
            raise corruption_error(self._sst, f"pages of row groups {groups} have other hashes than its footer")
        return [Block.from_rows(batch, self._footer.conversion) for batch in rows.to_batches()]

    def _counts_and_hashes(self, part: PageSelection) -> tuple[npt.NDArray[np.int64], ...]:
        group = part.group
        if part.pages is None:
            num_rows = np.array([self._footer.groups[group].num_rows])
            return num_rows, self._footer.hash_min[[group]], self._footer.hash_max[[group]]
        index = self._indexes.indexes[group]
        least, most = index.ranges[HASH]
        return np.diff(index.first_row)[part.pages], least[part.pages], most[part.pages]


class SelectedRows:
    """Rows of selected pages of one SST. A row is read by its position among all rows of these pages."""

    def __init__(
        self,
        ranged: RangedSst,
        parts: Sequence[PageSelection],
        names: Sequence[str],
        rows: Callable[[Block], pa.Table],
    ) -> None:
        """Prepare the read. `parts` are results of `find_hashes` or `find_values`.

        `rows` is a function that returns a block's rows with columns `names`.
        """
        self._ranged, self._names, self._rows = ranged, names, rows
        _load_parts([(ranged, {part.group: [] for part in parts})])
        pages, counts, sizes = [np.empty((0, 2), np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
        for part in parts:
            index = ranged._indexes.indexes[part.group]
            num_rows = np.diff(index.first_row)
            numbers = np.arange(len(num_rows)) if part.pages is None else part.pages
            pages.append(np.column_stack([np.full(len(numbers), part.group), numbers]))
            counts.append(num_rows[numbers])
            sizes.append((index.end - index.start).sum(axis=0)[numbers] * ranged.compression_ratio(part.group))
        self._pages, self._counts = np.concatenate(pages), np.concatenate(counts)
        self._bytes = np.concatenate(sizes)
        self._ends = self._counts.cumsum()

    def num_bytes(self, first: int, last: int) -> int:
        """Estimate the size of the pages that have the rows from `first` to `last` (inclusive)."""
        begin, end = np.searchsorted(self._ends, [first, last], side="right")
        return int(self._bytes[begin : end + 1].sum())

    def read(self, at: npt.NDArray[np.int64]) -> pa.Table:
        """Return the rows at these ascending positions, in one round trip. Raises `Corruption`."""
        page_of_row = np.searchsorted(self._ends, at, side="right")
        pages, within = np.unique(page_of_row, return_inverse=True)
        groups, numbers = self._pages[pages].T
        parts = [PageSelection(group, numbers[groups == group]) for group in np.unique(groups).tolist()]
        (blocks,) = read_together([(self._ranged, parts)], self._names)
        rows = pa.concat_tables([self._rows(block) for block in blocks])
        release_unused_memory()
        starts = np.concatenate(([0], self._counts[pages].cumsum()))[within]
        positions = starts + at - (self._ends - self._counts)[page_of_row]
        return rows if len(positions) == rows.num_rows else rows.take(pa.array(positions))


def load_indexes(probes: Sequence[tuple[RangedSst, npt.NDArray[np.int64]]], *, filtered: bool = True) -> None:
    """Load the page indexes and filter chunks that `find_hashes` needs for ascending hashes, in one round trip."""
    required: list[tuple[RangedSst, dict[int, list[int]]]] = []
    for ranged, hashes in probes:
        first, end = ranged._positions_by_group(hashes)
        chunks: dict[int, list[int]] = {}
        for group in np.flatnonzero(first < end).tolist():
            group_hashes = hashes[first[group] : end[group]]
            if ranged._is_index_worthwhile(group, len(group_hashes)):
                size = ranged._footer.filter_bytes(group)
                chunks[group] = np.unique(probed_chunks(group_hashes, size)).tolist() if filtered else []
        required.append((ranged, chunks))
    _load_parts(required)


def _load_parts(required: Sequence[tuple[RangedSst, Mapping[int, Sequence[int]]]]) -> None:
    pieces_by_sst = read_ranges(
        [(ranged._reader, ranged._indexes.missing_ranges(groups)) for ranged, groups in required]
    )
    for (ranged, groups), pieces in zip(required, pieces_by_sst, strict=True):
        ranged._indexes.decode_parts(groups, pieces.bytes_at)


def read_together(
    requests: Sequence[tuple[RangedSst, Sequence[PageSelection]]], names: Sequence[str] | None
) -> list[list[Block]]:
    """Read pages of several SSTs in one round trip. Arguments and errors are those of `RangedSst.read`."""
    ranges = [
        sorted(span for part in parts for pages in ranged._page_ranges(part, names) for span in pages)
        for ranged, parts in requests
    ]
    pieces_by_sst = read_ranges([(ranged._reader, spans) for (ranged, _), spans in zip(requests, ranges, strict=True)])
    # The pieces of each SST are freed when they are decoded.
    return [ranged._decode(parts, names, pieces_by_sst.pop(0)) for ranged, parts in requests]
