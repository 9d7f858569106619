"""A killed collection leaves a complete history, and the next one finishes."""

import pytest
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.versions import history

from tests.crash.points import Killed, killed_at_each_call
from tests.support.collecting import check_whole, gc, keys_of, old_app, store_of


def test_a_collection_killed_at_any_request_leaves_a_complete_history_and_the_next_one_finishes() -> None:
    kept = None
    for app, _ in killed_at_each_call("gc", old_app, gc, store_of):
        check_whole(app)
        kept = kept or _shape(keys_of(store_of(app)))
        gc(app)
        check_whole(app)
        assert _shape(keys_of(store_of(app))) == kept


def test_versions_only_proposed_by_a_killed_collection_remain_readable() -> None:
    app = old_app()
    before = history.list_versions(app.store, "flights", "legs")

    def kill() -> None:
        raise Killed

    store = store_of(app)
    store.once("put_if_absent", "boundaries/", lambda: store.once("list", "snapshots/", kill))
    with pytest.raises(Killed):
        gc(app)
    assert history.list_versions(store, "flights", "legs") != before
    gc(app, Retention())
    assert history.list_versions(store, "flights", "legs") == before


def _shape(found: set[str]) -> tuple[set[str], int]:
    """Return the names of the manifests, and only the number of the SSTs, whose names are random."""
    return {key for key in found if "/manifests/" in key}, sum("/sst/" in key for key in found)
