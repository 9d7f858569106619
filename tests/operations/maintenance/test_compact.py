"""Compaction of an app's tables outside its runner."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from slackwater.errors import CommitConflict, Corruption, NotFound, Refused, Unavailable
from slackwater.operations.maintenance.compact import AppCompactor, Compacted, Merge, StageCompactor, plan
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.snapshot.verify.verify import verify
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick_for_manifest
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.sorted_runs import by_partition, max_overlap, sorted_runs
from slackwater.store.versions import amend, history
from slackwater.store.versions.manifest import Manifest, Policy

from tests.store.objects.faulty_store import FaultyStore
from tests.support.collecting import StoreClock, aging_app
from tests.support.histories import FlightsApp, Kafka, app_of, flights, rows_of


@pytest.fixture
def app() -> FlightsApp:
    """Return ten batches of a hundred flights: ten runs in each of two state partitions per table."""
    return app_of(100)


@pytest.fixture
def cache(tmp_path: Path) -> SstCache:
    return SstCache(tmp_path / "cache", 1 << 30)


def compactor(app: FlightsApp, cache: SstCache, *stages: str, **options: Any) -> AppCompactor:
    options = {"by": "ada@host", "threads": 2, "now_ms": lambda: app.clock.now_ms, "stop": threading.Event()} | options
    return AppCompactor(options.pop("store", app.store), cache, app.name, stages, **options)


def head(app: FlightsApp, stage: str) -> Manifest:
    found = history.head(app.store, app.name, stage)
    assert found is not None
    return found


def sound(app: FlightsApp) -> bool:
    return verify(app.store, app.name, now_ms=app.clock.now_ms, deep=True).consistent


def test_a_dry_run_lists_due_merges_and_changes_nothing(app: FlightsApp) -> None:
    before = list(app.store.list("flights/"))
    due = plan(app.store, app.name)
    assert [(merge.stage, merge.partition, merge.inputs) for merge in due] == [
        (stage, partition, 10) for stage in ("aircraft", "carriers") for partition in (0, 1)
    ]
    ssts = by_partition(head(app, "aircraft").ssts, 2)[0]
    size = sum(sst.bytes for sst in ssts)
    assert due[0] == Merge("aircraft", 0, 10, size, (0,), 1, moves=False, drops_tombstones=True)
    assert list(app.store.list("flights/")) == before
    assert plan(app.store, app.name, ("carriers",)) == due[2:]


def test_a_stage_without_a_table_and_an_unknown_stage_are_refused(app: FlightsApp, cache: SstCache) -> None:
    for ask in (
        lambda name: plan(app.store, app.name, (name,)),
        lambda name: [*compactor(app, cache, name).merge_due()],
    ):
        with pytest.raises(Refused, match="flights/legs has no table"):
            ask("legs")
        with pytest.raises(NotFound, match="the nearest: carriers"):
            ask("carrier")


def test_a_compaction_is_a_separate_version_that_changes_no_row(app: FlightsApp, cache: SstCache) -> None:
    before = {stage: head(app, stage) for stage in ("legs", "aircraft", "carriers")}
    done = [*compactor(app, cache).merge_due()]
    assert [(each.stage, each.version, each.merges, each.partitions) for each in done] == [
        ("aircraft", 12, 2, (0, 1)),
        ("carriers", 12, 2, (0, 1)),
    ]
    assert head(app, "legs") == before["legs"]
    for stage in ("aircraft", "carriers"):
        after = head(app, stage)
        assert (after.kind, after.epoch, after.by) == ("compaction", before[stage].epoch, "ada@host")
        assert rows_of(app.store, after) == app.state[stage]
        assert len(after.ssts) == 2
        assert replace(after, **changes(before[stage])) == before[stage]
    # Of one instant, senders come first on the line, so each merge lies among the commits of its own stage.
    for stage in ("aircraft", "carriers"):
        (entry,) = log_entries(app.store, app.name, 1, stage=stage)
        assert (entry.kind, entry.rows_in, entry.windows) == ("compaction", 0, ())
    assert sound(app)
    assert [*compactor(app, cache).merge_due()] == []


class Odd(MemoryStore):
    """A store that raises an undeclared error at a put of an SST of one stage."""

    stage = ""

    def put(self, key: str, data: bytes) -> None:
        if self.stage and f"/{self.stage}/sst/" in key:
            raise ZeroDivisionError(key)
        super().put(key, data)


def test_a_table_that_fails_is_named_and_the_other_tables_are_merged(cache: SstCache) -> None:
    store = Odd()
    app = FlightsApp(store, Kafka())
    app.run(flights(100))
    store.stage = "aircraft"
    failures: list[tuple[str, str]] = []
    done = [
        *compactor(app, cache).merge_due(on_failure=lambda stage, error: failures.append((stage, type(error).__name__)))
    ]
    assert [each.stage for each in done] == ["carriers"]
    assert failures == [("aircraft", "ZeroDivisionError")]
    with pytest.raises(ZeroDivisionError) as failed:
        [*compactor(app, cache).merge_due()]
    assert failed.value.__notes__ == ["while compacting flights/aircraft"]
    store.stage = ""
    assert [each.stage for each in compactor(app, cache).merge_due()] == ["aircraft"]


def changes(before: Manifest) -> dict[str, Any]:
    """Return the fields in which a version may differ from the one before a compaction."""
    names = ("version", "writer", "time_ms", "kind", "ssts", "by", "duration_ms", "inputs", "outputs")
    names += ("stats", "totals")
    return {name: getattr(before, name) for name in names}


def test_a_compaction_reports_its_requests_and_bytes(app: FlightsApp, cache: SstCache) -> None:
    asked = CountingStore(app.store)
    done = [*compactor(app, cache, "aircraft", store=asked).merge_due()]
    after = head(app, "aircraft")
    assert after.stats is not None
    # The merged SSTs, but not the manifest that says so; each input comes from the store, a footer and pieces.
    assert after.stats.puts == asked.counts["put"] == 2
    assert after.stats.bytes_written == after.stats.compacted_bytes == sum(each.bytes_written for each in done)
    assert 20 <= after.stats.gets <= asked.counts.get("get", 0) + asked.counts["get_range"]
    assert (after.stats.flushed_bytes, after.stats.ms, after.totals) == (0, 0, after.stats)


def test_later_stages_and_a_running_snapshot_continue_after_a_compaction(app: FlightsApp, cache: SstCache) -> None:
    asked = request_snapshot(app.store, app.name, "good", "ada@host")
    app.send(*flights(5))
    app.step("legs")
    app.step("aircraft")
    recorded = head(app, "aircraft").recorded
    assert recorded
    [*compactor(app, cache).merge_due()]
    app.heads |= {stage: head(app, stage) for stage in app.heads}
    assert head(app, "aircraft").recorded == recorded
    assert app.step("carriers").inputs["by-carrier"].rows == 5
    snapshot = try_complete(app.store, app.name, asked)
    assert snapshot is not None
    assert snapshot.stages["aircraft"] == recorded[asked.id] == head(app, "aircraft").version - 1
    app.run(flights(20))
    assert sound(app)
    assert verify(app.store, "flights@good", now_ms=app.clock.now_ms, deep=True).consistent


class Interrupted(MemoryStore):
    """A store that calls a function before a version of kind "compaction" is created."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[Callable[[], object]] = []

    def put_if_absent(self, key: str, data: bytes) -> None:
        if b'"kind":"compaction"' in data and self.first:
            self.first.pop(0)()
        super().put_if_absent(key, data)


