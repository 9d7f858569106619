"""Look-ups in a table at one version: the newest row of each of many keys, and rows that fall due.

SSTs are searched one by one, newest first, each for the keys that are still missing. Keys outside the SST's hash range
are skipped. If the SST is not on this machine, its Bloom filter and page index exclude more keys (`remote_sst`). A
binary search over the hashes finds candidate rows. At the end, the keys of all candidates are compared at once. If a
candidate only shares the hash of its key, the key is searched again, and compared block by block
(`decode.Block.match`). A tombstone or an expired row ends the search for its key. All steps are vectorised; the cost
depends on the number of keys, not on the size of the state.

Rows that fall due have a time (`_due_at`) in a span, and are found without reading other rows. In a cached SST, the
column of times is scanned in place. Of an SST that is not cached, only the pages are read that may have such times
according to the footer and the page index.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..objects.counting import ReadCounters
from ..objects.protocol import ObjectStore
from ..sst.hashing import hash_keys, normalise_keys, same_keys
from ..sst.schema import DUE, EXPIRES, HASH, OP, SEQ, TOMBSTONE, arrow_schema, expired_mask
from ..sst.sorted_runs import overlapping
from ..versions.entries.ssts import Sst
from ..versions.manifest import Table
from ..versions.side_tables import has_parts
from .cache import SstCache
from .cache_folder import MappedSst
from .decode import Block
from .fetch import request_pool
from .footers import fetch_tails
from .parts import find_parts
from .remote_sst import SMALL_BYTES, RangedSst, load_indexes, read_together


@dataclass(frozen=True, slots=True)
class DueRows:
    """Rows that fall due in a period: keys, values and `_seq`, and the next due time after the period."""

    keys: pa.Table
    values: pa.Table
    seqs: npt.NDArray[np.int64]
    next_ms: int | None


def find_due_rows(
    store: ObjectStore,
    cache: SstCache,
    table: Table,
    ssts: Sequence[Sst],
    reads: ReadCounters,
    span: tuple[int, int],
    hashes: tuple[int, int],
) -> tuple[pa.Table, int | None]:
    """Return `_hash`, key and `_seq` of all rows that fall due in a period, including rows that newer SSTs hide.

    The second value is the earliest time after the period at which a row may fall due, or None. `span` is the first and
    the last millisecond of the period, since 1970 UTC; `hashes` is the lowest and the highest hash to find. All bounds
    are inclusive.
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
            is_due = pc.and_(pc.greater_equal(due, span[0]), pc.less_equal(due, span[1]))
            later.append(pc.min(due.filter(pc.greater(due, span[1]))).as_py())
            at = low + np.flatnonzero(np.asarray(pc.fill_null(is_due, False)))
            rows = block.take(at, [HASH, *key.names, SEQ])
            parts.append(pa.table(rows.columns, schema=parts[0].schema))
    next_ms = min((due_ms for due_ms in later if due_ms is not None), default=None)
    return pa.concat_tables(parts).combine_chunks(), next_ms


def _blocks(
    store: ObjectStore, cache: SstCache, table: Table, sst: Sst, reads: ReadCounters, span: tuple[int, int]
) -> tuple[Iterable[Block], int | None]:
    mapped = cache.cached_rows(sst, table)
    if mapped is None and sst.bytes <= SMALL_BYTES:
        mapped = cache.fetch_rows(store, sst, table, reads)
    if mapped is not None:
        return mapped.blocks, None
    # Repeated reads do not fetch the SST whole, because few pages have due times.
    ranged = RangedSst(store, sst, table, reads)
    parts = ranged.find_values(DUE, *span)
    return ranged.read(parts), ranged.next_value_after(DUE, span[1])


