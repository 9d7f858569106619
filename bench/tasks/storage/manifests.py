"""Size of manifests, and CPU of commits, for tables too large for two cores: simulated by SSTs without rows.

The merge picker, leaves and manifests are real. SSTs are only entries in manifests, and the result of a merge has the
sum of its inputs' sizes. There is one batch a second, which adds an SST to each hash range.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from statistics import mean

from msgspec.structs import replace
from slackwater.store.compaction.picker import Picker
from slackwater.store.compaction.plan import Compaction, CompactionResult, Finished, apply_results
from slackwater.store.objects.counting import CountingStore, Prices, Stats, monthly_cost
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import history, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.hash_ranges import hash_bounds
from slackwater.store.versions.entries.ssts import Sst, Ssts
from slackwater.store.versions.leaves.fold import fold_before_commit, fold_ssts, needs_fold
from slackwater.store.versions.leaves.objects import MAX_LEAVES
from slackwater.store.versions.manifest import Column, Manifest, Policy, Table

from ...support.row import Row

FLUSHED_BYTES = 256 << 10
"""Bytes of the SST that a batch writes for a hash range: 20,000 rows of about 12 bytes."""
LIMIT_BYTES, ENTRY_BYTES = 64 << 10, 165
SIZES = ((1024, 16, 1024 * 64), (2048, 32, 2048 * 64), (10_000, 16, 16_000))
"""Numbers of state partitions, tasks and SSTs."""
_DEFAULT = Policy()
_HEX = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Measured:
    """Cost of a table of one size, with one value per version."""

    manifest_bytes: list[int]
    leaf_puts: list[int]
    merge_puts: list[int]
    commit_ms: list[float]
    """CPU milliseconds to build, fold and encode a version."""
    pick_ms: list[float]
    key: tuple[int, int]
    """Requests and bytes to open the newest version for one key in a fresh process."""
    whole: tuple[int, int]


class _Table:
    """A table whose SSTs exist only as manifest entries."""

    def __init__(self, partitions: int, tasks: int, ssts: int, policy: Policy) -> None:
        columns = (Column("k", "int64"),), (Column("v", "int64"),)
        self.table = Table(*columns, partitions, tasks=tasks, compaction=policy)
        self.numbers = count(1)
        self.memory = MemoryStore()
        self.store = CountingStore(self.memory)
        old = (
            self.sst(*hash_bounds(slot, ssts), self.table.compaction.target_file_bytes, 1, 7) for slot in range(ssts)
        )
        first = Manifest("app", "stage", 1, 1, "w", 1, "claim", table=self.table, ssts=Ssts(old))
        self.head = fold_before_commit(self.store, first)
        commit(self.store, self.head)
        self.finished: tuple[Finished, ...] = ()
        self.picker = Picker()
        self.picker.pick(self.head)

    def sst(self, low: int, high: int, size: int, seq: int, level: int, seq_min: int = 0) -> Sst:
        key = keys.sst("app", "stage", f"01{next(self.numbers):024}")
        rows = max(1, size // 50)
        return Sst(key, 0, level, rows, size, _HEX, low, high, seq_min or seq, seq, min(4096, size), _HEX, 0)

    def merge(self, done: Compaction) -> CompactionResult:
        low, high = done.hash_range
        total = sum(sst.bytes for sst in done.inputs)
        parts = max(1, round(total / done.target_file_bytes))
        if done.cuts:
            parts = max(parts, round((high - low + 1) * done.partitions / 2**64))
        width = (high - low + 1) // parts
        seqs = min(sst.seq_min for sst in done.inputs), max(sst.seq_max for sst in done.inputs)
        outputs = tuple(
            self.sst(
                low + n * width, high if n == parts - 1 else low + (n + 1) * width - 1,
                total // parts, seqs[1], done.output_level, seqs[0],
            )
            for n in range(parts)
        )  # fmt: skip
        return CompactionResult(done, outputs)

    def batch(self, tasks: int) -> tuple[int, int, int, float, float]:
        head = self.head
        draft = successor(head, kind="batch", epoch=1, writer="w", by="bench", now_ms=head.time_ms + 1000)
        new = [self.sst(*hash_bounds(task, tasks), FLUSHED_BYTES, draft.version, 0) for task in range(tasks)]
        self.store.take_stats()
        began = time.process_time()
        ssts = apply_results(head.ssts.plus(new), self.finished)
        self.head = fold_before_commit(self.store, replace(draft, ssts=ssts))
        commit(self.store, self.head)
        commit_ms = (time.process_time() - began) * 1000
        merged = sum(len(done.outputs) for done in self.finished if isinstance(done, CompactionResult))
        began = time.process_time()
        due = self.picker.pick(self.head)
        pick_ms = (time.process_time() - began) * 1000
        self.finished = tuple(map(self.merge, due))
        if needs_fold(self.head):
            self.finished += (fold_ssts(self.store, self.head),)
        size = len(self.memory.get(keys.manifest("app", "stage", self.head.version)))
        return size, self.store.take_stats().puts, merged, commit_ms, pick_ms


def measure(
    partitions: int, tasks: int, ssts: int, batches: int, batch_tasks: int = 0, policy: Policy = _DEFAULT
) -> Measured:
    """Commit batches on a table of `tasks` hash ranges. A batch has `batch_tasks` tasks; 0 means one per range."""
    table = _Table(partitions, tasks, ssts, policy)
    sizes, puts, merged, commits, picks = zip(*(table.batch(batch_tasks or tasks) for _ in range(batches)), strict=True)

    def opened(low: int, high: int) -> tuple[int, int]:
        fresh = CountingStore(table.memory)
        head = history.read(fresh, "app", "stage", table.head.version)
        assert head.ssts.within(low, high)
        spent = fresh.take_stats()
        return spent.gets, spent.bytes_read

    return Measured(
        [*sizes],
        [n - 1 for n in puts],
        [*merged],
        [*commits],
        [*picks],
        opened(12345, 12345),
        opened(-(2**63), 2**63 - 1),
    )


def simulated_rows(quick: bool) -> list[Row]:
    """Simulate tables of 1,024 and 2,048 state partitions with 64 SSTs each, and one of 10,000 with a billion keys."""
    measured: list[Row] = []
    for partitions, tasks, ssts in SIZES:
        size = f"{partitions:,} state partitions, {tasks} tasks, {ssts:,} SSTs"
        cost = measure(partitions, tasks, ssts // (16 if quick else 1), 10 if quick else 60)
        new_bytes = tasks * ENTRY_BYTES
        measured += [
            _row(
                f"bytes of a manifest, most of {len(cost.manifest_bytes)} batches: {size}",
                max(cost.manifest_bytes),
                LIMIT_BYTES + new_bytes,
            ),
            _row(f"puts of leaves a batch: {size}", mean(cost.leaf_puts), 1),
            _row(
                f"CPU of a commit, ms, mean; {mean(cost.pick_ms):.0f} ms more to pick merges: {size}",
                mean(cost.commit_ms),
                50,
            ),
            _row(f"GETs for one key, cold, {cost.key[1]:,} bytes: {size}", cost.key[0], 2),
            _row(
                f"GETs for all entries, cold, {cost.whole[1]:,} bytes, two in sequence: {size}",
                cost.whole[0],
                1 + MAX_LEAVES,
            ),
        ]
    return [*measured, _cost(1_500 if not quick else 30)]


def _cost(batches: int) -> Row:
    """Compute the monthly cost of puts for one batch of 16 tasks a second: SSTs, leaves, merges and manifests."""
    cost = measure(1024, 16, 1_600, batches, policy=Policy(l0_trigger=16))
    steady = slice(batches // 4, None)
    puts = 16 + 1 + mean(cost.leaf_puts[steady]) + mean(cost.merge_puts[steady])
    hourly = Stats(puts=round(puts * 3600))
    return _row(
        "USD a month for puts, 16 tasks a second and so l0_trigger=16, 100 GB",
        monthly_cost(hourly, 0, Prices()).total,
        250,
    )


def _row(name: str, value: float, limit: float) -> Row:
    return Row.at_most(name, f"{value:,.1f}", f"{limit:,.0f}", value / limit, 1)
