"""Take the screenshots of the web page, `docs/images/page-*.png`, from a real run of the flights example.

    .venv/bin/python -m docs.page_pictures        # `make test` or `make demo` makes .venv

The run is the same as in `pictures.py`, whose functions are used: records with a fault arrive, one event is truncated,
and a search for the bad record runs from the page. The number of colours is reduced, so that files are small.
"""

import io
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from tests.serve.page.browser import FLAGS, chromium

from .pictures import (
    CALM,
    EVENTS,
    EXAMPLES,
    FAULT_FROM,
    FEED,
    IMAGES,
    RUN,
    TOO_LATE,
    called,
    caught_up,
    console,
    feed,
    flights_seen,
    flights_sent,
    running,
    servers,
    wait_until,
)

WIDTH, PHONE = 1120, 390
COLOURS = 96
PATIENCE_MS = 120_000


def answers(url: str) -> bool:
    """Return True if the server answers."""
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=2):  # noqa: S310  our own server
            return True
    except OSError:
        return False


@contextmanager
def serving() -> Iterator[str]:
    """Run `slackwater serve`, and yield the page's URL."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    code = f"flights={EXAMPLES / 'flights.py'}"
    with subprocess.Popen(
        ["slackwater", "serve", "--port", port, "--code", code], stderr=subprocess.DEVNULL
    ) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until("the server answers", lambda: answers(url))
        try:
            yield url
        finally:
            process.send_signal(signal.SIGINT)


def keep(page: Page, name: str) -> None:
    """Write a screenshot of the page."""
    page.wait_for_timeout(400)  # plots are drawn only when the browser has time
    with Image.open(io.BytesIO(page.screenshot())) as shot:
        few = shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(IMAGES / f"page-{name}.png", optimize=True)
    console.print(f"  page-{name}.png: {(IMAGES / f'page-{name}.png').stat().st_size:,} bytes")


def main() -> None:
    """Run the demo's app once, and take the pictures of the page."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with servers():
        feed("--end", str(CALM))
        with running(*RUN):
            wait_until("nothing is left to read", caught_up)
            with running(*FEED, "--start", str(CALM), "--end", str(FAULT_FROM), "--rate", "2000"):
                wait_until("more flights come", lambda: flights_seen() > CALM)
                called("slackwater", "snapshot", "take", "flights", "before-release")
                wait_until("all of them are there", lambda: flights_sent() >= FAULT_FROM)
            wait_until("nothing is left to read", caught_up)
            feed("--start", str(FAULT_FROM), "--end", str(EVENTS), "--fault-from", str(FAULT_FROM))
            feed("--start", str(EVENTS - 1), "--end", str(EVENTS), "--cut-off")
            wait_until("nothing is left to read", caught_up)
            with serving() as url:
                look(url)


def look(url: str) -> None:
    """Open the page in a browser, and take each screenshot."""
    found = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.program, env=found.environment or None, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 640}, color_scheme="light")
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{url}/#/flights")
        expect(page.get_by_role("region", name="Stages", exact=True)).to_be_visible()
        keep(page, "stages")
        page.goto(f"{url}/#/flights/rows/carriers?against=before-release")
        expect(page.locator("td.differs").first).to_be_visible()
        page.set_viewport_size({"width": WIDTH, "height": 760})
        keep(page, "rows")
        page.emulate_media(color_scheme="dark")
        page.goto(f"{url}/#/flights/bisect")
        page.get_by_label("What is wrong").fill(TOO_LATE)
        page.get_by_role("button", name="Start a bisect").click()
        expect(page.get_by_text("the record")).to_be_visible(timeout=PATIENCE_MS)
        page.set_viewport_size({"width": WIDTH, "height": 980})
        keep(page, "bisect")
        page.set_viewport_size({"width": PHONE, "height": 844})
        page.emulate_media(color_scheme="light")
        page.goto(f"{url}/#/flights/key/carriers/UA")
        expect(page.get_by_role("region", name="Changes")).to_be_visible()
        keep(page, "phone")
        browser.close()


if __name__ == "__main__":
    main()
