"""Requests that only the page makes, and the rights that a token needs for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from slackwater.serve.server import ListenOptions

from tests.serve.conftest import Ask, client_of
from tests.support.histories import FlightsApp, flights

ROWS = "/apps/flights/at/{}/tables/aircraft/rows"


def test_pages_of_rows_have_each_row_once(written: FlightsApp, ask: Ask) -> None:
    found: list[str] = []
    start = ""
    while True:
        page = ask(ROWS.format("now"), limit=3, **({"start": start} if start else {})).json
        found += [row["tail"] for row in page["rows"]]
        if page["next"] is None:
            break
        start = page["next"]
    assert sorted(found) == sorted(written.state["aircraft"])
    assert page["version"] == written.heads["aircraft"].version


def test_each_row_comes_with_its_state_at_another_moment(own: Callable[..., Ask], app: FlightsApp) -> None:
    before = app.heads["aircraft"].version
    app.run([*flights(2, aircraft=2), *flights(1, aircraft=9)])
    ask = own()
    page = ask(ROWS.format("now"), against=f"v{before}").json
    changes = {
        (row or was)["tail"]: change
        for row, change, was in zip(page["rows"], page["changes"], page["before"], strict=True)
    }
    assert {tail for tail, change in changes.items() if change == "changed"} == {"N000", "N001"}
    back = ask(ROWS.format(f"v{before}"), against="now").json
    assert [row for row, change in zip(back["rows"], back["changes"], strict=True) if change == "removed"] == []
    assert len(back["rows"]) == len(page["rows"])


def test_a_row_that_only_the_other_moment_has_is_marked_removed(own: Callable[..., Ask], app: FlightsApp) -> None:
    before = app.heads["aircraft"].version
    client_of(app).app("flights").edit("aircraft", "DELETE FROM aircraft WHERE tail = 'N003'")
    page = own()(ROWS.format("now"), against=f"v{before}").json
    gone = [
        (row, was["tail"])
        for row, was, change in zip(page["rows"], page["before"], page["changes"], strict=True)
        if change == "removed"
    ]
    assert gone == [(None, "N003")]


def test_a_diff_of_two_versions_can_be_limited(ask: Ask) -> None:
    two = {"before": "v2", "before_stage": "aircraft", "after": "v5", "after_stage": "aircraft", "table": "aircraft"}
    (whole,), (some,) = (ask("/apps/flights/diff", **two, **more).json["tables"] for more in ({}, {"limit": "2"}))
    assert len(whole["rows"]) == whole["added"] + whole["removed"] + whole["changed"]
    assert some["rows"] == whole["rows"][:2]
    assert some["changed"] == whole["changed"]


def test_unchanged_rows_are_not_sent_again(ask: Ask) -> None:
    etag = ask(ROWS.format("v5")).headers["etag"]
    assert ask(ROWS.format("v5"), headers={"if-none-match": etag}).status == 304
    assert ask(ROWS.format("v6"), headers={"if-none-match": etag}).status == 200
    assert ask(ROWS.format("v5"), headers={"if-none-match": etag}, limit=3).status == 200


def test_stages_are_returned_now_and_at_a_moment(written: FlightsApp, ask: Ask) -> None:
    now = ask("/apps/flights/at/now/stages").json
    assert [each["stage"] for each in now["stages"]] == ["legs", "aircraft", "carriers"]
    assert now["now"] is True
    then = ask("/apps/flights/at/v4/stages", stage="carriers").json
    assert then["versions"]["carriers"] == 4
    carriers = then["stages"][-1]
    assert (carriers["version"], carriers["inputs"][0]["upstream"]) == (4, "aircraft")
    assert then["waiting"] == []


def test_a_running_snapshot_lists_the_stages_that_have_recorded_it(own: Callable[..., Ask], app: FlightsApp) -> None:
    client_of(app).app("flights").take_snapshot(
        "asked", instant=False, timeout_s=1, wait=False, on_poll=lambda _look: None
    )
    ask = own()
    (waiting,) = ask("/apps/flights/at/now/stages").json["waiting"]
    assert waiting["name"] == "asked"
    assert waiting["stages"]["legs"]["version"] is None
    app.send(*flights(3))
    app.step("legs")
    ask = own()
    (waiting,) = ask("/apps/flights/at/now/stages").json["waiting"]
    assert waiting["stages"]["legs"]["version"] == app.heads["legs"].version
    assert waiting["stages"]["aircraft"]["version"] is None


def test_timeline_operations_cost_and_rejected_records_are_returned(written: FlightsApp, ask: Ask) -> None:
    found = ask("/apps/flights/timeline").json
    assert found["is_whole"]
    assert found["commits"] == sum(head.version for head in written.heads.values())
    assert ask("/apps/flights/operations").json == []
    assert ask("/apps/flights/rejected").json == {"app": "flights", "total": {}, "waiting": {}, "records": []}
    assert [each["stage"] for each in ask("/apps/flights/cost").json["costs"][0]["stages"]] == [
        "legs",
        "aircraft",
        "carriers",
    ]


@pytest.mark.parametrize("path", ["timeline", "at/now/stages", "rejected", "operations", "cost"])
def test_a_token_for_some_tables_cannot_read_data_about_the_whole_app(
    own: Callable[..., Ask], app: FlightsApp, path: str
) -> None:
    shown = str(client_of(app).add_token("some", ("flights",), tables=("aircraft",), verbs=("read",)))
    token = next(word for word in shown.split() if word.startswith("slackwater_"))
    ask = own(ListenOptions(needs_tokens=True))
    assert ask.token(token, f"/apps/flights/{path}").status == 403
    assert ask.token(token, ROWS.format("now")).status == 200
    assert ask.token(token, "/apps/flights/at/now/tables/carriers/rows").status == 403
    assert ask("/").status == 200  # the page is no secret
