"""A trial that is killed at any request: its clones are invisible or complete, and the next call removes them."""

from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

from slackwater.operations.maintenance.removal import Removal
from slackwater.operations.staging.clone import clone, remove_temporary_clone, temporary_clone
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.store.versions import apps

from tests.crash.points import killed_at_each_call
from tests.operations.staging.clone.test_killed import seen, source_app
from tests.support.collecting import AgingStore, fresh, keys_of, store_of
from tests.support.histories import FlightsApp, flights


def began_app() -> tuple[FlightsApp, Cut]:
    """Return an app that has read on since a moment with rows in flight. Every call uses the same times."""
    app = source_app()
    start = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    app.run(flights(10))
    return app, start


def trial(began: tuple[FlightsApp, Cut]) -> None:
    """Run a trial over the app's input, with programs that need no Spark."""
    app, start = began
    store = fresh(app.store)
    with ExitStack() as stack:
        made = []
        for name in ("staging", "staging-before"):

            def outside(_removal: Removal, name: str = name) -> None:
                for topic in [topic for topic in app.kafka.topics if topic.startswith(f"{name}-by-")]:
                    del app.kafka.topics[topic]

            # With a reference that names another moment by then.
            how: Any = {"at": start, "channels": app.kafka, "by": "ada@host", "is_logged": False}
            create = partial(clone, store, "flights", name, **how)
            remove = partial(remove_temporary_clone, store, "flights", name, "a trial", outside, lambda: None)
            stack.enter_context(temporary_clone(create, remove, nullcontext))
            made.append(FlightsApp(store, app.kafka, name, clock=app.clock))
            began, at = (each["legs"].inputs["flights"].offsets for each in (made[-1].heads, start.stages))
            assert began == at
            made[-1].step_all()
        assert made[0].state == made[1].state == app.state


def test_a_killed_trial_leaves_no_partial_app_and_the_next_call_removes_its_clones() -> None:
    def store(began: tuple[FlightsApp, Cut]) -> AgingStore:
        return store_of(began[0])

    met, num_ssts = set[str](), sum("/sst/" in key for key in keys_of(store_of(began_app()[0])))
    for (app, start), _ in killed_at_each_call("trial", began_app, trial, store):
        met.add(seen(app, start.stages["legs"].version))
        # Readers of the app see it unchanged meanwhile.
        assert resolve(app.store, "flights", now_ms=app.clock.now_ms).stages == app.heads
        trial((app, start))
        assert seen(app) == "nothing"
        assert apps.list_apps(app.store) == ("flights",)
        assert list_snapshots(app.store, "flights") == ()
        assert all(name.startswith("flights") for name in (*keys_of(store_of(app)), *app.kafka.topics))
        assert sum("/sst/" in key for key in keys_of(store_of(app))) == num_ssts
    assert met == {"nothing", "whole"}
