"""Safety and accessibility of the page: hostile values, tokens, screen readers, keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from slackwater.serve.server import ListenOptions

from tests.models.profiles import SEARCHES
from tests.serve.conftest import client_of, serving
from tests.serve.page.conftest import Open
from tests.serve.page.story import HOSTILE
from tests.support.histories import FlightsApp

VIEWS = {
    "apps": ("", "link", "flights"),
    "stages": ("#/flights", "region", "Stages and what they read and send"),
    "many stages": ("#/wide", "region", "Stages and what they read and send"),
    "rows": ("#/flights/rows/carriers?at=carriers@v22&against=carriers@v20", "region", "Rows of carriers"),
    "key": ("#/flights/key/carriers/UA", "region", "Changes"),
    "rejected": ("#/flights/rejected", "heading", "Late records"),
    "log": ("#/flights/log", "region", "Commits"),
    "cost": ("#/flights/cost", "region", "Cost by stage"),
}


def violations(page: Page, *, colours: bool | None = None) -> list[str]:
    """Return axe's findings: by all rules, only about colours, or all but these."""
    by: dict[bool | None, dict[str, object]] = {
        None: {},
        True: {"runOnly": {"type": "rule", "values": ["color-contrast"]}},
        False: {"rules": {"color-contrast": {"enabled": False}}},
    }
    # What it would say of all that is well takes it most of its time.
    found = Axe().run(
        page, options={"resultTypes": ["violations"], "selectors": False, "elementRef": False} | by[colours]
    )
    return [f"{each['id']}: {each['nodes'][0]['html'][:300]}" for each in found.response["violations"]]


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_in_light_dark_and_on_a_phone(look: Open, view: str) -> None:
    where, role, name = VIEWS[view]
    page = look(where)
    expect(page.get_by_role(role, name=name).first).to_be_visible()
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, colours=True) == []
    page.set_viewport_size({"width": 390, "height": 844})
    # The size may reach the page after the call.
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    if SEARCHES or view == "rows":
        assert violations(page, colours=False) == []


