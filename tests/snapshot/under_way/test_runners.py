"""Heartbeats show the runner of a stage, and when it no longer runs the stage."""

import os
import time
from pathlib import Path

import pytest
from slackwater.errors import Corruption
from slackwater.snapshot.under_way.runners import (
    HEARTBEATS,
    Heartbeat,
    delete_old_heartbeats,
    have_runners_lapsed,
    live_heartbeats,
    runner_of,
)
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.versions.manifest import Manifest
from ulid import ULID

NOW_MS = time.time_ns() // 1_000_000


def head(stage: str, epoch: int) -> Manifest:
    return Manifest("a", stage, 7, epoch, "w", NOW_MS, "batch")


def test_a_runner_owns_the_stages_of_the_epoch_it_claimed() -> None:
    store, second = MemoryStore(), str(ULID())
    HEARTBEATS.put(store, Heartbeat(str(ULID()), "host:1", {"s": 1, "r": 4}), "a")
    HEARTBEATS.put(store, Heartbeat(second, "host:2", {"s": 2}), "a")
    alive = live_heartbeats(store, "a", NOW_MS)
    assert runner_of(head("s", epoch=2), alive) == "host:2"
    assert runner_of(head("s", epoch=3), alive) == ""
    assert runner_of(head("r", epoch=4), alive) == "host:1"
    HEARTBEATS.remove(store, second, "a")
    assert [one.by for one in live_heartbeats(store, "a", NOW_MS)] == ["host:1"]


def test_an_old_heartbeat_does_not_count_and_is_deleted_in_the_end(tmp_path: Path) -> None:
    store, killed, new = open_store(str(tmp_path)), str(ULID()), str(ULID())
    HEARTBEATS.put(store, Heartbeat(killed, "host:1", {"s": 1}), "a")
    written_ms = next(iter(store.list("a/runners/"))).modified_ms
    assert live_heartbeats(store, "a", written_ms + 59_000)
    assert not live_heartbeats(store, "a", written_ms + 61_000)
    HEARTBEATS.put(store, Heartbeat(new, "host:2", {"s": 2}), "a")
    delete_old_heartbeats(store, "a", new)
    assert len(list(store.list("a/runners/"))) == 2
    path = store.local_path(f"a/runners/{killed}.json")
    assert path is not None

    os.utime(path, (written_ms / 1000 - 3_700, written_ms / 1000 - 3_700))
    delete_old_heartbeats(store, "a", new)
    assert [info.key for info in store.list("a/runners/")] == [f"a/runners/{new}.json"]


def test_the_heartbeat_of_a_killed_runner_expires_while_a_live_runner_renews_its_own(tmp_path: Path) -> None:
    store, runner = open_store(str(tmp_path)), Heartbeat(str(ULID()), "host:1", {"s": 1})
    HEARTBEATS.put(store, runner, "a")
    (first,) = store.list("a/runners/")
    path, looks = store.local_path(first.key), iter(range(100))
    assert path is not None
    now_s = [first.modified_ms / 1000]

    def later() -> None:
        now_s[0] += 1
        next(looks)

    assert have_runners_lapsed(store, "a", later, lambda: int(now_s[0] * 1000))
    assert next(looks) == 61
    assert have_runners_lapsed(store, "b", later, lambda: int(now_s[0] * 1000))
    now_s[0] -= 61

    def beats_on() -> None:
        later()
        if next(looks) > 70:
            HEARTBEATS.put(store, runner, "a")
            os.utime(path, (now_s[0], now_s[0]))

    assert not have_runners_lapsed(store, "a", beats_on, lambda: int(now_s[0] * 1000))


def test_a_damaged_heartbeat_is_reported() -> None:
    store = MemoryStore()
    store.put("a/runners/w.json", b"{")
    with pytest.raises(Corruption, match="a/runners/w"):
        live_heartbeats(store, "a", NOW_MS)
