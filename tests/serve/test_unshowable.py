"""Strings that are not UTF-8, and maps with a duplicate key, over HTTP: no row is lost."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from slackwater.client.remote import Server

from tests.snapshot.query.unshowable import NOW, SECOND, shown, text, write_app

from .conftest import Ask, serving


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    folder = tmp_path_factory.mktemp("store")
    write_app(folder)
    with serving(str(folder), folder / "cache") as url:
        yield Ask(url)


def as_json(row: dict[str, Any]) -> Any:
    return json.loads(json.dumps(row))


def test_a_query_returns_every_row(ask: Ask) -> None:
    found = ask("/apps/shop/at/now/query", sql="FROM cities ORDER BY n").json
    expected = sorted((shown(row, in_sql=True) for row in NOW), key=lambda row: int(row["n"]))
    assert found["rows"] == [as_json(row) for row in expected]
    assert ["not UTF-8" in note for note in found["notes"]] == [True]
    assert ask("/apps/shop/at/now/query", sql="SELECT 1 AS one").json["notes"] == []


def test_rows_by_key_are_returned(ask: Ask) -> None:
    path = "/apps/shop/at/now/tables/cities"
    expected = shown(SECOND[1], in_sql=False)
    for _ in range(3):  # of files, and of rows that are open by then
        assert ask(path, key="München").json["rows"] == [as_json(expected)]
    rows = pa.ipc.open_stream(ask(path, key="München", format="arrow").body).read_all()
    assert rows["note"].to_pylist() == [text(SECOND[1][2])]


def test_the_library_over_http_returns_every_row(ask: Ask) -> None:
    with Server(ask.url) as server:
        moment = server.app("shop").at("now")
        assert len(moment.query("FROM cities").df()) == len(NOW)
        assert moment.get("cities", "München") == shown(SECOND[1], in_sql=False)


def test_the_page_gets_every_row(ask: Ask) -> None:
    found = ask("/apps/shop/at/now/tables/cities/rows").json
    assert sorted(row["n"] for row in found["rows"]) == sorted(row[1] for row in NOW)
