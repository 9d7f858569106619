"""A key is forgotten while the app runs: batches in progress, and later records of the key."""

import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from slackwater.operations.erasure.family import RequestedKeys
from slackwater.operations.erasure.forget import forget
from slackwater.pipeline.batch.committer import Committer, ForgottenMeanwhile, PendingVersion
from slackwater.pipeline.reject.table import DeadLetter, RejectedTable, rejected_row
from slackwater.pipeline.source.wake import PlannerFiles, RequestWatch
from slackwater.snapshot.query.columns import parse_key
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick_for_manifest
from slackwater.store.compaction.plan import CompactionResult, apply_results
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import TableLookUps
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions import apps, history
from slackwater.store.versions.column_types import FieldSource
from slackwater.store.versions.commit import successor
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Table
from slackwater.store.versions.side_tables import REJECTED, REJECTED_RECORDS

from tests.models.profiles import SEARCHES
from tests.operations.erasure.everything import occurrences
from tests.support.collecting import AgingStore, fresh
from tests.support.manifests import claim

TABLE = Table((Column("who", "string"),), (Column("n", "int64"),), 1)
ALL = ("person-1", "person-2", "person-3")
GONE = "person-2"


class Runner:
    """A stage whose table counts records by key, and a runner whose merges wait for the next batch."""

    def __init__(self, folder: Path, max_unflushed: int = 0) -> None:
        self.store, self.cache = AgingStore(), SstCache(folder, 1 << 30)
        apps.create_app(self.store, AppInfo("app", 1))

        def born(draft: Manifest) -> Manifest:
            inputs = {"orders": Input("orders", (0,))}
            lineage = {"": {"who": tuple(FieldSource("orders", field) for field in ("$.who", "headers.h"))}}
            return replace(draft, table=TABLE, inputs=inputs, lineage=lineage)

        head = claim(self.store, "app", "people", writer="w", by="host:1", now_ms=1, build=born)
        self.failed: list[BaseException] = []
        self.committer = Committer(self.store, head, max_unflushed=max_unflushed, on_failure=self.failed.append)
        self.merges: tuple[CompactionResult, ...] = ()
        self.made_again = 0

    def begin(self) -> PendingVersion:
        """Compute a batch, with a record of each key, on the current state."""
        base = self.committer.tip
        merged = replace(base, ssts=apply_results(base.ssts, self.merges))
        keys = pa.concat_tables([parse_key("people", TABLE, [who]) for who in ALL])
        hashes = hash_keys(keys, ["who"])
        old, found, _ = TableLookUps(self.store, self.cache, TABLE, merged.ssts, 0).get_rows(hashes, keys)
        counts = np.where(found, np.asarray(old["n"].fill_null(0)), 0) + 1
        seq = np.full(len(ALL), base.version + 1)
        columns = {"_hash": hashes, "who": keys["who"], "n": counts, "_seq": seq, "_op": np.zeros(len(ALL), np.uint8)}
        sst = writer.write_sst(
            self.store, self.cache, app="app", stage="people", table=TABLE, partition=0, rows=pa.table(columns)
        )
        draft = successor(base, kind="batch", epoch=base.epoch, writer=base.writer, by="host:1", now_ms=1)
        manifest = replace(draft, ssts=apply_results((*base.ssts, sst), self.merges))
        return PendingVersion(base, manifest, self.merges, time.monotonic(), lambda _done: None)

    def end(self, change: PendingVersion) -> None:
        """Commit a batch. If keys were forgotten meanwhile, it is computed again, as by a stage's runner."""
        try:
            self.committer.submit(change)
        except ForgottenMeanwhile:
            self.made_again += 1
            self.committer.adopt_newest()
            self.committer.submit(self.begin())

    def merge(self) -> None:
        """Merge everything; the result is committed with the next batch."""
        head = self.committer.tip
        self.merges = tuple(
            run_compaction(self.store, self.cache, "app", "people", TABLE, each)
            for each in pick_for_manifest(head, full=True)
        )

    def counts(self) -> dict[str, int]:
        """Return the counts by key in the newest version, read as by another process."""
        store = fresh(self.store)
        head = history.head(store, "app", "people")
        assert head is not None
        keys = pa.concat_tables([parse_key("people", TABLE, [who]) for who in ALL])
        values, found, _ = TableLookUps(store, self.cache, TABLE, head.ssts, 0).get_rows(hash_keys(keys, ["who"]), keys)
        return {who: n for who, n, there in zip(ALL, values["n"].to_pylist(), found, strict=True) if there}

    def forget(self) -> None:
        forget(self.store, self.cache, "app", RequestedKeys.parse([f"people={GONE}"]), by="ada")


def amid(runner: Runner, number: int, do: Callable[[], None]) -> int:
    """Forget the key, and call `do` before request `number`. Returns the number of requests."""
    count, busy = 0, False

    def before(verb: str, key: str) -> None:
        nonlocal count, busy
        runner.store.clock_ms += 1
        if busy:
            return
        count += 1
        if count == number:
            busy = True
            do()
            busy = False

    runner.store.before = before
    try:
        runner.forget()
    finally:
        runner.store.before = lambda verb, key: None
    return count


