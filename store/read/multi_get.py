"""Look-ups: the rows of a table as one version has them, the newest row of each of many keys over its sorted runs.

One pass for each SST, newest first, with only the keys that are still missing: the SST's hash range prunes, and where
it is not on this machine its Bloom filter and page index do (`remote_sst`); one binary search over its hashes finds
candidates, equality on the key decides (`decode.Block.match`). A tombstone, or a row that is expired, ends the search
for its key. All steps are vectorised; the cost follows the number of keys asked for, not the size of the state.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..sst.expiry import expired
from ..sst.hashing import normalise_keys
from ..sst.types import EXPIRES, HASH, OP, SEQ, TOMBSTONE, arrow_schema
from ..versions.manifest import Sst, Table
from .cache import SstCache
from .cache_folder import Mapped
from .decode import Block
from .due_rows import DueRows, falling_due
from .footers import fetch_footers
from .remote_sst import SMALL_BYTES, RangedSst, locate, read_together

_SPARED = 1 / 6
"""By ranges, where that spares at least this part of an SST's bytes: so a look-up reads at most 1.2 times the pages
that it needs."""
_AHEAD_BYTES = 128 << 10
"""Pages of several runs come at once up to this: they cost less than waiting for those of one after the other."""


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
        cold = cold or _Cold(store, cache, ssts, search)
        search.look_in(cold.read(sst, wanted), wanted)
    if seqs is not None:
        seqs[search.order] = search.seqs
    return search.result()


class _Cold:
    """The SSTs of a look-up that this machine does not have."""

    def __init__(self, store: ObjectStore, cache: SstCache | None, ssts: Sequence[Sst], search: "_Search") -> None:
        """Read the footers of those that will be read by ranges, then what tells where keys are in them."""
        self._store, self._cache, self._ssts, self._search = store, cache, ssts, search
        absent = [
            (sst, wanted)
            for sst, wanted in search.over(ssts)
            if cache is None or not (cache.has(sst) or self._is_better_whole(sst))
        ]
        fetch_footers(store, [sst for sst, _ in absent], search.table, search.reads)
        self._ranged = {sst: RangedSst(store, sst, search.table, search.reads) for sst, _ in absent}
        locate([(self._ranged[sst], search.hashes[wanted]) for sst, wanted in absent])
        self._ahead: dict[Sst, list[Block]] = {}

    def _is_better_whole(self, sst: Sst) -> bool:
        cache = self._cache
        return cache is not None and (sst.bytes <= SMALL_BYTES or cache.ranged_bytes(sst) >= sst.bytes)

    def read(self, sst: Sst, wanted: npt.NDArray[np.int64]) -> Iterable[Block]:
        """The rows among which those of the keys at these positions are."""
        search, cache = self._search, self._cache
        if self._is_better_whole(sst) and (mapped := self._whole(sst)) is not None:
            search.reads.touched_bytes += sst.bytes - sst.footer_bytes - sst.filter_bytes
            return mapped.blocks
        ranged = self._ranged.get(sst)
        if ranged is None:
            ranged = self._ranged[sst] = RangedSst(self._store, sst, search.table, search.reads)
        hashes = search.hashes[wanted]
        passing, parts = ranged.find(hashes)
        search.reads.touched_bytes += ranged.touched_bytes(hashes)
        search.reads.filtered += int((~passing).sum())
        size = ranged.bytes_of(parts)
        if cache is not None:
            if size > sst.bytes * (1 - _SPARED) and (mapped := self._whole(sst)) is not None:
                return mapped.blocks
            cache.count_ranged(sst, size)
        if sst not in self._ahead:
            if not parts or size > _AHEAD_BYTES:
                return ranged.read(parts, search.columns)
            self._read_ahead(sst)
        return self._ahead.pop(sst)

    def _whole(self, sst: Sst) -> Mapped | None:
        cache, search = self._cache, self._search
        return None if cache is None else cache.bring(self._store, sst, search.table, search.reads)

    def _read_ahead(self, sst: Sst) -> None:
        """Read rows of this SST, and of older ones that may be looked in for the same keys, while these are few."""
        parts_of, size = {}, 0
        for one, wanted in dropwhile(lambda each: each[0] is not sst, self._search.over(self._ssts)):
            if one in self._ranged and one not in self._ahead:
                _, parts = self._ranged[one].find(self._search.hashes[wanted])
                size += self._ranged[one].bytes_of(parts)
                if size > _AHEAD_BYTES:
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
