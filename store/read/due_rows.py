"""Rows that fall due: those whose time (`_due_at`) lies in a span, found without reading the others.

The times of an SST that this machine has are looked through where they lie, a column of integers; of another SST the
footer and the page index say in which pages such times are, and only those are read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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

    Raises `Corruption` where an SST is missing or damaged, `Unavailable` where the store did not answer.
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
