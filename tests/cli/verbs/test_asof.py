"""`slackwater asof`: joins labels of a file with the rows that were current at each label's time."""

import re
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from slackwater.store.versions import history

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.support.histories import FlightsApp, rows_of

pytestmark = pytest.mark.usefixtures("isolated")
OPTIONS = ("--table", "flights/carriers", "--time", "at")


def write_labels(path: Path, times_ms: list[int], name: str = "carrier") -> int:
    carriers = ["C0", "C1", "C2", "ZZ", None]
    labels = [(carrier, at, number) for number, at in enumerate(times_ms) for carrier in carriers]
    carrier, at, number = zip(*labels, strict=True)
    columns = {name: pa.array(carrier, pa.string()), "at": pa.array(at, pa.timestamp("ms")), "number": number}
    pq.write_table(pa.table(columns), path)
    return len(labels)


def test_each_label_gets_the_newest_row_committed_by_its_time(app: FlightsApp, tmp_path: Path) -> None:
    versions = [
        history.read(app.store, "flights", "carriers", version)
        for version in history.list_versions(app.store, "flights", "carriers")
    ]
    times = [at for version in versions for at in (version.time_ms - 1, version.time_ms, version.time_ms + 1)]
    count = write_labels(tmp_path / "labels.parquet", times, "code")
    out = tmp_path / "rows.parquet"
    said = done("asof", str(tmp_path / "labels.parquet"), *OPTIONS, "--on", "carrier=code", "--out", str(out))
    assert f"{count} labels in {out}" in said
    assert "no version is stored" not in said
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == count
    for row in rows:
        at_ms = round(row["at"].replace(tzinfo=UTC).timestamp() * 1_000)
        version = max(
            (manifest for manifest in versions if manifest.time_ms <= at_ms), key=lambda m: m.version, default=None
        )
        table = rows_of(app.store, version) if version is not None else {}
        flights, delay, _ = table.get(row["code"], (None, None, None))
        assert row["asof_version"] == (version.version if version is not None else 0)
        assert (row["asof_present"], row["flights"], row["delay"]) == (row["code"] in table, flights, delay)
    assert {row["asof_present"] for row in rows} == {True, False}


def test_the_first_rows_are_printed_with_the_number_of_labels(app: FlightsApp, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("carrier,at\nC1,2999-01-01T00:00:00Z\nC1,1999-01-01T00:00:00Z\n")
    found = from_json("asof", str(tmp_path / "labels.csv"), *OPTIONS, "--on", "carrier")
    assert (found["labels"], found["present"], found["absent"], found["unknown"]) == (2, 1, 1, 0)
    (last,) = list(history.list_versions(app.store, "flights", "carriers"))[-1:]
    newest = rows_of(app.store, history.read(app.store, "flights", "carriers", last))
    (present,) = [row for row in found["rows"] if row["asof_present"]]
    assert (present["flights"], present["delay"]) == newest["C1"][:2]
    said = slackwater("asof", str(tmp_path / "labels.csv"), *OPTIONS).output
    assert "2 labels: 1 with a row of flights/carriers, 1 without one" in said


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--table", "flights/carriers", "--time", "when"), ("no column 'when' for the time",)),
        (("--table", "flights/carriers", "--time", "number"), ("is int64; expected a timestamp or a date", "epoch_ms")),
        (("--table", "flights/carrier", "--time", "at"), ("carriers",)),
        (("--table", "flights/aircraft", "--time", "at"), ("no column 'tail'", "--on tail=COLUMN")),
        ((*OPTIONS, "--on", "carrier=number"), ("column 'number' of the labels is no string",)),
        ((*OPTIONS, "--on", "flights=at"), ("no key column 'flights': its key is carrier",)),
        ((*OPTIONS, "--by", "watermark"), ("has no watermark", "omit --by")),
        (("--table", "flights/carriers@-5m", "--time", "at"), ("omit the moment @-5m",)),
    ],
)
def test_an_unusable_label_is_named(args: tuple[str, ...], words: tuple[str, ...], tmp_path: Path) -> None:
    write_labels(tmp_path / "labels.parquet", [0])
    result = slackwater("asof", str(tmp_path / "labels.parquet"), *args)
    assert result.exit_code != 0
    assert all(word in result.stderr for word in words), result.stderr


@pytest.mark.usefixtures("app")
def test_labels_with_columns_of_the_result_are_refused(tmp_path: Path) -> None:
    at = pa.array([datetime(2026, 1, 1, tzinfo=UTC)])
    pq.write_table(pa.table({"carrier": ["C1"], "at": at, "flights": [1]}), tmp_path / "labels.parquet")
    result = slackwater("asof", str(tmp_path / "labels.parquet"), *OPTIONS)
    assert result.exit_code == 2
    assert "the labels have columns of the result: flights" in result.stderr
    hinted = re.search(r"DuckDB renames: (COPY .*\))", result.stderr.replace("\n", " "))
    assert hinted is not None
    with duckdb.connect() as con:
        con.execute(f"SET file_search_path = '{tmp_path}'")
        con.execute(f"{hinted[1]} TO '{tmp_path}/new.parquet'")
    assert "1 label:" in slackwater("asof", str(tmp_path / "new.parquet"), *OPTIONS).output