_MIN_SAVED_SHARE = 1 / 6
"""Share of an SST's bytes that range reads must save; if they save less, the whole SST is read."""


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Limits up to which a look-up reads more than it needs, to save round trips."""

    whole_bytes: int = SMALL_BYTES
    """Size in bytes up to which an SST is fetched whole, into the cache, in one round trip."""
    index_bytes: int = 0
    """Size in bytes up to which a page index is fetched together with the footer."""
    max_unfiltered_probes: int = 0
    """Number of probes up to which pages are read without their filter."""
    ahead_bytes: int = 128 << 10
    """Size in bytes up to which pages of several SSTs are read together."""


DEFAULT_READ_AHEAD = ReadAhead()


@dataclass(frozen=True, slots=True)
class TableLookUps:
    """Look-ups of rows in a table at one version, by key or by due time."""

    store: ObjectStore
    cache: SstCache
    table: Table
    ssts: Sequence[Sst]
    clock_ms: int
    reads: ReadCounters = field(default_factory=ReadCounters)

    def get_rows(
        self, hashes: npt.NDArray[np.int64], keys: pa.Table
    ) -> tuple[pa.Table, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return the value columns of each key, a mask of present keys, and the `_seq` of each key's newest row.

        `_seq` is 0 without a row. Arguments and errors are those of `multi_get`.
        """
        seqs = np.zeros(len(hashes), np.int64)
        values, present = multi_get(
            self.store, self.cache, self.ssts, self.table, hashes, keys, self.reads, clock_ms=self.clock_ms, seqs=seqs
        )
        return values, present, seqs

    def get_parts(self, keys: pa.Table) -> tuple[npt.NDArray[np.int64], pa.Table]:
        """Return the parts of keys; the result is that of `find_parts`.

        If `keys` has the key columns of the stage's table, returns all parts of each key. If it has all key columns of
        the table of parts, returns these single parts.
        """
        hashes = hash_keys(keys, keys.column_names)
        if keys.num_columns == len(self.table.key):
            values, present, _ = self.get_rows(hashes, keys)
            rows = pa.table([*keys.columns, *values.columns], [*keys.column_names, *values.column_names])
            return np.flatnonzero(present), rows.filter(pa.array(present))
        return find_parts(self.store, self.cache, self.table, self.ssts, hashes, keys, self.reads)

    def get_due_rows(self, span: tuple[int, int], hashes: tuple[int, int]) -> DueRows:
        """Return the visible rows that fall due in a period. Arguments are those of `find_due_rows`.

        Each row found is looked up by its key, because a newer SST may hide it.
        """
        candidates, next_ms = find_due_rows(self.store, self.cache, self.table, self.ssts, self.reads, span, hashes)
        keys = candidates.drop_columns([SEQ])
        values, present, seqs = self.get_rows(keys[HASH].to_numpy(), keys.drop_columns([HASH]))
        newest = present & (seqs == candidates[SEQ].to_numpy())
        mask = pa.array(newest)
        return DueRows(keys.filter(mask), values.filter(mask), seqs[newest], next_ms)


