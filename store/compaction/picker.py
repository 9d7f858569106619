"""What to compact now, by a table's policy: for each state partition on its own. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from ..sst.sorted_runs import by_partition, sorted_runs, touched
from ..sst.ttl import expired_suffix, may_have_expired
from ..versions.manifest import Manifest, Policy, Sst
from . import leveled, universal
from .plan import Compaction


def pick_for(
    manifest: Manifest, *, full: bool = False, only: Callable[[int], bool] = lambda _partition: True
) -> tuple[Compaction, ...]:
    """`pick` for a version's table, by its clock; `pick_all` with `full`. Nothing where it has no table."""
    table = manifest.table
    if table is None:
        return ()
    choose = partial(pick_all, only=only) if full else pick
    return choose(manifest.ssts, table.partitions, table.compaction, clock_ms=manifest.clock_ms)


def pick(
    ssts: Iterable[Sst], partitions: int, policy: Policy, *, clock_ms: int | None = None
) -> tuple[Compaction, ...]:
    """What a table's policy calls for, partitions ascending; no SST is in two compactions.

    The SSTs are those of a manifest, in any order, and `clock_ms` is its clock; None when no row expires. Where expired
    rows take at least half of the oldest runs' bytes (`ttl.expired_suffix`), these are merged first, however few.

    Carried out and picked anew, it ends: with fewer than `l0_trigger` runs in each state partition (universal), or of
    level 0 and each further level within its size (leveled).

    Raises `ValueError` where the policy could never be met: `l0_trigger` is below 2, or `fanout` not above 1.
    """
    if policy.l0_trigger < 2 or policy.fanout <= 1:
        raise ValueError(
            f"expected l0_trigger of at least 2 and fanout above 1, found {policy.l0_trigger} and {policy.fanout}"
        )
    choose = leveled.pick if policy.kind == "leveled" else universal.pick
    due = (
        one
        for p, mine in by_partition(ssts, partitions).items()
        for one in _forgetting(p, partitions, mine, policy, clock_ms) or choose(p, partitions, mine, policy)
    )
    return _disjoint(_by_clock(one, clock_ms) for one in due)


def _by_clock(one: Compaction, clock_ms: int | None) -> Compaction:
    """The same, forgetting what is expired by then: that takes writing anew what could only change its level."""
    has_expired = clock_ms is not None and any(may_have_expired(sst, clock_ms) for sst in one.inputs)
    return replace(one, clock_ms=clock_ms, moves=one.moves and not has_expired)


def _forgetting(
    partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy, clock_ms: int | None
) -> tuple[Compaction, ...]:
    """The merge that frees what expired rows take, where that is most of it."""
    if clock_ms is None or not any(sst.expiring for sst in ssts):
        return ()
    runs = sorted_runs(ssts)
    start = expired_suffix(runs, clock_ms)
    if start is None:
        return ()
    if policy.kind == "leveled":
        return (leveled.everything(partition, partitions, ssts, policy),)
    return (universal.everything(partition, partitions, [sst for run in runs[start:] for sst in run], policy),)


def pick_all(
    ssts: Sequence[Sst],
    partitions: int,
    policy: Policy,
    *,
    clock_ms: int | None = None,
    only: Callable[[int], bool] = lambda _partition: True,
) -> tuple[Compaction, ...]:
    """Everything of each state partition that `only` allows, to become one run; no SST is in two compactions.

    What is one run without tombstones and expired rows, all of it within its partition, is left alone.
    """

    def is_settled(sst: Sst) -> bool:
        has_expired = clock_ms is not None and may_have_expired(sst, clock_ms)
        return not sst.tombstones and len(touched(sst, partitions)) == 1 and not has_expired

    whole = leveled.everything if policy.kind == "leveled" else universal.everything
    return _disjoint(
        _by_clock(whole(p, partitions, mine, policy), clock_ms)
        for p, mine in by_partition(ssts, partitions).items()
        if only(p) and not (len(sorted_runs(mine)) == 1 and all(is_settled(sst) for sst in mine))
    )


def _disjoint(wanted: Iterable[Compaction]) -> tuple[Compaction, ...]:
    """Those that share no input with one before; what reaches into several partitions has its turn later."""
    picked: list[Compaction] = []
    taken: set[Sst] = set()
    for one in wanted:
        if taken.isdisjoint(one.inputs):
            taken.update(one.inputs)
            picked.append(one)
    return tuple(picked)
