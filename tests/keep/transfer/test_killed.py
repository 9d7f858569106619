"""An export or an import that is killed anywhere: nothing half-made is seen, and the same call again finishes it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from slackwater.errors import NotFound, Refused
from slackwater.keep.maintain.removal import Removal, remove_app
from slackwater.keep.transfer.document import DOCUMENT
from slackwater.keep.transfer.imported import Folder
from slackwater.keep.verify.verify import verify
from slackwater.moments.cut.resolve import resolve
from slackwater.moments.take.audit_log import list_operations
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, history

from tests.keep.transfer.test_transfer import NOW_MS, assert_whole, come, leave, running, started
from tests.models.profiles import crash_points
from tests.support.collecting import AgingStore, Killed, fresh, keys_of
from tests.support.histories import STAGES, FlightsApp


@pytest.fixture(scope="module")
def source() -> FlightsApp:
    return running(MemoryStore())


@pytest.fixture(scope="module")
def folder(source: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "out"
    leave(source, SstCache(path.parent / "cache", 1 << 30), path)
    return path


@contextmanager
def told_of_writes(store: AgingStore, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, files are requests, too, and what is killed leaves what it had written."""
    write_table, write_bytes = pq.write_table, Path.write_bytes

    def table(rows: object, where: Path, **how: object) -> None:
        store.before("write", str(where))
        write_table(rows, where, **how)

    def data(path: Path, some: bytes) -> int:
        store.before("write", str(path))
        return write_bytes(path, some)

    with patch.context() as changed:
        changed.setattr(pq, "write_table", table)
        changed.setattr(Path, "write_bytes", data)
        changed.setattr(shutil, "rmtree", lambda *_args, **_how: None)
        yield


def test_an_export_that_is_killed_anywhere_leaves_no_folder_and_the_same_call_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def aging() -> tuple[FlightsApp, AgingStore]:
        store = AgingStore()
        return running(store), store

    whole, store = aging()
    with told_of_writes(store, monkeypatch), store.requests() as made:
        expected = leave(whole, SstCache(tmp_path / "cache", 1 << 30), tmp_path / "whole").export
    assert sum(each.startswith("write ") for each in made) == len(list(expected.files)) + 1
    assert made[-1].endswith(f"/{DOCUMENT}")
    for point in crash_points(len(made) - 1):
        app, store = aging()
        path, cache = tmp_path / f"out-{point}", SstCache(tmp_path / f"cache-{point}", 1 << 30)
        with told_of_writes(store, monkeypatch), store.death_after(point), pytest.raises(Killed):
            leave(app, cache, path)
        assert not path.exists()
        with pytest.raises(NotFound):
            Folder.open(path)
        for left in tmp_path.glob(f".{path.name}.*"):
            with pytest.raises(Refused, match=f"{DOCUMENT} cannot be read"):
                Folder.open(left)
        assert leave(app, cache, path).export == expected
        assert not list(tmp_path.glob(f".{path.name}.*"))


def test_an_import_that_is_killed_anywhere_is_there_for_nobody_and_the_same_call_finishes_it(
    source: FlightsApp, folder: Path
) -> None:
    into = AgingStore()
    with into.requests() as made:
        come(source, folder, "whole", into)
    copied, met = {key.partition("/")[2] for key in keys_of(into) if "/sst/" in key}, set()
    assert len(made) > 20
    for point in crash_points(len(made)):
        other, name = AgingStore(), f"copy-{point}"
        with suppress(Killed), other.death_after(point):
            come(source, folder, name, other)
        is_there = name in apps.list_apps(fresh(other))
        met.add(is_there)
        seen = ""
        try:
            assert set(resolve(fresh(other), name, now_ms=NOW_MS).stages) == {*STAGES}
        except (NotFound, Refused) as error:
            seen = error.message
        # Between its identity and the end of its note, it is refused as half made.
        assert is_there == (not seen) or "that was begun, and has not ended" in seen
        before = {key for key in keys_of(other) if "/sst/" in key}
        with other.requests() as again:
            come(source, folder, name, other)
        assert not [key for key in before if f"put {key}" in again], "what is there is passed over"
        assert {key.partition("/")[2] for key in keys_of(other) if "/sst/" in key} == copied
        assert apps.find_cloning(other, name) is None
        assert_whole(other, name)
        assert [each.verb for each in list_operations(other, name)] == ["import"]
        assert come(source, folder, name, other).done
    assert met == {True, False}


def test_half_an_import_that_is_given_up_leaves_nothing_and_its_name_free(source: FlightsApp, folder: Path) -> None:
    other, name = AgingStore(), "given-up"
    other.once("put_if_absent", "/manifests/", lambda: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        come(source, folder, name, other)
    with pytest.raises(Refused, match="an import, or an adoption: that was begun, and has not ended") as half:
        history.list_stages(fresh(other), name)
    assert "slackwater app rm given-up" in half.value.hint
    with pytest.raises(Refused, match="was begun and is not finished: of another folder, or on other terms"):
        come(source, folder, name, other, topics={"flights": "flights-2"})
    gone: list[str] = []

    def outside(removal: Removal) -> None:
        gone.extend(removal.topics)
        for topic in removal.topics:
            source.kafka.topics.pop(topic, None)

    def pause(seconds: float) -> None:
        other.clock_ms += round(seconds * 1_000)

    remove_app(other, name, by="ada@host", now_ms=NOW_MS, outside=outside, pause=pause)
    assert gone == ["given-up-by-aircraft-repartition", "given-up-by-carrier-repartition"]
    assert keys_of(other, f"{name}/") == {f"{name}/removed.json"}
    come(source, folder, name, other)
    copy = started(source, other, name)
    assert copy.state == source.state


def test_of_two_imports_of_a_name_one_is_made_and_the_other_hears_of_it(source: FlightsApp, folder: Path) -> None:
    other = AgingStore()
    other.once("put_if_absent", "_cloning", lambda: come(source, folder, "twice", other))
    with pytest.raises(Refused, match=r"was begun by somebody else at the same moment|exists already"):
        come(source, folder, "twice", other)
    report = verify(other, "twice", now_ms=NOW_MS, deep=True, reader=None)
    assert report.consistent