def test_axe_finds_nothing_in_a_search_and_in_the_list_of_keys(look: Open) -> None:
    page = look("#/flights/bisect")
    page.get_by_label("What is wrong").fill("SELECT carrier FROM carriers WHERE delay > 2000")
    page.get_by_role("button", name="Start a bisect").click()
    expect(page.get_by_text("is the first bad commit")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Colours: auto").click()
    page.get_by_role("button", name="Colours: light").click()
    assert violations(page, colours=True) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert violations(page, colours=False) == []
    page.get_by_role("heading", name="flights", exact=True).click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []


def test_an_app_that_never_ran_is_shown_as_such(look: Open) -> None:
    page = look("#/new")
    expect(page.get_by_text("This app has no version yet")).to_be_visible()
    expect(page.get_by_text("not connected")).to_be_visible()
    assert page.get_by_role("alert").count() == 0
    assert violations(page) == []


def test_hostile_values_are_shown_as_text(look: Open) -> None:
    page = look("#/hostile/rows/table?at=table@v2&against=table@v1")
    cells = page.locator("table.rows tbody a")
    expect(cells).to_have_count(len(HOSTILE))
    shown = {each: f"{each[:300]}… ({len(each):,} characters)" if len(each) > 300 else each for each in HOSTILE}
    shown["\u202eright to left\u2069"] = r"\u202eright to left\u2069"
    shown["\ufeff\u0000\n\t"] = r"\ufeff\u0000\n\t"
    assert {*cells.evaluate_all("all => all.map(each => each.textContent)")} == {*shown.values()}
    expect(page.get_by_role("columnheader", name="<b onclick=alert(1)>name</b>")).to_be_visible()
    large = page.locator("table.rows tbody tr").first.locator("td").last
    expect(large).to_contain_text(str(2**62 + 2))  # exactly, though JavaScript has no such number
    for key in HOSTILE:
        page.goto(re.sub("#.*", "", page.url) + "#/hostile/rows/table")
        expect(cells).to_have_count(len(HOSTILE))
        cells.nth(cells.all_text_contents().index(shown[key])).click()
        expect(page.locator(".keyname")).to_have_text(shown[key])
        expect(page.get_by_role("region", name="Changes").get_by_role("row")).to_have_count(3)
    assert page.locator("#page img, #page script, #page b").count() == 0


def test_the_page_may_load_only_its_servers_own_files(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    tried = """(async () => {
        const heard = new Promise(resolve => addEventListener("securitypolicyviolation", resolve, { once: true }));
        const script = document.createElement("script");
        script.textContent = "window.pwned = true";
        document.head.append(script);
        await heard;
        return window.pwned ?? "stopped";
    })()"""
    assert page.evaluate(tried) == "stopped"
    page.close()


@pytest.fixture(scope="module")
def tokens(told: FlightsApp) -> dict[str, str]:
    """Return tokens that were made before the server started, since servers notice new tokens only after seconds."""
    verbs: dict[str, Any] = {"reader": ("read",), "keeper": ("read", "snapshot"), "one": ("read",)}
    with client_of(told) as client:
        shown = {
            name: str(client.add_token(name, ("flights",), tables=("carriers" if name == "one" else "*",), verbs=may))
            for name, may in verbs.items()
        }
    return {
        name: next(word for word in words.split() if word.startswith("slackwater_")) for name, words in shown.items()
    }


@pytest.fixture(scope="module")
def closed(told: FlightsApp, tokens: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    listening = ListenOptions(needs_tokens=True)
    with serving(told.store.url, tmp_path_factory.mktemp("closed"), listening) as url:
        yield url


def test_a_token_can_be_entered_and_the_page_shows_its_rights(look: Open, closed: str, tokens: dict[str, str]) -> None:
    page = look("#/flights", closed)
    assert violations(page) == []
    page.get_by_label("Token").fill(tokens["reader"])
    page.get_by_role("button", name="Use token").click()
    expect(page.get_by_text("as reader")).to_be_visible()
    expect(page.get_by_role("region", name="Stages", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Take a snapshot")).to_have_count(0)
    page.keyboard.press("b")
    expect(page.get_by_text("This token may not start a search")).to_be_visible()
    expect(page.get_by_role("button", name="Start a bisect")).to_have_count(0)
    page.reload()
    expect(page.get_by_text("as reader")).to_be_visible()
    assert "slackwater_" not in page.url
    assert page.evaluate("localStorage.length") <= 1  # the colours

    page.get_by_role("button", name="token").click()
    page.get_by_label("Token").fill(tokens["keeper"])
    page.get_by_role("button", name="Use token").click()
    page.get_by_role("button", name="Take a snapshot").click()
    page.get_by_label("Name").fill("asked-here")
    page.get_by_role("button", name="Take it").click()
    page.keyboard.press("g")
    expect(page.get_by_text("asked-here is being taken")).to_be_visible()


def test_a_token_for_one_table_shows_only_that_table(look: Open, closed: str, tokens: dict[str, str]) -> None:
    page = look("#/flights/rows", closed)
    page.get_by_label("Token").fill(tokens["one"])
    page.get_by_role("button", name="Use token").click()
    expect(page.get_by_role("region", name="Rows of carriers")).to_be_visible()
    expect(page.get_by_role("link", name="aircraft")).to_have_count(0)
    page.keyboard.press("g")
    expect(page.get_by_text("may not see the stages of this app, only rows of carriers")).to_be_visible()
    expect(page.get_by_text("0 stages")).to_have_count(0)
    page.keyboard.press("l")
    expect(page.get_by_role("alert")).not_to_have_count(0)
    expect(page.get_by_text(re.compile("^No .* yet"))).to_have_count(0)  # what may not be seen is not told as empty
    page.keyboard.press("r")
    expect(page.get_by_role("alert")).to_have_count(1)  # the log has two
    expect(page.get_by_text("No stage rejected a record")).to_have_count(0)
    expect(page.get_by_text("No record was late")).to_have_count(0)


def test_a_wrong_token_is_asked_for_again(look: Open, closed: str) -> None:
    page = look("", closed)
    page.get_by_label("Token").fill("slackwater_wrong")
    page.get_by_role("button", name="Use token").click()
    expect(page.get_by_label("Token")).to_be_visible()
