from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import slackwater as sw
from msgspec.structs import replace
from pyspark import TaskContext
from slackwater.pipeline.batch.task import StateTask
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.pipeline.upkeep.upkeep import Prefetcher
from slackwater.state.next_version import TaskReport
from slackwater.state.step import Step
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.writer import write_sst
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Column, Manifest, Table

from tests.support.state_rows import AS_ALWAYS, ROUTES, Key, Values, columns, manifest_of, write_version

LARGE = 1 << 40


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", LARGE)


@pytest.fixture
def made(store: CountingStore) -> tuple[Sst, ...]:
    """Return SSTs of four versions, oldest first, none of them cached."""
    ssts: tuple[Sst, ...] = ()
    for seq in range(1, 5):
        changes: dict[Key, Values | None] = {(str(seq), str(i)): (i, i / 2, None) for i in range(200)}
        ssts += write_version(store, None, ROUTES, changes, seq)
    return ssts


@pytest.fixture
def running(store: CountingStore, cache: SstCache, made: tuple[Sst, ...]) -> Iterator[Prefetcher]:
    prefetcher = Prefetcher(store, cache, manifest_of(ROUTES, made))
    yield prefetcher
    prefetcher.close()


def settle(prefetcher: Prefetcher) -> None:
    """Wait until all running fetches have finished."""
    if prefetcher._running is not None:
        prefetcher._running.result(timeout=180)


def names(ssts: tuple[Sst, ...]) -> tuple[str, ...]:
    return tuple(sst.object for sst in ssts)


def test_exactly_the_ssts_that_were_read_piecewise_are_fetched(
    running: Prefetcher, store: CountingStore, cache: SstCache, made: tuple[Sst, ...]
) -> None:
    running.prefetch_missing(manifest_of(ROUTES, made), names(made[1:3]))
    settle(running)
    assert [cache.has(sst) for sst in made] == [False, True, True, False]
    assert store.counts["get"] == 2


def test_the_newest_ssts_are_fetched_first_and_only_as_many_as_fit_into_the_cache(
    store: CountingStore, tmp_path: Path, made: tuple[Sst, ...]
) -> None:
    # Room for two, as they are estimated.
    cache = SstCache(tmp_path / "small", round(sum(sst.bytes for sst in made[2:]) * 4 / 0.9) + 100)
    prefetcher = Prefetcher(store, cache, manifest_of(ROUTES, made))
    prefetcher.prefetch_missing(manifest_of(ROUTES, made), names(made))
    settle(prefetcher)
    prefetcher.close()
    assert [cache.has(sst) for sst in made] == [False, False, True, True]


def test_ssts_no_longer_in_the_head_are_not_fetched(
    running: Prefetcher, cache: SstCache, made: tuple[Sst, ...]
) -> None:
    running.prefetch_missing(manifest_of(ROUTES, made[:2]), names(made))
    settle(running)
    assert [cache.has(sst) for sst in made] == [True, True, False, False]


def test_the_result_of_another_process_compaction_is_fetched_if_its_inputs_were_cached(
    store: CountingStore, cache: SstCache, made: tuple[Sst, ...]
) -> None:
    (merged,) = write_version(store, None, ROUTES, {("m", "x"): (1, 1.0, None), ("n", "x"): (1, 1.0, None)}, 4)
    merged = replace(merged, level=1)
    for here in (False, True):
        prefetcher = Prefetcher(store, cache, manifest_of(ROUTES, made))
        if here:
            cache.open(store, made[1], ROUTES)
        prefetcher.prefetch_missing(manifest_of(ROUTES, (merged,)), ())
        settle(prefetcher)
        prefetcher.close()
        assert cache.has(merged) == here


def test_ssts_written_by_a_batch_are_not_fetched(
    running: Prefetcher, store: CountingStore, made: tuple[Sst, ...]
) -> None:
    new = write_version(store, None, ROUTES, {("n", "x"): (1, 1.0, None)}, 9)
    running.prefetch_missing(manifest_of(ROUTES, (*new, *made)), ())
    assert running._running is None


