"""`slackwater export DIR` on the command line and in Python."""

import json
from pathlib import Path

import duckdb
import pytest
import slackwater as sw
from slackwater.errors import Refused, Usage

from tests.cli.verbs.calling import done, from_json, rows_of, slackwater
from tests.crash.verbs import command_line, gone_on
from tests.support.histories import FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def late(isolated: None, monkeypatch: pytest.MonkeyPatch) -> FlightsApp:
    """Return an app that continued to run after its snapshot `good`."""
    app = gone_on()
    with command_line(app, monkeypatch):
        return app


@pytest.mark.usefixtures("late")
def test_a_moment_is_exported_as_a_folder(tmp_path: Path) -> None:
    said = done("export", "flights@good", "out")
    assert said.startswith("flights@good in out, ")
    assert "out/tables/carriers\n" in said
    assert json.loads((tmp_path / "out" / "export.json").read_text())["app"] == "flights"
    machine = from_json("export", "flights@good", "again")
    assert (machine["folder"], machine["tables"]) == ("again", {"aircraft": 7, "carriers": 3})
    found = duckdb.sql(f"FROM '{tmp_path}/out/tables/carriers/*.parquet' ORDER BY ALL").to_arrow_table()
    assert found.to_pylist() == rows_of("flights@good", "FROM carriers ORDER BY ALL")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("export", "flights", "out", "--force"), 2, "out would be a folder: "),
        (("export", "flights", "out.v1", "--table", "carriers"), 2, "so tables= needs a file"),
        (("export", "flights", "there"), 1, "there already exists"),
        (("export", "flights@half", "out"), 1, "no snapshot of app 'flights' named 'half'"),
    ],
)
@pytest.mark.usefixtures("late")
def test_an_impossible_export_or_import_is_refused_with_the_reason(
    words: tuple[str, ...], code: int, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    refused = slackwater(*words)
    assert (refused.exit_code, refused.stdout) == (code, "")
    assert expected in refused.stderr
    assert sorted(each.name for each in tmp_path.iterdir() if not each.name.startswith(".")) == ["there"]


def test_without_kafka_only_an_export_of_in_flight_records_is_refused(
    late: FlightsApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("export", "flights@good", "out")
    monkeypatch.delenv("SLACKWATER_KAFKA")
    done("export", "flights@good", "again")
    late.send(*late.kafka.topics["flights"][0][0].flights)
    late.step("legs")
    refused = slackwater("export", "flights", "late")
    assert (refused.exit_code, "no Kafka configured" in refused.stderr) == (2, True)
    assert not Path("late").exists()


@pytest.mark.usefixtures("late")
def test_python_exports_the_same_way() -> None:
    with sw.open("memory") as store:
        path = store.app("flights").at("good").export("out")
        assert path == Path("out")
        assert duckdb.sql("FROM 'out/tables/carriers/*.parquet' ORDER BY ALL").fetchall() == (
            store.app("flights").at("good").query("FROM carriers ORDER BY ALL").fetchall()
        )
        with pytest.raises(Refused, match="already exists"):
            store.app("flights").at("good").export("out")
        with pytest.raises(Usage, match="so force= needs a file"):
            store.app("flights").at("good").export("other", force=True)
        assert store.app("flights").at("good").export("rows.duckdb").stat().st_size > 0


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("name", ["out", "out.xyz/", "out.csv/", "out-1.5", "out.2025-01-31"])
def test_a_path_without_a_file_ending_or_with_a_trailing_slash_is_a_folder(name: str) -> None:
    """Check that digits after a point, as in a version or a date, are not taken for a file ending."""
    done("export", "flights@good", name)
    assert (Path(name) / "tables" / "carriers").is_dir()
