"""For any behaviour of writers and storage, no version is missing, lost or doubled, and no fenced writer commits."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Barrier

import pytest
import slackwater as sw
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import CommitConflict, Fenced, Refused, Unavailable, Usage
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import codec, history, keys
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.horizon import BOUNDARIES, Boundary
from slackwater.store.versions.manifest import Column, Input, Manifest, Output, Table

from tests.models.profiles import scaled
from tests.store.objects.faulty_store import FaultyStore
from tests.support.manifests import claim, manifest

TABLE = Table((Column("k", "string"),), (Column("n", "int64"),), 2, sw.aggregate(n=sw.count()).stored)
SST = Sst("app/stages/stage/sst/x.parquet", 0, 0, 5, 900, "ab", -9, 9, 1, 1, 0, "", 0)


def claimed(store: ObjectStore, writer: str, *, now_ms: int = 1) -> Manifest:
    return claim(store, "app", "stage", writer=writer, by=f"host:{writer}", now_ms=now_ms)


def following(head: Manifest, *, epoch: int | None = None, now_ms: int = 1) -> Manifest:
    """Return the next batch of the writer of `head`."""
    return successor(head, kind="batch", epoch=epoch or head.epoch, writer=head.writer, by=head.by, now_ms=now_ms)


def versions(store: ObjectStore) -> list[Manifest]:
    return list(history.iter_after(store, "app", "stage", 0))


def test_a_commit_is_one_request(any_store: ObjectStore) -> None:
    store = CountingStore(any_store)
    commit(store, manifest(1))
    store.reset()
    commit(store, manifest(2))
    assert store.counts == {"put_if_absent": 1}
    assert versions(store) == [manifest(1), manifest(2)]


def test_a_manifest_that_could_not_be_read_is_not_committed(any_store: ObjectStore) -> None:
    commit(any_store, manifest(1))
    broken = replace(manifest(2), table=replace(TABLE, partitions=2.0))
    with pytest.raises(ValueError, match="could not be read again"):
        commit(any_store, broken)
    with pytest.raises(ValueError, match="could not be read again"):
        claim(
            any_store,
            "app",
            "stage",
            writer="w",
            by="h",
            now_ms=1,
            build=lambda draft: replace(draft, table=broken.table),
        )
    commit(any_store, manifest(2))
    assert versions(any_store) == [manifest(1), manifest(2)]


def test_the_first_commit_of_a_process_also_checks_whether_its_number_was_collected(any_store: ObjectStore) -> None:
    commit(any_store, manifest(1))
    store = CountingStore(any_store)
    commit(store, manifest(2))
    assert store.counts == {"put_if_absent": 1, "list": 1, "get_range": 1}


def test_an_existing_version_is_a_conflict(any_store: ObjectStore) -> None:
    commit(any_store, manifest(1, writer="first"))
    with pytest.raises(CommitConflict, match="v1 was committed first by host:first with epoch 1") as caught:
        commit(any_store, manifest(1, writer="second"))
    assert caught.value.version == 1
    assert type(caught.value) is CommitConflict
    assert versions(any_store) == [manifest(1, writer="first")]


def test_a_version_that_existed_and_was_deleted_is_a_conflict() -> None:
    class Deleted(MemoryStore):
        """A store in which the app is deleted after the create is refused and before it is read back."""

        def get(self, key: str) -> bytes:
            self.delete(key)
            return super().get(key)

    store = Deleted()
    commit(store, manifest(1, writer="first"))
    with pytest.raises(CommitConflict, match="has been deleted since"):
        commit(store, manifest(1, writer="second"))


def test_a_zombie_cannot_commit(any_store: ObjectStore) -> None:
    zombie = claimed(any_store, "old")
    newer = claimed(any_store, "new")
    with pytest.raises(Fenced) as caught:
        commit(any_store, following(zombie))
    assert str(caught.value) == (
        "stage app/stage was taken over: v2 has epoch 2, written by host:new; this writer has epoch 1 and must stop"
    )
    commit(any_store, following(newer))
    assert [each.writer for each in versions(any_store)] == ["old", "new", "new"]


def test_a_zombie_cannot_build_on_its_successor_s_head() -> None:
    store = MemoryStore()
    claimed(store, "old")
    head = claimed(store, "new")
    with pytest.raises(Fenced, match="v2 has epoch 2"):
        successor(head, kind="compaction", epoch=1, writer="old", by="", now_ms=9)


def test_a_repeated_commit_is_one_commit(any_store: ObjectStore) -> None:
    commit(any_store, manifest(1))
    commit(any_store, manifest(1))
    assert versions(any_store) == [manifest(1)]


@pytest.mark.parametrize("kept", [(), (1,)])
def test_a_repeated_commit_is_one_commit_also_if_all_earlier_versions_were_collected(kept: tuple[int, ...]) -> None:
    store = MemoryStore()
    for number in (1, 2, 3):
        commit(store, manifest(number))
    BOUNDARIES.put(store, Boundary(1, True, {"stage": 3}, {"stage": kept}), "app")
    for number in {1, 2} - {*kept}:
        store.delete(keys.manifest("app", "stage", number))
    commit(CountingStore(store), manifest(3))  # a writer whose answer was lost, after its machine slept
    assert history.head(store, "app", "stage") == manifest(3)


def test_a_late_commit_of_a_removed_stage_is_undone() -> None:
    store = MemoryStore()
    store.put_if_absent(keys.manifest("app", "stage", 3), codec.encode(manifest(3)))
    with pytest.raises(Fenced, match="its v2 is gone"):
        commit(store, manifest(3))
    assert list(store.list("app/stages/")) == []


def test_a_writer_that_commits_a_version_again_with_other_content_is_refused() -> None:
    store = MemoryStore()
    commit(store, manifest(1))
    with pytest.raises(CommitConflict, match="by this writer itself, with other content"):
        commit(store, replace(manifest(1), inputs={"t": Input("t", (1,))}))


@pytest.mark.parametrize("wrong", [manifest(0), manifest(-1), manifest(1, epoch=0)])
def test_versions_and_epochs_start_at_one(wrong: Manifest) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        commit(MemoryStore(), wrong)


def test_of_eight_threads_that_commit_one_version_exactly_one_wins(any_store: ObjectStore) -> None:
    threads, rounds = 8, 8
    barrier = Barrier(threads)

    def race(name: int) -> list[int]:
        won = []
        for version in range(1, rounds + 1):
            barrier.wait()
            try:
                commit(any_store, manifest(version, writer=str(name)))
            except CommitConflict:
                continue
            won.append(version)
        return won

    with ThreadPoolExecutor(threads) as pool:
        winners = list(pool.map(race, range(threads)))
    assert sorted(version for won in winners for version in won) == list(range(1, rounds + 1))
    assert all(
        int(each.writer) == next(name for name, won in enumerate(winners) if each.version in won)
        for each in versions(any_store)
    )


def test_a_successor_keeps_state_and_offsets_but_not_what_its_head_did() -> None:
    head = replace(
        manifest(7, epoch=3),
        inputs={"t": Input("t", (5, 6), rows=11)},
        outputs={"c": Output("c", (8,), (4,), attempts=("x",), rows=4, schema="a INT", markers={"s": (7,)})},
        table=TABLE,
        ssts=(SST,),
        recorded={"s": 7},
        duration_ms=99,
        seq=6,
    )
    after = successor(head, kind="compaction", epoch=3, writer="n", by="host:n", now_ms=500)
    assert after == replace(
        head,
        version=8,
        writer="n",
        by="host:n",
        time_ms=500,
        kind="compaction",
        inputs={"t": Input("t", (5, 6))},
        outputs={"c": Output("c", (8,), (4,), schema="a INT")},
        duration_ms=0,
        seq=0,
    )


def test_commit_times_increase_even_if_the_clock_does_not() -> None:
    assert following(manifest(1, time_ms=1000), now_ms=400).time_ms == 1001


def test_the_first_claim_of_a_stage_has_the_inputs_and_table_of_the_claimer() -> None:
    def build(draft: Manifest) -> Manifest:
        assert (draft.version, draft.epoch, draft.inputs, draft.table) == (1, 1, {}, None)
        return replace(draft, inputs={"t": Input("t", (0,))}, table=TABLE)

    store = MemoryStore()
    first = claim(store, "app", "stage", writer="w", by="host:1", now_ms=5, build=build)
    assert first == Manifest(
        "app", "stage", 1, 1, "w", 5, "claim", inputs={"t": Input("t", (0,))}, table=TABLE, by="host:1"
    )
    assert versions(store) == [first]


def test_a_later_claim_keeps_everything_and_may_change_it() -> None:
    store = MemoryStore()
    commit(store, replace(manifest(1), inputs={"t": Input("t", (3,), rows=3)}, ssts=(SST,), table=TABLE))
    second = claim(
        store,
        "app",
        "stage",
        writer="n",
        by="host:n",
        now_ms=1,
        build=lambda draft: replace(draft, outputs={"c": Output("c", (0,), (0,))}),
    )
    assert (second.version, second.epoch, second.kind, second.time_ms) == (2, 2, "claim", 11)
    assert (second.inputs, second.ssts, second.table) == ({"t": Input("t", (3,))}, (SST,), TABLE)
    assert second.outputs == {"c": Output("c", (0,), (0,))}


def test_a_refused_claim_leaves_nothing() -> None:
    def build(draft: Manifest) -> Manifest:
        raise Refused("the key changed")

    store = MemoryStore()
    with pytest.raises(Refused, match="the key changed"):
        claim(store, "app", "stage", writer="w", by="", now_ms=1, build=build)
    assert list(store.list("")) == []


def test_a_claim_cannot_change_its_version_and_identity() -> None:
    with pytest.raises(ValueError, match="not its identity"):
        claim(
            MemoryStore(),
            "app",
            "stage",
            writer="w",
            by="",
            now_ms=1,
            build=lambda draft: replace(draft, epoch=9),
        )


@pytest.mark.parametrize(("app", "stage"), [("../app", "stage"), ("app", ""), ("App", "stage")])
def test_a_claim_needs_valid_names(app: str, stage: str) -> None:
    with pytest.raises(Usage, match="is not usable"):
        claim(MemoryStore(), app, stage, writer="w", by="", now_ms=1)


def test_each_of_several_concurrent_claims_gets_its_own_epoch(any_store: ObjectStore) -> None:
    barrier = Barrier(4)

    def race(name: str) -> Manifest:
        barrier.wait()
        return claimed(any_store, name)

    with ThreadPoolExecutor(4) as pool:
        claims = sorted(pool.map(race, "abcd"), key=lambda each: each.version)
    assert [(each.version, each.epoch) for each in claims] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert versions(any_store) == claims


def test_a_claim_that_loses_repeatedly_gives_up() -> None:
    store = MemoryStore()

    def build(draft: Manifest) -> Manifest:
        commit(store, replace(draft, writer="quicker"))
        return draft

    with pytest.raises(CommitConflict, match="committed first by host:w"):
        claim(store, "app", "stage", writer="w", by="host:w", now_ms=1, build=build)


@dataclass
class Writer:
    """A runner as the store sees it: it claims, commits on top of its own last commit, and stops when it is fenced."""

    name: str
    head: Manifest | None = None
    acknowledged: list[Manifest] = field(default_factory=list)

    def claim(self, store: ObjectStore) -> None:
        self.head = claimed(store, self.name)
        self.acknowledged.append(self.head)

    def batch(self, store: ObjectStore) -> None:
        if self.head is None:
            return
        try:
            commit(store, following(self.head))
        except Fenced:  # with one writer an epoch, there is no other conflict
            self.head = None
        else:
            self.head = following(self.head)
            self.acknowledged.append(self.head)


def check_laws(store: ObjectStore, *writers: Writer) -> None:
    """Check the laws of every stage's history. It must have exactly the commits that succeeded for the writers."""
    found = versions(store)
    assert [each.version for each in found] == list(range(1, len(found) + 1))
    for before, after in pairwise(found):
        assert before.epoch <= after.epoch
        assert before.time_ms < after.time_ms
        assert before.epoch < after.epoch or before.writer == after.writer
    told = [each for writer in writers for each in writer.acknowledged]
    assert sorted(told, key=lambda each: each.version) == found


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["claim", "batch", "batch"])), max_size=30))
def test_two_writers_in_any_order_leave_one_history(steps: list[tuple[int, str]]) -> None:
    store = MemoryStore()
    writers = (Writer("a"), Writer("b"))
    for number, verb in steps:
        if verb == "claim":
            writers[number].claim(store)
        else:
            writers[number].batch(store)
        check_laws(store, *writers)


