"""Resolution of refs in a history that garbage collection has thinned out."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slackwater.errors import NotFound
from slackwater.snapshot.cut.graph import raise_senders, violations
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.store.versions import history, horizon
from slackwater.store.versions.horizon import Boundary
from slackwater.store.versions.manifest import Manifest

from tests.models.profiles import scaled
from tests.support.collecting import HOUR_MS, StoreClock, aging_app, fresh
from tests.support.histories import STAGES, FlightsApp, flights

RULES = (
    Retention(versions=1),
    Retention(versions=4),
    Retention(all_ms=2 * HOUR_MS),
    Retention(all_ms=2 * HOUR_MS, hourly_ms=100 * HOUR_MS),
    Retention(versions=3, hourly_ms=100 * HOUR_MS),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["all", "send", *STAGES]), st.integers(1, 4), st.sampled_from([0, 20, 50, 130])),
    min_size=5,
    max_size=16,
)

IDLE = [("all", 1, 0), *[("legs", 1, 30)] * 20]
"""One batch passes through all stages; after that, only the first stage commits."""
HALFWAY = [*[("all", 2, 50)] * 6, ("legs", 3, 50), ("aircraft", 1, 50), ("legs", 3, 50), ("carriers", 1, 20)]


def thinned(steps: list[tuple[str, int, int]], rules: Retention) -> FlightsApp:
    """Return an app after these steps, with time between them, and a collection."""
    app = aging_app()
    clock = app.clock
    assert isinstance(clock, StoreClock)
    for verb, count, minutes in steps:
        for _ in range(count):
            if verb in ("all", "send"):
                app.send(*flights(3))
            for stage in STAGES:
                if verb in ("all", stage):
                    app.step(stage, max_versions=2)
        clock.wait(minutes * 60_000)
    clock.wait(2 * HOUR_MS)
    collect(app.store, app.name, rules, by="test")
    app.store = fresh(app.store)
    return app


def boundary_of(app: FlightsApp) -> Boundary:
    return horizon.newest(app.store, app.name) or Boundary(0, final=True)


def firsts(app: FlightsApp) -> dict[str, Manifest]:
    """Return the earliest cut from which on the history of every stage is complete."""
    found = {stage: app.version(stage, history.first_version(app.store, app.name, stage)) for stage in STAGES}
    return raise_senders(found, app.version)


def at(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


@scaled(30, in_ci=300)
@given(steps=STEPS, rules=st.sampled_from(RULES), share=st.floats(0, 1), stage=st.sampled_from(("", *STAGES)))
@example(steps=IDLE, rules=RULES[3], share=0.5, stage="carriers")
@example(steps=IDLE, rules=RULES[3], share=0.5, stage="legs")
def test_a_time_means_the_newest_remaining_moment_up_to_it(
    steps: list[tuple[str, int, int]], rules: Retention, share: float, stage: str
) -> None:
    app = thinned(steps, rules)
    limit, now_ms = boundary_of(app), app.clock.now_ms
    begin_ms = min(
        [moment.time_ms for moment in limit.moments] or [max(first.time_ms for first in firsts(app).values())]
    )
    time_ms = int(begin_ms + share * (now_ms - begin_ms))
    ref = f"flights/{stage}@{at(time_ms)}" if stage else f"flights@{at(time_ms)}"
    found = resolve(app.store, ref, now_ms=now_ms)
    assert violations(found.stages) == ()
    assert found.versions == resolve(app.store, f"flights@{at(time_ms)}", now_ms=now_ms).versions
    assert found.time_ms <= time_ms
    assert not [moment for moment in limit.moments if found.time_ms < moment.time_ms <= time_ms]


@scaled(30, in_ci=300)
@given(steps=STEPS, rules=st.sampled_from(RULES))
@example(steps=IDLE, rules=RULES[0])
@example(steps=IDLE, rules=RULES[3])
@example(steps=HALFWAY, rules=RULES[1])
def test_a_version_resolves_if_a_kept_moment_or_the_complete_history_contains_it(
    steps: list[tuple[str, int, int]], rules: Retention
) -> None:
    app = thinned(steps, rules)
    limit, whole = boundary_of(app), firsts(app)
    for stage in STAGES:
        for version in history.list_versions(app.store, app.name, stage):
            ref = f"flights/{stage}@v{version}"
            left = [moment for moment in limit.moments if moment.stages.get(stage) == version]
            if version >= whole[stage].version or left:
                cut = resolve(app.store, ref, now_ms=0)
                assert cut.stages[stage].version == version
                assert violations(cut.stages) == ()
                assert all(limit.allows(each, number) for each, number in cut.versions.items())
                own_ms = cut.stages[stage].time_ms
                if any(cut.versions[each] < first for each, first in limit.first.items()):
                    assert cut.time_ms - own_ms == min(abs(moment.time_ms - own_ms) for moment in left)
            else:
                with pytest.raises(NotFound, match="is complete from"):
                    resolve(app.store, ref, now_ms=0)


@scaled(20, in_ci=200)
@given(steps=STEPS, rules=st.sampled_from(RULES[3:]), shares=st.lists(st.floats(0, 1), min_size=5, max_size=5))
@example(steps=IDLE, rules=RULES[3], shares=[0, 0.2, 0.5, 0.7, 0.9])
def test_a_note_is_given_exactly_if_another_moment_is_used(
    steps: list[tuple[str, int, int]], rules: Retention, shares: list[float]
) -> None:
    whole, app = thinned(steps, Retention()), thinned(steps, rules)
    limit, now_ms = boundary_of(app), app.clock.now_ms
    begin_ms = min((moment.time_ms for moment in limit.moments), default=now_ms)
    ends_ms = [time_ms for each in limit.moments for time_ms in (each.time_ms, each.until_ms, each.until_ms + 1)]
    for time_ms in {*ends_ms, *(int(begin_ms + share * (now_ms - begin_ms)) for share in shares)} - {0, 1}:
        ref = f"flights@{at(time_ms)}"
        found = resolve(app.store, ref, now_ms=now_ms)
        asis = resolve(whole.store, ref, now_ms=now_ms)
        assert (found.thinned is None) == (found.versions == asis.versions)
        if found.thinned is not None:
            assert (found.thinned.asked_ms, found.thinned.answered_ms) == (time_ms, found.time_ms)


def test_an_idle_stages_head_resolves_as_the_log_shows_it() -> None:
    app = thinned(IDLE, RULES[0])
    head = app.heads["carriers"].version
    for ref in ("flights/carriers", f"flights/carriers@v{head}", "flights/carriers@~0"):
        cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
        assert cut.versions["carriers"] == head
        assert cut.versions["legs"] >= boundary_of(app).first["legs"]
