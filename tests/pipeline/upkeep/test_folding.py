"""Folds while a stage runs: the next version names the leaves, and batches never wait for folds."""

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.errors import ObjectExists, Unavailable
from slackwater.pipeline.upkeep.upkeep import Upkeep
from slackwater.store.compaction import plan
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.amend import Amendment, amend
from slackwater.store.versions.leaves import fold
from slackwater.store.versions.manifest import Manifest, Policy

from tests.support.running import eventually
from tests.support.state_rows import ROUTES, manifest_of, write_version

TABLE = replace(ROUTES, partitions=2, compaction=Policy(l0_trigger=100))


class Slow(MemoryStore):
    """A store whose puts of leaves wait for a release. The answer of each put is lost, and the retry finds the leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.waiting = self.failures = 0

    def put_if_absent(self, key: str, data: bytes) -> None:
        if "/leaves/" not in key:
            super().put_if_absent(key, data)
            return
        self.waiting += 1
        assert self.may_go_on.wait(30)
        if self.failures:
            self.failures -= 1
            raise Unavailable("storage is away")
        super().put_if_absent(key, data)
        raise ObjectExists(key, self.url)


@pytest.fixture(autouse=True)
def few_inline_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "_MAX_INLINE_BYTES", 1000)
    monkeypatch.setattr(fold, "_ENTRIES_PER_RUN", 0)
    monkeypatch.setattr(fold, "_TOLERANCE", 100)


class Stage:
    def __init__(self, folder: Path) -> None:
        self.store, self.cache = Slow(), SstCache(folder, 1 << 30)
        self.head = manifest_of(TABLE, ())
        self.upkeep = Upkeep(self.store, self.cache, self.head, threads=1)

    def batch(self) -> Manifest:
        version = self.head.version + 1
        rows = {(str(n), "x"): (version, None, None) for n in range(20)}
        new = write_version(self.store, self.cache, TABLE, rows, version)
        offered = self.upkeep.finished
        ssts = plan.apply_results(self.head.ssts.plus(new), offered)
        self.head = replace(self.head, version=version, ssts=ssts)
        self.upkeep.start_merges(self.head, offered)
        return self.head


def test_a_fold_runs_during_batches_and_the_next_version_names_its_leaves(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for _ in range(4):
        head = stage.batch()
    eventually(lambda: stage.store.waiting, "the fold to write")
    assert not head.ssts.leaves
    # Batches go on meanwhile, and no second fold begins.
    before = {*stage.batch().ssts}
    stage.store.may_go_on.set()
    eventually(lambda: stage.upkeep.finished, "the fold")
    after = stage.batch()
    assert after.ssts.leaves
    assert before < {*after.ssts}
    assert len(after.ssts.inline) < len(before)
    assert stage.store.waiting == len(after.ssts.leaves)
    stage.upkeep.close()


def test_a_failed_fold_is_retried_with_a_later_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(tmp_path)
    stage.store.may_go_on.set()
    stage.store.failures = 1
    for _ in range(4):
        stage.batch()
    eventually(lambda: "was not folded: storage is away" in caplog.text, "the warning")

    def named() -> bool:
        return bool(stage.batch().ssts.leaves)

    eventually(named, "a later fold")
    stage.upkeep.close()


def test_a_manifest_that_no_runner_folds_is_folded_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This limits the manifests of `init` and of a separate compactor."""
    monkeypatch.setattr(fold, "_TOLERANCE", 1)
    store, cache = MemoryStore(), SstCache(tmp_path, 1 << 30)
    rows = {(str(n), "x"): (1, None, None) for n in range(20)}
    ssts = tuple(sst for _ in range(8) for sst in write_version(store, cache, TABLE, rows, 1))
    change = Amendment("claim", lambda draft: replace(draft, table=TABLE, ssts=ssts))
    done = amend(store, ("app", "stage"), change, by="test", now_ms=1).manifest
    assert done.ssts.leaves
    assert {*done.ssts} == {*ssts}
    stored = history.read(store, "app", "stage", 1)
    assert stored == done
    assert {*stored.ssts} == {*ssts}