@pytest.mark.parametrize("merging", [False, True])
def test_a_batch_that_ends_during_a_forget_counts_the_key_anew_or_not_at_all(tmp_path: Path, merging: bool) -> None:
    met = set()
    requests = amid(started(tmp_path / "all", merging), 0, lambda: None)
    for number in range(1, requests + 1, 1 if SEARCHES else 10):
        runner = started(tmp_path / str(number), merging)
        under_way = runner.begin()
        amid(runner, number, lambda runner=runner, batch=under_way: runner.end(batch))  # type: ignore[misc]
        counts = runner.counts()
        assert (counts["person-1"], counts["person-3"]) == (4, 4)
        assert counts.get(GONE) in (None, 1)
        met.add(counts.get(GONE))
        runner.merges = ()
        runner.committer.adopt_newest()
        runner.end(runner.begin())
        assert runner.counts() == {"person-1": 5, "person-2": counts.get(GONE, 0) + 1, "person-3": 5}
        old = [rows for name, rows in stored(runner) if rows.get(GONE, 0) > counts.get(GONE, 0) + 1]
        assert old == []
    assert met == {None, 1}


def test_a_runner_with_unflushed_versions_commits_in_order_during_a_forget(tmp_path: Path) -> None:
    runner = Runner(tmp_path, max_unflushed=3)
    watch = RequestWatch(runner.store, "app", PlannerFiles(tmp_path / "told"), clock=iter(range(0, 1_000, 10)).__next__)
    watch.poll(busy=False)
    for _ in range(3):
        runner.end(runner.begin())
    seen: list[bool] = []

    def look() -> None:
        watch.poll(busy=False)
        seen.append(watch.forgetting)
        runner.committer.is_synchronous = watch.forgetting

    under_way = runner.begin()
    runner.store.once("list", "/sst/", look)
    runner.forget()
    runner.end(under_way)  # it was computed on what has the key
    assert (seen, runner.made_again) == ([True], 1)
    assert runner.counts() == {"person-1": 4, "person-2": 1, "person-3": 4}
    look()
    assert seen == [True, False]
    runner.end(runner.begin())
    assert runner.committer.drain(10)
    assert runner.counts() == {"person-1": 5, "person-2": 2, "person-3": 5}
    assert runner.failed == []


def started(folder: Path, merging: bool) -> Runner:
    runner = Runner(folder)
    for _ in range(3):
        runner.end(runner.begin())
    if merging:
        runner.merge()
    return runner


def stored(runner: Runner) -> list[tuple[str, dict[str, int]]]:
    """Return the rows of every existing SST, referenced or not."""
    found = []
    for info in AgingStore.list(runner.store, "app/stages/people/sst/"):
        rows = pq.read_table(io.BytesIO(runner.store.get(info.key))).to_pylist()
        found.append((info.key, {row["who"]: row["n"] for row in rows}))
    return found


def test_an_unfinished_batch_leaves_no_object_with_the_key(tmp_path: Path) -> None:
    runner = started(tmp_path, merging=False)
    amid(runner, 10, lambda: runner.begin() and None)
    assert GONE not in runner.counts()
    assert [rows for _, rows in stored(runner) if GONE in rows] == []


def test_rejected_records_with_the_key_are_removed_and_wait_for_no_retry(tmp_path: Path) -> None:
    runner = started(tmp_path, merging=False)
    head = runner.committer.head
    table = RejectedTable(runner.store, runner.cache, "app", "people")
    letters = [
        DeadLetter("orders", 0, 1, b"k1", b'{"who": "person-2"}', [], "E", "no such", "", input="orders"),
        DeadLetter("orders", 0, 2, b"k2", b'{"who": "person-22"}', [], "E", "no such", "", input="orders"),
        DeadLetter("orders", 0, 3, b"k3", b"{}", [("h", b"person-2")], "E", "no such", "", input="orders"),
        DeadLetter("orders", 0, 4, b"k4", b"{}", [], "E", "person-2 is none", "", input="orders"),
    ]
    rows = [rejected_row(each, version=head.version + 1, now_ms=1) for each in letters]
    side = table.upsert(head, rows, head.version + 1, added=4, waiting=4)
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="host:1", now_ms=1)
    change = PendingVersion(
        head, replace(draft, side_tables={REJECTED: side}), (), time.monotonic(), lambda _done: None
    )
    runner.committer.submit(change)
    runner.store.clock_ms += 1
    runner.forget()
    found = history.head(fresh(runner.store), "app", "people")
    assert found is not None
    now = found.side_tables[REJECTED]
    # The error of the last record contains a name; the record belongs to nobody.
    assert (now.waiting, now.total, sum(sst.rows for sst in now.ssts)) == (2, 4, 2)
    assert sorted(table.read_rows(found)["offset"].to_pylist()) == [2, 4]
    assert now.table == REJECTED_RECORDS
    assert [name for name, _ in occurrences(runner.store, "b'person-2'")] == []
