"""The HTML report: its content, and that it loads and executes nothing."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from slackwater.client.show.picture import Point, SearchPicture, draw_svg, search_picture
from slackwater.client.show.report import ReportInput
from slackwater.snapshot.bisect.causes import TracedCause, unknown_cause
from slackwater.snapshot.bisect.session import CommandPredicate
from slackwater.snapshot.bisect.verdict import VersionRange
from slackwater.store.versions.manifest import Program

from tests.client.show.report.cases import Parsed, reports


@pytest.fixture
def parsed(case: ReportInput) -> Parsed:
    return Parsed.of(reports(case)[0])


def test_the_headline_names_the_commit_the_record_and_the_key(case: ReportInput, parsed: Parsed) -> None:
    (sentence,) = parsed.texts["h1"]
    assert sentence == (
        f"{case.verdict.bad_ref} is the first bad commit of flights, and flights[1]@424 the record behind it: "
        'tail = "••••" (4 characters) turned bad.'
    )


def test_every_part_has_its_heading(parsed: Parsed) -> None:
    assert parsed.texts["h2"] == [
        "The key right before the record, and with it",
        "The key before the commit, and after it",
        "When it turned",
        "The cause",
        "The record",
        "What the commit read",
        "Downstream effects",
        "Snapshots",
        "Verification of the bad moment",
        "Next steps",
    ]


def test_the_report_loads_and_executes_nothing(parsed: Parsed) -> None:
    tags = {tag for tag, _ in parsed.tags if not tag.startswith("/")}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "a", "base", "foreignobject"}
    attributes = {name for _, attributes in parsed.tags for name, _ in attributes}
    assert not {name for name in attributes if name.startswith("on") or name in ("href", "src", "style", "xlink:href")}
    (policy,) = (
        dict(given)["content"] for tag, given in parsed.tags if ("http-equiv", "Content-Security-Policy") in given
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    (css,) = parsed.texts["style"]
    assert not re.search(r"url|@import|expression", css)
    assert "prefers-color-scheme: dark" in css
    assert "@media print" in css


def test_every_step_of_the_search_is_listed_with_its_answer(case: ReportInput, parsed: Parsed) -> None:
    for step in case.verdict.steps:
        assert step.ref in parsed.texts["code"]
    said = [text for text in parsed.texts["span"] if text in ("good", "bad")]
    assert said == ["good"] * said.count("good") + ["bad"] * said.count("bad")
    assert len(said) == len(case.verdict.steps)


def test_the_commands_in_the_report_can_be_typed(case: ReportInput) -> None:
    stages = case.verdict.bad.stages
    ran = structs.replace(stages["aircraft"], program=Program("/home/ada/flights.py", "0" * 32))
    bad_moment = replace(case.verdict.bad, stages={**stages, "aircraft": ran})
    case = replace(case, verdict=replace(case.verdict, bad=bad_moment))
    case = replace(case, evidence=replace(case.evidence, commits=(ran,)))
    listed = Parsed.of(reports(case, show=True)[0]).texts["pre"][-1].splitlines()
    good, bad, where = case.verdict.good_ref, case.verdict.bad_ref, case.verdict.where
    quoted = f'"{where}"'  # it has single quotes
    assert listed == [
        f"slackwater query {good} {quoted}",
        f"slackwater query {bad} {quoted}",
        f"slackwater bisect flights --good {good} --bad {bad} --where {quoted}",
        f"slackwater replay {bad} --code flights.py",
        f"slackwater clone flights/legs@v{case.verdict.bad_version - 1} flights-staging",
    ]


def test_each_snapshot_is_marked_as_holding_the_bad_version_or_older(parsed: Parsed) -> None:
    rows = [row for row in parsed.texts["tr"] if row.startswith("flights@")]
    assert [(row.startswith("flights@before"), row.endswith("from before it")) for row in rows] == [
        (True, True),
        (False, False),
    ]
    assert rows[1].endswith("holds the bad version")


def test_an_unknown_record_is_explained_and_the_read_offsets_are_listed(case: ReportInput) -> None:
    assert case.guilty is not None
    windows = case.verdict.lineage.direct
    why = "a replay of legs@v21 does not send what it sent then. Has the code changed?"
    guilty = replace(case.guilty, source_record=None, reason=why, windows=windows, hops=case.guilty.hops[:1])
    parsed = Parsed.of(reports(replace(case, explanation=TracedCause(unknown_cause(why), guilty)))[0])
    assert f"The record is unknown: {why}" in parsed.texts["p"]
    assert "the record behind it" not in parsed.texts["h1"][0]
    parsed = Parsed.of(reports(replace(case, explanation=TracedCause(unknown_cause("nothing was replayed"))))[0])
    assert any(text.startswith("Nothing was replayed") for text in parsed.texts["p"])
    assert "the cause is unknown: nothing was replayed." in parsed.texts["p"]


def test_a_verdict_with_several_candidate_commits_names_them_and_the_reason(case: ReportInput) -> None:
    verdict = case.verdict
    steps = (*verdict.steps[:-1], replace(verdict.steps[-1], answer="skip", why="no column named 'x': there is y"))
    unsure = replace(
        verdict, keys=None, steps=steps, candidates=(VersionRange("legs", 4, 9), VersionRange("aircraft", 5, 5))
    )
    parsed = Parsed.of(
        reports(replace(case, verdict=unsure, explanation=TracedCause(unknown_cause("the commit is not certain"))))[0]
    )
    assert parsed.texts["h1"] == ["The first bad commit of flights is one of legs@v4..v9, aircraft@v5."]
    assert "bad at the latest" in parsed.texts["dt"]
    assert "The commit is not certain, so nothing was replayed." in parsed.texts["p"]
    assert f"{steps[-1].ref} could not be judged." in parsed.texts["p"]
    assert [text for text in parsed.texts["span"] if text == "skip"] == ["skip"]


def test_a_command_predicate_is_neither_shown_nor_run_again(case: ReportInput) -> None:
    command = "check.sh --account alice"
    decided = replace(case, verdict=replace(case.verdict, predicate=CommandPredicate(command), keys=None))
    text = reports(replace(decided, evidence=replace(case.evidence, wrong_row_counts={})))[0]
    assert "alice" not in text
    parsed = Parsed.of(text)
    assert '"••••" (24 characters)' in parsed.texts["dd"]
    assert "not counted" in parsed.texts["td"]
    assert "polyline" not in parsed.texts


def test_a_report_says_so_if_no_later_stage_is_affected(case: ReportInput) -> None:
    text = Parsed.of(reports(replace(case, evidence=replace(case.evidence, affected_stages=())))[0]).texts["p"]
    assert "No stage had consumed it when this was written." in text


def test_the_picture_shows_the_change_from_good_to_bad(case: ReportInput) -> None:
    picture = search_picture(case.verdict, case.evidence)
    assert {probe.answer for probe in picture.probes if probe.distance < 0} == {"good"}
    assert {probe.answer for probe in picture.probes if probe.distance >= 0} == {"bad"}
    assert [wrong.rows for wrong in picture.wrong if wrong.distance < 0] == [0] * sum(
        w.distance < 0 for w in picture.wrong
    )
    assert all(wrong.rows for wrong in picture.wrong if wrong.distance >= 0)
    assert [mark.name for mark in picture.snapshots] == ["before", "behind"]
    at_turn = [mark.name for stage, lane in picture.lanes for mark in lane if mark.distance == 0]
    assert (picture.bad_stage, at_turn) == (case.verdict.stage, [f"v{case.verdict.bad_version}"])


def places(least: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least, most), min_size=1, max_size=12, unique=True).map(sorted)


@given(places(-100_000, -1), places(0, 100_000), st.integers(0, 10**9))
def test_any_search_is_drawn_inside_its_picture_in_order(
    before: Sequence[int], after: Sequence[int], rows: int
) -> None:
    probes = [*(Point(at, "good", "good") for at in before), *(Point(at, "bad", "bad") for at in after)]
    wrong = [Point(probe.distance, "x", rows=rows if probe.answer == "bad" else 0) for probe in probes]
    lane = tuple(Point(at, f"v{at}") for at in range(max(before[-1], -8), min(after[0], 6) + 1))
    named = tuple(Point(probe.distance, "<b>" * 20) for probe in probes)
    parsed = Parsed.of(
        draw_svg(SearchPicture((("stage<" * 20, lane),), "stage", True, tuple(probes), named, tuple(wrong)))
    )
    ((_, svg),) = ((tag, given) for tag, given in parsed.tags if tag == "svg")
    _, _, width, height = map(float, (dict(svg)["viewbox"] or "").split())
    drawn = [dict(given) for tag, given in parsed.tags if tag in ("circle", "text", "line", "rect")]
    for one in drawn:
        across = [float(one[name] or 0) for name in ("cx", "x", "x1", "x2") if name in one]
        down = [float(one[name] or 0) for name in ("cy", "y", "y1", "y2") if name in one]
        assert all(0 <= x <= width for x in across)
        assert all(0 <= y <= height for y in down)
    samples = [float(one["cx"] or 0) for one in drawn if one.get("class") == "sample"]
    assert samples == sorted(samples)
    assert len(samples) == len(wrong)