@pytest.fixture
def raced() -> FlightsApp:
    app = FlightsApp(Interrupted(), Kafka())
    app.run(flights(100))
    return app


def test_if_batches_commit_first_the_result_goes_into_the_next_version(raced: FlightsApp, cache: SstCache) -> None:
    def batch() -> None:
        raced.send(*flights(3))
        raced.step_all()

    raced.store.first += [batch, batch]  # type: ignore[attr-defined]
    before = len(head(raced, "aircraft").ssts)
    (done,) = compactor(raced, cache, "aircraft").merge_due()
    assert (done.version, done.left_out) == (14, 0)
    after = head(raced, "aircraft")
    assert rows_of(raced.store, after) == raced.state["aircraft"]
    assert len(after.ssts) == before - 20 + 2 + 4
    assert sound(raced)


def test_a_result_that_gc_deleted_before_its_commit_is_dropped(cache: SstCache) -> None:
    app = aging_app(step_ms=1000)
    app.run(flights(100))
    before = head(app, "carriers")
    landing = StageCompactor(
        app.store, cache, before, by="ada@host", threads=1, now_ms=lambda: app.clock.now_ms, stop=threading.Event()
    )
    assert before.table is not None
    done = [
        run_compaction(app.store, cache, app.name, "carriers", before.table, one) for one in pick_for_manifest(before)
    ]
    assert len(done) == 2
    # The compactor slept for long while the app continued. One result no longer exists.
    app.run(flights(10))
    for sst in done[0].outputs:
        app.store.delete(sst.object)
    landed = landing._commit_results(done)
    assert landed is not None
    assert (landed.merges, landed.left_out) == (1, 1)
    assert sound(app)
    for sst in done[1].outputs:
        assert sst in head(app, "carriers").ssts
    again = [run_compaction(app.store, cache, app.name, "carriers", before.table, done[0].compaction)]
    app.heads["carriers"] = head(app, "carriers")
    cast("StoreClock", app.clock).wait(5000)
    app.run(flights(10))
    assert collect(app.store, app.name, Retention(), by="test", margin_ms=1000).objects > 0
    assert landing._commit_results(again) is None
    assert sound(app)


