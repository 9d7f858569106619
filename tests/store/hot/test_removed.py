"""An app with a hot place is removed with the SSTs there, also by calls that are killed."""

from pathlib import Path

import pytest
from slackwater.errors import NotFound
from slackwater.operations.maintenance.removal import delete_temporary_app, remove_app
from slackwater.store.hot.hot_store import HotStore
from slackwater.store.hot.places import PLACES, declare_hot_place
from slackwater.store.versions import keys

from tests.crash.points import Killed
from tests.store.hot.test_hot_store import LostStore
from tests.support.collecting import AgingStore, aging_app
from tests.support.histories import FlightsApp, flights

LATER_MS = 2_000_000_000_000


@pytest.fixture
def hot_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    """Return an app whose SSTs lie in the folder `hot`."""
    name = keys.sst
    monkeypatch.setattr(keys, "sst", lambda app, stage, ulid: name(app, stage, f"{ulid}{keys.HOT}"))
    app = aging_app(store=AgingStore())
    app.store = HotStore(app.store)
    declare_hot_place(app.store, "flights", str(tmp_path / "hot"))
    app.run(flights(20))
    return app


@pytest.mark.parametrize("moved", [False, True])
def test_the_app_is_removed_though_the_bucket_of_its_place_is_gone(hot_app: FlightsApp, *, moved: bool) -> None:
    aging = hot_app.store._inner  # type: ignore[attr-defined]
    if moved:
        hot_app.store.settle("flights", 10 * LATER_MS)  # type: ignore[attr-defined]
        assert [info for info in aging.list("flights/") if keys.hot_sst_app(info.key)]
    (place,) = PLACES.all(aging, "flights")
    aging._stores_by_root[place.root] = LostStore(place.root, NotFound("bucket", "hot"))
    store = HotStore(aging)
    with pytest.raises(NotFound, match="bucket"):
        list(store.list("flights/"))
    remove_app(store, "flights", by="ada@host", now_ms=LATER_MS, pause=aging.pause)
    assert {info.key for info in aging.list("")} == {"flights/removed.json"}


class KillableStore(HotStore):
    """A store whose deletions of hot SSTs are calls at which a process may end, too."""

    def delete(self, key: str) -> None:
        self._inner.before("delete", key)  # type: ignore[attr-defined]
        super().delete(key)


def ssts(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.parquet")}


@pytest.mark.parametrize("temporary", [False, True])
def test_the_ssts_are_removed_before_the_record_of_their_place(
    hot_app: FlightsApp, tmp_path: Path, *, temporary: bool
) -> None:
    assert ssts(tmp_path / "hot")
    aging = hot_app.store._inner  # type: ignore[attr-defined]
    for killed in range(1_000):
        calls = 0

        def count(_verb: str, _key: str, killed: int = killed) -> None:
            nonlocal calls
            calls += 1
            if calls > killed:
                raise Killed

        aging.before = count
        try:
            store = KillableStore(aging)  # of a new process
            if temporary:
                delete_temporary_app(store, "flights")
            else:
                remove_app(store, "flights", by="ada@host", now_ms=LATER_MS, pause=aging.pause)
        except Killed:
            aging.before = lambda _verb, _key: None
            assert PLACES.all(aging, "flights") or not ssts(tmp_path / "hot")
        else:
            break
    aging.before = lambda _verb, _key: None
    assert not ssts(tmp_path / "hot")
    assert {info.key for info in aging.list("")} <= {"flights/removed.json"}
