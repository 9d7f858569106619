"""Asynchronous commits during compactions by other processes, takeovers and storage faults."""

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import CommitConflict, Fenced, Unavailable
from slackwater.pipeline.batch.committer import CommittedVersion, Committer, PendingVersion
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.wrapper import StoreWrapper
from slackwater.store.versions import history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import Input, Manifest

from tests.models.profiles import scaled
from tests.store.objects.faulty_store import FaultyStore
from tests.support.manifests import claim


def claimed(store: ObjectStore, writer: str = "w") -> Manifest:
    inputs = {"t": Input("t", (0,))}
    return claim(
        store,
        "app",
        "stage",
        writer=writer,
        by=f"host:{writer}",
        now_ms=1,
        build=lambda draft: draft if draft.inputs else replace(draft, inputs=inputs),
    )


def following(head: Manifest, *, kind: VersionKind = "batch", writer: str = "") -> Manifest:
    return successor(head, kind=kind, epoch=head.epoch, writer=writer or head.writer, by="host:x", now_ms=1)


def versions(store: ObjectStore) -> list[Manifest]:
    return list(history.iter_after(store, "app", "stage", 0))


def head_of(store: ObjectStore) -> Manifest:
    return versions(store)[-1]


def compact(store: ObjectStore) -> Manifest:
    """Commit a compaction, as `slackwater compact` does in another process."""
    compaction = following(head_of(store), kind="compaction", writer="compact")
    commit(store, compaction)
    return compaction


@dataclass
class Runner:
    """A stage whose batches read one record each."""

    committer: Committer
    told: list[CommittedVersion] = field(default_factory=list)

    def begin(self) -> PendingVersion:
        """Return the version of a batch that was computed on the current tip."""
        base = self.committer.tip
        read = replace(base.inputs["t"], offsets=(base.inputs["t"].offsets[0] + 1,), rows=1)
        return PendingVersion(
            base, replace(following(base), inputs={"t": read}), (), time.monotonic(), self.told.append
        )

    def batch(self) -> None:
        self.committer.submit(self.begin())


@pytest.fixture
def runner(store: CountingStore) -> Runner:
    head = claimed(store)
    store.reset()
    return Runner(Committer(store, head))


def assert_whole(store: ObjectStore, records: int) -> None:
    """Check that every record was read once, and that the history has no gaps."""
    found = versions(store)
    assert [one.version for one in found] == list(range(1, len(found) + 1))
    for before, after in pairwise(found):
        assert after.time_ms > before.time_ms
        assert after.inputs["t"].offsets[0] - before.inputs["t"].offsets[0] == (after.kind == "batch")
    written = [one.row_seq for one in found if one.kind == "batch"]
    assert written == sorted(set(written)), "_seq grows from batch to batch"
    assert found[-1].inputs["t"].offsets[0] == records


def test_a_batch_costs_one_put(store: CountingStore, runner: Runner) -> None:
    for _ in range(3):
        runner.batch()
    assert store.counts == {"put_if_absent": 3}
    assert_whole(store, 3)
    assert [(told.previous.version, told.manifest.version) for told in runner.told] == [(1, 2), (2, 3), (3, 4)]
    assert all(told.seconds >= told.commit_seconds > 0 for told in runner.told)


def test_a_batch_whose_number_compactions_have_taken_is_committed_after_them(
    store: CountingStore, runner: Runner
) -> None:
    change = runner.begin()
    compact(store)
    last = compact(store)
    store.reset()
    runner.committer.submit(change)
    # The lost attempt, the number it lost, the number after it, the check that no more follow, and the commit.
    assert store.counts == {"put_if_absent": 2, "get_range": 3}
    assert (runner.committer.head.version, runner.committer.head.row_seq) == (4, 2)
    assert [(told.previous, told.manifest) for told in runner.told] == [(last, runner.committer.head)]
    runner.batch()
    assert runner.committer.head.row_seq == 5
    assert_whole(store, 2)


def test_an_idle_stage_adopts_compactions_and_its_next_batch_commits_without_a_retry(
    store: CountingStore, runner: Runner
) -> None:
    compaction = compact(store)
    store.reset()
    runner.committer.adopt_newest()
    assert runner.committer.head == runner.committer.tip == compaction
    runner.committer.adopt_newest()
    assert store.requests == 3
    runner.batch()
    assert store.counts == {"get_range": 3, "put_if_absent": 1}
    assert runner.committer.head.seq == 0
    assert_whole(store, 1)


def test_a_running_batch_is_committed_after_a_compaction_adopted_meanwhile(
    store: CountingStore, runner: Runner
) -> None:
    change = runner.begin()
    compact(store)
    runner.committer.adopt_newest()
    store.reset()
    runner.committer.submit(change)
    assert store.counts == {"put_if_absent": 1}
    assert (runner.committer.head.version, runner.committer.head.row_seq) == (3, 2)
    assert_whole(store, 1)