def test_a_missing_sst_does_not_stop_batches(
    running: Prefetcher, store: CountingStore, cache: SstCache, made: tuple[Sst, ...], caplog: pytest.LogCaptureFixture
) -> None:
    store.delete(made[3].object)
    running.prefetch_missing(manifest_of(ROUTES, made), names(made))
    settle(running)
    assert "postponed" in caplog.text
    store.put(made[3].object, b"damaged")
    running.prefetch_missing(manifest_of(ROUTES, made), ())
    settle(running)
    assert not cache.has(made[3])


def test_closing_waits_for_running_fetches_and_starts_no_more(
    running: Prefetcher, cache: SstCache, made: tuple[Sst, ...]
) -> None:
    running.prefetch_missing(manifest_of(ROUTES, made), names(made))
    running.close()
    # The one under way was finished, those after it not begun, and what comes now is not taken up.
    there = [cache.has(sst) for sst in made]
    assert there == sorted(there)
    running.prefetch_missing(manifest_of(ROUTES, made), names(made))
    assert [cache.has(sst) for sst in made] == there


def test_an_sst_read_piecewise_is_then_fetched_whole(tmp_path: Path, store: CountingStore, cache: SstCache) -> None:
    """After a restart on another machine, the first look-up misses the cache, and the next one hits it."""
    numbers = np.arange(60_000)
    changed: dict[Key, Values | None] = {(str(i), "x"): (i, None, None) for i in numbers.tolist()}
    ssts = write_version(store, None, ROUTES, changed, 1)
    head: Manifest = manifest_of(ROUTES, ssts)
    asked: pa.Table = columns(ROUTES.key, [("7", "x"), ("70000", "x")])

    def look_up() -> list[bool]:
        _, present = multi_get(store, cache, ssts, ROUTES, AS_ALWAYS.of(ROUTES, asked), asked)
        return present.tolist()

    assert look_up() == [True, False]
    assert cache.ranged_objects() == names(ssts)
    prefetcher = Prefetcher(store, SstCache(tmp_path / "cache", LARGE), head)
    prefetcher.prefetch_missing(head, cache.ranged_objects())
    settle(prefetcher)
    prefetcher.close()
    before = store.counts
    assert look_up() == [True, False]
    assert store.counts == before
    assert cache.ranged_objects() == ()


def test_a_task_reports_the_ssts_that_it_reads_piecewise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = object.__new__(TaskContext)
    context._taskAttemptId = 7
    monkeypatch.setattr(TaskContext, "_taskContext", context)
    state = sw.aggregate(n=sw.count()).bind([pa.schema([("k", pa.int64())])], ("k",))
    table = Table((Column("k", "int64"),), (Column("n", "int64"),), 1)
    local = LocalStore(tmp_path / "store")
    keys = pa.table({"k": np.arange(60_000)})
    rows = (
        keys.append_column("n", pa.array(np.full(60_000, 5)))
        .append_column("_hash", pa.array(hash_keys(keys, ["k"])))
        .append_column("_seq", pa.array(np.ones(60_000, np.int64)))
        .append_column("_op", pa.array(np.zeros(60_000, np.int8)))
    )
    old = write_sst(local, None, app="a", stage="s", table=table, partition=0, rows=rows)
    resources = WorkerResources("a", "s", local.url, {}, (tmp_path / "cache", LARGE), 30)
    task = StateTask(resources, "w", 2, (), Step(table, state, 2, 0), (old,))
    asked = pa.table({"_hash": hash_keys(keys.slice(7, 1), ["k"]), "k": [7]})
    reports: list[pa.RecordBatch] = []
    # As in a worker: in a thread that is not the main one, interrupts stay as they are.
    with ThreadPoolExecutor(1) as thread:
        reports += thread.submit(lambda: list(task(asked.to_batches()))).result(timeout=180)
    result = msgspec.msgpack.decode(reports[0].column("result")[0].as_py(), type=TaskReport)
    assert result.ranged == (old.object,)
    (new,) = result.ssts
    cache = SstCache(tmp_path / "cache", LARGE)
    assert cache.open(local, new, table).stored["n"].to_pylist() == [6]
    assert not cache.has(old)