def multi_get(
    store: ObjectStore,
    cache: SstCache | None,
    ssts: Sequence[Sst],
    table: Table,
    hashes: npt.NDArray[np.int64],
    keys: pa.Table,
    reads: ReadCounters | None = None,
    *,
    clock_ms: int | None = None,
    newer: Iterable[Block] = (),
    seqs: npt.NDArray[np.int64] | None = None,
    expires: npt.NDArray[np.int64] | None = None,
    read_ahead: ReadAhead = DEFAULT_READ_AHEAD,
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Look up the values of keys in a table's SSTs, through the cache.

    Of an SST outside the cache, only the pages that may have the keys are read. The whole SST is fetched into the cache
    instead in two cases: these pages are almost the whole SST, or earlier range reads have cost as much as the whole
    SST.

    Args:
        store: The store of the app.
        cache: This machine's cache. None, for look-ups of few keys, keeps nothing and fetches no SST whole.
        ssts: The SSTs to search, of one or several state partitions, in any order.
        table: The declared columns.
        hashes: `hash_keys` of the keys.
        keys: The key columns, in their declared types; keys may repeat.
        reads: Counters of the look-up; None to count nothing.
        clock_ms: Rows that expire at this time or before are absent (`sst.ttl`); None only for a table without a ttl.
        newer: Rows in memory that are newer than all rows of `ssts`, in the format and order of an SST, with unique
        keys.
        seqs: Output array (shape of `hashes`) for the `_seq` of the newest stored row of each key, including tombstones
            and expired rows; 0 if there is none.
        expires: Output array (shape of `hashes`) for the expiry time of each present row, in milliseconds since 1970
            UTC. Not changed for keys without a row, or if the rows of an SST do not expire.
        read_ahead: Limits up to which more than the needed bytes is read from SSTs outside the cache.

    Returns:
        The value columns with one row for each key in the order of `keys`, null for absent keys; and a mask of present
        keys (shape of `hashes`).

    Raises `Corruption` if an SST is missing or damaged, and `ValueError` if the table has a ttl and no clock is given.
    """
    if table.ttl is not None and clock_ms is None:
        raise ValueError("rows of this table expire: expected clock_ms, found None")
    search = _Search(
        table,
        hashes,
        keys,
        ReadCounters() if reads is None else reads,
        clock_ms,
        with_seqs=seqs is not None,
        with_expires=expires is not None,
    )
    newer, cold = tuple(newer), None
    ssts = overlapping(ssts, int(hashes.min()), int(hashes.max())) if len(hashes) else ()
    while search.missing.size:
        search.search_blocks(newer, search.missing)
        for sst, positions in search.iter_ssts(ssts):
            mapped = cache.cached_rows(sst, table) if cache is not None else None
            search.reads.searched += positions.size
            search.reads.cache_hits += mapped is not None
            search.reads.cache_misses += mapped is None
            if mapped is not None:
                search.search_blocks(mapped.blocks, positions, with_tombstones=sst.tombstones > 0)
                continue
            cold = cold or _UncachedReader(store, cache, ssts, search, read_ahead)
            search.search_blocks(cold.read(sst, positions), positions)
        search.compare_keys()
    if seqs is not None:
        seqs[search.order] = search.seqs
    if expires is not None:
        for positions, times in search.expires:
            expires[search.order[positions]] = times.fill_null((1 << 63) - 1).to_numpy()
    return search.result()


class _UncachedReader:
    """Reads the SSTs of one look-up that are not in the cache."""

    def __init__(
        self, store: ObjectStore, cache: SstCache | None, ssts: Sequence[Sst], search: "_Search", read_ahead: ReadAhead
    ) -> None:
        """Fetch small SSTs whole, and the footers, page indexes and filters of the other SSTs.

        Takes two round trips for all SSTs together, or one if all indexes are within `read_ahead.index_bytes`.
        """
        self._store, self._cache, self._ssts, self._search, self._limits = store, cache, ssts, search, read_ahead
        absent = [(sst, positions) for sst, positions in search.iter_ssts(ssts) if cache is None or not cache.has(sst)]
        by_ranges = [item for item in absent if not self._is_better_whole(item[0])]
        batched = cache is not None and len(absent) > 1
        small = [sst for sst, _ in absent if batched and sst.bytes <= read_ahead.whole_bytes]
        counted = [ReadCounters() for _ in small]
        futures = [request_pool().submit(self._fetch_whole, *item) for item in zip(small, counted, strict=True)]
        tails = fetch_tails(store, [sst for sst, _ in by_ranges], search.table, search.reads, read_ahead.index_bytes)
        self._ranged = {
            sst: RangedSst(store, sst, search.table, search.reads, tail)
            for (sst, _), tail in zip(by_ranges, tails, strict=True)
        }
        for future, reads in zip(futures, counted, strict=True):
            future.result()
            search.reads.add(replace(reads, round_trips=0))
        search.reads.round_trips += bool(small and not by_ranges)
        self._is_filtered = sum(positions.size for _, positions in by_ranges) > read_ahead.max_unfiltered_probes
        probes = [(self._ranged[sst], search.hashes[positions]) for sst, positions in by_ranges]
        load_indexes(probes, filtered=self._is_filtered)
        self._ahead: dict[Sst, list[Block]] = {}

    def _is_better_whole(self, sst: Sst) -> bool:
        cache = self._cache
        return cache is not None and (sst.bytes <= self._limits.whole_bytes or cache.ranged_bytes(sst) >= sst.bytes)

    def read(self, sst: Sst, positions: npt.NDArray[np.int64]) -> Iterable[Block]:
        search, cache = self._search, self._cache
        if self._is_better_whole(sst) and (mapped := self._fetch_whole(sst, search.reads)) is not None:
            search.reads.touched_bytes += sst.bytes - sst.footer_bytes - sst.filter_bytes
            return mapped.blocks
        ranged = self._ranged.get(sst)
        if ranged is None:
            ranged = self._ranged[sst] = RangedSst(self._store, sst, search.table, search.reads)
        hashes = search.hashes[positions]
        passing, parts = ranged.find_hashes(hashes, filtered=self._is_filtered)
        search.reads.touched_bytes += ranged.touched_bytes(hashes)
        search.reads.filtered += int((~passing).sum())
        size = ranged.bytes_of(parts)
        if cache is not None:
            if (
                size > sst.bytes * (1 - _MIN_SAVED_SHARE)
                and (mapped := self._fetch_whole(sst, search.reads)) is not None
            ):
                return mapped.blocks
            cache.count_ranged(sst, size)
        if sst not in self._ahead:
            if not parts or size > self._limits.ahead_bytes:
                return ranged.read(parts, search.columns)
            self._read_ahead(sst)
        return self._ahead.pop(sst)

    def _fetch_whole(self, sst: Sst, reads: ReadCounters) -> MappedSst | None:
        cache = self._cache
        return None if cache is None else cache.fetch_rows(self._store, sst, self._search.table, reads)

    def _read_ahead(self, sst: Sst) -> None:
        parts_of, size = {}, 0
        for other, positions in dropwhile(lambda item: item[0] is not sst, self._search.iter_ssts(self._ssts)):
            if other in self._ranged and other not in self._ahead:
                _, parts = self._ranged[other].find_hashes(self._search.hashes[positions], filtered=self._is_filtered)
                size += self._ranged[other].bytes_of(parts)
                if size > self._limits.ahead_bytes:
                    break
                if parts:
                    parts_of[other] = (self._ranged[other], parts)
        self._ahead |= zip(parts_of, read_together([*parts_of.values()], self._search.columns), strict=True)


class _Search:
    """Keys of a look-up and the rows found so far. Keys are sorted by hash, so that searches hit the CPU's cache."""

    def __init__(
        self,
        table: Table,
        hashes: npt.NDArray[np.int64],
        keys: pa.Table,
        reads: ReadCounters,
        clock_ms: int | None,
        *,
        with_seqs: bool,
        with_expires: bool,
    ) -> None:
        self.table, self.reads, self._clock_ms = table, reads, clock_ms
        reads.keys += len(hashes)
        key_schema, self._schema = arrow_schema(table.key), arrow_schema(table.values)
        self._taken_columns = [*key_schema.names, *self._schema.names, *([SEQ] if with_seqs else [])]
        self.columns = [HASH, *self._taken_columns, OP, EXPIRES]
        self.order = np.argsort(hashes)
        self.hashes = hashes[self.order]
        keys = keys.select(key_schema.names).cast(key_schema)
        self._keys = normalise_keys(keys, key_schema.names).take(pa.array(self.order)).combine_chunks()
        self.seqs = np.zeros(len(hashes) if with_seqs else 0, np.int64)
        self._missing = np.ones(len(hashes), np.bool_)
        self._with_expires = with_expires
        self.expires: list[tuple[npt.NDArray[np.int64], pa.Array | pa.ChunkedArray]] = []
        """Expiry times of found rows, with the positions of their keys."""
        # Many parts of one key share its hash.
        self._compares_at_once = has_parts(table)
        self._located: dict[tuple[str, ...], list[tuple[npt.NDArray[np.int64], pa.RecordBatch]]] = {}
        """Rows located by hash and not compared yet, with positions of their keys, by the rows' columns."""
        self._found_rows: list[pa.Table] = []
        self._found_positions: list[npt.NDArray[np.int64]] = []

    @property
    def missing(self) -> npt.NDArray[np.int64]:
        """Positions of the keys to search."""
        return self._missing.nonzero()[0]

    def iter_ssts(self, ssts: Sequence[Sst]) -> Iterator[tuple[Sst, npt.NDArray[np.int64]]]:
        """Yield the SSTs to search, newest first, with the positions of the missing keys that each SST may have.

        Lazy: a key that was found in one SST is no longer missing for the next SST.
        """
        newest_first = sorted(ssts, key=lambda run: run.seq_max, reverse=True)
        # Most SSTs have none of a few keys. Two searches over all SSTs avoid numpy calls for each SST.
        lows = self.hashes.searchsorted([sst.hash_min for sst in newest_first]).tolist()
        highs = self.hashes.searchsorted([sst.hash_max for sst in newest_first], side="right").tolist()
        for sst, low, high in zip(newest_first, lows, highs, strict=True):
            if low < high and (positions := low + self._missing[low:high].nonzero()[0]).size:
                yield sst, positions

    def search_blocks(
        self, blocks: Iterable[Block], candidates: npt.NDArray[np.int64], *, with_tombstones: bool = True
    ) -> None:
        for block in blocks:
            expires = [EXPIRES] if EXPIRES in block.stored.schema.names else []
            names = [*self._taken_columns, *([OP] if with_tombstones else []), *expires]
            if self._compares_at_once:
                for positions, _, rows, same in block.match(self.hashes, self._keys, candidates, names):
                    self._keep_rows(pa.Table.from_batches([rows]), positions, same)
                continue
            positions, at = block.locate(self.hashes, candidates)
            if positions.size:
                self._missing[positions] = False
                self._located.setdefault(tuple(names), []).append((positions, block.take(at, names)))

    def compare_keys(self) -> None:
        """Compare the keys of all located rows with the searched keys, at once.

        Afterwards, only keys with a hash collision are missing. They need a second search of all SSTs, which compares
        keys block by block.
        """
        collided = [self.missing[:0]]
        for names, located in self._located.items():
            positions = np.concatenate([part for part, _ in located])
            rows = pa.table({name: pa.chunked_array([part.column(name) for _, part in located]) for name in names})
            same = same_keys(self._keys.take(pa.array(positions)), rows, self._keys.schema.names)
            self._keep_rows(rows, positions, same)
            collided.append(positions[~same])
        self._located.clear()
        self._compares_at_once = True
        self._missing[:] = False
        self._missing[np.concatenate(collided)] = True

    def _keep_rows(self, rows: pa.Table, positions: npt.NDArray[np.int64], same: npt.NDArray[np.bool_]) -> None:
        self._missing[positions[same]] = False  # also for a tombstone or an expired row, which hides older rows
        if self.seqs.size:
            self.seqs[positions[same]] = rows.column(SEQ).to_numpy()[same]
        live = same & (np.asarray(rows.column(OP)) != TOMBSTONE) if OP in rows.schema.names else same
        gone = expired_mask(rows, self._clock_ms)
        if gone is not None:
            live = live & ~gone
        if self._with_expires and EXPIRES in rows.schema.names and live.any():
            self.expires.append((positions[live], rows.column(EXPIRES).filter(pa.array(live))))
        values = rows.select(self._schema.names)
        if live.all():
            self._found_rows.append(values)
            self._found_positions.append(positions)
        elif live.any():
            self._found_rows.append(values.filter(pa.array(live)))
            self._found_positions.append(positions[live])

    def result(self) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        source = np.full(len(self.hashes), -1)
        if self._found_positions:
            taken_for = self.order[np.concatenate(self._found_positions)]
            source[taken_for] = np.arange(len(taken_for))
        present = source >= 0
        rows = pa.concat_tables([self._schema.empty_table(), *self._found_rows]).combine_chunks()
        return rows.take(pa.array(source, mask=~present)), present
