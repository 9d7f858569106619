"""What to compact now, by a table's policy: for each state partition on its own. Pure."""

from collections.abc import Callable, Iterable, Sequence

from . import leveled, universal
from .compaction import Compaction
from .manifest import Policy, Sst
from .runs import by_partition, sorted_runs, touched

__all__ = ["pick", "pick_all"]


def pick(ssts: Iterable[Sst], partitions: int, policy: Policy) -> tuple[Compaction, ...]:
    """What a table's policy calls for, partitions ascending; no SST is in two compactions.

    Carried out and picked again, it ends: with fewer than `l0_trigger` runs in each state partition (universal), or of
    level 0 and each further level within its size (leveled).

    Args:
        ssts: those of a manifest, in any order.
        partitions: the table's number of state partitions.
        policy: the table's.

    Raises:
        ValueError: the policy could never be met: `l0_trigger` is below 2, or `fanout` not above 1.
    """
    if policy.l0_trigger < 2 or policy.fanout <= 1:
        raise ValueError(
            f"expected l0_trigger of at least 2 and fanout above 1, found {policy.l0_trigger} and {policy.fanout}"
        )
    choose = leveled.pick if policy.kind == "leveled" else universal.pick
    return _disjoint(
        one for p, mine in by_partition(ssts, partitions).items() for one in choose(p, partitions, mine, policy)
    )


def pick_all(
    ssts: Sequence[Sst], partitions: int, policy: Policy, *, only: Callable[[int], bool] = lambda _partition: True
) -> tuple[Compaction, ...]:
    """Everything of each state partition that `only` allows, to become one run; no SST is in two compactions.

    What is one run without tombstones, all of it within its partition, is left alone.
    """
    whole = leveled.everything if policy.kind == "leveled" else universal.everything
    return _disjoint(
        whole(p, partitions, mine, policy)
        for p, mine in by_partition(ssts, partitions).items()
        if only(p) and not _is_whole(mine, partitions)
    )


def _is_whole(ssts: Sequence[Sst], partitions: int) -> bool:
    settled = all(not sst.tombstones and len(touched(sst, partitions)) == 1 for sst in ssts)
    return settled and len(sorted_runs(ssts)) == 1


def _disjoint(wanted: Iterable[Compaction]) -> tuple[Compaction, ...]:
    """Those that share no input with one before; what reaches into several partitions has its turn later."""
    picked: list[Compaction] = []
    taken: set[Sst] = set()
    for one in wanted:
        if taken.isdisjoint(one.inputs):
            taken.update(one.inputs)
            picked.append(one)
    return tuple(picked)
