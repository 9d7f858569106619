"""An SST read by ranges: its footer, then only the pages in which some keys can be.

For a cold cache and for single look-ups. The checksum of the whole cannot be checked this way; but the footer, what the
page index says of each row group and each chunk of a filter have one of their own, and each page a CRC.

What is read, for few keys: the footer; then, of the row groups that the keys fall in by their hash, the page index and
those chunks of the filter that the keys ask, all at the same time; then the pages of those keys that a filter lets
pass. So a key costs three round trips. Of a row group in which many keys fall neither index nor filter is asked for:
they would say that all of it is needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..sst.bloom import chunks_of, may_have
from ..sst.evolution import Reading
from ..sst.parquet_pages import MALFORMED, file_of_pages
from ..sst.types import HASH
from ..sst.writer import PAGE_ROWS
from ..versions.manifest import Sst, Table
from .decode import Block, corrupt, read_groups
from .footers import Located, footer_of, learn, unknown
from .range_reads import RangeReader, Stretches, read_all

_KEYS_A_PAGE = 16
"""Up to so many keys for each page of a row group its index and filter are worth reading: a filter is 1/20 of the
bytes, and 0.6 of so many absent keys are ruled out together."""
SMALL_BYTES = 128 << 10
"""An SST up to this is better read whole: one request, where ranges would be several."""
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_WINDOW_BYTES = 32 << 20
"""So many bytes are read, decoded and searched at once: bounds memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of an SST: pages of a row group."""

    group: int
    pages: npt.NDArray[np.int64] | None
    """Their numbers, ascending; None for all."""


class RangedSst:
    """One SST in the store, of which only what is asked for is read."""

    def __init__(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads) -> None:
        """Read the footer, unless this process has done so before; `reads` counts what is read.

        Raises:
            Corruption: the object is missing or its footer is not what the manifest promises.
            Unavailable: the store did not answer.
        """
        self._sst = sst
        self._reader = RangeReader(store, sst, reads)
        self._reads = reads
        self._footer = footer_of(self._reader, sst, table)
        self._located = Located({}, {})

    @property
    def reading(self) -> Reading | None:
        """How its rows are read as the table's; None where they are that already."""
        return self._footer.reading

    def find(self, hashes: npt.NDArray[np.int64], *, filtered: bool = True) -> tuple[npt.NDArray[np.bool_], list[Part]]:
        """Which of these hashes (ascending) can be here, and in which rows.

        `filtered=False` asks no filter. Raises as the constructor, also for a damaged index or filter.
        """
        locate([(self, hashes)], filtered=filtered)
        first, end = self._spans(hashes)
        # A hash that ends one row group and begins the next passes if either lets it.
        passed, parts = np.zeros(len(hashes), np.bool_), []
        for group in np.flatnonzero(first < end).tolist():
            some = hashes[first[group] : end[group]]
            index = self._located.indexes.get(group) if self._are_few(group, len(some)) else None
            if index is None:
                passed[first[group] : end[group]] = True
                parts.append(Part(group, None))
                continue
            passing = np.ones(len(some), np.bool_)
            if filtered:
                passing = may_have(self._located.chunks[group], some, self._footer.filter_bytes(group))
            passed[first[group] : end[group]] |= passing
            least, most = index.ranges[HASH]
            inside = np.searchsorted(some[passing], least) < np.searchsorted(some[passing], most, side="right")
            parts += _some_of(group, inside)
        return passed, parts

    def _are_few(self, group: int, num_keys: int) -> bool:
        """Whether its page index spares anything to so many keys of a row group."""
        return num_keys <= _KEYS_A_PAGE * (1 + self._footer.groups[group].num_rows // PAGE_ROWS)

    def _spans(self, hashes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of these hashes (ascending), for each row group: the first that can be in it, and the first beyond it."""
        first = np.searchsorted(hashes, self._footer.hash_min, side="left")
        return first, np.searchsorted(hashes, self._footer.hash_max, side="right")

    def touched_bytes(self, hashes: npt.NDArray[np.int64]) -> int:
        """How many bytes the row groups take in which at least one of these hashes (ascending) can be."""
        first, end = self._spans(hashes)
        return int((self._footer.end - self._footer.start)[first < end].sum())

    def within(self, low: int, high: int) -> list[Part]:
        """The rows with hashes from `low` to `high`, both included, and those beside them. Raises as `find`."""
        return self.having(HASH, low, high)

    def having(self, column: str, low: int, high: int) -> list[Part]:
        """The rows among which those are with a value from `low` to `high`, both included, in a column of int64.

        `_hash`, `_seq`, `_expires_at` and `_due_at` have statistics; of another column it gives all rows. Raises as
        `find`.
        """
        least, most = self.ranges(column)
        groups = np.flatnonzero((least <= high) & (most >= low)).tolist()
        partly = [group for group in groups if not low <= least[group] <= most[group] <= high]
        self._locate({group: [] for group in partly})
        parts = []
        for group in groups:
            index = self._located.indexes.get(group) if group in partly else None
            if index is None or column not in index.ranges:
                parts.append(Part(group, None))
            else:
                least_of, most_of = index.ranges[column]
                parts += _some_of(group, (least_of <= high) & (most_of >= low))
        return parts

    def next_after(self, column: str, high: int) -> int | None:
        """The least value beyond `high` of the rows that `having` leaves out, as far as the SST says; None for none."""
        ranges = [self.ranges(column)]
        ranges += [index.ranges[column] for index in self._located.indexes.values() if column in index.ranges]
        # Where all are null there is no range.
        found = [least[(least > high) & (least <= most)] for least, most in ranges]
        return min((int(values.min()) for values in found if values.size), default=None)

    def ranges(self, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The least and the largest value of a column of int64 in each row group.

        The smallest and the largest int64 where nothing is said, and the other way round where all are null: also in an
        SST of before the table had the column.
        """
        metadata = self._footer.metadata
        index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column), None)
        if index is None:
            groups = metadata.num_row_groups
            return np.full(groups, _HIGHEST, np.int64), np.full(groups, _LOWEST, np.int64)
        found = (metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups))
        least, most = zip(*map(_range, found), strict=True)
        return np.array(least, np.int64), np.array(most, np.int64)

    def bytes_of(self, parts: Sequence[Part]) -> int:
        """How many bytes these rows take."""
        return sum(map(self._size, parts))

    def _size(self, part: Part) -> int:
        if part.pages is None:
            return int(self._footer.end[part.group] - self._footer.start[part.group])
        index = self._located.indexes[part.group]
        return int((index.end[:, part.pages] - index.start[:, part.pages]).sum())

    def read(self, parts: Sequence[Part], names: Sequence[str] | None = None) -> Iterator[Block]:
        """These rows, in the order of the SST, some 32 MiB of them at a time.

        Args:
            parts: as `find` and the others gave them.
            names: the columns that are needed, as the table or an SST itself calls them, and `_hash`; None for all.
                Those that the SST does not have are left out.

        Raises as the constructor, also for a damaged page.
        """
        window = np.cumsum([self._size(part) for part in parts]) // _WINDOW_BYTES
        for number in np.unique(window).tolist():
            some = [part for part, its in zip(parts, window.tolist(), strict=True) if its == number]
            yield from self._decode(some, names, self._reader.read(self._ranges(some, names)))

    def _stored(self, names: Sequence[str]) -> list[str]:
        how, schema = self._footer.reading, self._footer.schema
        own = [name for name in names if how is None or (name in schema.names and name not in how.sources)]
        others = [] if how is None else how.stored_names([name for name in names if name in how.sources])
        return [name for name in schema.names if name in {*own, *others, HASH}]

    def _pages(self, part: Part, names: Sequence[str] | None) -> list[list[tuple[int, int]]]:
        """Where the pages of each plain column are, that of the dictionary first; none for a column not needed."""
        stored = None if names is None else {name.encode() for name in self._stored(names)}
        found: list[list[tuple[int, int]]] = []
        for number, chunk in enumerate(self._footer.groups[part.group].columns):
            column = chunk.meta_data
            if stored is not None and column.path[0] not in stored:
                found.append([])
                continue
            at = column.data_page_offset
            pages = [] if column.dictionary_page_offset is None else [(column.start, at)]
            if part.pages is None:
                pages.append((at, column.end))
            else:
                index = self._located.indexes[part.group]
                starts, ends = index.start[number, part.pages], index.end[number, part.pages]
                pages += zip(starts.tolist(), ends.tolist(), strict=True)
            found.append(pages)
        return found

    def _ranges(self, parts: Sequence[Part], names: Sequence[str] | None) -> list[tuple[int, int]]:
        return sorted(each for part in parts for pages in self._pages(part, names) for each in pages)

    def _decode(self, parts: Sequence[Part], names: Sequence[str] | None, found: Stretches) -> Iterator[Block]:
        self._reads.row_groups += len(parts)
        nested = [
            self._footer.metadata.schema.column(number).max_repetition_level > 0
            for number in range(self._footer.metadata.num_columns)
        ]
        chosen = [(self._footer.groups[part.group], self._num_rows(part), self._pages(part, names)) for part in parts]
        try:
            data = file_of_pages(self._footer.schema, chosen, found.bytes_at, nested)
            file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            rows = read_groups(file, range(len(parts)), None if names is None else self._stored(names))
        except MALFORMED as error:
            groups = [part.group for part in parts]
            raise corrupt(self._sst, f"pages of row groups {groups} cannot be decoded ({error})") from error
        rows = rows.combine_chunks()
        self._check_hashes(parts, rows.column(HASH).to_numpy())
        for batch in rows.to_batches():
            yield Block.of(batch, self._footer.reading)

    def _num_rows(self, part: Part) -> int:
        if part.pages is None:
            return int(self._footer.groups[part.group].num_rows)
        return int(np.diff(self._located.indexes[part.group].first_row)[part.pages].sum())

    def _check_hashes(self, parts: Sequence[Part], hashes: npt.NDArray[np.int64]) -> None:
        """Pages of another object are whole, and their CRCs are right: see that these pages are those."""
        least, most, counts = [], [], []
        for part in parts:
            if part.pages is None:
                least.append(self._footer.hash_min[[part.group]])
                most.append(self._footer.hash_max[[part.group]])
                counts.append(np.array([self._num_rows(part)]))
            else:
                index = self._located.indexes[part.group]
                low, high = index.ranges[HASH]
                least.append(low[part.pages])
                most.append(high[part.pages])
                counts.append(np.diff(index.first_row)[part.pages])
        ends = np.cumsum(np.concatenate(counts))
        starts = np.concatenate(([0], ends[:-1]))
        if (
            len(hashes) != ends[-1]
            or (hashes[starts] != np.concatenate(least)).any()
            or (hashes[ends - 1] != np.concatenate(most)).any()
        ):
            groups = [part.group for part in parts]
            raise corrupt(self._sst, f"pages of row groups {groups} hold other hashes than its footer says")

    def _wanted(self, hashes: npt.NDArray[np.int64], *, filtered: bool) -> dict[int, list[int]]:
        """Of which row groups the index is worth reading for these hashes, and which chunks of their filters."""
        first, end = self._spans(hashes)
        return {
            group: np.unique(chunks_of(hashes[first[group] : end[group]], self._footer.filter_bytes(group))).tolist()
            if filtered
            else []
            for group in np.flatnonzero(first < end).tolist()
            if self._are_few(group, int(end[group] - first[group]))
        }

    def _locate(self, wanted: Mapping[int, Sequence[int]]) -> None:
        ranges = unknown(self._sst, self._footer, self._located, wanted)
        found = self._reader.read(ranges)
        learn(self._sst, self._footer, self._located, wanted, found.bytes_at)


