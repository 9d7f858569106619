"""`slackwater export` on the command line."""

from pathlib import Path

import duckdb
import pytest

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater

pytestmark = pytest.mark.usefixtures("isolated", "app")


def test_export_writes_a_file_that_duckdb_opens(tmp_path: Path) -> None:
    assert "flights@~2 in out.duckdb" in done("export", "flights@~2", "out.duckdb")
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as file:
        assert file.sql("SELECT count(*) FROM aircraft").fetchall() == [(7,)]


def test_export_overwrites_a_file_only_if_told_to(tmp_path: Path) -> None:
    (tmp_path / "out.duckdb").write_text("mine")
    result = slackwater("export", "flights", "out.duckdb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--force" in result.stderr
    written = from_json("export", "flights", "out.duckdb", "--force", "--table", "carriers")
    assert written["tables"] == {"carriers": 3}
    assert written["bytes"] == (tmp_path / "out.duckdb").stat().st_size


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("words", "table"),
    [
        (("flights/carriers", "out.csv"), "carriers"),
        (("flights", "out.csv", "--table", "aircraft"), "aircraft"),
        (("flights/carriers@~1", "out.parquet"), "carriers"),
        (("flights/carriers", "OUT.JSON"), "carriers"),
    ],
)
def test_a_path_with_a_file_ending_gets_one_table_as_a_file(words: tuple[str, ...], table: str) -> None:
    """DuckDB must read the rows that a query of the moment returns."""
    shown = done("export", *words)
    expected = rows_of(words[0], f"FROM {table} ORDER BY ALL")
    assert shown == f"{len(expected)} rows of {table} in {words[1]}\n"
    assert Path(words[1]).is_file()
    reader = {"csv": "read_csv", "json": "read_json", "parquet": "read_parquet"}[words[1].rpartition(".")[2].lower()]
    with duckdb.connect() as con:
        found = con.sql(f"FROM {reader}('{words[1]}') ORDER BY ALL").fetchall()
    assert found == [tuple(row.values()) for row in expected]
    assert "already exists" in slackwater("export", *words).stderr
    assert done("export", *words, "--force") == shown


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("export", "flights", "out.csv"), "slackwater export flights/aircraft out.csv"),
        (("export", "flights@~1", "out.csv"), "slackwater export flights/aircraft@~1 out.csv"),
        (("export", "flights", "out.csv", "--table", "a", "--table", "b"), "out.csv can hold only one table"),
        (("export", "flights", "out.xlsx"), "one table ends in .parquet, .csv, .json, one of all tables in .duckdb"),
        (("export", "flights", "out.xyz"), "export to out.xyz would be a folder, but its name ends like a file's"),
        (("export", "flights", "out.v1.parq"), "a folder's name has no ending, or ends in a slash: out.v1.parq/"),
        (("export", "flights", "out.tar"), "would be a folder"),
        (("export", "flights", "--iceberg", "out.parquet"), "--iceberg out.parquet would be a folder"),
        (("query", "flights", "--out", "out.csv"), "--out out.csv needs a query"),
        (("watch", "flights", "--once", "--reports", "out.html"), "--reports out.html would be a folder"),
        (("dev", "up", "--folder", "out.db"), "--folder out.db would be a folder"),
        (("adopt", "there", "out.txt", "--stage", "s", "--emit-program"), "a program is a Python file"),
        (("replay", "flights/carriers@v2", "--code", "x.py", "--pytest", "out.txt"), "a test is a Python file"),
        (("diff", "flights@~1", "flights", "--out", "out.xlsx"), "has no supported format"),
    ],
)
def test_no_folder_is_created_under_a_path_with_a_file_ending(
    words: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").touch()
    before = sorted(tmp_path.iterdir())
    result = slackwater(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr
    assert sorted(tmp_path.iterdir()) == before
