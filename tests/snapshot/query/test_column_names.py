"""Tables with columns of any valid names can be read, changed and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.client import Client
from slackwater.client.show import values
from slackwater.errors import Usage
from slackwater.settings import Settings
from slackwater.snapshot.verify.verify import verify
from slackwater.store.read.duckdb_view import quote_identifier
from slackwater.store.sst.arrow_types import from_arrow, to_arrow
from slackwater.store.versions import apps, commit, keys
from slackwater.store.versions.manifest import AppInfo, Column, Manifest, Table

from tests.models.profiles import scaled
from tests.support.state_rows import write_version

START_MS = 1_700_000_000_000
NASTY = [
    "a.b",
    "a..b.",
    "`",
    "a`b",
    '"',
    'a"b',
    "'",
    " a ",
    "_a",
    "é",
    "日本",
    "a,b:c<d>",
    "x" * 1024,
    "select",
    "1",
    "\\",
    "👩‍🚀",
    "%s",
    "{x}",
    "ß",
]
CHARACTERS = st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]) | st.sampled_from(".`\"'<>:,() \\_")
NAMES = (st.text(CHARACTERS, min_size=1, max_size=12) | st.sampled_from(NASTY)).filter(
    lambda name: not name.startswith(".") and name.casefold() not in keys.RESERVED_COLUMNS
)
THREE = st.lists(NAMES, min_size=3, max_size=3, unique_by=str.casefold)


def written(folder: Path, key: str, value: str, nested: str, field: str) -> Client:
    """Return an app whose table has two versions.

    The first has three rows; then one is changed, one removed, one added.
    """
    kind = from_arrow(to_arrow(f"struct<{'`' + field.replace('`', '``') + '`'}: int64>"))
    table = Table((Column(key, "string"),), (Column(value, "int64"), Column(nested, kind)), 2)
    client = Client(Settings(store=str(folder / "store"), cache=str(folder / "cache"), cache_max_bytes=1 << 30))
    apps.create_app(client.store, AppInfo("app", 1))
    head = Manifest("app", "t", 1, 1, "w", START_MS, "claim", table=table)
    commit.commit(client.store, head)
    for changes in ({"a": 1, "b": 2, "c": 3}, {"a": 10, "b": None, "d": 4}):
        draft = commit.successor(head, kind="batch", epoch=1, writer="w", by="w", now_ms=head.time_ms + 1_000)
        rows: dict[Any, Any] = {(k,): None if v is None else (v, {field: v}) for k, v in changes.items()}
        ssts = write_version(client.store, client.cache, table, rows, draft.version, stage="t", base=head.ssts)
        head = replace(draft, ssts=(*ssts, *head.ssts))
        commit.commit(client.store, head)
    return client


@given(THREE, NAMES)
@example(["a.b", "c`d", 'e"f'], "g.h")
@example(["_a", "é", "A b"], "x,y:z")
@scaled(10, in_ci=200)
def test_a_table_with_columns_of_any_names_is_read_and_changed(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], field: str
) -> None:
    key, value, nested = names
    folder = tmp_path_factory.mktemp("names")
    with written(folder, key, value, nested, field) as client:
        app = client.app("app")
        visible = [name for name in (value, nested) if not name.startswith("_")]

        def row(name: str, number: int) -> dict[str, Any]:
            all_values = {value: number, nested: {field: number}}
            return {key: name, **{column: all_values[column] for column in visible}}

        expected = [row("a", 10), row("c", 3), row("d", 4)]
        found = app.at().query(f"SELECT * FROM t ORDER BY {quote_identifier(key)}").to_arrow_table()
        assert found.to_pylist() == expected
        assert app.at("app/t@v2").get("t", "b") == row("b", 2)
        diff = app.at("app/t@v2").diff(app.at("app/t@v3"))
        (changed,) = diff.full_diffs
        kinds = {change.key[key]: change.kind for change in changed.changes}
        assert kinds == {"a": "changed", "b": "removed", "d": "added"} if visible else {"b": "removed", "d": "added"}
        assert [change.version for change in app.history("t", "a").full_history.changes] == [3, 2]
        verdict = app.bisect(where=f"SELECT {quote_identifier(key)} FROM t WHERE {quote_identifier(key)} = 'd'").verdict
        assert verdict.bad_version == 3
        for ending in ("parquet", "csv", "json"):
            values.write_table(found, folder / f"out.{ending}")
        assert pq.read_table(folder / "out.parquet").to_pylist() == expected
        assert json.loads((folder / "out.json").read_text()) == expected
        app.at().write_duckdb(folder / "app.duckdb")
        with duckdb.connect(str(folder / "app.duckdb"), read_only=True) as con:
            assert con.sql(f"SELECT * FROM t ORDER BY {quote_identifier(key)}").to_arrow_table().to_pylist() == expected
        app.edit("t", f"UPDATE t SET {quote_identifier(value)} = 5 WHERE {quote_identifier(key)} = 'c'")
        assert verify(client.store, "app", now_ms=1 << 42, deep=True).differences == ()
        app.forget({"t": ["a"]})
        left = app.at().query(f"SELECT {quote_identifier(key)} AS k FROM t ORDER BY k").to_arrow_table()
        assert left["k"].to_pylist() == ["c", "d"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([""], "is not usable"),
        ([".a"], "the first of them no dot"),
        (["a\nb"], "without control characters"),
        (["x" * 1025], "1 to 1,024 characters"),
        (["Key", "kEY"], "differ only in case"),
        (["straße", "STRASSE"], "differ only in case"),
        (["_HASH"], "reserved by slackwater"),
    ],
)
def test_an_invalid_column_name_is_refused_with_the_reason(names: list[str], why: str) -> None:
    with pytest.raises(Usage, match=why):
        keys.check_columns("stage 's'", names)
