"""The site is built from the pages, has no dead link, and has the same content as on GitHub."""

import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from docs import site

TAGS = ("li", "table", "tr", "pre", "h2", "h3", "img")


class Page(HTMLParser):
    """A built page: its article, its anchors, and its links."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.anchors = set[str]()
        self.targets = list[str]()
        text = file.read_text(encoding="utf-8")
        self.article = text.partition("<article")[2].partition("</article>")[0]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name in ("href", "src") and value and "://" not in value:
                self.targets.append(value)

    def dead(self, pages: dict[Path, "Page"]) -> Iterator[str]:
        for target in self.targets:
            path, _, anchor = target.partition("#")
            file = (self.file.parent / path.partition("?")[0]).resolve() if path else self.file
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (anchor and file in pages and anchor not in pages[file].anchors):
                yield f"{self.file.parent.name}: {target}"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Return all pages of a site built in an empty folder, by file."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(site.command(folder, "build", "--strict"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {file: Page(file) for file in (folder / "site").rglob("*.html") if file.name != "404.html"}


def test_every_page_is_built_and_no_link_is_dead(pages: dict[Path, Page]) -> None:
    assert len(pages) == len(site.PAGES)
    assert sum(len(page.targets) for page in pages.values()) > 2_000
    assert [link for page in pages.values() for link in page.dead(pages)] == []


def test_a_built_page_has_the_lists_tables_and_blocks_that_github_shows(pages: dict[Path, Page]) -> None:
    """The site's Markdown requires an empty line before a list, and deeper indents within it."""
    on_github = MarkdownIt("commonmark").enable("table")

    def counts(html: str) -> dict[str, int]:
        return {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in TAGS}

    built = {page.file.parent.name: counts(page.article) for page in pages.values()}
    for page in site.PAGES:
        name = "site" if page == site.README else page.stem
        assert built[name] == counts(on_github.render(page.read_text(encoding="utf-8"))), page.name


def test_the_navigation_lists_each_page_once_in_the_readmes_groups() -> None:
    groups = site.navigation()
    assert list(groups) == ["Start", "Do", "Look up", "Understand"]
    listed = [page for pages in groups.values() for page in pages.values()]
    assert sorted((*listed, site.README)) == sorted(site.PAGES)


def test_the_site_can_be_searched(pages: dict[Path, Page]) -> None:
    index = next(file for file in pages if file.parent.name == "site").parent / "search.json"
    assert "Chandy" in json.dumps(json.loads(index.read_text(encoding="utf-8")))
