"""An SST read by ranges: its footer, then only the pages in which some keys can be.

For a cold cache and for single look-ups. The checksum of the whole cannot be checked this way; but the footer, what the
page index says of each row group and each chunk of a filter have one of their own, and each page a CRC.

What is read, for few keys: the footer; then, of the row groups that the keys fall in by their hash, the page index and
those chunks of the filter that the keys ask, all at the same time; then the pages of those keys that a filter lets
pass. So a key costs three round trips. Of a row group in which many keys fall neither index nor filter is asked for:
they would say that all of it is needed.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..sst.bloom import chunks_of, may_have
from ..sst.parquet_pages import HIGHEST, LOWEST, MALFORMED, file_of_pages
from ..sst.types import HASH
from ..sst.writer import PAGE_ROWS
from ..versions.manifest import Sst, Table
from .decode import Block, read_groups
from .fetch import corrupt
from .footers import Located, footer_of
from .range_reads import Pieces, RangeReader, read_all

_KEYS_A_PAGE = 16
"""Up to so many keys for each page of a row group its index and filter are worth reading: a filter is 1/20 of the
bytes, and 0.6 of so many absent keys are ruled out together."""
SMALL_BYTES = 128 << 10
"""An SST up to this is better read whole: one request, where ranges would be several."""
_WINDOW_BYTES = 32 << 20
"""Bounds memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of an SST: pages of a row group."""

    group: int
    pages: npt.NDArray[np.int64] | None
    """Their numbers, ascending; None for all."""


class RangedSst:
    """One SST in the store, of which only what is asked for is read."""

    def __init__(self, store: ObjectStore, sst: Sst, table: Table, reads: Reads, tail: bytes = b"") -> None:
        """Read the footer, unless `tail` (`fetch_tails`) or this process has it; `reads` counts what is read."""
        self._sst, self._reads = sst, reads
        self._reader = RangeReader(store, sst, reads)
        self._footer = footer_of(self._reader, sst, table, tail)
        self._located = Located(sst, self._footer, tail)

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
            pages = np.flatnonzero(inside)
            parts += [Part(group, pages)] if pages.size else []
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

    def having(self, column: str, low: int, high: int) -> list[Part]:
        """The rows among which those are with a value from `low` to `high`, both included, in a column of int64.

        `_hash`, `_seq`, `_expires_at` and `_due_at` have statistics; of another column it gives all rows. Raises as
        `find`.
        """
        least, most = self._ranges_of(column)
        groups = np.flatnonzero((least <= high) & (most >= low)).tolist()
        partly = [group for group in groups if not low <= least[group] <= most[group] <= high]
        _locate([(self, {group: [] for group in partly})])
        parts = []
        for group in groups:
            index = self._located.indexes.get(group) if group in partly else None
            if index is None or column not in index.ranges:
                parts.append(Part(group, None))
            else:
                least_of, most_of = index.ranges[column]
                pages = np.flatnonzero((least_of <= high) & (most_of >= low))
                parts += [Part(group, pages)] if pages.size else []
        return parts

    def next_after(self, column: str, high: int) -> int | None:
        """The least value beyond `high` of the rows that `having` leaves out, as far as the SST says; None for none."""
        ranges = [self._ranges_of(column)]
        ranges += [index.ranges[column] for index in self._located.indexes.values() if column in index.ranges]
        # Where all are null there is no range.
        found = [least[(least > high) & (least <= most)] for least, most in ranges]
        return min((int(values.min()) for values in found if values.size), default=None)

    def _ranges_of(self, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The least and the largest value of a column of int64 in each row group.

        The smallest and the largest int64 where nothing is said, and the other way round where all are null: also in an
        SST of before the table had the column.
        """
        metadata, found = self._footer.metadata, []
        index = next((i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column), None)
        for group in range(metadata.num_row_groups):
            statistics = None if index is None else metadata.row_group(group).column(index).statistics
            if statistics is not None and statistics.has_min_max:
                found.append((int(statistics.min), int(statistics.max)))
            elif index is None or (statistics is not None and not statistics.num_values):
                found.append((HIGHEST, LOWEST))
            else:
                found.append((LOWEST, HIGHEST))
        least, most = np.array(found, np.int64).T
        return least, most

    def bytes_of(self, parts: Sequence[Part]) -> int:
        """How many bytes these rows take."""
        size = 0
        for part in parts:
            if part.pages is None:
                size += int(self._footer.end[part.group] - self._footer.start[part.group])
            else:
                index = self._located.indexes[part.group]
                size += int((index.end[:, part.pages] - index.start[:, part.pages]).sum())
        return size

    def read(
        self, parts: Sequence[Part], names: Sequence[str] | None = None, *, window_bytes: int = _WINDOW_BYTES
    ) -> Iterator[Block]:
        """These rows, in the order of the SST; the parts are as `find` and `having` gave them.

        `names` are the columns that are needed, as the table or an SST itself calls them, and `_hash`; None for all.
        Those that the SST does not have are left out. So many bytes as `window_bytes` are read, decoded and searched at
        once; a larger part comes by itself. Raises as the constructor, also for a damaged page.
        """
        waiting = deque((part, self.bytes_of([part])) for part in parts)
        while waiting:
            part, size = waiting.popleft()
            some = [part]
            while waiting and size + waiting[0][1] <= window_bytes:
                part, more = waiting.popleft()
                some.append(part)
                size += more
            (blocks,) = read_together([(self, some)], names)
            yield from blocks

    def _stored(self, names: Sequence[str]) -> list[str]:
        """What the SST calls these columns, and `_hash`, in its order."""
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

    def _decode(self, parts: Sequence[Part], names: Sequence[str] | None, found: Pieces) -> list[Block]:
        self._reads.row_groups += len(parts)
        schema, groups = self._footer.metadata.schema, [part.group for part in parts]
        nested = [schema.column(number).max_repetition_level > 0 for number in range(len(schema))]
        counts = [self._counts_and_hashes(part) for part in parts]
        chosen = [
            (self._footer.groups[part.group], int(num_rows.sum()), self._pages(part, names))
            for part, (num_rows, _, _) in zip(parts, counts, strict=True)
        ]
        try:
            data = file_of_pages(self._footer.schema, chosen, found.bytes_at, nested)
            file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
            rows = read_groups(file, range(len(parts)), None if names is None else self._stored(names))
        except MALFORMED as error:
            raise corrupt(self._sst, f"pages of row groups {groups} cannot be decoded ({error})") from error
        rows = rows.combine_chunks()
        # Pages of another object are whole, and their CRCs are right: see that these pages are those.
        num_rows, least, most = (np.concatenate(each) for each in zip(*counts, strict=True))
        hashes, ends = rows.column(HASH).to_numpy(), np.cumsum(num_rows)
        if len(hashes) != ends[-1] or (hashes[ends - num_rows] != least).any() or (hashes[ends - 1] != most).any():
            raise corrupt(self._sst, f"pages of row groups {groups} hold other hashes than its footer says")
        return [Block.of(batch, self._footer.reading) for batch in rows.to_batches()]

    def _counts_and_hashes(self, part: Part) -> tuple[npt.NDArray[np.int64], ...]:
        """Of each page, or of the whole row group, how many rows it has, its least and its largest hash."""
        group = part.group
        if part.pages is None:
            num_rows = np.array([self._footer.groups[group].num_rows])
            return num_rows, self._footer.hash_min[[group]], self._footer.hash_max[[group]]
        index = self._located.indexes[group]
        least, most = index.ranges[HASH]
        return np.diff(index.first_row)[part.pages], least[part.pages], most[part.pages]


