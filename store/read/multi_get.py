"""Look-ups: the rows of a table as one version has them, the newest row of each of many keys over its sorted runs.

One pass for each SST, newest first, with only the keys that are still missing: the SST's hash range prunes, and where
it is not on this machine its Bloom filter and page index do (`remote_sst`); one binary search over its hashes finds
candidates, equality on the key decides (`decode.Block.match`). A tombstone, or a row that is expired, ends the search
for its key. All steps are vectorised; the cost follows the number of keys asked for, not the size of the state.

Rows that fall due: those whose time (`_due_at`) lies in a span, found without reading the others.

The times of an SST that this machine has are looked through where they lie, a column of integers; of another SST the
footer and the page index say in which pages such times are, and only those are read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..sst.expiry import expired
from ..sst.hashing import normalise_keys
from ..sst.types import DUE, EXPIRES, HASH, OP, SEQ, TOMBSTONE, arrow_schema
from ..versions.manifest import Sst, Table
from .cache import SstCache
from .cache_folder import Mapped
from .decode import Block
from .footers import fetch_tails
from .range_reads import at_once
from .remote_sst import SMALL_BYTES, RangedSst, locate, read_together


@dataclass(frozen=True, slots=True)
class DueRows:
    """Rows that fall due in a span of time."""

    keys: pa.Table
    """`_hash` and the key columns, each key once."""
    values: pa.Table
    """Their value columns."""
    seqs: npt.NDArray[np.int64]
    """Their `_seq`."""
    next_ms: int | None
    """When the next row falls due at the earliest, after the span; None for never."""


def falling_due(
    store: ObjectStore,
    cache: SstCache,
    table: Table,
    ssts: Sequence[Sst],
    reads: Reads,
    span: tuple[int, int],
    hashes: tuple[int, int],
) -> tuple[pa.Table, int | None]:
    """`_hash`, key and `_seq` of the rows of SSTs that fall due in a span of time, newer ones of a key or not.

    And when others fall due after it at the earliest; None for never. `span` is its first and last millisecond since
    1970 UTC, `hashes` are the lowest and the highest of the rows that are looked for. All bounds are included.
    """
    key = arrow_schema(table.key)
    parts = [pa.schema([(HASH, pa.int64()), *key, (SEQ, pa.int64())]).empty_table()]
    later: list[int | None] = []
    for sst in ssts:
        blocks, next_ms = _blocks(store, cache, table, sst, reads, span)
        later.append(next_ms)
        for block in blocks:
            low, high = np.searchsorted(block.hashes, hashes[0]), np.searchsorted(block.hashes, hashes[1], "right")
            due = block.rows([DUE], int(low), int(high - low)).column(0)
            wanted = pc.and_(pc.greater_equal(due, span[0]), pc.less_equal(due, span[1]))
            later.append(pc.min(due.filter(pc.greater(due, span[1]))).as_py())
            at = low + np.flatnonzero(np.asarray(pc.fill_null(wanted, False)))
            some = block.take(at, [HASH, *key.names, SEQ])
            parts.append(pa.table(some.columns, schema=parts[0].schema))
    next_ms = min((each for each in later if each is not None), default=None)
    return pa.concat_tables(parts).combine_chunks(), next_ms


def _blocks(
    store: ObjectStore, cache: SstCache, table: Table, sst: Sst, reads: Reads, span: tuple[int, int]
) -> tuple[Iterable[Block], int | None]:
    """The rows of an SST among which those of the span are, and when others fall due after it at the earliest."""
    mapped = cache.peek(sst, table)
    if mapped is None and sst.bytes <= SMALL_BYTES:
        mapped = cache.bring(store, sst, table, reads)
    if mapped is not None:
        return mapped.blocks, None
    # However often it is looked into, it is not fetched whole for that: the pages whose times fit are few.
    ranged = RangedSst(store, sst, table, reads)
    parts = ranged.having(DUE, *span)
    return ranged.read(parts), ranged.next_after(DUE, span[1])


_SPARED = 1 / 6
"""By ranges, where that spares at least this part of an SST's bytes: so a look-up reads at most 1.2 times the pages
that it needs."""


@dataclass(frozen=True, slots=True)
class Haste:
    """What a look-up may read that it does not need, so as to wait for fewer requests one after the other."""

    whole_bytes: int = SMALL_BYTES
    """An SST up to this is fetched whole, into the cache: in one round trip."""
    index_bytes: int = 0
    """With the footer of an SST comes its page index, where that is at most so large: one round trip less."""
    unfiltered: int = 0
    """Up to so many times a key in an SST, pages are read without a look at the filter: again one less."""
    ahead_bytes: int = 128 << 10
    """Pages of several runs come at once up to this: they cost less than waiting for those of one after the other."""


NO_HASTE = Haste()


@dataclass(frozen=True, slots=True)
class LookUps:
    """Looks up rows of a table at one version: by key, or by when they fall due."""

    store: ObjectStore
    cache: SstCache
    table: Table
    ssts: Sequence[Sst]
    """Where its rows are: of all state partitions, or of the one that is asked about."""
    clock_ms: int
    """Rows that expire at this time or before are absent."""
    reads: Reads = field(default_factory=Reads)
    """Counts the look-ups."""

    def of_keys(
        self, hashes: npt.NDArray[np.int64], keys: pa.Table
    ) -> tuple[pa.Table, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """The value columns of each key, whether it has a row, and that row's `_seq`, 0 for none. As `multi_get`."""
        seqs = np.zeros(len(hashes), np.int64)
        values, found = multi_get(
            self.store, self.cache, self.ssts, self.table, hashes, keys, self.reads, clock_ms=self.clock_ms, seqs=seqs
        )
        return values, found, seqs

    def due(self, span: tuple[int, int], hashes: tuple[int, int]) -> DueRows:
        """The visible rows that fall due in a span of time. Arguments and errors as of `falling_due`.

        What is found is looked up once more, for a newer row of the key may lie in another SST.
        """
        found, next_ms = falling_due(self.store, self.cache, self.table, self.ssts, self.reads, span, hashes)
        keys = found.drop_columns([SEQ])
        values, present, seqs = self.of_keys(keys[HASH].to_numpy(), keys.drop_columns([HASH]))
        newest = present & (seqs == found[SEQ].to_numpy())
        mine = pa.array(newest)
        return DueRows(keys.filter(mine), values.filter(mine), seqs[newest], next_ms)