def test_a_claim_that_commits_first_neither_stops_the_merge_nor_is_undone(raced: FlightsApp, cache: SstCache) -> None:
    raced.store.first.append(lambda: raced.claim("aircraft"))  # type: ignore[attr-defined]
    epoch = head(raced, "aircraft").epoch
    (done,) = compactor(raced, cache, "aircraft").merge_due()
    after = head(raced, "aircraft")
    assert (after.version, after.kind, after.epoch) == (done.version, "compaction", epoch + 1)
    assert rows_of(raced.store, after) == raced.state["aircraft"]


def test_a_rescale_that_commits_first_does_not_lose_the_result(raced: FlightsApp, cache: SstCache) -> None:
    raced.store.first.append(lambda: raced.rescale("aircraft", 5))  # type: ignore[attr-defined]
    [*compactor(raced, cache, "aircraft").merge_due()]
    after = head(raced, "aircraft")
    assert after.table is not None
    assert after.table.partitions == 5
    assert rows_of(raced.store, after) == raced.state["aircraft"]
    assert sound(raced)


def test_the_slower_of_two_compactors_drops_its_result(raced: FlightsApp, cache: SstCache) -> None:
    done: list[Compacted] = []
    raced.store.first.append(lambda: done.extend(compactor(raced, cache, "aircraft").merge_due()))  # type: ignore[attr-defined]
    assert [*compactor(raced, cache, "aircraft").merge_due()] == []
    assert [each.version for each in done] == [12]
    assert rows_of(raced.store, head(raced, "aircraft")) == raced.state["aircraft"]


def test_a_commit_race_that_is_always_lost_is_given_up(
    raced: FlightsApp, cache: SstCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amend, "_ATTEMPTS", 3)

    def batch() -> None:
        raced.send(*flights(3))
        raced.step_all()

    raced.store.first += [batch] * 3  # type: ignore[attr-defined]
    with pytest.raises(CommitConflict):
        [*compactor(raced, cache, "aircraft").merge_due()]
    assert sound(raced)


def test_a_full_merge_merges_the_table_once_despite_concurrent_batches(raced: FlightsApp, cache: SstCache) -> None:
    raced.delete("aircraft", "N001")

    def batch() -> None:
        raced.send(*flights(3))
        raced.step_all()

    raced.store.first += [batch] * 2  # type: ignore[attr-defined]
    (done,) = compactor(raced, cache, "aircraft").merge_due(full=True)
    assert done.merges == 2
    raced.store.first.clear()  # type: ignore[attr-defined]
    (done,) = compactor(raced, cache, "aircraft").merge_due(full=True)
    after = head(raced, "aircraft")
    assert [len(sorted_runs(mine)) for mine in by_partition(after.ssts, 2).values()] == [1, 1]
    assert not any(sst.tombstones for sst in after.ssts)
    assert rows_of(raced.store, after) == raced.state["aircraft"]
    assert [*compactor(raced, cache, "aircraft").merge_due(full=True)] == []
    assert plan(raced.store, raced.name, ("aircraft",), full=True) == ()


