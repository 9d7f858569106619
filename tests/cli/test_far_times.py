"""Times in the year 55,840 (milliseconds that were read as seconds) on the command line."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.cli import main
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Column, Input, Table
from typer.testing import CliRunner

from tests.support.histories import START_MS
from tests.support.manifests import claim
from tests.support.state_rows import Key, Values, write_version

pytestmark = pytest.mark.usefixtures("isolated")

FAR = "55840-11-08 22:13:20"
SECONDS = 1_700_000_000
TABLE = Table((Column("seen", "timestamp[us]"),), (Column("last", "timestamp[us]"),), 1)


def slackwater(*words: str) -> str:
    result = CliRunner().invoke(main.app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> None:
    """Write a good version, and a version with a row whose key and value are wrong."""
    store = open_store(str(tmp_path / "store"))
    apps.ensure_app(store, AppInfo("app", START_MS))
    build = lambda draft: replace(draft, table=TABLE, inputs={"x": Input("x", (0,))})  # noqa: E731
    head = claim(store, "app", "stage", writer="w", by="test:1", now_ms=START_MS, build=build)
    for at in (SECONDS * 1_000_000, SECONDS * 1_000 * 1_000_000):
        draft = successor(head, kind="batch", epoch=1, writer="w", by="test:1", now_ms=head.time_ms + 1_000)
        rows: dict[Key, Values | None] = {(at,): (at,)}
        ssts = write_version(store, None, TABLE, rows, draft.version)
        head = replace(draft, ssts=(*ssts, *draft.ssts), inputs={"x": Input("x", (draft.version,), rows=1)})
        commit(store, head)


def test_query_shows_far_times_on_the_terminal_in_json_and_in_files(tmp_path: Path) -> None:
    sql = "FROM stage ORDER BY seen"
    assert FAR in slackwater("query", "app", sql)
    rows = json.loads(slackwater("query", "app", sql, "--json"))["rows"]
    assert rows == [{"seen": at, "last": at} for at in ("2023-11-14T22:13:20", FAR)]
    for ending in ("json", "csv"):
        slackwater("query", "app", sql, "--out", f"out.{ending}")
        assert FAR in (tmp_path / f"out.{ending}").read_text()


def test_bisect_finds_the_commit_with_a_far_time_and_prints_its_key() -> None:
    where = "SELECT seen FROM stage WHERE last > '3000-01-01'"
    said = slackwater("bisect", "app", "--where", where)
    assert "stage v3 is the first bad commit" in said
    assert FAR in said
    (key,) = json.loads(slackwater("bisect", "app", "--where", where, "--json"))["keys"]
    assert key == {"key": {"seen": FAR}, "before": None, "after": {"last": FAR}}
