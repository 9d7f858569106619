"""Strings that are not UTF-8 and maps with a duplicate key do not hide other rows in any output."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.client import Client
from slackwater.client.moment import Moment
from slackwater.client.show import values
from slackwater.errors import Refused
from slackwater.operations.exchange.iceberg.export import IcebergExport
from slackwater.settings import Settings
from slackwater.snapshot.diff import equality
from slackwater.store.objects.local import LocalStore
from slackwater.store.sst.arrow_types import escape_invalid_text, is_sql_safe, make_sql_safe, python_rows

from tests.snapshot.query.unshowable import CITIES, FIRST, LATIN, NOW, SECOND, raw, shown, text, write_app


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, list[str]]]:
    """Return a client, and a list of its notes. The app has one stage, whose first version has the rows of `FIRST`."""
    folder = tmp_path_factory.mktemp("store")
    write_app(folder)
    notes: list[str] = []
    settings = Settings(store=str(folder), cache=str(folder / "cache"), cache_max_bytes=1 << 30)
    with Client(settings, note=notes.append) as opened:
        yield opened, notes


@pytest.fixture(params=["from files", "from what is mapped"])
def now(client: tuple[Client, list[str]], request: pytest.FixtureRequest) -> Moment:
    moment = client[0].app("shop").at("now")
    if request.param == "from what is mapped":
        for sst in moment.cut.tables["cities"].ssts:
            client[0].cache.open(client[0].store, sst, CITIES)
    return moment


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["n"]))


def test_a_query_shows_every_row(client: tuple[Client, list[str]], now: Moment) -> None:
    client[1].clear()
    assert in_order(now.query("FROM cities").to_arrow_table().to_pylist()) == in_order(
        [shown(row, in_sql=True) for row in NOW]
    )
    assert ["not UTF-8" in note and "cities" in note for note in client[1]] == [True]
    assert len(now.query("FROM cities").df()) == len(NOW)
    # Each of these ended the connection, or the process, while DuckDB had the bytes.
    upper = now.query("SELECT upper(note) AS u FROM cities WHERE n = 20").fetchall()
    assert upper == [("GR\\XFCN",)]
    assert now.query("SELECT n FROM cities WHERE city = 'München'").fetchall() == [(3,)]
    assert now.query("SELECT tags['a'] FROM cities WHERE n = 1").fetchall() == [(1,)]


def test_versions_in_one_query_show_every_row(now: Moment) -> None:
    rows = now.query("FROM versions('cities', '1970-01-01T00:02:00Z') ORDER BY ALL").to_arrow_table().to_pylist()
    for version, expected in ((2, FIRST), (3, NOW)):
        found = [
            {name: it for name, it in row.items() if name not in ("_version", "_committed_at")}
            for row in rows
            if row["_version"] == version
        ]
        assert in_order(found) == in_order([shown(row, in_sql=True) for row in expected])


def test_get_history_and_diff_show_every_value(client: tuple[Client, list[str]], now: Moment) -> None:
    app = client[0].app("shop")
    (row,) = python_rows(now.look_up("cities", "München")[0])
    assert row == shown(SECOND[1], in_sql=False) == now.get("cities", "München")
    keyless = [
        {name: it for name, it in shown(row, in_sql=False).items() if name != "city"} for row in (SECOND[1], FIRST[2])
    ]
    assert [change.after for change in app.history("cities", "München")] == keyless
    # A key that no text names has its bytes.
    assert now.get("cities", LATIN) == shown(SECOND[0], in_sql=False)
    assert len(app.history("cities", LATIN)) == 2
    (table,) = app.diff("1970-01-01T00:02:00Z", "now").values()
    found = {change.key["city"]: change for change in table.full_diff.changes}
    assert found[text(LATIN)].after == {
        name: it for name, it in shown(SECOND[0], in_sql=False).items() if name != "city"
    }
    assert found["München"].before["tags"] == [("a", 1), ("a", 2)]


def test_exports_of_every_format_have_every_row(now: Moment, tmp_path: Path) -> None:
    rows = now.look_up("cities", "München")[0]
    everything = raw(NOW)
    for path in (tmp_path / name for name in ("a.parquet", "a.csv", "a.json")):
        values.write_table(everything, path)
        with duckdb.connect() as con:
            found = con.sql(f"SELECT city, n, note FROM '{path}'").fetchall()
        assert sorted(found, key=str) == sorted([(text(row[0]), row[1], text(row[2])) for row in NOW], key=str)
    assert json.loads((tmp_path / "a.json").read_text())[1]["tags"] == [["a", 1], ["a", 3]]
    assert pq.read_table(tmp_path / "a.parquet")["tags"].to_pylist()[1] == [("a", 1), ("a", 3)]
    written = now.export(tmp_path / "all.duckdb")
    with duckdb.connect(str(written), read_only=True) as con:
        assert con.sql("SELECT count(*), max(note) FROM cities").fetchall() == [(4, "surrogate")]
    assert rows.num_rows == 1


def test_a_search_sees_every_row(client: tuple[Client, list[str]]) -> None:
    app = client[0].app("shop")
    where = "SELECT city FROM cities WHERE note LIKE 'gr%' AND n >= 20"
    found = app.bisect(where=where)
    assert found.version == 3
    assert found.verdict.flips is not None
    assert [flip.version for flip in found.verdict.flips.flips] == [3]


def test_an_iceberg_table_has_strings_that_every_reader_accepts(
    client: tuple[Client, list[str]], tmp_path: Path
) -> None:
    store, cut = client[0].store, client[0].app("shop").at("now").cut
    lake = LocalStore(tmp_path / "lake")
    for _ in range(2):  # the second time, nothing is to be done
        (done,) = IcebergExport(store, client[0].cache, lake, "ada", 3_600_000).write(cut, 1_000)
    assert (done.rows, done.files, done.copied) == (4, 2, 2)
    with duckdb.connect() as con:
        copies = f"{tmp_path}/lake/cities/data/*.parquet"
        assert con.sql(
            f"SELECT count(*) FROM read_parquet('{copies}', union_by_name = true) WHERE note = 'gr\\xfcn'"
        ).fetchall() == [(2,)]


def test_an_edit_by_sql_is_refused_if_it_would_write_changed_strings(client: tuple[Client, list[str]]) -> None:
    with pytest.raises(Refused, match="not UTF-8, or maps with duplicate keys"):
        client[0].app("shop").edit("cities", "UPDATE cities SET n = n + 1", dry_run=True)


def test_rows_with_any_values_are_compared() -> None:
    ours, theirs = raw(FIRST), raw([*FIRST[:3]])
    assert equality.surplus_rows(ours, theirs)["n"].to_pylist() == [4]
    assert equality.find_row_numbers(make_sql_safe(raw(FIRST[1:2])), ours).tolist() == [1]


STRINGS = st.binary(max_size=6) | st.text(max_size=4).map(str.encode)
INSIDE = st.lists(
    st.fixed_dictionaries(
        {"s": st.none() | STRINGS, "m": st.none() | st.lists(st.tuples(STRINGS, STRINGS), max_size=3)}
    )
    | st.none(),
    max_size=3,
)
ROWS = st.lists(
    st.tuples(
        STRINGS,
        st.integers(0, 9),
        st.none() | STRINGS,
        st.none() | st.lists(st.tuples(st.sampled_from([b"a", b"\xff"]), st.integers(0, 9)), max_size=3),
        st.none() | INSIDE,
    ),
    max_size=6,
)


@given(ROWS, st.integers(0, 5))
def test_invalid_bytes_are_shown_escaped_and_in_sql_no_map_has_a_duplicate_key(rows: list[Any], start: int) -> None:
    table = raw(rows).slice(start)
    expected = [shown_or_none(row, in_sql=False) for row in rows[start:]]
    assert python_rows(table) == python_rows(escape_invalid_text(table)) == expected
    in_sql = [shown_or_none(row, in_sql=True) for row in rows[start:]]
    assert make_sql_safe(table).to_pylist() == in_sql
    with duckdb.connect() as con:
        assert con.from_arrow(make_sql_safe(table)).to_arrow_table().to_pylist() == in_sql
    assert is_sql_safe(table) == (in_sql == table_or_none(table))


def shown_or_none(row: Any, *, in_sql: bool) -> dict[str, Any]:
    city, n, note, tags, inside = row
    some = [one for one in inside or () if one is not None]
    found = shown((city, n, note, tags, None if inside is None else some), in_sql=in_sql)
    if inside is not None:
        parts = iter(found["inside"])
        found["inside"] = [None if one is None else next(parts) for one in inside]
    return found


def table_or_none(table: pa.Table) -> list[dict[str, Any]] | None:
    """Return the rows, or `None` if a string is not UTF-8."""
    try:
        return list(table.to_pylist())
    except UnicodeDecodeError:
        return None