def test_each_table_is_merged_by_its_own_policy(app: FlightsApp, cache: SstCache) -> None:
    table = replace(app.table("aircraft"), compaction=Policy("leveled", l0_trigger=4))
    app.commit(replace(head(app, "aircraft"), version=12, table=table, ssts=head(app, "aircraft").ssts))
    app.run(flights(20))
    (one, *_) = plan(app.store, app.name, ("aircraft",))
    assert (one.inputs, one.level) == (12, 1)
    [*compactor(app, cache, "aircraft").merge_due()]
    for mine in by_partition(head(app, "aircraft").ssts, 2).values():
        assert max_overlap(mine) == 1


def test_a_check_with_nothing_due_costs_a_listing_and_one_request_per_stage(app: FlightsApp, cache: SstCache) -> None:
    store = CountingStore(app.store)
    watching = compactor(app, cache, store=store)
    assert len([*watching.merge_due()]) == 2
    app.heads |= {stage: head(app, stage) for stage in app.heads}
    store.reset()
    assert [*watching.merge_due()] == []
    assert store.counts == {"list_folders": 1, "get_range": 2}
    # What is new it finds.
    app.run(flights(100))
    assert len([*watching.merge_due()]) == 2


def test_merges_are_recorded_in_the_log_of_operations(app: FlightsApp, cache: SstCache) -> None:
    told: list[Compacted] = []
    (done,) = compactor(app, cache, "aircraft").merge_once(full=True, on_version=told.append)
    assert told == [done]
    assert compactor(app, cache, "aircraft").merge_once(full=True, on_version=told.append) == ()
    operations = list_operations(app.store, app.name)
    assert [(each.verb, each.detail) for each in operations] == [("compact", f"--full, aircraft@v{done.version}")]


def test_watching_continues_during_a_store_outage(app: FlightsApp, cache: SstCache) -> None:
    stop, notes = threading.Event(), list[str]()
    store = FaultyStore(app.store, 0, refused=0.3, lost=0, late=0, echoed=0)
    watching = compactor(app, cache, store=store, stop=stop)

    def away(_: Unavailable) -> None:
        notes.append("away")
        # It is back: with every third request refused, a merge of so many would take for ever.
        store._rates["refused"] = 0.0

    def merged(done: Compacted) -> None:
        notes.append(done.stage)
        if {"aircraft", "carriers"} <= {*notes}:
            stop.set()

    for _ in range(100):
        with suppress(Unavailable):  # what is refused at the start is no watching yet
            watching.watch(0, on_version=merged, on_failure=lambda *_: None, on_unavailable=away)
            break
    assert notes.count("away") > 0
    assert {"aircraft", "carriers"} <= {*notes}
    assert list_operations(app.store, app.name)[0].detail == "--watch, all tables"


def test_a_damaged_sst_is_reported(app: FlightsApp, cache: SstCache) -> None:
    app.store.put(head(app, "aircraft").ssts[3].object, b"")
    with pytest.raises(Corruption):
        [*compactor(app, cache, "aircraft").merge_due()]
    # The results of the other state partition are not lost.
    assert head(app, "aircraft").kind == "compaction"


def test_after_a_stop_no_merge_is_started(app: FlightsApp, cache: SstCache) -> None:
    stop = threading.Event()
    stop.set()
    assert [*compactor(app, cache, stop=stop).merge_due()] == []
    assert head(app, "aircraft").kind == "batch"


def test_tables_are_still_merged_after_a_store_outage_at_the_first_look(
    app: FlightsApp, cache: SstCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unavailable("storage does not answer")

    at_work = compactor(app, cache)
    with monkeypatch.context() as patch:
        patch.setattr(app.store, "get", away)
        patch.setattr(app.store, "get_range", away)
        with pytest.raises(Unavailable):
            list(at_work.merge_due())
    assert {each.stage for each in at_work.merge_due()} == {"aircraft", "carriers"}
