"""What a program says of a stage's table: `table=table(partitions=8, ttl="7 days", compaction=leveled())`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import Usage
from ...store.versions.limits import MAX_PARTITIONS
from ...store.versions.manifest import Policy, Ttl
from ...validation import whole
from .compaction_policy import L0_SLOWDOWN, L0_STOP
from .ttl import lifetime_ms


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a stage's table, as `table` takes them. `ttl` is None where rows live for ever."""

    partitions: int
    ttl: Ttl | None
    compaction: Policy
    l0_slowdown: int
    l0_stop: int
    defaults: Mapping[str, object] = field(default_factory=dict, hash=False)


def table(
    *,
    partitions: int = 4,
    ttl: str | None = None,
    ttl_by: str | None = None,
    compaction: Policy | None = None,
    l0_slowdown: int = L0_SLOWDOWN,
    l0_stop: int = L0_STOP,
    defaults: Mapping[str, object] | None = None,
) -> TableOptions:
    """Options of the table that a stage with state keeps.

    Args:
        partitions: State partitions the table is born with: tasks that work on the state at once, and SSTs a version
            writes at most. Of a table that there is already, the stored number counts and this one does not;
            `slackwater rescale` changes it.
        ttl: How long a row lives: `"7 days"`. Default for ever.
        ttl_by: A value column of the table, timestamp or date, from which that counts, by the largest such time that
            the table was given; default from when the row was written, by the wall clock.
        compaction: How SSTs are merged: `universal(...)`, the default, or `leveled(...)`. It may be another one from
            one start to the next.
        l0_slowdown: L0 SSTs in one state partition from which on batches are delayed, so that compaction catches up
            (RocksDB's `level0_slowdown_writes_trigger`).
        l0_stop: L0 SSTs in one state partition from which on no batch starts before compaction has merged them
            (`level0_stop_writes_trigger`).
        defaults: By value column, what rows have in it that were written before the column was there: `{"late": 0}`.
            Default null. It counts when the column is added (`slackwater migrate`), and not for keys that come later.

    Raises:
        Usage: A number is not one that could work, `ttl` is no span of time, or the options contradict each other.
    """
    lifetime = None if ttl is None else Ttl(lifetime_ms(ttl), ttl_by or "")
    if ttl_by and lifetime is None:
        raise Usage(f'table: ttl_by is {ttl_by!r} and there is no ttl; say how long, ttl="7 days"')
    made = TableOptions(
        whole("table: partitions", partitions, 1, MAX_PARTITIONS),
        lifetime,
        compaction or Policy(),
        whole("table: l0_slowdown", l0_slowdown, 2),
        whole("table: l0_stop", l0_stop, 2),
        dict(defaults or {}),
    )
    if made.l0_slowdown > made.l0_stop:
        raise Usage(
            f"table: l0_slowdown is {l0_slowdown} and l0_stop is {l0_stop}; expected two numbers of SSTs, the second "
            "not below the first"
        )
    return made


DEFAULT_TABLE = table()
