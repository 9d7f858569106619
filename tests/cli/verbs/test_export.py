"""`slackwater export` as it is typed."""

from pathlib import Path

import duckdb
import pytest

from tests.cli.verbs.calling import done, from_json, slackwater

pytestmark = pytest.mark.usefixtures("isolated", "app")


def test_export_writes_a_file_that_duckdb_opens(tmp_path: Path) -> None:
    assert "flights@~2 in out.duckdb" in done("export", "flights@~2", "out.duckdb")
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as file:
        assert file.sql("SELECT count(*) FROM aircraft").fetchall() == [(7,)]


def test_export_does_not_overwrite_without_being_told(tmp_path: Path) -> None:
    (tmp_path / "out.duckdb").write_text("mine")
    result = slackwater("export", "flights", "out.duckdb")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--force" in result.stderr
    written = from_json("export", "flights", "out.duckdb", "--force", "--table", "carriers")
    assert written["tables"] == {"carriers": 3}
    assert written["bytes"] == (tmp_path / "out.duckdb").stat().st_size
