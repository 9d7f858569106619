"""The page beside whoever means harm, or may not: hostile values, tokens; and beside whoever cannot see or point."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from slackwater.client import Client
from slackwater.serve.server import Listening
from slackwater.settings import Settings

from tests.serve.conftest import serving
from tests.serve.page.conftest import Open
from tests.serve.page.story import HOSTILE
from tests.support.histories import FlightsApp

VIEWS = {
    "apps": ("", "link", "flights"),
    "stages": ("#/flights", "region", "Stages and what they read and send"),
    "rows": ("#/flights/rows/carriers?at=carriers@v22&against=carriers@v20", "region", "Rows of carriers"),
    "key": ("#/flights/key/carriers/UA", "region", "Changes"),
    "left": ("#/flights/left", "heading", "Late records"),
    "log": ("#/flights/log", "region", "Commits"),
    "cost": ("#/flights/cost", "region", "Cost by stage"),
}


def violations(page: Page, rule: str = "") -> list[str]:
    """What axe finds, by all of its rules or by one."""
    only = {"runOnly": {"type": "rule", "values": [rule]}} if rule else None
    found = Axe().run(page, options=only)
    return [f"{each['id']}: {each['nodes'][0]['html'][:300]}" for each in found.response["violations"]]


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_in_light_dark_and_on_a_phone(look: Open, view: str) -> None:
    where, role, name = VIEWS[view]
    page = look(where)
    expect(page.get_by_role(role, name=name).first).to_be_visible()
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, "color-contrast") == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_axe_finds_nothing_of_a_search_and_of_the_keys(look: Open) -> None:
    page = look("#/flights/bisect")
    page.get_by_label("What is wrong").fill("SELECT carrier FROM carriers WHERE delay > 2000")
    page.get_by_role("button", name="Start a bisect").click()
    expect(page.get_by_text("is the first bad commit")).to_be_visible()
    assert violations(page) == []
    page.get_by_role("button", name="Colours: auto").click()
    page.get_by_role("button", name="Colours: light").click()
    assert violations(page, "color-contrast") == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert violations(page) == []
    page.get_by_role("heading", name="flights", exact=True).click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == []


def test_hostile_values_are_text(look: Open) -> None:
    page = look("#/hostile/rows/table?at=table@v2&against=table@v1")
    cells = page.locator("table.rows tbody a")
    expect(cells).to_have_count(len(HOSTILE))
    shown = {each: f"{each[:300]}… ({len(each):,} characters)" if len(each) > 300 else each for each in HOSTILE}
    assert {*cells.evaluate_all("all => all.map(each => each.textContent)")} == {*shown.values()}
    expect(page.get_by_role("columnheader", name="<b onclick=alert(1)>name</b>")).to_be_visible()
    large = page.locator("table.rows tbody tr").first.locator("td").last
    expect(large).to_contain_text(str(2**62 + 2))  # exactly, though JavaScript has no such number
    for key in HOSTILE:
        page.goto(re.sub("#.*", "", page.url) + "#/hostile/rows/table")
        expect(cells).to_have_count(len(HOSTILE))
        cells.nth(cells.all_text_contents().index(shown[key])).click()
        expect(page.locator(".keyname")).to_have_text(key, use_inner_text=False)
        expect(page.get_by_role("region", name="Changes").get_by_role("row")).to_have_count(3)
    assert page.locator("#page img, #page script, #page b").count() == 0


def test_nothing_but_the_servers_own_files_may_be_loaded(browser: Browser, address: str) -> None:
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
def closed(told: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    listening = Listening(needs_tokens=True)
    with serving(told.store.url, tmp_path_factory.mktemp("closed"), listening) as url:
        yield url


def token_of(store: str, name: str, *verbs: str) -> str:
    with Client(Settings(store=store)) as client:
        shown = str(client.add_token(name, ("flights",), verbs=verbs))
    found = re.search(r"slackwater_\S+", shown)
    assert found is not None
    return found[0]


def test_a_token_is_typed_and_says_what_may_be_done(look: Open, closed: str, told: FlightsApp) -> None:
    reader, keeper = (token_of(told.store.url, verb, "read", verb) for verb in ("read", "snapshot"))
    page = look("#/flights", closed)
    assert violations(page) == []
    page.get_by_label("Token").fill(reader)
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_text("as read")).to_be_visible()
    expect(page.get_by_role("region", name="Stages", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Take a snapshot")).to_have_count(0)
    page.keyboard.press("b")
    expect(page.get_by_text("This page may not start one")).to_be_visible()
    expect(page.get_by_role("button", name="Start a bisect")).to_have_count(0)
    page.reload()
    expect(page.get_by_text("as read")).to_be_visible()
    assert "slackwater_" not in page.url
    assert page.evaluate("localStorage.length") <= 1  # the colours

    page.get_by_role("button", name="token").click()
    page.get_by_label("Token").fill(keeper)
    page.get_by_role("button", name="Use it").click()
    page.get_by_role("button", name="Take a snapshot").click()
    page.get_by_label("Name").fill("asked-here")
    page.get_by_role("button", name="Take it").click()
    page.keyboard.press("g")
    expect(page.get_by_text("asked-here is being taken")).to_be_visible()


def test_a_wrong_token_is_asked_for_again(look: Open, closed: str) -> None:
    page = look("", closed)
    page.get_by_label("Token").fill("slackwater_wrong")
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_the_package_has_all_files_of_the_page() -> None:
    root = Path(__file__).parents[3]
    named = (root / "serve" / "page" / "static" / "index.html").read_text()
    modules = [each for each in (root / "serve/page/static").rglob("*.js") if each.name not in ("main.js", "uplot.js")]
    for each in modules:
        assert f"/page/{each.relative_to(root / 'serve/page/static').as_posix()}" in named
