"""Faults that occur only in local folders: leftovers, partial files and conflicting names."""

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slackwater.errors import Refused, Unavailable
from slackwater.store.objects.local import LocalStore

SCRATCH = ".slackwater-tmp"


def test_reading_creates_no_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    assert list(store.list("")) == list(store.list_folders("")) == []
    store.delete("a")
    assert not (tmp_path / "root").exists()


def test_leftovers_of_a_killed_writer_are_never_listed_and_are_deleted_later(tmp_path: Path) -> None:
    scratch = tmp_path / SCRATCH
    scratch.mkdir()
    for name, age_s in (("old", 7200), ("young", 60)):
        (scratch / name).write_bytes(b"half")
        os.utime(scratch / name, (time.time() - age_s,) * 2)
    store = LocalStore(tmp_path)
    assert list(store.list("")) == list(store.list(".")) == list(store.list_folders("")) == []
    store.put("a", b"")
    assert [entry.name for entry in scratch.iterdir()] == ["young"]


@pytest.mark.parametrize("key", [SCRATCH, f"{SCRATCH}/x"])
def test_no_object_can_be_in_the_stores_own_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(Refused, match="is the store's own folder"):
        LocalStore(tmp_path).put(key, b"")


def test_a_put_that_the_disk_refuses_keeps_the_old_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # As a full disk: the file takes some of the bytes, then no more.
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        with pytest.raises(Unavailable, match="cannot write 'a'"):
            store.put("a", b"x" * 100_000)
        with pytest.raises(Unavailable, match="cannot write 'b'"):
            store.put_if_absent("b", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.get("a") == b"old"
    assert [info.key for info in store.list("")] == ["a"]
    assert list((tmp_path / SCRATCH).iterdir()) == []


def test_an_object_cannot_be_a_folder_of_another_key(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"")
    store.put("b/c", b"")
    for key in ("a/x", "b"):
        with pytest.raises(Refused, match="cannot write"):
            store.put(key, b"")
        with pytest.raises(Refused, match="cannot write"):
            store.put_if_absent(key, b"")
    assert [info.key for info in store.list("")] == ["a", "b/c"]


WRITER = """
import sys
from slackwater.store.objects.local import LocalStore

store = LocalStore(sys.argv[1])
for number in range(1_000_000):
    store.put_if_absent(f"many/{number:07}", b"x" * 50_000)
    print(number, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_only_complete_objects(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        done = [next(writer.stdout) for _ in range(20)]
        writer.kill()
    store = LocalStore(tmp_path)
    infos = list(store.list(""))
    assert len(infos) >= len(done)
    assert [info.key for info in infos] == [f"many/{number:07}" for number in range(len(infos))]
    assert {info.size_bytes for info in infos} == {50_000}
