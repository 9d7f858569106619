"""Stages that run ahead of the store: batches acknowledged locally and committed later in order."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import CommitConflict, Fenced, ObjectNotFound, Refused, SlackwaterError, Unavailable
from slackwater.pipeline.batch.committer import (
    CommittedVersion,
    Committer,
    PendingVersion,
)
from slackwater.pipeline.batch.job import BatchLimits
from slackwater.pipeline.run.preflight import check_unflushed
from slackwater.store.compaction.merge import run_compaction
from slackwater.store.compaction.picker import pick
from slackwater.store.compaction.plan import CompactionResult, apply_results
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import SpooledStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.read.multi_get import multi_get
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions import history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import Input, Manifest, Policy

from tests.crash.points import Killed
from tests.models.profiles import scaled
from tests.store.objects.faulty_store import FaultyStore
from tests.support.manifests import claim
from tests.support.running import eventually
from tests.support.state_rows import ROUTES, Key, Values, columns, write_version


class GatedStore(CountingStore):
    """Store whose puts wait at a gate; the gate lets a given number of them pass."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gate = threading.Semaphore(0)
        self.order: list[str] = []
        """Names of stored objects, in order."""

    def open(self, puts: int = 1_000) -> None:
        self.gate.release(puts)

    def put(self, key: str, data: bytes) -> None:
        self._pass(key)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._pass(key)
        super().put_if_absent(key, data)

    def _pass(self, key: str) -> None:
        self.gate.acquire()
        self.order.append(key.removeprefix("app/stages/stage/"))


def claimed(store: ObjectStore, writer: str = "w") -> Manifest:
    return claim(
        store,
        "app",
        "stage",
        writer=writer,
        by=f"host:{writer}",
        now_ms=1,
        build=lambda draft: draft if draft.inputs else replace(draft, inputs={"t": Input("t", (0,))}),
    )


def following(head: Manifest, kind: VersionKind = "batch") -> Manifest:
    return successor(head, kind=kind, epoch=head.epoch, writer=head.writer, by=head.by, now_ms=1)


def versions(store: ObjectStore) -> list[Manifest]:
    return list(history.iter_after(store, "app", "stage", 0))


@dataclass
class Runner:
    """A stage. Each batch reads one record, and writes one SST that identifies the record."""

    store: ObjectStore
    head: Manifest
    folder: Path
    max_unflushed: int = 3
    told: list[CommittedVersion] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hears: Callable[[CommittedVersion], None] = self.told.append
        self.spool = SpooledStore(self.store, self.folder)
        self.committer = Committer(
            self.store,
            self.head,
            spool=self.spool,
            max_unflushed=self.max_unflushed,
            on_failure=self.failures.append,
        )

    def batch(self) -> None:
        base = self.committer.tip
        record = base.inputs["t"].offsets[0]
        seq, writer = base.version + 1, base.writer
        made = Sst(f"app/stages/stage/sst/{writer}-{seq}.parquet", 0, 0, 1, 1, "", 0, 0, seq, seq, 0, "", 0)
        self.spool.put(made.object, str(record).encode())
        read = replace(base.inputs["t"], offsets=(record + 1,), rows=1)
        manifest = replace(following(base), inputs={"t": read}, ssts=(*base.ssts, made))
        self.committer.submit(PendingVersion(base, manifest, (), time.monotonic(), self.hears))

    def behind(self) -> int:
        """Return the number of acknowledged, uncommitted records."""
        return self.committer.tip.inputs["t"].offsets[0] - self.committer.head.inputs["t"].offsets[0]


def assert_whole(store: ObjectStore) -> None:
    """Check that the history has no gaps, and that its last version names an existing SST for every record."""
    found = versions(store)
    assert [one.version for one in found] == list(range(1, len(found) + 1))
    records = sorted(int(store.get(sst.object)) for sst in found[-1].ssts)
    assert records == list(range(found[-1].inputs["t"].offsets[0]))
    seqs = [one.row_seq for one in found if one.kind == "batch"]
    assert seqs == sorted(set(seqs))
    assert sorted(sst.seq_max for sst in found[-1].ssts) == seqs


@pytest.fixture
def store() -> MemoryStore:
    """Return the store as other processes see it, without the gate."""
    return MemoryStore()


@pytest.fixture
def gate(store: MemoryStore) -> GatedStore:
    return GatedStore(store)