@pytest.mark.parametrize("compactions", [0, 1])
@pytest.mark.parametrize("idle", [False, True])
def test_a_writer_whose_stage_was_taken_over_is_fenced(
    store: CountingStore, runner: Runner, compactions: int, idle: bool
) -> None:
    for _ in range(compactions):
        compact(store)
    claimed(store, "other")
    with pytest.raises(Fenced, match="epoch 2, written by host:other"):
        runner.committer.adopt_newest() if idle else runner.batch()
    assert head_of(store).writer == "other"
    assert runner.told == []


def test_a_batch_is_refused_if_another_writer_commits_anything_but_a_compaction(
    store: CountingStore, runner: Runner
) -> None:
    for kind in ("batch", "clone"):
        change = runner.begin()
        commit(store, following(head_of(store), kind=kind, writer="other"))  # type: ignore[arg-type]
        runner.committer.adopt_newest()
        with pytest.raises(CommitConflict, match="was committed first by host:x"):
            runner.committer.submit(change)


def test_a_compaction_of_a_newer_epoch_is_not_adopted(store: CountingStore, runner: Runner) -> None:
    commit(store, replace(following(head_of(store), kind="compaction"), epoch=2))
    with pytest.raises(Fenced):
        runner.committer.adopt_newest()
    with pytest.raises(Fenced):
        runner.batch()


@scaled(60)
@given(st.integers(0, 10_000), st.lists(st.sampled_from(["batch", "late batch", "compact", "look"]), max_size=20))
def test_every_record_is_read_once_despite_storage_faults_and_compactions(seed: int, steps: list[str]) -> None:
    inner = MemoryStore()
    runner = Runner(Committer(inner, claimed(inner)))
    faulty = FaultyStore(inner, seed)
    runner.committer = Committer(faulty, head_of(inner))
    for step in steps:
        try:
            match step:
                case "batch":
                    runner.batch()
                case "late batch":
                    change = runner.begin()
                    compact(inner)
                    runner.committer.submit(change)
                case "compact":
                    compact(inner)
                case "look":
                    runner.committer.adopt_newest()
        except (Unavailable, CommitConflict):
            # The runner ends, and another one claims the stage once all pending writes have arrived.
            faulty.settle()
            runner.committer = Committer(faulty, claimed(inner, f"w{head_of(inner).version}"))
    faulty.settle()
    found = versions(inner)
    assert_whole(inner, sum(one.kind == "batch" for one in found))
    assert {told.manifest.version for told in runner.told} <= {one.version for one in found}


def test_drain_returns_only_after_a_failure_has_been_reported() -> None:
    inner = MemoryStore()
    head = claimed(inner)
    went_on = threading.Event()
    told: list[tuple[type[BaseException], bool]] = []

    def failed(error: BaseException) -> None:
        told.append((type(error), went_on.wait(0.2)))

    committer = Committer(FaultyStore(inner, 0, refused=1.0), head, max_unflushed=1, on_failure=failed)

    def drain() -> None:
        assert not committer.drain(30)
        went_on.set()

    Runner(committer).batch()
    draining = threading.Thread(target=drain)
    draining.start()
    draining.join(30)
    assert told == [(Unavailable, False)]


class OneByOne(StoreWrapper):
    """A store in which each commit waits for a release."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.let = threading.Semaphore(0)

    def put_if_absent(self, key: str, data: bytes) -> None:
        assert self.let.acquire(timeout=180)
        self._inner.put_if_absent(key, data)


def test_in_ordered_mode_a_waiting_batch_commits_after_all_earlier_ones() -> None:
    inner, looked, ahead = MemoryStore(), threading.Event(), list[int]()

    class Watched(Committer):
        @property
        def _is_over(self) -> bool:
            looked.set()
            return super()._is_over

        def _commit(self, change: PendingVersion, acknowledged_s: float | None = None) -> None:
            if acknowledged_s is None:
                ahead.append(len(self._unflushed))
            super()._commit(change, acknowledged_s)

    head, store = claimed(inner), OneByOne(inner)
    runner = Runner(Watched(store, head, max_unflushed=3))
    for _ in range(3):
        runner.batch()
    looked.clear()
    waiting = threading.Thread(target=runner.batch)
    waiting.start()
    assert looked.wait(30)
    looked.clear()
    runner.committer.is_synchronous = True
    store.let.release()
    assert looked.wait(30)
    store.let.release(9)
    waiting.join(30)
    runner.batch()
    assert ahead == [0, 0]
    assert runner.committer.tip == runner.committer.head == head_of(inner)
    assert_whole(inner, 5)
    runner.committer.close()
