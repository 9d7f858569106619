"""The rows of a table as one version has them: looked up by their keys, or because they fall due.

Those fall due whose time (`_due_at`) lies in a span; they are found without reading the others.

The times of an SST that this machine has are looked through where they lie, a column of integers; of another SST the
footer and the page index say in which pages such times are, and only those are read. What is found is looked up once
more, for a newer row of the key may lie in another SST.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..objects.protocol import ObjectStore
from ..objects.stats import Reads
from ..sst.types import DUE, HASH, SEQ, arrow_schema
from ..versions.manifest import Sst, Table
from .cache import SstCache
from .decode import Block
from .multi_get import multi_get
from .remote_sst import SMALL_BYTES, RangedSst


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


@dataclass(frozen=True, slots=True)
class TableRows:
    """What a batch looks up."""

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
        """The visible rows that fall due in a span of time: its first and last millisecond since 1970 UTC.

        `hashes` are the lowest and the highest of the rows that are looked for. All bounds are included.

        Raises `Corruption` where an SST is missing or damaged, `Unavailable` where the store did not answer.
        """
        key = arrow_schema(self.table.key)
        parts = [pa.schema([(HASH, pa.int64()), *key, (SEQ, pa.int64())]).empty_table()]
        later: list[int | None] = []
        for sst in self.ssts:
            blocks, next_ms = self._blocks(sst, span)
            later.append(next_ms)
            for block in blocks:
                low, high = (
                    np.searchsorted(block.hashes, hashes[0]),
                    np.searchsorted(block.hashes, hashes[1], "right"),
                )
                due = block.rows([DUE], int(low), int(high - low)).column(0)
                wanted = pc.and_(pc.greater_equal(due, span[0]), pc.less_equal(due, span[1]))
                later.append(pc.min(due.filter(pc.greater(due, span[1]))).as_py())
                at = low + np.flatnonzero(np.asarray(pc.fill_null(wanted, False)))
                some = block.take(at, [HASH, *key.names, SEQ])
                parts.append(pa.table(some.columns, schema=parts[0].schema))
        found = pa.concat_tables(parts).combine_chunks()
        keys = found.drop_columns([SEQ])
        values, present, seqs = self.of_keys(keys[HASH].to_numpy(), keys.drop_columns([HASH]))
        newest = present & (seqs == found[SEQ].to_numpy())
        mine = pa.array(newest)
        next_ms = min((each for each in later if each is not None), default=None)
        return DueRows(keys.filter(mine), values.filter(mine), seqs[newest], next_ms)

    def _blocks(self, sst: Sst, span: tuple[int, int]) -> tuple[Iterable[Block], int | None]:
        """The rows of an SST among which those of the span are, and when others fall due after it at the earliest."""
        mapped = self.cache.peek(sst, self.table)
        if mapped is None and sst.bytes <= SMALL_BYTES:
            mapped = self.cache.bring(self.store, sst, self.table, self.reads)
        if mapped is not None:
            return mapped.blocks, None
        ranged = RangedSst(self.store, sst, self.table, self.reads)
        parts = ranged.having(DUE, *span)
        return ranged.read(parts), ranged.next_after(DUE, span[1])
