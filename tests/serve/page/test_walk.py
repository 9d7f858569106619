"""From "the totals look wrong" to the records, in a browser: with the mouse, and with only the keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.serve.conftest import client_of
from tests.serve.page.conftest import Open
from tests.serve.page.story import WRONG
from tests.support.histories import FlightsApp

QUERY = f"SELECT carrier FROM carriers WHERE carrier = '{WRONG}' AND delay > 1500"


@pytest.fixture(scope="module")
def found(told: FlightsApp) -> tuple[str, str]:
    """Return the library's result: the bad commit, and its offsets in the users' topic."""
    with client_of(told) as client:
        app = client.app("flights")
        bisection = app.bisect(where=QUERY)
        windows = app.lineage(bisection.stage, bisection.version).sources
    offsets = ", ".join(f"[{each.partition}] {each.start} to {each.end}" for each in windows)
    return f"{bisection.stage} v{bisection.version}", f"flights{offsets}"


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def tab_to(page: Page, text: str, *, most: int = 60) -> None:
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page) == text:
            return
    raise AssertionError(f"Tab does not come to {text!r}")


def test_from_wrong_totals_to_the_records_with_the_mouse(look: Open, found: tuple[str, str]) -> None:
    commit, offsets = found
    page = look()
    page.get_by_role("link", name="flights").click()
    page.get_by_role("link", name=re.compile("carriers v.*rows of carriers")).click()
    row = page.get_by_role("row", name=re.compile(WRONG))
    expect(row).to_contain_text(re.compile(r"\d{5}"))
    page.get_by_label("compared with").select_option("before-release")
    expect(row.locator("td.differs")).to_have_count(2)
    row.get_by_role("link").click()

    expect(page.locator(".plot canvas")).to_be_visible()
    expect(page.get_by_role("region", name="Changes").get_by_role("row")).not_to_have_count(1)
    page.get_by_role("link", name="bisect", exact=True).click()

    page.get_by_label("What is wrong").fill(QUERY)
    page.get_by_role("button", name="Start a bisect").click()
    expect(page.get_by_role("heading", name=f"{commit} is the first bad commit")).to_be_visible()
    expect(page.locator(".sources")).to_have_text(offsets)
    checked = page.locator(".probes li").count()
    expect(page.get_by_role("heading", name=f"Evaluated moments: {checked}")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\bchecks?\b|probe"))).to_have_count(0)  # another count of the same
    assert page.locator("circle.probe.bad").count() > 1
    assert page.locator("circle.probe.good").count() > 1
    expect(page.get_by_role("button", name=f"bisect: {commit}")).to_be_visible()
    page.get_by_role("link", name=commit).first.click()

    expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", re.compile(commit))
    expect(page.get_by_role("row", name=WRONG).locator("td.differs")).to_have_count(2)


def test_from_wrong_totals_to_the_records_with_the_keyboard(look: Open, found: tuple[str, str]) -> None:
    commit, offsets = found
    page = look()
    expect(page.get_by_role("link", name="flights")).to_be_visible()
    tab_to(page, "flights")
    page.keyboard.press("Enter")
    expect(page.get_by_role("slider")).to_be_visible()
    page.keyboard.press("t")
    expect(page.get_by_role("region", name="Rows of aircraft")).to_be_visible()
    page.keyboard.press("t")
    expect(page.get_by_role("region", name="Rows of carriers")).to_be_visible()
    for _ in range(13):
        page.keyboard.press("ArrowDown")
        if focused(page) == WRONG:
            break
    page.keyboard.press("h")
    expect(page.get_by_role("heading", name=f"carriers {WRONG}")).to_be_visible()

    page.keyboard.press("b")
    expect(page.get_by_label("What is wrong")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type(QUERY)
    tab_to(page, "Start a bisect")
    page.keyboard.press("Enter")
    expect(page.locator(".sources")).to_have_text(offsets)
    expect(page.get_by_role("status")).to_contain_text("found")
    page.keyboard.press("ArrowDown")
    assert focused(page) == commit
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name=WRONG).locator("td.differs")).to_have_count(2)


def test_moving_the_slider_changes_the_commit_and_its_rows(look: Open) -> None:
    page = look("#/flights/rows/carriers")
    slider, row = page.get_by_role("slider"), page.get_by_role("row", name=WRONG)
    now = row.text_content()
    slider.focus()
    page.keyboard.press("Home")
    expect(slider).to_have_attribute("aria-valuenow", "0")
    expect(page.get_by_text("No stage of this app has a table")).to_be_visible()
    page.keyboard.press("End")
    assert row.text_content() == now
    page.keyboard.press("PageUp")
    expect(row).not_to_have_text(str(now))
    assert "at=" in page.url
    before = str(row.text_content())
    box = slider.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    expect(slider).to_have_attribute("aria-valuetext", re.compile("v1[0-9]"))
    expect(row).not_to_have_text(before)
    shown = str(row.text_content())
    page.reload()
    expect(row).to_have_text(shown)
    page.keyboard.press("c")
    expect(page.get_by_label("compared with")).not_to_have_value("")
    expect(page.get_by_text("slackwater diff flights/")).to_be_visible()
    page.get_by_role("button", name="All rows that differ").click()
    differing = page.get_by_role("region", name="What differs in carriers").locator("tbody tr")
    expect(differing.first).to_have_class("changed")
    assert differing.count() == page.get_by_role("region", name="What differs in carriers").locator(".changed").count()


def test_zooming_in_shows_each_commit(look: Open) -> None:
    page = look("#/flights", width=390)
    note = page.locator(".steps .note")
    expect(note).to_contain_text("of them shown")
    page.get_by_role("button", name="Zoom in").click()
    expect(note).not_to_contain_text("of them shown")
    page.keyboard.press("-")
    expect(note).to_contain_text("of them shown")
    page.keyboard.press("m")
    assert "at=" not in page.url  # nothing stands out behind the newest
    page.keyboard.press("M")
    expect(page.get_by_text("before the newest")).to_be_visible()


def test_a_new_commit_appears_without_a_reload(look: Open, told: FlightsApp) -> None:
    page = look("#/flights")
    version = told.heads["legs"].version
    expect(page.locator("svg .version").first).to_have_text(f"v{version}")
    told.step("legs")
    expect(page.locator("svg .version").first).to_have_text(f"v{version + 1}")


def test_rows_can_be_found_by_key_and_by_condition(look: Open) -> None:
    page = look("#/flights/rows/carriers")
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(12)
    page.keyboard.press("/")
    page.keyboard.type(f"{WRONG}\n")
    expect(rows).to_have_count(1)
    expect(page.get_by_text(f"slackwater get flights carriers {WRONG}")).to_be_visible()
    page.get_by_label("Filter by").select_option("where")
    page.get_by_role("textbox", name="Condition in SQL").fill("delay > 1500")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    page.get_by_role("textbox", name="Condition in SQL").fill("dely > 2000")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("dely")
    expect(rows).to_have_count(0)  # those of the filter before would stand under these words
