"""The web page of `slackwater serve` in a browser: first paint with 50,000 versions, and the slider over 1 M rows.

`python -m bench.tasks.serve.page [FOLDER] [--quick]` prints its rows alone; `--quick` uses 5,000 versions.

The headless browser and the server share the machine's cores. The first paint is the time from navigation, with an
empty browser cache, until the slider shows the app's commits and the stages are drawn; the server is already up, but
has had no request for the app. A move of the slider is the time from the key press, as recorded by its event, until the
rows of that commit are in the page and the next frame is about to be drawn. No commit is visited twice.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, sync_playwright
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, codec, keys
from slackwater.store.versions.manifest import AppInfo

from tests.serve.page.browser import FLAGS, chromium

from ...multi_get import TABLE
from ...support.row import Row
from ...support.served import APP, TALL, born, serving, tall_rows
from ...support.written import Stage

VERSIONS, QUICK_VERSIONS = 50_000, 5_000
KEYS, QUICK_KEYS = 1_000_000, 200_000
BATCHES = 60
"""Number of newest versions, each of which changes many rows.

All earlier versions have the rows of the first version.
"""
CHANGED = 50_000
PAINTS, MOVES = 5, 40
MS = 1_000
_WATCH = """() => { window.moved = new Promise(resolve => {
    const note = () => document.querySelector('.view .note')?.textContent;
    const before = note();
    let began = 0;
    addEventListener('keydown', event => began = event.timeStamp, { once: true, capture: true });
    new MutationObserver((_, watching) => {
        if (note() === before || document.querySelector('.busy')) return;
        watching.disconnect();
        requestAnimationFrame(() => resolve(performance.now() - began));
    }).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
}) }"""
_PAINTED = """() => document.querySelector('[role=slider]') && document.querySelector('a.node.stage')"""
_ROWS = """v => {
    const note = document.querySelector('.view .note')?.textContent ?? '';
    const isThere = document.querySelectorAll('table.rows tr').length > 100 && !document.querySelector('.busy');
    return isThere && note.startsWith(v);
}"""


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """Write an app to the folder, and measure its page. Takes about a minute at full scale.

    Args:
        folder: an empty folder.
        quick: fewer versions and rows.
    """
    versions, count = (QUICK_VERSIONS, QUICK_KEYS) if quick else (VERSIONS, KEYS)
    root = str(folder / "store")
    _make(root, folder, versions, count)
    found = chromium()
    with sync_playwright() as playwright, serving(root, folder / "cache") as (url, _):
        browser = playwright.chromium.launch(executable_path=found.program, env=found.environment or None, args=FLAGS)
        paints = [_paint(browser, url) for _ in range(PAINTS)]
        first, *others = paints
        note = f"the first that asks of the server {first:.0f} ms, others at most {max(others):.0f} ms"
        what = f"page: first paint of an app with {versions:,} versions"
        yield Row.at_most(what, f"{max(paints):.0f} ms", note, max(paints), 1_000)
        moves = _moves(browser, url)
        note = f"p50 {median(moves):.0f} ms, of {len(moves)} moves from commit to commit"
        what = f"page: the first hundred rows of {count:,} after a move of the slider, p99"
        p99 = float(np.quantile(moves, 0.99))
        yield Row.at_most(what, f"{p99:.0f} ms", note, p99, 200)
        browser.close()


def _make(root: str, folder: Path, versions: int, count: int) -> None:
    """Write the table as the first version, then versions without changes, then some that each change many rows."""
    store, cache = open_store(root), SstCache(folder / "written", 1 << 40)
    apps.create_app(store, AppInfo(APP, 1))
    head = born(store, cache, TALL, TABLE, tall_rows(np.arange(count), 1))
    for version in range(2, versions - BATCHES + 1):
        head = replace(head, version=version, time_ms=head.time_ms + MS)
        key = keys.manifest(APP, TALL, version)
        # Without the store, whose puts would wait for the disk.
        (Path(root) / key).write_bytes(codec.encode(head))
    stage = Stage(store, cache, head)
    for number in range(BATCHES):
        stage.put(tall_rows(np.arange(count)[number % 7 :: max(1, count // CHANGED)], number + 2))
        stage.compact()


def _paint(browser: Browser, url: str) -> float:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto("about:blank")
    began_s = time.perf_counter()
    page.goto(f"{url}/#/{APP}", wait_until="commit")
    page.wait_for_function(_PAINTED, polling="raf")
    took = (time.perf_counter() - began_s) * MS
    page.close()
    return took


def _moves(browser: Browser, url: str) -> list[float]:
    page: Page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{url}/#/{APP}/rows/{TALL}")
    page.wait_for_function(_ROWS, arg=TALL, polling="raf")
    page.get_by_role("slider").focus()
    took = []
    for _ in range(MOVES):
        page.evaluate(_WATCH)
        page.keyboard.press("ArrowLeft")
        took.append(float(page.evaluate("window.moved")))
    page.close()
    return took


def main(words: list[str]) -> None:
    """Print the rows."""
    quick = "--quick" in words
    given = [Path(word) for word in words if not word.startswith("--")]
    with tempfile.TemporaryDirectory() as name:
        for row in rows(given[0] if given else Path(name), quick):
            print(f"{row.what}: {row.ours}; {row.peer}; {row.asked}: {'reached' if row.reached else 'MISSED'}")


if __name__ == "__main__":
    main(sys.argv[1:])