def locate(wanted: Sequence[tuple[RangedSst, npt.NDArray[np.int64]]], *, filtered: bool = True) -> None:
    """Have at hand what tells which pages of SSTs these hashes (ascending) can be in, in one round trip.

    Raises as `RangedSst.find`.
    """
    worth_reading: list[tuple[RangedSst, dict[int, list[int]]]] = []
    for one, hashes in wanted:
        first, end = one._spans(hashes)
        chunks: dict[int, list[int]] = {}
        for group in np.flatnonzero(first < end).tolist():
            some = hashes[first[group] : end[group]]
            if one._are_few(group, len(some)):
                size = one._footer.filter_bytes(group)
                chunks[group] = np.unique(chunks_of(some, size)).tolist() if filtered else []
        worth_reading.append((one, chunks))
    _locate(worth_reading)


def _locate(wanted: Sequence[tuple[RangedSst, Mapping[int, Sequence[int]]]]) -> None:
    """Have the index of these row groups and these chunks of their filters at hand, in one round trip."""
    found = read_all([(one._reader, one._located.unknown(groups)) for one, groups in wanted])
    for (one, groups), pieces in zip(wanted, found, strict=True):
        one._located.learn(groups, pieces.bytes_at)


def read_together(wanted: Sequence[tuple[RangedSst, Sequence[Part]]], names: Sequence[str] | None) -> list[list[Block]]:
    """Rows of several SSTs, in one round trip; arguments and errors as of `RangedSst.read`."""
    ranges = [
        sorted(each for part in parts for pages in one._pages(part, names) for each in pages) for one, parts in wanted
    ]
    found = read_all([(one._reader, some) for (one, _), some in zip(wanted, ranges, strict=True)])
    return [one._decode(parts, names, pieces) for (one, parts), pieces in zip(wanted, found, strict=True)]
