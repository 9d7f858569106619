"""`slackwater diff` and `slackwater history` on the command line."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from slackwater.operations.staging.clone import clone
from slackwater.store.objects.open import open_store

from tests.cli.verbs.calling import BROKEN, done, from_json, slackwater
from tests.support.histories import FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")

GOOD, BAD = "flights/carriers@v5", "flights/carriers@v6"
"""Moments before and after the bad flight."""


def differing(*words: str) -> Any:
    """Return the JSON that `diff` prints for differing moments."""
    result = slackwater("diff", *words, "--json")
    assert result.exit_code == 1, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("app")
def test_diff_shows_the_rows_and_columns_that_differ() -> None:
    found = differing(GOOD, BAD, "--table", "carriers")
    (table,) = found["tables"]
    assert (table["added"], table["removed"], table["changed"]) == (0, 0, 1)
    (row,) = table["rows"]
    assert (row["key"], row["change"]) == ({"carrier": "C1"}, "changed")
    assert row["after"]["delay"] - row["before"]["delay"] == BROKEN.delay
    assert [(each["column"], each["differing"]) for each in table["columns"]] == [("flights", 1), ("delay", 1)]
    shown = slackwater("diff", GOOD, BAD, "--table", "carriers")
    assert shown.exit_code == 1
    assert shown.stdout.startswith("carriers: 1 changed\n")
    assert "changed  C1       delay" in shown.stdout


@pytest.mark.usefixtures("app")
def test_diff_of_equal_moments_exits_with_0() -> None:
    assert done("diff", "flights", "flights") == "aircraft: no row differs\n\ncarriers: no row differs\n"
    assert from_json("diff", BAD, BAD)["equal"] is True


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("words", "tables"),
    [
        ((GOOD, BAD), ["carriers"]),
        (("flights/aircraft@~1", "flights"), ["aircraft"]),
        (("flights@~1", "flights/aircraft"), ["aircraft"]),
        (("flights/aircraft@v2", BAD), ["aircraft", "carriers"]),  # two of them only name moments
        (("flights/legs@v2", "flights"), ["aircraft", "carriers"]),  # a stage without a table does, too
        ((GOOD, BAD, "--table", "aircraft"), ["aircraft"]),
    ],
)
def test_diff_shows_the_table_that_the_refs_name_and_no_other(words: tuple[str, ...], tables: list[str]) -> None:
    found = json.loads(slackwater("diff", *words, "--json").stdout)["tables"]
    assert [each["table"] for each in found] == tables


@pytest.mark.usefixtures("app")
def test_diff_with_swapped_refs_swaps_the_result() -> None:
    there, back = differing("flights/carriers@v1", BAD), differing(BAD, "flights/carriers@v1")
    for one, other in zip(there["tables"], back["tables"], strict=True):
        assert (one["added"], one["removed"]) == (other["removed"], other["added"])
    assert there["tables"][0]["added"] == 3


@pytest.mark.usefixtures("app")
def test_options_limit_what_diff_shows() -> None:
    assert differing(GOOD, BAD, "--stat")["tables"][0]["rows"] is None
    (row,) = differing(GOOD, BAD, "--keys")["tables"][0]["rows"]
    assert row == {"key": {"carrier": "C1"}, "change": "changed"}
    assert "column" in slackwater("diff", GOOD, BAD, "--stat").stdout
    assert "before" not in slackwater("diff", GOOD, BAD, "--keys").stdout
    refused = slackwater("diff", GOOD, BAD, "--keys", "--stat")
    assert refused.exit_code == 2


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_diff_writes_all_rows_of_all_tables_to_a_file(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"changed.{ending}"
    assert slackwater("diff", "flights/legs@v1", "flights", "--out", str(out)).exit_code == 1
    if ending == "parquet":
        rows = pq.read_table(out)
        assert rows.column_names[:3] == ["table", "tail", "change"]
        assert set(rows["table"].to_pylist()) == {"aircraft", "carriers"}
    assert out.stat().st_size > 0
    assert slackwater("diff", GOOD, BAD, "--out", str(tmp_path / "changed.txt")).exit_code == 2


def test_diff_of_an_app_and_its_clone_under_another_root(app: FlightsApp, tmp_path: Path) -> None:
    other = tmp_path / "staging"
    clone(app.store, BAD, "staging", topics={}, channels=app.kafka, target_store=open_store(str(other)), by="test")
    assert done("diff", "flights", "staging", "--to", str(other)).count("no row differs") == 2
    (table,) = differing(GOOD, "staging", "--to", str(other), "--table", "carriers")["tables"]
    assert table["changed"] == 1


@pytest.mark.usefixtures("app")
def test_diff_names_what_does_not_exist() -> None:
    result = slackwater("diff", GOOD, BAD, "--table", "carrier")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "carriers" in result.stderr


@pytest.mark.usefixtures("app")
def test_history_shows_each_change_of_a_key() -> None:
    found = from_json("history", "flights/carriers", "C1")
    last = found["changes"][0]
    assert (last["version"], last["after_version"], last["change"]) == (6, 5, "changed")
    assert last["after"]["delay"] - last["before"]["delay"] == BROKEN.delay
    assert sum(window["end"] - window["start"] for window in last["windows"]) > 0
    assert [(each["change"], each["before"]) for each in found["changes"][-1:]] == [("added", None)]
    for newer, older in zip(found["changes"], found["changes"][1:], strict=False):
        assert newer["before"] == older["after"]
    shown = done("history", "flights/carriers", "C1")
    assert shown.splitlines()[0].split() == ["committed", "version", "column", "before", "after", "read"]
    assert "flights-by-carrier-repartition[" in shown


@pytest.mark.usefixtures("app")
def test_history_stops_at_its_limit_and_says_so() -> None:
    result = slackwater("history", "flights/carriers", "C1", "--limit", "1", "--verbose")
    assert len(from_json("history", "flights/carriers", "C1", "--limit", "1")["changes"]) == 1
    assert "the newest 1 change; --limit 0 shows all" in result.stderr
    assert "request" in result.stderr


def test_history_of_a_removed_row_in_a_compacted_table(app: FlightsApp) -> None:
    removed = app.delete("carriers", "C1").version
    app.compact("carriers")
    change = from_json("history", "flights/carriers", "C1")["changes"][0]
    assert (change["version"], change["change"], change["after"]) == (removed, "removed", None)


def test_history_of_a_clone_shows_where_the_clone_begins(app: FlightsApp) -> None:
    clone(app.store, BAD, "staging", topics={}, channels=app.kafka, by="test")
    (change,) = from_json("history", "staging/carriers", "C1")["changes"]
    assert (change["inherited"], change["before"]) == ("clone", None)
    assert "is a clone" in slackwater("history", "staging/carriers", "C1").stderr


@pytest.mark.usefixtures("app")
def test_history_names_what_does_not_exist() -> None:
    assert "has no key ZZ in any kept version" in done("history", "flights/carriers", "ZZ")
    for table in ("carrier", "legs"):
        result = slackwater("history", f"flights/{table}", "C1")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "carriers" in result.stderr
    assert slackwater("history", "flights/carriers", "C1", "C2").exit_code == 2
