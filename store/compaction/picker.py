"""Choice of compactions by a table's policy, for each state partition on its own. Pure."""

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
    """Return `pick` for a version's table and clock; with `full`, `pick_all`. Empty if the stage has no table."""
    table = manifest.table
    if table is None:
        return ()
    choose = partial(pick_all, only=only) if full else pick
    return choose(manifest.ssts, table.partitions, table.compaction, clock_ms=manifest.clock_ms)


def pick(
    ssts: Iterable[Sst], partitions: int, policy: Policy, *, clock_ms: int | None = None
) -> tuple[Compaction, ...]:
    """Return the compactions that a table's policy requires, partitions ascending; no SST is in two of them.

    The SSTs are those of a manifest, in any order, and `clock_ms` is its clock; None when no row expires. If expired
    rows take at least half of the bytes of the oldest runs (`ttl.expired_suffix`), these are merged first, however few.

    Repeating pick and merge terminates: with fewer than `l0_trigger` runs in each state partition (universal), or in
    level 0, and every other level within its size (leveled).

    Raises `ValueError` if the policy can never be met: `l0_trigger` is below 2, or `fanout` not above 1.
    """
    if policy.l0_trigger < 2 or policy.fanout <= 1:
        raise ValueError(
            f"expected l0_trigger of at least 2 and fanout above 1, found {policy.l0_trigger} and {policy.fanout}"
        )
    choose = leveled.pick if policy.kind == "leveled" else universal.pick
    due = (
        compaction
        for p, own_ssts in by_partition(ssts, partitions).items()
        for compaction in _merge_expired(p, partitions, own_ssts, policy, clock_ms)
        or choose(p, partitions, own_ssts, policy)
    )
    return _disjoint(_by_clock(compaction, clock_ms) for compaction in due)


def _by_clock(compaction: Compaction, clock_ms: int | None) -> Compaction:
    """Return the compaction with the clock, so that it drops expired rows; then it cannot be a trivial move."""
    has_expired = clock_ms is not None and any(may_have_expired(sst, clock_ms) for sst in compaction.inputs)
    return replace(compaction, clock_ms=clock_ms, moves=compaction.moves and not has_expired)


def _merge_expired(
    partition: int, partitions: int, ssts: Sequence[Sst], policy: Policy, clock_ms: int | None
) -> tuple[Compaction, ...]:
    """Return the merge of the oldest runs if expired rows are most of their bytes, else none."""
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
    """Return the compaction of each state partition that `only` accepts into one run; no SST is in two of them.

    Skips partitions that are already one run, without tombstones and expired rows, and within the partition.
    """

    def is_settled(sst: Sst) -> bool:
        has_expired = clock_ms is not None and may_have_expired(sst, clock_ms)
        return not sst.tombstones and len(touched(sst, partitions)) == 1 and not has_expired

    whole = leveled.everything if policy.kind == "leveled" else universal.everything
    return _disjoint(
        _by_clock(whole(p, partitions, own_ssts, policy), clock_ms)
        for p, own_ssts in by_partition(ssts, partitions).items()
        if only(p) and not (len(sorted_runs(own_ssts)) == 1 and all(is_settled(sst) for sst in own_ssts))
    )


def _disjoint(compactions: Iterable[Compaction]) -> tuple[Compaction, ...]:
    """Return the compactions that share no input with an earlier one; a skipped one is picked again later."""
    picked: list[Compaction] = []
    inputs: set[Sst] = set()
    for compaction in compactions:
        if inputs.isdisjoint(compaction.inputs):
            inputs.update(compaction.inputs)
            picked.append(compaction)
    return tuple(picked)
