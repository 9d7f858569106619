r"""Unusual keys for each verb that takes a key: negative, `\N`, empty, with a leading dash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slackwater.cli import main
from slackwater.snapshot.query.key_text import format_value
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import AppInfo, Column, Input, Table
from typer.testing import CliRunner

from tests.support.histories import START_MS
from tests.support.manifests import claim
from tests.support.state_rows import write_version

pytestmark = pytest.mark.usefixtures("isolated")

TEXTS = [None, "", r"\N", r"\\N", "-5", "--json", "-v", "NULL", "é", "[1]", "a b", "\t"]
NUMBERS = [None, 0, -5, -(2**63)]
TABLES: dict[str, tuple[str, list[Any]]] = {
    "texts": ("string", TEXTS),
    "numbers": ("int64", NUMBERS),
    "amounts": ("double", [-0.5, float("-inf"), 1e300]),
    "bytes": ("binary", [None, b"", b"\xff\x00"]),
}
PAIRS = [("-5", -5), (None, None), (r"\N", -1)]


def slackwater(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main.app, words, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> None:
    """Write a table for each type. The value of each key is the key's number."""
    store = open_store(str(tmp_path / "store"))
    apps.ensure_app(store, AppInfo("app", START_MS))
    for stage, columns, keys in [
        *((name, (Column("k", kind),), [(key,) for key in keys]) for name, (kind, keys) in TABLES.items()),
        ("pairs", (Column("k", "string"), Column("n", "int64")), PAIRS),
    ]:
        table = Table(columns, (Column("v", "int64"),), 1)
        inputs = {"x": Input("x", (0,))}
        head = claim(
            store,
            "app",
            stage,
            writer="w",
            by="t:1",
            now_ms=START_MS,
            build=lambda d, t=table, i=inputs: replace(d, table=t, inputs=i),
        )
        draft = successor(head, kind="batch", epoch=1, writer="w", by="t:1", now_ms=START_MS + 1_000)
        ssts = write_version(store, None, table, {key: (n,) for n, key in enumerate(keys)}, draft.version, stage=stage)
        commit(store, replace(draft, ssts=ssts, inputs={"x": Input("x", (1,), rows=1)}))


def words_of(key: Any) -> list[str]:
    """Return the arguments for a key's column. A text that begins with a dash and is no number comes after `--`."""
    text = format_value(key)
    return ["--", text] if text.startswith("-") and not text[1:2].isdigit() and text != "-inf" else [text]


def keys() -> list[tuple[str, int, Any]]:
    return [(table, n, key) for table, (_, some) in TABLES.items() for n, key in enumerate(some)]


@pytest.mark.parametrize(("table", "number", "key"), keys())
def test_get_and_history_accept_the_same_text_as_key(table: str, number: int, key: Any) -> None:
    words = words_of(key)
    got = json.loads(slackwater("get", f"app/{table}", "--json", *words))
    assert got["row"]["v"] == number
    changes = json.loads(slackwater("history", f"app/{table}", "--json", *words))["changes"]
    assert [change["after"]["v"] for change in changes] == [number]


@pytest.mark.parametrize("key", PAIRS)
def test_keys_of_several_columns_are_separate_arguments(key: tuple[Any, ...]) -> None:
    got = json.loads(slackwater("get", "app/pairs", *map(format_value, key), "--json"))
    assert got["row"]["v"] == PAIRS.index(key)


@pytest.mark.parametrize(("table", "number", "key"), [one for one in keys() if one[2] != "\t"])
def test_forget_removes_exactly_the_given_key(table: str, number: int, key: Any, tmp_path: Path) -> None:
    text = format_value(key)
    (tmp_path / "keys.txt").write_text(f"{table}={text}\n")
    slackwater("verify", "app", "--forgotten", "--key", f"{table}={text}", code=1)
    slackwater("forget", "app", "--keys", str(tmp_path / "keys.txt"))
    left = json.loads(slackwater("query", "app", f"SELECT v FROM {table} ORDER BY v", "--json"))["rows"]
    assert [row["v"] for row in left] == [n for n in range(len(TABLES[table][1])) if n != number]
    slackwater("verify", "app", "--forgotten", "--key", f"{table}={text}")


def test_a_key_that_diff_prints_can_be_typed_as_argument() -> None:
    slackwater("edit", "app/texts", "--sql", "UPDATE texts SET v = v + 100 WHERE v < 5")
    lines = slackwater("diff", "app/texts@v2", "app/texts@v3", "--table", "texts", code=1).splitlines()
    printed = {line.split("  ")[1].strip() for line in lines if line.startswith("changed")}
    assert {r"\N", r"\\N", r"\\\N", "-5"} <= printed


def test_a_misspelt_option_is_not_taken_for_a_key() -> None:
    result = CliRunner().invoke(main.app, ["get", "app/numbers", "-5", "--jsn"])
    assert result.exit_code == 2
    assert "--jsn" in result.output