def settled(store: FaultyStore, wanted: Manifest) -> bool:
    """Commit as a runner does: repeat the same manifest until the store gives a definite answer."""
    while True:
        try:
            commit(store, wanted)
        except Unavailable:
            continue
        except CommitConflict:
            return False
        return True


@scaled(100, in_ci=1000)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 1), min_size=1, max_size=20))
def test_lost_answers_neither_lose_nor_duplicate_a_commit(seed: int, turns: list[int]) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, seed, refused=0.2, lost=0.2, late=0.2, echoed=0.2)
    acknowledged: list[Manifest] = []
    refused: list[Manifest] = []
    for number, turn in enumerate(turns):
        # Both writers build on the same head; one of them is told that it lost.
        head = history.head(inner, "app", "stage")
        for writer in ("ab"[turn], "ba"[turn]):
            offsets = Input("t", (number,), rows=1)
            wanted = replace(
                manifest(1, writer=writer) if head is None else following(replace(head, writer=writer)),
                inputs={"t": offsets},
            )
            (acknowledged if settled(store, wanted) else refused).append(wanted)
    store.settle()
    assert versions(inner) == acknowledged
    assert len(acknowledged) == len(refused) == len(turns)


@scaled(200)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=20))
def test_writers_that_restart_after_each_store_failure_leave_one_history(
    seed: int, steps: list[tuple[int, bool]]
) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, seed)
    writers = (Writer("a"), Writer("b"))
    for number, claims in steps:
        try:
            if claims:
                writers[number].claim(store)
            else:
                writers[number].batch(store)
        except Unavailable:
            writers[number].head = None  # as after kill -9: only a new claim goes on
    store.settle()
    found = versions(inner)
    assert [each.version for each in found] == list(range(1, len(found) + 1))
    assert all(before.epoch <= after.epoch for before, after in pairwise(found))
    assert all(each in found for writer in writers for each in writer.acknowledged)


def test_faults_depend_only_on_the_seed() -> None:
    def faults(seed: int) -> list[str]:
        store = FaultyStore(MemoryStore(), seed, slow=0.5, sleep=lambda _: None)
        seen = []
        for version in range(1, 60):
            try:
                store.put_if_absent(str(version), b"")
                store.get(str(version))
            except Exception as error:
                seen.append(repr(error))
        assert set(store.faults) == {"refused", "lost", "late", "echoed", "slow"}
        return [line.partition("memory:")[0] for line in seen]

    assert faults(5) == faults(5)
    assert faults(5) != faults(6)


def test_a_slow_request_takes_as_long_as_set() -> None:
    waited: list[float] = []
    store = FaultyStore(MemoryStore(), 1, slow=1, slow_s=2.5, refused=0, lost=0, late=0, echoed=0, sleep=waited.append)
    store.put("a", b"")
    store.get("a")
    assert waited == [2.5, 2.5]
