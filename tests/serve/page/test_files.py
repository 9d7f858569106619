"""The page's files are served unchanged, with an ETag; no other files are."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from slackwater.serve.page.files import STATIC

from tests.serve.conftest import Ask


def test_the_page_and_its_files_need_no_token(ask: Ask) -> None:
    page = ask("/")
    assert page.status == 200
    assert page.body == (STATIC / "index.html").read_bytes()
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    module = ask("/page/views/rows.js")
    assert module.headers["content-type"] == "text/javascript; charset=utf-8"
    assert module.headers["x-content-type-options"] == "nosniff"


def test_a_file_that_the_client_has_is_not_sent_again(ask: Ask) -> None:
    etag = ask("/page/main.js").headers["etag"]
    again = ask("/page/main.js", headers={"if-none-match": f'W/"other", {etag}'})
    assert (again.status, again.body) == (304, b"")
    assert ask("/page/app.js", headers={"if-none-match": etag}).status == 200


@pytest.mark.parametrize(
    "path", ["/page/", "/page/../files.py", "/page/%2e%2e/files.py", "/page/vendor/README.md", "/index.html"]
)
def test_no_other_file_is_served(ask: Ask, path: str) -> None:
    assert ask(path).status == 404


def test_the_page_lists_all_its_modules_and_loads_nothing_from_other_hosts() -> None:
    page = (STATIC / "index.html").read_text()
    for each in STATIC.rglob("*.js"):
        if each.name != "uplot.js":  # which is loaded once a plot is shown
            assert f'"/page/{each.relative_to(STATIC).as_posix()}"' in page
    own = [each for each in STATIC.rglob("*.js") if each.parent.name != "vendor"]
    for each in (*own, *STATIC.rglob("*.css"), STATIC / "index.html"):
        text = each.read_text()
        assert "innerHTML" not in text, each
        assert "dangerously" not in text, each
        assert not [
            word for word in ("http://", "https://") if word in text.replace("http://www.w3.org/2000/svg", "")
        ], each


def test_the_page_quotes_each_reserved_word_of_sql() -> None:
    text = (STATIC / "words.js").read_text().split("new Set(`")[1].split("`")[0]
    of = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    assert {(word,) for word in text.split()} >= {*duckdb.sql(of).fetchall()}


def test_third_party_files_have_their_version_and_licence() -> None:
    said = (STATIC / "vendor" / "README.md").read_text()
    for each in (STATIC / "vendor").iterdir():
        assert each.name in said or each.name == "README.md"
    assert Path(STATIC / "vendor" / "LICENSE-uplot").exists()
