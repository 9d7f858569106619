"""A batch's rows and the rows that fall due with it, merged into a table. Arrow tables in and out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..store.objects.protocol import ObjectStore
from ..store.read.cache import SstCache
from ..store.read.due_rows import DueRows, due_rows
from ..store.read.read_stats import Reads
from ..store.sst.hashing import normalise_keys, sort_keys
from ..store.sst.sorted_runs import bounds
from ..store.sst.ttl import BEFORE_ALL_MS
from ..store.sst.types import DUE, HASH, OP, PUT
from .kinds.kind import Bound, Groups
from .merge import Base, merge, stored

EVERY_HASH = bounds(0, 1)


@dataclass(frozen=True, slots=True)
class Falling:
    """What falls due with a batch.

    Attributes:
        after_ms: Up to when rows have fallen due before; None for never.
        until_ms: Up to when they do now; None where nobody knows yet how late it is.
        pending: Whether a row may fall due in between.
    """

    after_ms: int | None
    until_ms: int | None
    pending: bool

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last millisecond in which rows fall due now; to be asked where `pending`."""
        assert self.until_ms is not None  # noqa: S101  nothing is pending else
        return BEFORE_ALL_MS if self.after_ms is None else self.after_ms + 1, self.until_ms


@dataclass(frozen=True, slots=True)
class Fallen:
    """What a batch makes of a table whose rows fall due.

    Attributes:
        new: As `merge` gives it, with the rows that fell due and changed.
        emitted: As `merge` gives it; what rows emitted that fell due comes first.
        next_ms: When the next row falls due at the earliest, as far as was looked at; None for never.
    """

    new: pa.Table
    emitted: tuple[pa.Table, ...]
    next_ms: int | None


def merge_falling(
    rows: pa.Table,
    base: Base,
    state: Bound,
    seq: int,
    store: ObjectStore,
    cache: SstCache,
    reads: Reads,
    falling: Falling,
    *,
    hashes: tuple[int, int] | None,
    tells: int | None = None,
) -> Fallen:
    """Merge a batch's rows, none perhaps, and then let the other rows fall due whose time has come.

    A key of the batch never falls due with it: its row is written with a time after `falling.until_ms`, so it does next
    time. A row that falls due and keeps a time that has passed does not fall due again.

    Args:
        rows: As of `merge`.
        base: As of `merge`.
        state: As of `merge`.
        seq: As of `merge`.
        store: As of `merge`.
        cache: As of `merge`.
        reads: As of `merge`.
        falling: Up to when.
        tells: As of `merge`.
        hashes: The lowest and the highest hash of the rows that may fall due; None for none of them.

    Raises:
        As `merge`.
    """
    state = state.until(falling.until_ms)
    made: list[pa.Table] = []
    emitted: list[tuple[pa.Table, ...]] = []
    next_ms: int | None = None
    if falling.pending and hashes is not None:
        found = due_rows(
            store,
            cache,
            base.ssts,
            base.table,
            span=falling.span,
            hashes=hashes,
            clock_ms=base.clock_ms,
            reads=reads,
        )
        next_ms = found.next_ms
        other = _others(found.keys, rows, [column.name for column in base.table.key])
        if other.any():
            new, out = _fall_due(found, other, rows.schema, base, state, seq)
            made.append(_timed(new, falling.until_ms, again=False))
            emitted.append(out)
    if rows.num_rows:
        new, out = merge(rows, base, state, seq, store, cache, reads, tells=tells)
        made.append(_timed(new, falling.until_ms, again=True))
        emitted.append(out)
    if not made:
        return Fallen(pa.table({}), (), next_ms)
    new = pa.concat_tables(made)
    times = [at for at in (next_ms, pc.min(new[DUE]).as_py()) if at is not None]
    parts = [each for each in emitted if each]
    return Fallen(new, tuple(map(pa.concat_tables, zip(*parts, strict=True))), min(times, default=None))


def _others(keys: pa.Table, rows: pa.Table, names: list[str]) -> npt.NDArray[np.bool_]:
    """Which of these keys the batch has no row of."""
    # Nearly no row of a batch has the hash of one that falls due, and these few are compared.
    alike = np.isin(rows[HASH].to_numpy(), keys[HASH].to_numpy())
    if not alike.any():
        return np.ones(keys.num_rows, bool)
    batch = normalise_keys(rows.select([HASH, *names]).filter(pa.array(alike)), names).cast(keys.schema)
    both = pa.concat_tables([batch, keys])
    order, repeats = sort_keys(both[HASH].to_numpy(), both.select(names))
    same = np.zeros(both.num_rows, bool)
    same[order] = repeats
    return ~same[batch.num_rows :]


def _fall_due(
    found: DueRows, chosen: npt.NDArray[np.bool_], schema: pa.Schema, base: Base, state: Bound, seq: int
) -> tuple[pa.Table, tuple[pa.Table, ...]]:
    """What the state makes of some of the rows that fall due: `merge` without records."""
    mine = pa.array(chosen)
    names = [column.name for column in base.table.key]
    nothing = schema.empty_table()
    keys = found.keys.filter(mine).select(names).cast(nothing.select(names).schema)
    groups = Groups(np.empty(0, np.int32), np.zeros(keys.num_rows, np.int64))
    merged = state.merge(nothing.select([*names, *state.needs]), groups, keys, found.values.filter(mine))
    there, hashes = np.ones(keys.num_rows, bool), found.keys[HASH].filter(mine)
    return stored(hashes, keys, merged, there, found.seqs[chosen], seq), merged.emitted


def _timed(rows: pa.Table, until_ms: int | None, *, again: bool) -> pa.Table:
    """The rows, none of which falls due up to then: they do right after it or not at all; those deleted never."""
    never = pa.scalar(None, pa.int64())
    due = pc.if_else(pc.equal(rows[OP], PUT), rows[DUE], never)
    if until_ms is not None:
        due = pc.if_else(pc.less_equal(due, until_ms), pa.scalar(until_ms + 1) if again else never, due)
    at = rows.schema.get_field_index(DUE)
    return rows.set_column(at, rows.schema.field(DUE), due)
