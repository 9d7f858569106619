"""A served store with a history, and a browser restricted to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from slackwater.common.instants import now_ms
from slackwater.store.objects.local import LocalStore
from slackwater.store.versions.apps import ensure_app
from slackwater.store.versions.manifest import AppInfo

from tests.serve.conftest import serving
from tests.serve.page import story
from tests.serve.page.browser import FLAGS, chromium
from tests.support.histories import FlightsApp

WAIT_MS = 120_000
Open = Callable[..., Page]
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return the story's app.

    The store also has an app with hostile names, one with many stages, and one that never ran.
    """
    store = LocalStore(tmp_path_factory.mktemp("told") / "store")
    story.hostile(store)
    story.wide(store)
    ensure_app(store, AppInfo("new", now_ms()))
    return story.written(store)


@pytest.fixture(scope="module")
def address(told: FlightsApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(told.store.url, tmp_path_factory.mktemp("cache")) as url:
        yield url


# Of one module: while it lives, no loop of asyncio can be run by others in this thread.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=Path(found.program), env=found.environment or None, args=FLAGS
        )
        yield started
        started.close()


@pytest.fixture
def look(browser: Browser, address: str) -> Iterator[Open]:
    """Open the page in a new tab. It may contact only its server, and must show no error."""
    wrong: list[str] = []
    contexts = []

    def opened(where: str = "", url: str = "", *, width: int = 1280, dark: bool = False) -> Page:
        url = url or address
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda asked: asked.url.startswith((url, "data:")) or wrong.append(asked.url))
        page.on("console", lambda said: said.type != "error" or "status of 4" in said.text or wrong.append(said.text))
        page.goto(f"{url}/{where}")
        return page

    yield opened
    for each in contexts:
        each.close()
    assert not wrong
