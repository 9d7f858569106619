"""Sorted runs of each hash range of a table, updated from version to version.

A batch adds to the newest runs of a range, and a merge replaces some of the runs. Older runs do not change, so the cost
of an update depends on the changed runs and newer runs, and not on the number of SSTs in older runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..sst.sorted_runs import estimate_within, max_overlap, overlapped_partitions, sorted_runs
from ..sst.ttl import expired_bytes
from ..versions.entries.hash_ranges import hash_bounds
from ..versions.entries.ssts import Sst, Ssts

_EXPIRY_STEPS = 64


@dataclass(slots=True, eq=False)
class Run:
    """Sorted run of one hash range (`sorted_runs`), with the properties of its SSTs that decide about merges."""

    ssts: tuple[Sst, ...]
    """SSTs of the run, newest first."""
    bytes: int
    """Estimated bytes within the hash range."""
    total_bytes: int
    depth: int
    """Largest number of SSTs that can share a key."""
    level: int
    """Level of all SSTs; -1 if the levels differ, or if SSTs of a level above 0 overlap in `_hash`."""
    seq_min: int
    seq_max: int
    is_wide: bool
    """True if an SST reaches beyond the hash range."""
    expiry: tuple[int, int] | None
    """Earliest and latest time at which rows expire, ms; None if no row expires."""
    _expired: tuple[int, float] = (0, 0.0)
    """Clock and result of the last estimate of `expired_bytes`."""

    @staticmethod
    def of(ssts: tuple[Sst, ...], low: int, high: int) -> "Run":
        """Describe a run of a hash range with the bounds `low` and `high`."""
        depth, levels = max_overlap(ssts), {sst.level for sst in ssts}
        has_level = len(levels) == 1 and (depth == 1 or levels == {0})
        expiring = [sst for sst in ssts if sst.expiring]
        return Run(
            ssts,
            sum(estimate_within(sst.bytes, sst, low, high) for sst in ssts),
            sum(sst.bytes for sst in ssts),
            depth,
            levels.pop() if has_level else -1,
            min(sst.seq_min for sst in ssts),
            ssts[0].seq_max,
            any(sst.hash_min < low or sst.hash_max > high for sst in ssts),
            (min(sst.expires_min for sst in expiring), max(sst.expires_max for sst in expiring)) if expiring else None,
        )

    def expired_bytes(self, clock_ms: int) -> float:
        """Estimate the bytes of the rows that have expired at a clock.

        In a run of many SSTs, the estimate is updated in 64 steps over time. Each step examines all SSTs.
        """
        if self.expiry is None or clock_ms < self.expiry[0]:
            return 0.0
        begin, end = self.expiry
        step = max(1, (end - begin) // _EXPIRY_STEPS) if len(self.ssts) > _EXPIRY_STEPS else 1
        at_ms = end if clock_ms >= end else begin + (clock_ms - begin) // step * step
        if self._expired[0] != at_ms:
            self._expired = at_ms, expired_bytes(self.ssts, at_ms)
        return self._expired[1]


class TableRuns:
    """Sorted runs by hash range, newest first, of one version of a table."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.by_range: dict[int, tuple[Run, ...]] = {}
        self._ssts = Ssts()

    def update(self, ssts: Ssts) -> None:
        """Describe another version of the table. Raises `Corruption` and `Unavailable` if leaves cannot be read."""
        added, removed = ssts.changes_since(self._ssts)
        changes: dict[int, tuple[list[Sst], set[Sst]]] = {}
        for sst in added:
            for number in overlapped_partitions(sst, self.partitions):
                changes.setdefault(number, ([], set()))[0].append(sst)
        for sst in removed:
            for number in overlapped_partitions(sst, self.partitions):
                changes.setdefault(number, ([], set()))[1].add(sst)
        for number, (new, gone) in changes.items():
            if runs := self._updated(number, new, gone):
                self.by_range[number] = runs
            else:
                del self.by_range[number]
        self._ssts = ssts

    def between(self, ranges: Iterable[int], oldest: int, newest: int) -> set[Sst]:
        """Return the SSTs of some hash ranges that have a `_seq` from `oldest` to `newest`."""
        return {
            sst
            for number in ranges
            for run in self.by_range.get(number, ())
            if run.seq_min <= newest and run.seq_max >= oldest
            for sst in run.ssts
            if sst.seq_min <= newest and sst.seq_max >= oldest
        }

    def _updated(self, number: int, new: list[Sst], gone: set[Sst]) -> tuple[Run, ...]:
        low, high = hash_bounds(number, self.partitions)
        runs = self.by_range.get(number, ())
        oldest = min(sst.seq_min for sst in (*new, *gone))
        kept = next((at for at, run in enumerate(runs) if run.seq_max < oldest), len(runs))
        while True:
            changed = [sst for run in runs[:kept] for sst in run.ssts if sst not in gone]
            newer = tuple(Run.of(ssts, low, high) for ssts in sorted_runs([*changed, *new]))
            # Two runs of the same level may be a single run.
            if not newer or kept == len(runs) or newer[-1].level <= 0 or newer[-1].level != runs[kept].level:
                return newer + runs[kept:]
            kept += 1