@pytest.fixture
def runner(store: MemoryStore, gate: GatedStore, tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(gate, claimed(store), tmp_path / "spool")
    yield runner
    runner.committer.close()
    gate.open()


def in_thread(do: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=do)
    thread.start()
    return thread


def test_batches_are_acknowledged_before_anything_is_in_the_store(runner: Runner, gate: GatedStore) -> None:
    for _ in range(3):
        runner.batch()
    assert runner.behind() == 3
    assert (runner.committer.head.version, runner.committer.tip.version) == (1, 4)
    assert (gate.order, runner.told) == ([], [])


def test_each_version_is_uploaded_and_committed_before_the_next(
    runner: Runner, gate: GatedStore, store: MemoryStore
) -> None:
    for _ in range(3):
        runner.batch()
    gate.open()
    assert runner.committer.drain(10)
    manifests = [f"manifests/{version:020}.json" for version in (2, 3, 4)]
    ssts = [f"sst/w-{seq}.parquet" for seq in (2, 3, 4)]
    assert gate.order == [name for pair in zip(ssts, manifests, strict=True) for name in pair]
    assert gate.counts["put"] == gate.counts["put_if_absent"] == 3
    assert [told.manifest.version for told in runner.told] == [2, 3, 4]
    assert [told.unflushed for told in runner.told] == [2, 1, 0]
    assert runner.committer.head == runner.committer.tip == versions(store)[-1]
    assert_whole(store)
    assert not list(runner.folder.rglob("*.parquet")), "what the store has does not wait any more"


def test_a_batch_waits_while_max_unflushed_versions_are_unflushed(runner: Runner, gate: GatedStore) -> None:
    for _ in range(3):
        runner.batch()
    fourth = in_thread(runner.batch)
    gate.open(1)
    eventually(lambda: len(gate.order) == 1, "the first SST is uploaded")
    assert fourth.is_alive()
    assert runner.behind() == 3
    gate.open(1)
    fourth.join(10)
    assert not fourth.is_alive()
    assert (len(runner.told), runner.behind()) == (1, 3)


def test_waiting_versions_are_renumbered_after_a_compaction_that_takes_their_number(
    runner: Runner, gate: GatedStore, store: MemoryStore
) -> None:
    runner.batch()
    runner.batch()
    commit(store, following(runner.head, "compaction"))
    gate.open()
    assert runner.committer.drain(10)
    found = versions(store)
    assert [one.kind for one in found] == ["claim", "compaction", "batch", "batch"]
    assert [one.row_seq for one in found[2:]] == [2, 3]
    runner.batch()
    assert runner.committer.drain(10)
    assert runner.committer.head.row_seq == 5
    assert_whole(store)


def test_a_compaction_is_adopted_while_versions_are_unflushed(
    runner: Runner, gate: GatedStore, store: MemoryStore
) -> None:
    runner.batch()
    compaction = following(runner.head, "compaction")
    commit(store, compaction)
    runner.committer.adopt_newest()
    assert runner.committer.head == compaction
    assert runner.behind() == 1
    runner.batch()
    gate.open()
    assert runner.committer.drain(10)
    # No put was lost on the way.
    assert (len(versions(store)), gate.counts["put_if_absent"]) == (4, 2)
    assert_whole(store)


def test_a_takeover_fences_the_unflushed_versions(runner: Runner, gate: GatedStore, store: MemoryStore) -> None:
    runner.batch()
    gate.open()
    assert runner.committer.drain(10)
    claimed(store, "other")
    runner.batch()
    eventually(lambda: bool(runner.failures), "the version that waited is refused")
    with pytest.raises(Fenced, match="taken over"):
        runner.batch()
    assert isinstance(runner.failures[0], Fenced)
    assert not runner.committer.drain(0)
    assert versions(store)[-1].writer == "other"


def test_a_store_outage_beyond_the_patience_stops_the_batches_and_loses_nothing(
    store: MemoryStore, tmp_path: Path
) -> None:
    away = FaultyStore(store, 1, refused=1.0, lost=0, late=0, echoed=0)
    runner = Runner(away, claimed(store), tmp_path / "spool")
    runner.batch()
    eventually(lambda: bool(runner.failures), "the upload fails")
    with pytest.raises(Unavailable, match="did not answer a put"):
        runner.batch()
    assert runner.told == []
    next_one = Runner(store, claimed(store, "next"), tmp_path / "next")
    next_one.batch()
    assert next_one.committer.drain(10)
    assert_whole(store)
    next_one.committer.close()


def test_unflushed_versions_are_dropped_completely_when_the_app_is_aborted(runner: Runner, store: MemoryStore) -> None:
    for _ in range(3):
        runner.batch()
    refused: list[Refused] = []

    def one_more() -> None:
        try:
            runner.batch()
        except Refused as error:
            refused.append(error)

    fourth = in_thread(one_more)
    assert not runner.committer.drain(0)
    runner.committer.close()
    fourth.join(10)
    assert "stopped before its last batch" in refused[0].message
    assert len(versions(store)) == 1


def test_a_failing_commit_callback_stops_the_batches(runner: Runner, gate: GatedStore) -> None:
    def broken(_done: CommittedVersion) -> None:
        raise BrokenPipeError

    runner.hears = broken
    gate.open()
    runner.batch()
    eventually(lambda: bool(runner.failures), "the pipe breaks")
    with pytest.raises(BrokenPipeError):
        runner.batch()


@scaled(40)
@given(
    seed=st.integers(0, 10_000),
    max_unflushed=st.integers(1, 4),
    steps=st.lists(st.sampled_from(["batch", "batch", "batch", "compact", "drain", "look", "kill"]), max_size=25),
)
def test_every_record_is_read_once_whenever_a_runner_is_killed(seed: int, max_unflushed: int, steps: list[str]) -> None:
    inner = MemoryStore()
    with tempfile.TemporaryDirectory() as name:
        number = 0

        def start() -> tuple[Runner, FaultyStore]:
            head = claimed(inner, f"w{number}")
            store = FaultyStore(inner, seed + number, refused=0.02, lost=0.02, late=0.02)
            return Runner(store, head, Path(name) / str(number), max_unflushed), store

        runner, faulty = start()
        for step in [*steps, "kill"]:
            try:
                match step:
                    case "batch":
                        runner.batch()
                    case "compact":
                        commit(inner, following(versions(inner)[-1], "compaction"))
                    case "drain":
                        runner.committer.drain(10)
                    case "look":
                        runner.committer.adopt_newest()
                    case "kill":
                        raise Killed
            except (Killed, SlackwaterError) as error:
                if isinstance(error, CommitConflict) and step == "compact":
                    continue
                number += 1
                # Its thread may be at any point. Its later commits come before the claim, or are refused.
                runner.committer.close()
                faulty.settle()
                runner, faulty = start()
        runner.committer.close()
    assert_whole(inner)


ROUTE_KEYS = [("JFK", str(number)) for number in range(6)]


@dataclass
class Stateful(Runner):
    """A stage. Each batch reads one record, which puts or deletes keys; merges run at the same time."""

    merges: tuple[CompactionResult, ...] = ()

    def write(self, changes: dict[Key, Values | None]) -> None:
        base = self.committer.tip
        read = replace(base.inputs["t"], offsets=(base.inputs["t"].offsets[0] + 1,), rows=1)
        added = write_version(self.spool, None, ROUTES, changes, base.version + 1)
        ssts = apply_results((*base.ssts, *added), self.merges)
        manifest = replace(following(base), inputs={"t": read}, ssts=ssts, table=ROUTES)
        self.committer.submit(PendingVersion(base, manifest, self.merges, time.monotonic(), self.hears))
        self.merges = ()

    def merge(self, cache: SstCache) -> None:
        self.merges = merged(self.spool, cache, self.committer.tip.ssts)


def merged(store: ObjectStore, cache: SstCache, ssts: tuple[Sst, ...]) -> tuple[CompactionResult, ...]:
    return tuple(
        run_compaction(store, cache, "app", "stage", ROUTES, one)
        for one in pick(ssts, ROUTES.partitions, Policy(l0_trigger=2))
    )


@scaled(25)
@given(
    max_unflushed=st.integers(0, 3),
    steps=st.lists(
        st.dictionaries(st.sampled_from(ROUTE_KEYS), st.booleans(), min_size=1)
        | st.sampled_from(["merge", "merge elsewhere", "look", "store answers"]),
        max_size=20,
    ),
)
def test_every_version_has_the_rows_of_its_batches_with_any_merges_at_any_time(
    max_unflushed: int, steps: list[dict[Key, bool] | str]
) -> None:
    inner = MemoryStore()
    expected: list[dict[Key, int]] = [{}]
    with tempfile.TemporaryDirectory() as name:
        cache = SstCache(Path(name) / "cache", 1 << 30)
        gate = GatedStore(inner)
        runner = Stateful(gate, claimed(inner), Path(name) / "spool", max_unflushed)
        if not max_unflushed:
            gate.open()
        for step in steps:
            match step:
                case dict():
                    number = len(expected)
                    if runner.behind() == max_unflushed:
                        gate.open(10)
                    runner.write({key: (number, None, None) if put else None for key, put in step.items()})
                    left = {key: value for key, value in expected[-1].items() if key not in step}
                    expected.append(left | {key: number for key, put in step.items() if put})
                case "merge":
                    runner.merge(cache)
                case "merge elsewhere":
                    head = versions(inner)[-1]
                    ssts = apply_results(head.ssts, merged(inner, cache, head.ssts))
                    with suppress(CommitConflict):
                        commit(inner, replace(following(head, "compaction"), ssts=ssts))
                case "look":
                    runner.committer.adopt_newest()
                case "store answers":
                    gate.open(1)
        gate.open()
        assert runner.committer.drain(10)
        assert runner.failures == []
        runner.committer.close()
        asked = columns(ROUTES.key, ROUTE_KEYS)
        hashes = hash_keys(asked, asked.schema.names)
        fresh = SstCache(Path(name) / "fresh", 1 << 30)
        for version in versions(inner):
            values, present = multi_get(inner, fresh, version.ssts, ROUTES, hashes, asked)
            found = zip(ROUTE_KEYS, present.tolist(), values["flights"].to_pylist(), strict=True)
            assert {key: value for key, there, value in found if there} == expected[version.inputs["t"].offsets[0]]


def test_look_ups_find_unflushed_rows_even_without_a_cache(tmp_path: Path) -> None:
    inner = MemoryStore()
    store = SpooledStore(inner, tmp_path / "spool")
    keys = {("JFK", str(n)): (n, None, None) for n in range(50)}
    ssts = write_version(store, None, ROUTES, keys, 1)
    assert not list(inner.list(""))
    asked = columns(ROUTES.key, keys)
    hashes = hash_keys(asked, asked.schema.names)
    for where in (store, inner):
        if where is inner:
            for sst in ssts:
                store.upload(sst.object)
                store.drop_spooled(sst.object)
        cache = SstCache(tmp_path / "cache", 0)
        values, present = multi_get(store, cache, ssts, ROUTES, hashes, asked)
        assert present.all()
        assert values["flights"].to_pylist() == list(range(50))


def test_the_spooled_store_delays_only_ssts_that_are_put(tmp_path: Path) -> None:
    inner = MemoryStore()
    store = SpooledStore(inner, tmp_path)
    store.put_if_absent("a/manifest", b"m")
    store.put("a/sst", b"0123456789")
    assert [info.key for info in store.list("")] == ["a/manifest"]
    assert (store.get("a/sst"), store.get_range("a/sst", 2, 3), store.get("a/manifest")) == (
        b"0123456789",
        b"234",
        b"m",
    )
    assert store.local_path("a/sst") == tmp_path / "a/sst"
    assert (store.local_path("a/manifest"), store.url) == (None, inner.url)
    assert list(store.list_folders("")) == ["a"]
    store.upload("a/sst")
    assert inner.get("a/sst") == b"0123456789"
    store.drop_spooled("a/sst")
    assert store.get("a/sst") == b"0123456789"
    store.delete("a/sst")
    with pytest.raises(ObjectNotFound):
        store.get("a/sst")
    with pytest.raises(ObjectNotFound):
        store.upload("a/sst")


def test_executors_that_do_not_share_the_disk_are_refused() -> None:
    for master in ("local", "local[2]", "local-cluster[2,1,1024]"):
        check_unflushed({"s": BatchLimits(None, 0, max_unflushed=2)}, master)
    check_unflushed({"s": BatchLimits(None, 0)}, "spark://host:7077")
    with pytest.raises(Refused, match=r"'s' has max_unflushed=2, .* executors of spark://host:7077") as refused:
        check_unflushed({"r": BatchLimits(None, 0), "s": BatchLimits(None, 0, max_unflushed=2)}, "spark://host:7077")
    assert "local" in refused.value.hint
