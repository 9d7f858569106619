"""Usage statistics of versions: every request of every process is counted in exactly one version."""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import ObjectNotFound
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.batch.committer import Committer, PendingVersion, StageMeter
from slackwater.store.objects.counting import (
    CountingStore,
    ReadCounters,
    SharedCounts,
    Stats,
    look_up_stats,
    sum_shared_counts,
)
from slackwater.store.objects.local import SpooledStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import codec, history
from slackwater.store.versions.amend import with_stats
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Manifest

from tests.support.histories import STAGES, FlightsApp, Kafka, flights
from tests.support.manifests import any_value, claim, manifest

STATS: st.SearchStrategy[Stats] = any_value(Stats)


@given(STATS, STATS)
def test_added_statistics_can_be_subtracted_again(one: Stats, other: Stats) -> None:
    assert one + other == other + one
    assert one + other - other == one
    assert Stats() + one == one


def test_zero_counts_are_not_stored() -> None:
    head = replace(manifest(1), stats=Stats(puts=3, bytes_written=70), totals=Stats(puts=9))
    stored = json.loads(codec.encode(head))
    assert (stored["stats"], stored["totals"]) == ({"puts": 3, "bytes_written": 70}, {"puts": 9})
    assert codec.decode(codec.encode(head), Manifest, key="k") == head


def test_each_request_is_counted_once() -> None:
    store = CountingStore(MemoryStore())
    store.put("a/x", b"123")
    store.put_if_absent("a/y", b"45")
    store.get("a/x")
    store.get_range("a/x", 0, 2)
    with pytest.raises(ObjectNotFound):
        store.get("a/z")
    assert len([*store.list("a/"), *store.list_folders("a/")]) == 2
    store.delete("a/x")
    assert store.take_stats() == Stats(gets=3, puts=2, lists=2, deletes=1, bytes_read=5, bytes_written=5)
    assert store.take_stats() == Stats()
    store.delete("a/y")
    assert store.take_stats() == Stats(deletes=1)


def test_the_counters_of_a_killed_process_are_visible_to_others(tmp_path: Path) -> None:
    program = (
        "import os; from pathlib import Path; from slackwater.store.objects.counting import SharedCounts as S\n"
        f"S(Path({str(tmp_path)!r}) / 'other').add('get_range', 1 << 40, 0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    mine = SharedCounts(tmp_path / "mine")
    mine.add("list", 0, 0)
    mine.add("put", 0, 7)
    SharedCounts(tmp_path / "mine").add("delete", 0, 0)
    (tmp_path / "just made").touch()
    expected = Stats(gets=1, puts=1, lists=1, deletes=1, bytes_read=1 << 40, bytes_written=7)
    assert sum_shared_counts(tmp_path) == expected
    assert sum_shared_counts(tmp_path / "nothing") == Stats()


def test_requests_of_all_threads_are_counted(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore(), SharedCounts(tmp_path / "1").add)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"{number}", b"x"), range(2_000)))
    assert store.take_stats() == sum_shared_counts(tmp_path) == Stats(puts=2_000, bytes_written=2_000)


@given(st.lists(st.sampled_from(["driver", "app", "planner", "task", "put", "take"]), max_size=40))
def test_the_versions_together_contain_everything_that_was_counted(
    tmp_path_factory: pytest.TempPathFactory, what_happens: list[str]
) -> None:
    """For any counting process, and any times of commits."""
    folder, clock, tasks = tmp_path_factory.mktemp("counts"), count(), [Stats()]
    driver, app = CountingStore(MemoryStore()), CountingStore(MemoryStore())
    planner = CountingStore(MemoryStore(), SharedCounts(folder / "1").add)
    meter = StageMeter(folder, driver, app, clock=lambda: float(next(clock)))
    head = manifest(1)
    for what in (*what_happens, "take"):
        match what:
            case "driver":
                driver.put("x", b"123")
            case "app":
                list(app.list(""))
            case "planner":
                planner.put("x", b"4567")
            case "task":
                tasks.append(Stats(gets=2, keys=10, searched=13))
            case "put":
                meter.record_put(0.25)
            case _:
                head, tasks = with_stats(head, successor(head, **NEXT), meter.take() + sum(tasks, Stats())), []
    came = Counter(what_happens)
    assert head.totals == Stats(
        ms=1000 * (came["take"] + 1),
        puts=came["driver"] + came["planner"],
        bytes_written=3 * came["driver"] + 4 * came["planner"],
        lists=came["app"],
        gets=2 * came["task"],
        keys=10 * came["task"],
        searched=13 * came["task"],
        commits=came["put"],
        commit_ms=250 * came["put"],
    )


NEXT = {"kind": "batch", "epoch": 1, "writer": "w", "by": "h:w", "now_ms": 1}


def sst(name: str, *, size: int, level: int = 0) -> Sst:
    return Sst(name, 0, level, 1, size, "", 0, 1, 1, 1, 0, "", 0)


