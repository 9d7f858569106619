"""`slackwater export --iceberg` on the command line."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable
from slackwater.client.client import Client
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import done, from_json, process, rows_of, slackwater
from tests.operations.exchange.iceberg.reading import rows
from tests.support.histories import FlightsApp, flights

pytestmark = pytest.mark.usefixtures("isolated")


def found(tmp_path: Path, name: str = "carriers") -> Any:
    return rows(StaticTable.from_metadata(str(tmp_path / "my lake" / name)))


def test_any_iceberg_reader_can_open_the_tables(app: FlightsApp, tmp_path: Path) -> None:
    words = done("export", "flights@~2", "--iceberg", "my lake")
    assert words.startswith(f"flights@~2 as Iceberg tables in {tmp_path / 'my lake'}, ")
    assert words.count("new snapshot") == 2
    for name in ("carriers", "aircraft"):
        assert found(tmp_path, name) == rows_of("flights@~2", f"FROM {name} ORDER BY 1")
    assert done("export", "flights@~2", "--iceberg", "my lake").count("as it was") == 2
    words = ("export", "flights", "--iceberg", "my lake", "--table", "carriers", "--keep", "2h")
    written = from_json(*words, "--message", "for the analysts")
    assert [(each["name"], each["moved"]) for each in written["tables"]] == [("carriers", True)]
    assert written["tables"][0]["location"] == f"file://{tmp_path / 'my lake'}/carriers"
    assert found(tmp_path) == rows_of("flights", "FROM carriers ORDER BY 1")
    assert "iceberg-" in done("snapshot", "list", "flights")
    logged = done("log", "flights", "--operations")
    assert f"flights (carriers) as Iceberg tables in {tmp_path / 'my lake'}" in logged
    assert "for the analysts" in logged


def test_python_exports_the_same_tables(app: FlightsApp, tmp_path: Path, store: ObjectStore) -> None:
    from slackwater.client import open as opened

    with opened(str(tmp_path / "store")) as client:
        assert isinstance(client, Client)
        shown = client.app("flights").at("~2").export_iceberg("my lake", ["carriers"], keep="30m")
    assert "new snapshot" in repr(shown)
    assert found(tmp_path) == rows_of("flights@~2", "FROM carriers ORDER BY 1")


def test_a_continuous_export_reports_the_tables_that_moved(app: FlightsApp, tmp_path: Path) -> None:
    with process("export", "flights", "--iceberg", "my lake", "--every", "1s", "--json") as running:
        assert running.stdout is not None
        first = json.loads(running.stdout.readline())
        assert [each["moved"] for each in first["tables"]] == [True, True]
        app.run(flights(20, delay=3))
        shown = first
        while shown["versions"]["carriers"] != app.heads["carriers"].version:  # it may have looked between commits
            shown = json.loads(running.stdout.readline())
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=180) == 0
    assert found(tmp_path) == rows_of("flights", "FROM carriers ORDER BY 1")


def test_tables_are_registered_in_a_catalog_of_pyicebergs_settings(
    app: FlightsApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path / 'entries.db'}"
    # pyiceberg reads variables when it is imported, so the verb runs in a process of its own.
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", uri)
    with process("export", "flights", "--iceberg", "my lake", "--register", "lake.air", "--json") as exporting:
        written = json.loads(exporting.communicate(timeout=120)[0])
    assert [each["registered"] for each in written["tables"]] == ["lake.air.aircraft", "lake.air.carriers"]
    entry = load_catalog("lake", type="sql", uri=uri).load_table("air.carriers")
    assert rows(entry) == rows_of("flights", "FROM carriers ORDER BY 1")  # type: ignore[arg-type]
    result = slackwater("export", "flights", "--iceberg", "my lake", "--register", "absent")
    assert result.exit_code == 1
    assert "error: the Iceberg catalog 'absent' cannot be used: " in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("flights",), "missing argument DIR or FILE"),
        (("flights", "out.duckdb", "--every", "1m"), "--every needs --iceberg"),
        (("flights", "out.duckdb", "--register", "lake"), "--register needs --iceberg"),
        (("flights", "--iceberg", "lake", "--register", "a b"), "expected CATALOG or CATALOG.NAMESPACE"),
        (("flights", "out.duckdb", "--iceberg", "lake"), "--iceberg writes to its own root"),
        (
            ("flights/carriers@v3", "--iceberg", "lake", "--every", "1m"),
            "'flights/carriers@v3' always names the same moment",
        ),
        (("flights", "--iceberg", "abfs://lake"), "abfs:// is not supported"),
        (("flights", "--iceberg", "lake", "--every", "1ms"), "too short"),
    ],
)
def test_an_invalid_combination_of_options_is_explained(app: FlightsApp, words: tuple[str, ...], sentence: str) -> None:
    result = slackwater("export", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in " ".join(result.stderr.split())


def test_a_root_inside_an_apps_folder_is_refused(app: FlightsApp, tmp_path: Path) -> None:
    result = slackwater("export", "flights", "--iceberg", str(tmp_path / "store" / "flights" / "lake"))
    assert result.exit_code == 1
    assert "flights" in result.stderr
    assert not (tmp_path / "store" / "flights" / "lake").exists()
