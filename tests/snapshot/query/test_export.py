"""A moment as a DuckDB file."""

from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from slackwater.errors import Corruption, NotFound, Refused, Unavailable
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.export import ExportedDatabase, export, load_ui_extension
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.store.read.cache import SstCache

from tests.support.histories import FlightsApp


def at(app: FlightsApp, ref: str) -> Cut:
    return resolve(app.store, ref, now_ms=app.clock.now_ms)


def write(app: FlightsApp, cache: SstCache, path: Path, ref: str = "flights@~3", **more: object) -> ExportedDatabase:
    return export(app.store, cache, at(app, ref), ref, path, **more)  # type: ignore[arg-type]


def test_any_client_of_duckdb_sees_the_tables_of_the_moment(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    path = tmp_path / "it's out.duckdb"
    written = write(app, cache, path)
    cut = at(app, "flights@~3")
    with closing(connect(app.store, cache, cut)) as con, closing(duckdb.connect(str(path), read_only=True)) as file:
        for name in ("aircraft", "carriers"):
            sql = f"FROM {name} ORDER BY ALL"
            assert file.sql(sql).to_arrow_table() == run_query(con, sql)
        kinds = dict(file.sql("SELECT table_name, table_type FROM information_schema.tables").fetchall())
        assert kinds == dict.fromkeys(("aircraft", "carriers", "_slackwater"), "BASE TABLE")
        about = file.sql(
            "SELECT app, ref, stage, version, epoch_ms(committed_at), key, rows FROM _slackwater"
        ).fetchall()
    keys = {"legs": None, "aircraft": ["tail"], "carriers": ["carrier"]}
    assert about == [
        ("flights", "flights@~3", stage, each.version, each.time_ms, keys[stage], written.rows.get(stage))
        for stage, each in cut.stages.items()
    ]
    assert (written.path, written.bytes, written.rows["carriers"]) == (path, path.stat().st_size, 3)
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


def test_an_existing_file_is_overwritten_only_with_the_option(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    path, log = tmp_path / "out.duckdb", tmp_path / "out.duckdb.wal"
    path.write_text("mine")
    log.write_text("what a client had not yet written into it")
    with pytest.raises(Refused, match="already exists") as caught:
        write(app, cache, path)
    assert "--force" in caught.value.hint
    assert path.read_text() == "mine"
    write(app, cache, path, force=True)
    assert not log.exists()
    with closing(duckdb.connect(str(path), read_only=True)) as file:
        assert file.sql("SELECT count(*) FROM carriers").fetchall() == [(3,)]


def test_a_failed_export_leaves_an_existing_file_and_nothing_else(
    app: FlightsApp, cache: SstCache, tmp_path: Path
) -> None:
    path = tmp_path / "out.duckdb"
    write(app, cache, path, "flights@~9")
    before = path.read_bytes()
    damaged = app.heads["carriers"].ssts[0].object
    app.store.delete(damaged)
    with pytest.raises(Corruption):
        write(app, cache, path, "flights", force=True)
    assert path.read_bytes() == before
    assert [left.name for left in tmp_path.iterdir()] == ["out.duckdb"]


def test_only_chosen_tables_are_written(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    app.store.delete(app.heads["aircraft"].ssts[0].object)
    path = tmp_path / "out.duckdb"
    assert write(app, cache, path, "flights", only=["carriers"]).rows == {"carriers": 3}
    with closing(duckdb.connect(str(path), read_only=True)) as file:
        assert file.sql("SELECT stage FROM _slackwater WHERE rows IS NOT NULL").fetchall() == [("carriers",)]
    with pytest.raises(NotFound, match="the nearest: carriers"):
        write(app, cache, path, "flights", only=["carrierz"], force=True)


@pytest.mark.parametrize("name", ["none/out.duckdb", "."])
def test_an_unwritable_path_is_refused(app: FlightsApp, cache: SstCache, tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="cannot be written"):
        write(app, cache, tmp_path / name, force=True)


def test_without_the_extension_the_ui_is_refused_with_a_hint(tmp_path: Path) -> None:
    nowhere = {"extension_directory": str(tmp_path), "custom_extension_repository": str(tmp_path)}
    with closing(duckdb.connect(config=nowhere)) as con, pytest.raises(Unavailable) as caught:
        load_ui_extension(con)
    assert "extension `ui` is not on this machine and cannot be downloaded" in caught.value.message
    assert "slackwater export" in caught.value.hint