def test_a_version_counts_the_ssts_that_it_names_first() -> None:
    old, flushed, merged = sst("old", size=100), sst("new", size=7), sst("merged", size=90, level=1)
    before = replace(manifest(1), ssts=(old,), totals=Stats(flushed_bytes=100, gets=1))
    after = with_stats(before, replace(successor(before, **NEXT), ssts=(flushed, merged, old)), Stats(gets=2))
    assert after.stats == Stats(gets=2, flushed_bytes=7, compacted_bytes=90)
    assert after.totals == Stats(gets=3, flushed_bytes=107, compacted_bytes=90)
    # A version from a writer that counts nothing.
    uncounted = successor(after, **NEXT)
    assert (uncounted.stats, uncounted.totals) == (None, after.totals)


def test_statistics_of_look_ups_do_not_include_requests() -> None:
    reads = ReadCounters(
        requests=9, bytes=9, row_groups=1, keys=2, searched=3, filtered=4, cache_hits=5, cache_misses=6
    )
    assert look_up_stats(reads) == Stats(row_groups=1, keys=2, searched=3, filtered=4, cache_hits=5, cache_misses=6)


def test_a_clone_counts_from_zero() -> None:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(4))
    for stage in STAGES:
        head = history.head(app.store, "flights", stage)
        assert head is not None
        commit(app.store, with_stats(head, successor(head, **NEXT | {"epoch": head.epoch}), Stats(gets=1)))
    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="ada")
    for stage in STAGES:
        head = history.head(app.store, "staging", stage)
        assert head is not None
        assert (head.stats, head.totals) == (None, None)


@dataclass
class Writer:
    """A stage whose batches each write an SST, to the store or to a spool, with statistics."""

    inner: MemoryStore
    folder: Path
    max_unflushed: int = 0

    def __post_init__(self) -> None:
        self.store = CountingStore(self.inner)
        claimed = claim(self.store, "app", "stage", writer="w", by="host:w", now_ms=1)
        self.meter = StageMeter(self.folder / "counts", self.store, clock=lambda: 0.0)
        self.spool = SpooledStore(self.store, self.folder / "spool") if self.max_unflushed else None
        self.committer = Committer(
            self.store, claimed, meter=self.meter, spool=self.spool, max_unflushed=self.max_unflushed
        )

    def batch(self) -> None:
        base = self.committer.tip
        made = sst(f"app/stages/stage/sst/{base.version + 1}.parquet", size=5)
        (self.spool or self.store).put(made.object, b"12345")
        manifest = replace(successor(base, **NEXT), ssts=(made, *base.ssts))
        self.committer.submit(PendingVersion(base, manifest, (), 0.0, lambda _done: None, Stats(keys=10)))

    def told(self) -> Stats:
        """Return the sum of the versions' usage. First checks that it equals the newest version's total."""
        made = list(history.iter_after(self.inner, "app", "stage", 0))
        summed = sum((version.stats for version in made if version.stats), Stats())
        assert made[-1].totals == summed
        return summed


def test_a_batch_rebased_on_a_compaction_includes_the_cost_of_the_lost_commit(tmp_path: Path) -> None:
    writer = Writer(MemoryStore(), tmp_path)
    writer.batch()
    before = writer.committer.head
    # Another process, whose requests are its own.
    merged = replace(
        successor(before, **NEXT | {"kind": "compaction", "writer": "other"}),
        ssts=(sst("app/stages/stage/sst/merged.parquet", size=3, level=1),),
    )
    commit(writer.inner, with_stats(before, merged, Stats(gets=7, puts=2)))
    store, gets = writer.store, writer.store.counts.get("get_range", 0)
    writer.batch()
    head = writer.committer.head
    assert (head.version, head.kind) == (4, "batch")
    assert head.stats is not None
    # Puts: the version before, the SST, and the lost manifest. Gets: the winning manifest, and that nothing follows it.
    assert (head.stats.puts, head.stats.gets) == (3, 2)
    assert store.counts["get_range"] - gets == 2
    assert (head.stats.keys, head.stats.flushed_bytes, head.stats.compacted_bytes) == (10, 5, 0)
    told = writer.told()
    assert (told.flushed_bytes, told.compacted_bytes, told.commits) == (10, 3, 1)
    # All but the put of the newest version, plus the counts that the other process reports.
    assert told.puts == store.counts["put"] + store.counts["put_if_absent"] - 1 + 2
    assert told.gets == store.counts["get_range"] + 7
    assert store.take_stats().puts == 1


def test_versions_committed_ahead_of_the_flush_include_its_cost(tmp_path: Path) -> None:
    writer = Writer(MemoryStore(), tmp_path, max_unflushed=3)
    store = writer.store
    for _ in range(6):
        writer.batch()
    assert writer.committer.drain(30)
    told = writer.told()
    assert (told.keys, told.flushed_bytes, told.commits) == (60, 30, 5)
    asked = store.take_stats()
    # Only the put of the newest version is left to report.
    assert asked.puts == 1
    assert told.puts == store.counts["put"] + store.counts["put_if_absent"] - 1
    assert told.bytes_written == store.bytes_written - asked.bytes_written
    writer.committer.close()