def multi_get(
    store: ObjectStore,
    cache: SstCache | None,
    ssts: Sequence[Sst],
    table: Table,
    hashes: npt.NDArray[np.int64],
    keys: pa.Table,
    reads: Reads | None = None,
    *,
    clock_ms: int | None = None,
    newer: Iterable[Block] = (),
    seqs: npt.NDArray[np.int64] | None = None,
    haste: Haste = NO_HASTE,
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Look up keys, through the cache.

    Of an SST that is not in the cache only the pages are read in which keys can be, unless these are nearly all of it:
    then it is fetched whole, into the cache. And so it is once these reads have cost as much as the whole.

    Args:
        store: the store of the app.
        cache: this machine's; None for a few keys: nothing is kept, so nothing is fetched whole.
        ssts: the runs to search, of one state partition or of several, in any order.
        table: the declared columns.
        hashes: `hash_keys` of the keys.
        keys: the key columns, in their declared types; a key may be asked for more than once.
        reads: counts what the look-up takes; None does not.
        clock_ms: rows that expire at this time or before are absent (`sst.ttl` says whose clock); None only for a
            table without a ttl.
        newer: rows that are in memory, in the form and order of an SST, each key once, and newer than those of `ssts`.
        seqs: filled with `_seq` of the newest row that is stored of each key, tombstone or expired though it may be; 0
            where none is. Shape of `hashes`.
        haste: what is read of SSTs that are not in the cache, beyond what is needed.

    Returns:
        The value columns with one row for each key in the order asked, nulls where it is absent; and whether
        it is present (shape of `hashes`).

    Raises `Corruption` where an SST is missing or damaged, `Unavailable` where the store did not answer, `ValueError`
    where the table has a ttl, and no clock is given.
    """
    if table.ttl is not None and clock_ms is None:
        raise ValueError("rows of this table expire: expected the clock to judge them by, found none")
    search = _Search(table, hashes, keys, Reads() if reads is None else reads, clock_ms, with_seqs=seqs is not None)
    search.look_in(newer, np.arange(len(hashes)))
    cold = None
    for sst, wanted in search.over(ssts):
        mapped = cache.peek(sst, table) if cache is not None else None
        search.reads.searched += wanted.size
        search.reads.cache_hits += mapped is not None
        search.reads.cache_misses += mapped is None
        if mapped is not None:
            search.look_in(mapped.blocks, wanted)
            continue
        cold = cold or _Cold(store, cache, ssts, search, haste)
        search.look_in(cold.read(sst, wanted), wanted)
    if seqs is not None:
        seqs[search.order] = search.seqs
    return search.result()


class _Cold:
    """The SSTs of a look-up that this machine does not have."""

    def __init__(
        self, store: ObjectStore, cache: SstCache | None, ssts: Sequence[Sst], search: "_Search", haste: Haste
    ) -> None:
        """Fetch the small ones, and the footers of those that will be read by ranges; then what tells where keys are.

        That is two round trips for all of them, or in haste one.
        """
        self._store, self._cache, self._ssts, self._search, self._haste = store, cache, ssts, search, haste
        absent = [(sst, wanted) for sst, wanted in search.over(ssts) if cache is None or not cache.has(sst)]
        by_ranges = [each for each in absent if not self._is_better_whole(each[0])]
        together = cache is not None and len(absent) > 1
        small = [sst for sst, _ in absent if together and sst.bytes <= haste.whole_bytes]
        counted = [Reads() for _ in small]
        coming = [at_once().submit(self._whole, *each) for each in zip(small, counted, strict=True)]
        tails = fetch_tails(store, [sst for sst, _ in by_ranges], search.table, search.reads, haste.index_bytes)
        self._ranged = {
            sst: RangedSst(store, sst, search.table, search.reads, tail)
            for (sst, _), tail in zip(by_ranges, tails, strict=True)
        }
        for found, reads in zip(coming, counted, strict=True):
            found.result()
            search.reads.add(replace(reads, round_trips=0))
        search.reads.round_trips += bool(small and not by_ranges)
        self._is_filtered = sum(wanted.size for _, wanted in by_ranges) > haste.unfiltered
        places = [(self._ranged[sst], search.hashes[wanted]) for sst, wanted in by_ranges]
        locate(places, filtered=self._is_filtered)
        self._ahead: dict[Sst, list[Block]] = {}

    def _is_better_whole(self, sst: Sst) -> bool:
        cache = self._cache
        return cache is not None and (sst.bytes <= self._haste.whole_bytes or cache.ranged_bytes(sst) >= sst.bytes)

    def read(self, sst: Sst, wanted: npt.NDArray[np.int64]) -> Iterable[Block]:
        """The rows among which those of the keys at these positions are."""
        search, cache = self._search, self._cache
        if self._is_better_whole(sst) and (mapped := self._whole(sst, search.reads)) is not None:
            search.reads.touched_bytes += sst.bytes - sst.footer_bytes - sst.filter_bytes
            return mapped.blocks
        ranged = self._ranged.get(sst)
        if ranged is None:
            ranged = self._ranged[sst] = RangedSst(self._store, sst, search.table, search.reads)
        hashes = search.hashes[wanted]
        passing, parts = ranged.find(hashes, filtered=self._is_filtered)
        search.reads.touched_bytes += ranged.touched_bytes(hashes)
        search.reads.filtered += int((~passing).sum())
        size = ranged.bytes_of(parts)
        if cache is not None:
            if size > sst.bytes * (1 - _SPARED) and (mapped := self._whole(sst, search.reads)) is not None:
                return mapped.blocks
            cache.count_ranged(sst, size)
        if sst not in self._ahead:
            if not parts or size > self._haste.ahead_bytes:
                return ranged.read(parts, search.columns)
            self._read_ahead(sst)
        return self._ahead.pop(sst)

    def _whole(self, sst: Sst, reads: Reads) -> Mapped | None:
        cache = self._cache
        return None if cache is None else cache.bring(self._store, sst, self._search.table, reads)

    def _read_ahead(self, sst: Sst) -> None:
        """Read rows of this SST, and of older ones that may be looked in for the same keys, while these are few."""
        parts_of, size = {}, 0
        for one, wanted in dropwhile(lambda each: each[0] is not sst, self._search.over(self._ssts)):
            if one in self._ranged and one not in self._ahead:
                _, parts = self._ranged[one].find(self._search.hashes[wanted], filtered=self._is_filtered)
                size += self._ranged[one].bytes_of(parts)
                if size > self._haste.ahead_bytes:
                    break
                if parts:
                    parts_of[one] = (self._ranged[one], parts)
        self._ahead |= zip(parts_of, read_together([*parts_of.values()], self._search.columns), strict=True)


class _Search:
    """Keys that are looked for, in the order of their hashes: searches in that order find warm memory."""

    def __init__(
        self,
        table: Table,
        hashes: npt.NDArray[np.int64],
        keys: pa.Table,
        reads: Reads,
        clock_ms: int | None,
        *,
        with_seqs: bool,
    ) -> None:
        self.table, self.reads, self._clock_ms = table, reads, clock_ms
        reads.keys += len(hashes)
        key_schema, self._schema = arrow_schema(table.key), arrow_schema(table.values)
        self._taken_columns = [*key_schema.names, *self._schema.names, OP, *([SEQ] if with_seqs else [])]
        self.columns = [HASH, *self._taken_columns, EXPIRES]
        """What is read of an SST's."""
        self.order = np.argsort(hashes)
        """The position, as asked, of each key."""
        self.hashes = hashes[self.order]
        keys = keys.select(key_schema.names).cast(key_schema)
        self._keys = normalise_keys(keys, key_schema.names).take(pa.array(self.order)).combine_chunks()
        self.seqs = np.zeros(len(hashes) if with_seqs else 0, np.int64)
        """`_seq` of the newest stored row of each key, 0 where there is none."""
        self._missing = np.ones(len(hashes), np.bool_)
        self._taken: list[pa.RecordBatch] = []
        self._taken_for: list[npt.NDArray[np.int64]] = []

    def over(self, ssts: Sequence[Sst]) -> Iterator[tuple[Sst, npt.NDArray[np.int64]]]:
        """The SSTs to look in, newest first, each with the positions of missing keys that may be in it.

        Lazily: what was found in one SST is not missing any more when the next comes.
        """
        newest_first = sorted(ssts, key=lambda run: run.seq_max, reverse=True)
        # Of few keys most SSTs can have none: two searches for all SSTs, and no step of numpy's for each.
        lows = self.hashes.searchsorted([sst.hash_min for sst in newest_first]).tolist()
        highs = self.hashes.searchsorted([sst.hash_max for sst in newest_first], side="right").tolist()
        for sst, low, high in zip(newest_first, lows, highs, strict=True):
            if low < high and (wanted := low + self._missing[low:high].nonzero()[0]).size:
                yield sst, wanted

    def look_in(self, blocks: Iterable[Block], wanted: npt.NDArray[np.int64]) -> None:
        """Take what these blocks have of the keys at these positions."""
        for block in blocks:
            expires = [EXPIRES] if EXPIRES in block.stored.schema.names else []
            for positions, _, rows, same in block.match(self.hashes, self._keys, wanted, self._taken_columns + expires):
                self._take(rows, positions, same)

    def _take(self, rows: pa.RecordBatch, wanted: npt.NDArray[np.int64], same: npt.NDArray[np.bool_]) -> None:
        """Note the rows that are the keys' newest ones: where `same`."""
        self._missing[wanted[same]] = False  # also by a tombstone, or an expired row: an older one counts no more
        if self.seqs.size:
            self.seqs[wanted[same]] = rows.column(SEQ).to_numpy()[same]
        live = same & (np.asarray(rows.column(OP)) != TOMBSTONE)
        gone = expired(rows, self._clock_ms)
        if gone is not None:
            live &= ~gone
        values = rows.select(self._schema.names)
        if live.all():
            self._taken.append(values)
            self._taken_for.append(wanted)
        elif live.any():
            self._taken.append(values.filter(pa.array(live)))
            self._taken_for.append(wanted[live])

    def result(self) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """The values, in the order asked, and which keys are there."""
        source = np.full(len(self.hashes), -1)
        if self._taken_for:
            taken_for = self.order[np.concatenate(self._taken_for)]
            source[taken_for] = np.arange(len(taken_for))
        present = source >= 0
        taken = pa.Table.from_batches(self._taken, self._schema).combine_chunks()
        return taken.take(pa.array(source, mask=~present)), present
