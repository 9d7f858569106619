"""Correctness and readability of the page: sorted rows, full names, complete plots, and the app's running state."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect
from slackwater.snapshot.under_way.runners import HEARTBEATS, Heartbeat

from tests.serve.page.conftest import WAIT_MS, Open
from tests.serve.page.story import CHAINS, FILLED, JUMP, JUMP_FROM, LARGE_KEYS, LONG, WRONG, step
from tests.support.histories import FlightsApp

PAGE = 100
"""Rows per page."""


def column(page: Page, number: int) -> list[int]:
    """Return the numbers in a column of the visible rows."""
    return [int(text) for text in page.locator(f"table.rows tbody td:nth-child({number})").all_text_contents()]


def sort(page: Page, name: str) -> None:
    page.get_by_role("columnheader", name=name).get_by_role("button").click()


def test_the_page_says_whether_the_app_runs(look: Open, told: FlightsApp) -> None:
    page = look("#/flights")
    state = page.locator(".live")
    expect(state).to_have_text("not running")
    epochs = {stage: head.epoch for stage, head in told.heads.items()}
    beat = Heartbeat("0" * 26, "host:1", {"legs": epochs["legs"]})
    try:
        HEARTBEATS.put(told.store, beat, "flights")
        told.step("legs")
        expect(state).to_have_text("1 of 3 stages running")
        HEARTBEATS.put(told.store, Heartbeat(beat.writer, beat.by, epochs), "flights")
        told.step("legs")
        expect(state).to_have_text("running")
        page.goto(re.sub("#.*", "", page.url) + "#/flights?at=legs@v5")
        expect(state).to_have_text("running")
        page.reload()
        expect(state).to_have_text("connected")  # for a moment in the past, no runner is asked
    finally:
        HEARTBEATS.remove(told.store, beat.writer, "flights")


def test_the_rows_tab_opens_a_table_with_rows_and_sorts_over_all_pages(look: Open) -> None:
    page = look("#/wide/rows")
    expect(page.get_by_role("region", name=f"Rows of {FILLED}")).to_be_visible()
    note = page.locator(".view .note").first
    expect(note).to_contain_text(f"page 1: {PAGE} rows in storage order")
    sort(page, "cents")
    # The first statement of a server starts a process for SQL.
    heading = page.get_by_role("columnheader", name="cents")
    expect(heading).to_have_attribute("aria-sort", "descending", timeout=2 * WAIT_MS)
    last = 6
    cents = sorted(order * 7 % LARGE_KEYS + last % 2 + JUMP for order in range(LARGE_KEYS))
    assert column(page, 3) == cents[::-1][:PAGE]
    sort(page, "cents")
    expect(page.get_by_role("columnheader", name="cents")).to_have_attribute("aria-sort", "ascending")
    expect(note).to_contain_text("lowest first")
    expect(page.locator("table.rows tbody td:nth-child(3)").first).to_have_text(str(cents[0]))
    assert column(page, 3) == cents[:PAGE]
    sort(page, "cents")
    expect(note).to_contain_text("in storage order")


def test_a_single_page_of_rows_can_be_sorted_while_compared_with_another_moment(look: Open, told: FlightsApp) -> None:
    page = look("#/flights/rows/carriers?against=before-release")
    note = page.locator(".view .note").first
    rows = page.locator("table.rows tbody tr")
    expect(note).to_contain_text("12 rows, all of the table")
    sort(page, "delay")
    delays = {name: totals[1] for name, totals in told.state["carriers"].items()}
    expect(rows.first).to_contain_text(max(delays, key=delays.__getitem__))
    names = page.locator("table.rows tbody a").all_text_contents()
    assert [delays[name] for name in names] == sorted(delays.values(), reverse=True)
    assert rows.first.locator("td.differs").count() == 2
    sort(page, "carrier")
    expect(page.locator("table.rows tbody a").first).to_have_text(min(delays))
    assert page.locator("table.rows tbody a").all_text_contents() == sorted(delays)


def test_many_stages_have_full_names_and_can_be_searched(look: Open) -> None:
    page = look("#/wide")
    graph = page.get_by_role("region", name="Stages and what they read and send")
    expect(graph.locator("text.name")).to_have_count(CHAINS * LONG)
    shown = graph.locator("text.name").evaluate_all("all => all.map(each => each.firstChild.data)")
    assert sorted(shown) == [step(number) for number in range(CHAINS * LONG)]
    # No name runs into the version beside it.
    apart = """all => all.every(node => {
        const [name, version] = [".name", ".version"].map(each => node.querySelector(each).getBBox());
        return name.x + name.width < version.x;
    })"""
    assert graph.locator(".node.stage").evaluate_all(apart)
    page.keyboard.press("/")
    page.keyboard.type("STEP_13")
    expect(page.get_by_text(f"1 of {CHAINS * LONG} stages")).to_be_visible()
    expect(page.get_by_role("region", name="Stages", exact=True).locator("tbody tr")).to_have_count(1)
    expect(graph.locator(".node.stage:not(.dim) text.name")).to_have_text(re.compile(FILLED))
    wanted = graph.locator(".node.stage:not(.dim)").bounding_box()
    seen = graph.bounding_box()
    assert wanted is not None
    assert seen is not None
    assert seen["x"] <= wanted["x"]
    assert wanted["x"] + wanted["width"] <= seen["x"] + seen["width"]


def test_a_large_graph_can_be_zoomed_out_until_it_fits(look: Open) -> None:
    page = look("#/wide")
    graph = page.get_by_role("region", name="Stages and what they read and send")
    drawing = graph.locator("svg")
    width = drawing.evaluate("each => each.clientWidth")
    assert width > graph.evaluate("each => each.clientWidth")
    page.get_by_role("button", name="Smaller graph").click()
    expect(page.get_by_text("80 %")).to_be_visible()
    assert drawing.evaluate("each => each.clientWidth") < width
    page.get_by_role("button", name="all of it").click()
    page.wait_for_function("""() => { const graph = document.querySelector(".graph");
        return graph.scrollWidth <= graph.clientWidth; }""")


def test_the_numbers_of_a_plots_axis_are_not_clipped(look: Open) -> None:
    page = look(f"#/wide/key/{FILLED}/7")
    expect(page.locator(".plot canvas")).to_be_visible()
    edges = """canvas => {
        const of = (x, width) => canvas.getContext("2d").getImageData(x, 0, width, canvas.height).data;
        const inked = (data) => data.some((value, at) => at % 4 === 3 && value > 0);
        return [inked(of(0, 2)), inked(of(canvas.width - 2, 2)), inked(of(0, canvas.width))];
    }"""
    page.wait_for_function(f"() => ({edges})(document.querySelector('.plot canvas'))[2]")
    assert page.locator(".plot canvas").evaluate(edges) == [False, False, True]
    page.get_by_role("checkbox", name="seen").uncheck()  # then that of the large numbers is on the left
    page.wait_for_function(f"() => ({edges})(document.querySelector('.plot canvas'))[2]")
    assert page.locator(".plot canvas").evaluate(edges) == [False, False, True]


def suggested(page: Page) -> str:
    expect(page.locator(".plot canvas")).to_be_visible()
    page.get_by_role("link", name="bisect", exact=True).click()
    field = page.get_by_label("What is wrong")
    expect(field).not_to_have_value("")
    return field.input_value()


def test_the_bisect_suggested_for_a_key_queries_the_column_that_jumped(look: Open) -> None:
    query = suggested(look(f"#/flights/key/carriers/{WRONG}"))
    assert query.startswith(f"SELECT carrier FROM carriers WHERE carrier = '{WRONG}' AND delay > ")
    page = look(f"#/wide/key/{FILLED}/7")
    query = suggested(page)
    before, after = (7 * 7 % LARGE_KEYS + version % 2 + JUMP * (version >= JUMP_FROM) for version in (3, 4))
    found = re.fullmatch(rf'SELECT "order" FROM {FILLED} WHERE "order" = 7 AND cents > (\d+)', query)
    assert found is not None, query
    assert before <= int(found[1]) < after
    page.get_by_role("button", name="Start a bisect").click()
    expect(page.get_by_role("heading", name=f"{FILLED} v{JUMP_FROM} is the first bad commit")).to_be_visible(
        timeout=2 * WAIT_MS
    )


def test_the_page_shows_no_internal_jargon(look: Open) -> None:
    page = look("#/flights")
    for tab in ("Stages", "Rows", "Bisect", "Rejected", "Log", "Cost"):
        page.get_by_role("link", name=tab, exact=True).click()
        expect(page.get_by_role("link", name=tab, exact=True)).to_have_attribute("aria-current", "page")
        expect(page.locator(".view")).not_to_have_text(
            re.compile(r"left out|\bprobes?\b|behind|as they are stored", re.IGNORECASE)
        )
