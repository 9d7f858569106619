"""Compaction while a stage runs, and its settings in a program."""

import dataclasses
import threading
from pathlib import Path

import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.errors import Refused, Usage
from slackwater.pipeline.api.app import App
from slackwater.pipeline.api.topic import topic
from slackwater.pipeline.run.claim import reconcile_table
from slackwater.pipeline.upkeep.upkeep import Upkeep
from slackwater.store.compaction import merge, plan
from slackwater.store.compaction.picker import pick_for_manifest
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import by_partition
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import Manifest, Policy, Table

from tests.support.running import eventually
from tests.support.state_rows import ROUTES, manifest_of, write_version

TWO = replace(ROUTES, partitions=2, compaction=Policy(l0_trigger=3))


class Slow(MemoryStore):
    """A store whose puts wait until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.waiting = 0

    def put(self, key: str, data: bytes) -> None:
        self.waiting += 1
        assert self.may_go_on.wait(30)
        super().put(key, data)


class Odd(MemoryStore):
    """A store whose puts raise undeclared errors while the test says so."""

    odd = True

    def put(self, key: str, data: bytes) -> None:
        if self.odd:
            raise ZeroDivisionError(key)
        super().put(key, data)


class Stage:
    """A stage whose batches are written at once, with its compactor."""

    def __init__(self, store: MemoryStore, folder: Path, *, threads: int, table: Table = TWO) -> None:
        self.store, self.cache = store, SstCache(folder, 1 << 30)
        self.head = manifest_of(table, ())
        self.compactor = Upkeep(store, self.cache, self.head, threads=threads)
        self.merges: tuple[plan.CompactionResult, ...] = ()
        """Merges that finished before the last version, and that it contains."""

    def batch(self) -> Manifest:
        """Commit a version with changes in every state partition."""
        assert self.head.table is not None
        version = self.head.version + 1
        rows = {(str(n), "x"): (version, None, None) for n in range(20)}
        ssts = (*write_version(self.store, self.cache, self.head.table, rows, version), *self.head.ssts)
        self.merges = self.compactor.finished
        self.head = manifest_of(self.head.table, plan.apply_results(ssts, self.merges), version)
        return self.head

    def folded(self) -> tuple[Sst, ...]:
        """Return the head's SSTs, with the inputs of finished merges replaced by the results."""
        return plan.apply_results(self.head.ssts, self.compactor.finished)

    def until_folded(self, ssts: int) -> tuple[Sst, ...]:
        eventually(lambda: len(self.folded()) == ssts, f"{ssts} SSTs")
        return self.folded()


def test_partitions_are_merged_concurrently_and_the_next_version_adopts_the_results(tmp_path: Path) -> None:
    store = Slow()
    stage = Stage(store, tmp_path, threads=2)
    for _ in range(3):
        head = stage.batch()
    store.waiting = 0
    store.may_go_on.clear()
    due = stage.compactor.start_merges(head)
    assert due == pick_for_manifest(head)
    assert len(due) == 2
    eventually(lambda: store.waiting == 2, "both merges to write")
    # While they go on, what they merge is not merged again.
    assert stage.compactor.start_merges(head) == due
    store.may_go_on.set()
    folded = stage.until_folded(2)
    # A version that was not committed is no reason to lose them.
    assert stage.folded() == folded
    assert store.waiting == 2
    after = stage.batch()
    assert set(folded) < set(after.ssts)
    assert stage.compactor.start_merges(after, stage.merges) == ()
    assert stage.folded() == after.ssts
    stage.compactor.close()


def test_merges_waiting_for_a_thread_follow_the_newest_version(tmp_path: Path) -> None:
    store = Slow()
    stage = Stage(store, tmp_path, threads=1)
    for _ in range(3):
        head = stage.batch()
    store.waiting = 0
    store.may_go_on.clear()
    stage.compactor.start_merges(head)
    eventually(lambda: store.waiting == 1, "the first merge to write")
    # Somebody else merges the other partition meanwhile.
    by_now = by_partition(head.ssts, 2)
    stage.compactor.start_merges(replace(head, ssts=(*by_now[0], by_now[1][0])))
    store.may_go_on.set()
    stage.until_folded(4)
    stage.compactor.close()
    assert store.waiting == 1


def test_a_merge_that_another_process_has_done_is_dropped(tmp_path: Path) -> None:
    stage = Stage(MemoryStore(), tmp_path, threads=1)
    for _ in range(3):
        head = stage.batch()
    stage.compactor.start_merges(head)
    folded = stage.until_folded(2)
    elsewhere = Upkeep(stage.store, stage.cache, head)
    elsewhere.start_merges(head)
    eventually(lambda: len(plan.apply_results(head.ssts, elsewhere.finished)) == 2, "the other compactor")
    stage.head = replace(head, ssts=plan.apply_results(head.ssts, elsewhere.finished), version=head.version + 1)
    assert set(stage.folded()) == set(stage.head.ssts) != set(folded)
    stage.compactor.start_merges(stage.head, stage.compactor.finished)
    for _ in range(2):
        head = stage.batch()
    stage.compactor.start_merges(head)
    stage.until_folded(2)
    stage.compactor.close()
    elsewhere.close()