def locate(asked: Sequence[tuple[RangedSst, npt.NDArray[np.int64]]], *, filtered: bool = True) -> None:
    """Have at hand what tells which pages of SSTs these hashes (ascending) can be in, in one round trip.

    Errors as of `RangedSst.find`.
    """
    wanted = [one._wanted(hashes, filtered=filtered) for one, hashes in asked]
    ranges = [unknown(one._sst, one._footer, one._located, some) for (one, _), some in zip(asked, wanted, strict=True)]
    found = read_all([(one._reader, some) for (one, _), some in zip(asked, ranges, strict=True)])
    for (one, _), some, stretches in zip(asked, wanted, found, strict=True):
        learn(one._sst, one._footer, one._located, some, stretches.bytes_at)


def read_together(asked: Sequence[tuple[RangedSst, Sequence[Part]]], names: Sequence[str]) -> list[list[Block]]:
    """Rows of several SSTs, in one round trip; arguments and errors as of `RangedSst.read`."""
    found = read_all([(one._reader, one._ranges(parts, names)) for one, parts in asked])
    return [list(one._decode(parts, names, stretches)) for (one, parts), stretches in zip(asked, found, strict=True)]


def _some_of(group: int, pages: npt.NDArray[np.bool_]) -> list[Part]:
    return [Part(group, np.flatnonzero(pages))] if pages.any() else []


def _range(statistics: pq.Statistics | None) -> tuple[int, int]:
    if statistics is not None and statistics.has_min_max:
        return int(statistics.min), int(statistics.max)
    # There is no range of nulls.
    return (_LOWEST, _HIGHEST) if statistics is None or statistics.num_values else (_HIGHEST, _LOWEST)
