"""The apps of a store, and their identities."""

from pathlib import Path

import pytest
from slackwater.errors import Corruption, NotFound, Refused, Usage
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import keys
from slackwater.store.versions.apps import (
    CloneJournal,
    begin_clone,
    create_app,
    ensure_app,
    find_app,
    list_apps,
    read_app,
)
from slackwater.store.versions.manifest import AppInfo, Origin

from tests.store.objects.faulty_store import FaultyStore

FLIGHTS = AppInfo("flights", 1000)
STAGING = AppInfo("staging", 2000, Origin("s3://b/p", "flights", "good", {"legs": 7}, {"flights": "corrected"}))


def test_an_app_has_the_identity_with_which_it_was_created(any_store: ObjectStore) -> None:
    create_app(any_store, FLIGHTS)
    create_app(any_store, STAGING)
    assert read_app(any_store, "staging") == STAGING
    assert list_apps(any_store) == ("flights", "staging")


def test_an_app_is_created_once(any_store: ObjectStore) -> None:
    create_app(any_store, FLIGHTS)
    with pytest.raises(Refused, match="app 'flights' exists already"):
        create_app(any_store, AppInfo("flights", 5))
    assert ensure_app(any_store, AppInfo("flights", 6)) == FLIGHTS
    assert ensure_app(any_store, STAGING) == STAGING


@pytest.mark.parametrize("inside", ["", "/deeper", "/a/b/c"])
def test_no_app_is_created_in_a_root_inside_another_apps_folder(any_store: ObjectStore, inside: str) -> None:
    if isinstance(any_store, MemoryStore):
        return  # none lies inside another
    beside = any_store.at(f"{any_store.url}/flights{inside}")
    create_app(any_store, AppInfo("flights-2026", 1))
    ensure_app(beside, STAGING)
    create_app(any_store, FLIGHTS)
    assert ensure_app(beside, STAGING) == STAGING
    for make in (create_app, ensure_app):
        with pytest.raises(Refused, match=f"{inside} lies inside the app 'flights' of the root {any_store.url}: remov"):
            make(beside, AppInfo("another", 1))


def test_a_foreign_app_json_above_a_root_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "app.json").write_text('{"expo": {"name": "flights"}}')
    create_app(open_store(str(tmp_path / "web" / "store")), FLIGHTS)


def test_a_second_creator_of_a_clone_finds_the_clone_created_and_a_removed_clone_is_refused() -> None:
    store = MemoryStore()
    begin_clone(store, CloneJournal(STAGING, "/elsewhere", "good"))
    create_app(store, STAGING, cloned=True)
    store.delete(keys.clone_journal("staging"))
    create_app(store, STAGING, cloned=True)  # as whoever comes a moment later
    store.delete(keys.app_info("staging"))
    with pytest.raises(Refused, match="was removed by another process"):
        create_app(store, STAGING, cloned=True)
    assert list_apps(store) == ()


def test_looking_for_an_app_does_not_create_it(any_store: ObjectStore) -> None:
    assert find_app(any_store, "flights") is None
    assert list_apps(any_store) == ()
    create_app(any_store, FLIGHTS)
    assert find_app(any_store, "flights") == FLIGHTS


def test_a_creation_whose_answer_was_lost_is_recognised() -> None:
    create_app(FaultyStore(MemoryStore(), 1, refused=0, lost=0, late=0, echoed=1), FLIGHTS)


def test_the_error_for_an_unknown_app_suggests_the_nearest() -> None:
    store = MemoryStore()
    with pytest.raises(NotFound, match="no app named 'flights'; there is none yet"):
        read_app(store, "flights")
    create_app(store, FLIGHTS)
    with pytest.raises(NotFound, match="no app named 'fligths'; the nearest: flights"):
        read_app(store, "fligths")


def test_other_folders_are_no_apps() -> None:
    store = MemoryStore()
    store.put("photos/2026/1.jpg", b"")
    assert list_apps(store) == ()


def test_an_invalid_name_is_refused() -> None:
    for name in ("", "../x", "Flights", "a/b"):
        with pytest.raises(Usage, match="is not usable"):
            create_app(MemoryStore(), AppInfo(name, 1))
        with pytest.raises(Usage, match="is not usable"):
            read_app(MemoryStore(), name)


def test_an_unreadable_app_is_corruption() -> None:
    store = MemoryStore()
    store.put("flights/app.json", b"{")
    with pytest.raises(Corruption, match="flights/app"):
        read_app(store, "flights")


class Forgetful(MemoryStore):
    """A store that ignores the condition of a put, like old S3 servers."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.put(key, data)


def test_a_store_that_ignores_the_condition_of_a_put_is_refused() -> None:
    with pytest.raises(Refused, match="overwrote an object"):
        create_app(Forgetful(), FLIGHTS)
    store = Forgetful()
    for _ in range(2):
        with pytest.raises(Refused, match="overwrote an object"):
            ensure_app(store, FLIGHTS)
    assert list(store.list("")) == []