def test_without_threads_nothing_is_merged_but_due_merges_are_reported(tmp_path: Path) -> None:
    store = CountingStore(MemoryStore())
    stage = Stage(store, tmp_path, threads=0)  # type: ignore[arg-type]
    for _ in range(3):
        head = stage.batch()
    store.reset()
    assert len(stage.compactor.start_merges(head)) == 2
    stage.compactor.close()
    assert store.requests == 0
    assert stage.folded() == head.ssts


def test_a_running_merge_stops_with_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_SLICE_ROWS", 1)
    store = Slow()
    small = Policy(l0_trigger=3, target_file_bytes=1)
    stage = Stage(store, tmp_path, threads=1, table=replace(TWO, compaction=small))
    for _ in range(3):
        head = stage.batch()
    store.waiting = 0
    store.may_go_on.clear()
    stage.compactor.start_merges(head)
    eventually(lambda: store.waiting == 1, "the first SST")
    closing = threading.Thread(target=stage.compactor.close)
    closing.start()
    eventually(stage.compactor._closing.is_set, "the compactor to close")
    store.may_go_on.set()
    closing.join()
    assert store.waiting == 1
    assert stage.folded() == head.ssts


def test_a_merge_with_a_damaged_input_is_postponed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(MemoryStore(), tmp_path, threads=1)
    for _ in range(3):
        head = stage.batch()
    mine = by_partition(head.ssts, 2)[0]
    stage.store.put(mine[0].object, b"")
    stage.cache = SstCache(tmp_path / "empty", 1 << 30)
    compactor = Upkeep(stage.store, stage.cache, head)
    compactor.start_merges(head)
    eventually(lambda: len(plan.apply_results(head.ssts, compactor.finished)) == 4, "the other partition")
    assert "postponed" in caplog.text
    compactor.close()


def test_a_merge_with_an_unexpected_error_is_logged_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Odd()
    store.odd = False
    stage = Stage(store, tmp_path, threads=1)
    for _ in range(3):
        head = stage.batch()
    store.odd = True
    stage.compactor.start_merges(head)

    def failed() -> int:
        return sum(record.exc_info is not None and record.exc_info[0] is ZeroDivisionError for record in caplog.records)

    # One thread: the first failure is no end of the second merge.
    eventually(lambda: failed() == 2, "both merges to fail")
    eventually(lambda: stage.compactor.merge_progress == "nothing", "nothing to be under way")
    assert "compaction of app/stage failed" in caplog.text
    store.odd = False
    stage.compactor.start_merges(head)
    stage.until_folded(2)
    assert stage.compactor.merge_progress == "finished"
    stage.compactor.close()


def test_a_stopped_merge_does_not_count_as_running(tmp_path: Path) -> None:
    stage = Stage(MemoryStore(), tmp_path, threads=1)
    for _ in range(3):
        head = stage.batch()
    one = pick_for_manifest(head)[0]
    stage.compactor.close()
    stage.compactor._running_merges.add(one)
    assert head.table is not None
    stage.compactor._run(head, head.table, one)
    assert stage.compactor.merge_progress == "nothing"


def test_a_program_declares_how_its_tables_are_compacted() -> None:
    app = App("flights")
    app.stage(reads=topic("t"), state=sw.upsert(by="n"), key=["origin", "dest"], name="a")(lambda rows: rows)
    chosen = sw.leveled(level_base_bytes=8 << 20, fanout=8)
    chosen_table = sw.table(compaction=chosen)
    app.stage(reads=topic("t"), state=sw.upsert(by="n"), key="k", name="b", table=chosen_table)(lambda rows: rows)
    assert app.stages["a"].table.compaction is None
    assert sw.universal() == Policy()
    expected = Policy("leveled", l0_trigger=4, level_base_bytes=8 << 20, fanout=8, target_file_bytes=16 << 20)
    assert app.stages["b"].table.compaction == expected
    with pytest.raises(Usage, match="no state= and so no table"):
        app.stage(reads=topic("t"), writes=sw.repartition("r", "k"), table=chosen_table, name="c")(lambda rows: rows)


@pytest.mark.parametrize(
    ("knob", "value"),
    [("l0_trigger", 1), ("max_space_amplification", -0.1), ("target_file_bytes", 1000)],
)
def test_an_impossible_compaction_setting_is_refused_by_name(knob: str, value: float) -> None:
    for policy in (sw.universal, sw.leveled):
        with pytest.raises(Usage, match=f"compaction: {knob} is {value}; expected"):
            policy(**{knob: value})  # type: ignore[arg-type]


def test_a_fanout_of_1_is_refused() -> None:
    with pytest.raises(Usage, match=r"fanout is 1; expected a finite number, 1.1 to 1e\+06"):
        sw.leveled(fanout=1)


def test_a_changed_policy_in_the_program_is_adopted_and_changes_nothing_else() -> None:
    app = App("flights")
    app.stage(reads=topic("t"), state=sw.upsert(by="n"), key=["origin", "dest"], name="a")(lambda rows: rows)
    stage, stored = app.stages["a"], replace(ROUTES, partitions=7, state=sw.upsert(by="n").stored)
    declared = replace(stored, partitions=ROUTES.partitions, compaction=sw.leveled())
    assert reconcile_table(app, stage, declared, manifest_of(stored, ())) == replace(stored, compaction=sw.leveled())
    with pytest.raises(Refused, match=r"was stored as upsert\(by=n\)"):
        reconcile_table(app, dataclasses.replace(stage, state=sw.upsert(by="m")), declared, manifest_of(stored, ()))
