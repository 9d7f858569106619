"""Errors of a trial before Spark starts, and the amount of its input."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slackwater.client.show import trials
from slackwater.client.show.render.markdown import render
from slackwater.client.show.report import Mask
from slackwater.errors import NotFound, Refused, SlackwaterError, Usage
from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.trial import TrialResult
from slackwater.operations.staging.trial_plan import Release, TrialPlan, check_reached, count_unread, make_plan
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.diff.moments import new_tables
from slackwater.snapshot.take import audit_log
from slackwater.store.versions import history

from tests.support.histories import FlightsApp, app_of

PROGRAM = """
import slackwater as sw

app = sw.App("flights")
legs, by_carrier = sw.repartition("by-aircraft", key="tail"), sw.repartition("by-carrier", key="carrier")
state = sw.aggregate(flights=sw.count(), delay=sw.sum("delay"))
app.stage(reads=sw.topic("flights"), writes=legs, name="legs")(lambda rows: rows)
app.stage(reads=legs, writes=by_carrier, state=state, name="{aircraft}")(lambda rows: rows)
app.stage(reads=by_carrier, state=state, name="carriers")(lambda rows: rows)
app.stage(reads=by_carrier, state=state, name="late")(lambda rows: rows)
"""


@pytest.fixture
def app() -> FlightsApp:
    return app_of(20)


def planned(app: FlightsApp, folder: Path, aircraft: str = "aircraft", **more: Any) -> TrialPlan:
    code = folder / "new.py"
    code.write_text(PROGRAM.format(aircraft=aircraft))
    release = {"app": "flights", "code": str(code), "start": "flights/aircraft@v2", "end": "flights"} | more
    return make_plan(app.store, Release(**release))


def test_a_plan_has_the_stages_to_run_and_the_end_offsets(app: FlightsApp, tmp_path: Path) -> None:
    plan = planned(app, tmp_path, allow=("FROM carriers WHERE after_delay = 0", "FROM late"))
    assert plan.ends == {"flights": (8, 12)}
    assert (plan.new_stages, plan.old) == (("legs", "aircraft", "carriers", "late"), None)
    assert planned(app, tmp_path, only=("aircraft",)).new_stages == ("legs", "aircraft")


def test_if_stages_differ_in_progress_the_input_ends_at_the_furthest_offset_of_each_partition(
    app: FlightsApp, tmp_path: Path
) -> None:
    head = app.heads["legs"]
    mine = replace(head.inputs["flights"], offsets=(9, 11))
    app.commit(replace(head, version=head.version + 1, inputs={"flights": mine, "again": head.inputs["flights"]}))
    with pytest.raises(Refused, match="records are in flight"):
        planned(app, tmp_path)
    old = tmp_path / "old.py"
    old.write_text(PROGRAM.format(aircraft="planes"))
    plan = planned(app, tmp_path, before=str(old), only=("aircraft",), stages={"planes": "aircraft"})
    assert plan.ends == {"flights": (9, 12)}
    assert plan.old_stages == ("legs", "planes")


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"only": ("carrier",)}, NotFound, "no stage of app 'flights' named 'carrier'; the nearest: carriers"),
        ({"keep": "staging"}, Refused, "app 'staging' exists already: --keep takes a name that no app has"),
        ({"keep": "No Name"}, Usage, "app name 'No Name' is not usable"),
        ({"allow": ("FROM carrier",)}, Usage, "exactly one table, of .*carriers.*; this one reads none of them"),
        ({"allow": ("FROM carriers WHERE after_worst > 1",)}, NotFound, "no column named 'after_worst'"),
        ({"allow": ("FROM planes",), "stages": {"other": "planes"}}, Usage, "this one reads none of them"),
        ({"end": "flights/aircraft@v2"}, Usage, "is not after"),
    ],
)
def test_errors_use_the_names_of_the_app_and_not_of_its_clones(
    app: FlightsApp, tmp_path: Path, more: dict[str, Any], error: type[SlackwaterError], words: str
) -> None:
    clone(app.store, "flights", "staging", channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms)
    with pytest.raises(error, match=words):
        planned(app, tmp_path, **more)


def test_queries_for_expected_differences_use_the_releases_new_names(app: FlightsApp, tmp_path: Path) -> None:
    more = {"aircraft": "planes", "stages": {"aircraft": "planes"}}
    planned(app, tmp_path, **more, allow=("FROM planes WHERE before_delay > 0",))
    with pytest.raises(NotFound, match="no column named 'before_minutes'"):
        planned(app, tmp_path, **more, allow=("FROM planes WHERE before_minutes > 0",))
    planned(app, tmp_path, **more, renames={"delay": "minutes"}, allow=("FROM planes WHERE before_minutes > 0",))


def test_records_to_read_are_counted_and_unread_ones_at_the_end_are_an_error(app: FlightsApp) -> None:
    cut = resolve(app.store, "flights", now_ms=0)
    assert count_unread(cut, {"legs"}, {"flights": (10, 12, 3)}) == 5
    assert count_unread(cut, {"legs"}, {"others": (9,)}) is None
    assert count_unread(cut, {"legs", "new"}, {"flights": (10, 12)}) is None
    check_reached(cut, app.heads, {"flights": (8, 12)}, "the program")
    # Of stages that were not tried nothing is asked.
    check_reached(cut, {"carriers"}, {"flights": (9, 12)}, "the program")
    with pytest.raises(Refused, match=r"the program stopped before .*; unread: 1 of flights"):
        check_reached(cut, app.heads, {"flights": (9, 12)}, "the program")


def test_a_failed_query_for_expected_differences_is_reported_and_fails_the_trial(app: FlightsApp) -> None:
    cut = resolve(app.store, "flights", now_ms=0)
    found = TrialResult(
        "flights", cut, cut, (), (), (), 20, 1.0, False, (), not_allowed=("no column named 'x' (FROM legs)",)
    )
    shown = trials.trial_result(found, "new.py", show_values=False)
    assert shown.failed
    assert isinstance(shown.data, dict)
    assert (shown.data["same"], shown.data["not_allowed"]) == (True, found.not_allowed)
    assert "no column named 'x'" in shown.notes[0]
    assert "no column named" in render(trials.trial_page(found, "new.py", Mask(False)))


def test_a_table_that_only_the_new_program_has_is_reported_and_is_no_difference(app: FlightsApp) -> None:
    cut = resolve(app.store, "flights", now_ms=0)
    found = TrialResult("flights", cut, cut, (), (), (), 20, 1.0, False, (), new_tables={"routes": 7})
    shown = trials.trial_result(found, "new.py", show_values=False)
    assert not shown.failed
    assert "new table routes, of about 7 rows: not compared" in shown.blocks
    assert isinstance(shown.data, dict)
    assert (shown.data["same"], shown.data["new_tables"]) == (True, {"routes": 7})
    assert "Not compared: new table routes, of about 7 rows" in render(trials.trial_page(found, "new.py", Mask(False)))
    older = Cut(cut.app, {name: each for name, each in cut.stages.items() if name != "carriers"})
    assert new_tables(older, cut).keys() == {"carriers"}
    assert new_tables(cut, older) == {}


def test_a_temporary_clone_is_not_logged_in_its_source(app: FlightsApp) -> None:
    clone(app.store, "flights", "t", channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms, is_logged=False)
    assert audit_log.list_operations(app.store, "flights") == ()
    assert [each.verb for each in audit_log.list_operations(app.store, "t")] == ["clone"]
    assert history.list_stages(app.store, "t")
