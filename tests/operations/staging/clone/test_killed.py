"""A clone that is killed at any request: it is invisible or complete, and the same call finishes it."""

import pytest
from slackwater.errors import NotFound, Refused, SlackwaterError
from slackwater.operations.maintenance.removal import Removal, remove_app
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.store.versions import apps, history
from slackwater.store.versions.manifest import AppInfo

from tests.crash.points import killed_at_each_call
from tests.models.profiles import crash_points
from tests.support.collecting import aging_app, fresh, keys_of, store_of
from tests.support.histories import STAGES, FlightsApp, flights

LATER_MS = 2_000_000_000_000


def source_app() -> FlightsApp:
    """Return an app with rows in flight. Every call uses the same times."""
    app = aging_app()
    app.run(flights(20))
    app.send(*flights(6))
    app.step("legs")
    return app


def make(app: FlightsApp) -> None:
    clone(app.store, "flights", "staging", channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms)


def drop(app: FlightsApp) -> None:
    def outside(removal: Removal) -> None:
        for topic in removal.topics:
            app.kafka.topics.pop(topic, None)

    remove_app(app.store, "staging", by="ada@host", now_ms=LATER_MS, pause=store_of(app).pause, remove_topics=outside)


def all_points() -> int:
    """Return the number of store requests of a clone."""
    app = source_app()
    with store_of(app).requests() as made:
        make(app)
    return len(made)


def seen(app: FlightsApp, born: int = 0) -> str:
    """Return the state of the clone for other processes: missing or complete.

    The clone's stage `legs` begins with version `born`. Fails for any state in between.
    """
    store = fresh(app.store)
    whole = "staging" in apps.list_apps(store)
    for ref in (
        "staging",
        *(f"staging/{stage}" for stage in STAGES),
        f"staging/legs@v{born or app.heads['legs'].version}",
    ):
        try:
            stages = resolve(store, ref, now_ms=LATER_MS).stages.keys()
        except (NotFound, Refused) as error:
            said = error.message
            assert not whole or "is incomplete" in said or "is being removed" in said
        else:
            assert whole
            # A version of one stage is committed a moment before those of the stages below.
            assert stages == {*STAGES} or "@" in ref
    return "whole" if whole else "nothing"


def test_a_killed_clone_is_complete_or_invisible_and_leaves_one_pin_when_finished() -> None:
    met = set()
    for app, _ in killed_at_each_call("clone", source_app, make, store_of):
        met.add(seen(app))
        make(app)
        assert seen(app) == "whole"
        (pinned,) = list_snapshots(app.store, "flights")
        origin = apps.read_app(app.store, "staging").origin
        assert origin is not None
        assert pinned.name == origin.snapshot
        staging = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
        for each in (app, staging):
            each.step_all()
        assert staging.state == app.state
        drop(app)
        assert list_snapshots(app.store, "flights") == ()
        assert keys_of(store_of(app), "staging/") == {"staging/removed.json"}
    assert met == {"nothing", "whole"}


def test_abandoning_an_unfinished_clone_removes_its_pin_and_frees_its_name() -> None:
    for app, _ in killed_at_each_call("clone", source_app, make, store_of):
        try:
            drop(app)
        except NotFound:
            # It was killed before it had begun. The next clone of the same name deletes what it pinned.
            make(app)
            drop(app)
        assert list_snapshots(app.store, "flights") == ()
        assert keys_of(store_of(app), "staging/") == {"staging/removed.json"}
        make(app)
        assert seen(app) == "whole"


def test_a_runner_and_a_clone_that_take_the_same_name_at_once_never_both_get_it() -> None:
    """The later of the two sees the other. One of them gets the name, or neither; then the next call succeeds."""
    points, ended = all_points(), set()
    for point in crash_points(points - 1):
        app, other = source_app(), None

        def begin(verb: str, key: str, app: FlightsApp = app) -> None:
            nonlocal other, left
            left -= 1
            if left == 0:
                store_of(app).before = lambda verb, key: None
                try:
                    other = apps.ensure_app(fresh(app.store), AppInfo("staging", 7))
                except SlackwaterError as error:
                    other = error

        left = point + 1
        store_of(app).before = begin
        failed: SlackwaterError | None = None
        try:
            make(app)
        except SlackwaterError as error:
            failed = error
        store_of(app).before = lambda verb, key: None
        info = apps.find_app(app.store, "staging")
        if info == AppInfo("staging", 7):
            assert failed is not None
            assert apps.find_clone_journal(app.store, "staging") is None
            assert history.list_stages(fresh(app.store), "staging") == ()
            ended.add("run")
        else:
            assert isinstance(other, Refused) or (other is not None and other == info)
            assert failed is None
            ended.add("clone")
    assert ended == {"run", "clone"}


def test_one_of_two_concurrent_clones_of_a_name_is_created_and_the_other_call_reports_it() -> None:
    app = source_app()
    store_of(app).once("put_if_absent", "_cloning", lambda: make(app))
    with pytest.raises(Refused, match=r"is being created by another process|exists already"):
        make(app)
    assert seen(app) == "whole"
    assert len(list_snapshots(app.store, "flights")) == 1
