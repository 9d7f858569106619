"""`slackwater reconcile` and `slackwater why-not` on the command line."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.support.histories import Flight, FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")
TABLE = "flights/carriers"


@pytest.fixture
def warehouse(app: FlightsApp, tmp_path: Path) -> pa.Table:
    """Return external totals of the raw input without its broken flight, and with a carrier that the app lacks."""
    messages = [message for partition in app.kafka.topics["flights"] for message in partition]
    raw = [flight for message in messages for flight in message.flights if flight.delay < 1_000]
    flights = pa.table({name: [getattr(flight, name) for flight in raw] for name in Flight._fields})
    with duckdb.connect() as con:
        con.register("flights", flights)
        totals = con.sql(
            "SELECT carrier AS code, count(*) AS flights, sum(delay)::BIGINT AS delay FROM flights GROUP BY ALL "
            "UNION ALL SELECT 'ZZ', 7, 7 ORDER BY code"
        ).to_arrow_table()
    pq.write_table(totals, tmp_path / "warehouse.parquet")
    return totals


def counts(theirs: pa.Table) -> dict[str, int]:
    """Return the counts that DuckDB computes by a full join with the app's table."""
    ours = pa.Table.from_pylist(from_json("query", "flights", "FROM carriers")["rows"])
    with duckdb.connect() as con:
        con.register("ours", ours)
        con.register("theirs", theirs)
        same = "o.flights IS NOT DISTINCT FROM t.flights AND o.delay IS NOT DISTINCT FROM t.delay"
        names = ("agree", "differ", "here_only", "there_only")
        row = con.sql(
            f"SELECT count(*) FILTER (o.carrier = t.code AND {same}), "
            f"count(*) FILTER (o.carrier = t.code AND NOT ({same})),"
            " count(*) FILTER (t.code IS NULL), count(*) FILTER (o.carrier IS NULL) "
            "FROM ours o FULL JOIN theirs t ON o.carrier = t.code"
        ).fetchall()[0]
    return dict(zip(names, row, strict=True))


def test_the_counts_are_those_of_a_full_join_over_the_raw_input(warehouse: pa.Table) -> None:
    result = slackwater("reconcile", TABLE, "--with", "warehouse.parquet", "--on", "carrier=code")
    assert result.exit_code == 1
    expected = counts(warehouse)
    title = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in expected.items())
    assert f"flights/carriers and warehouse.parquet: {title}" in result.stdout
    found = from_json_that_differs("reconcile", TABLE, "--with", "warehouse.parquet", "--on", "carrier=code")
    assert {name: found[name] for name in expected} == expected
    assert {each["key"]["carrier"]: each["kind"] for each in found["keys"]}["ZZ"] == "there only"


def from_json_that_differs(*args: str) -> Any:
    """Run a verb with `--json` that exits with 1 because of differences; return the document."""
    result = slackwater(*args, "--json")
    assert result.exit_code == 1, result.stderr
    return json.loads(result.stdout)


def test_numbers_within_the_tolerance_agree(warehouse: pa.Table) -> None:
    sql = "SELECT * REPLACE (delay + 3 AS delay) FROM 'warehouse.parquet' WHERE code <> 'ZZ'"
    columns = ("--with", sql, "--on", "carrier=code", "--columns", "delay")
    far = from_json_that_differs("reconcile", TABLE, *columns)
    near = slackwater("reconcile", TABLE, *columns, "--tolerance", "6000", "--json")
    assert far["differ"] == warehouse.num_rows - 1
    assert near.exit_code == 0, near.stdout
    assert '"near":{"delay":3}' in near.stdout


def test_a_table_agrees_with_itself_and_parts_from_its_past(app: FlightsApp) -> None:
    assert "3 agree, 0 differ" in done("reconcile", TABLE, "--with", TABLE)
    past = from_json_that_differs("reconcile", TABLE, "--with", f"{TABLE}@v3")
    head = app.heads["carriers"].version
    assert past["differ"] == 3
    for each in past["keys"]:
        assert each["had_theirs"]
        assert 3 < each["parted"]["version"] <= head


def test_all_differences_are_written(tmp_path: Path, warehouse: pa.Table) -> None:
    out = tmp_path / "differences.parquet"
    columns = ("--with", "warehouse.parquet", "--on", "carrier=code", "--out", str(out))
    said = slackwater("reconcile", TABLE, *columns).stdout
    rows = pq.read_table(out).to_pylist()
    expected = counts(warehouse)
    assert len(rows) == expected["differ"] + expected["here_only"] + expected["there_only"]
    assert f"{len(rows)} keys in {out}" in said
    (own,) = [row for row in rows if row["carrier"] == "ZZ"]
    assert (own["difference"], own["theirs_flights"], own["ours_flights"]) == ("there only", 7, None)
    # No Kafka is configured, and there is no archive.
    assert own["reason"] == "unknown"


@pytest.mark.usefixtures("warehouse")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.parquet", ("missing.parquet cannot be read",)),
        ("SELECT code AS carrier, flights FROM 'warehouse.parquet' UNION ALL SELECT 'ZZ', 1", ("several rows", "'ZZ'")),
        ("SELECT 1 AS carrier, 1 AS flights", ("column 'carrier' of their rows is no string",)),
        ("SELECT 'C1' AS carrier, 'x' AS flights", ("column 'flights' of their rows is no int64", "cast it")),
        ("SELECT 'C1' AS carrier", ("none of the value columns", "--columns flights=COLUMN")),
        ("FROM 'warehouse.parquet'", ("no column 'carrier'", "--on carrier=COLUMN")),
        ("COPY (SELECT 1) TO 'x.csv'; SELECT 1", ("only ATTACH", "READ_ONLY")),
        ("INSTALL postgres; SELECT 1", ("only ATTACH", "INSTALL postgres")),
        ("ATTACH 'new.db' AS d; SELECT 1", ("READ_ONLY",)),
        ("flights/carrier", ("carriers",)),
    ],
)
def test_a_source_that_does_not_fit_is_refused(source: str, words: tuple[str, ...], tmp_path: Path) -> None:
    before = {path for path in tmp_path.iterdir() if path.name != "cache"}
    result = slackwater("reconcile", TABLE, "--with", source)
    assert result.exit_code != 0
    assert all(word in result.stderr for word in words), result.stderr
    assert {path for path in tmp_path.iterdir() if path.name != "cache"} == before


def test_an_attached_database_is_read(tmp_path: Path, warehouse: pa.Table) -> None:
    with duckdb.connect(tmp_path / "dw.duckdb") as con:
        con.register("totals", warehouse)
        con.execute("CREATE TABLE carriers AS FROM totals")
    sql = "ATTACH 'dw.duckdb' AS dw (READ_ONLY); FROM dw.carriers"
    found = from_json_that_differs("reconcile", TABLE, "--with", sql, "--on", "carrier=code")
    assert {name: found[name] for name in counts(warehouse)} == counts(warehouse)


@pytest.mark.usefixtures("app")
def test_no_message_has_a_password() -> None:
    for sql in (
        "ATTACH 'missing.duckdb?password=hunter22' AS d (READ_ONLY); FROM d.t",
        "CREATE TABLE t AS SELECT 'hunter22'; FROM t",
        "https://me:hunter22@localhost:1/totals.parquet?X-Amz-Signature=hunter22",
    ):
        result = slackwater("reconcile", TABLE, "--with", sql)
        assert result.exit_code != 0
        assert "hunter22" not in result.output + result.stderr, result.stderr


def place_of(app: FlightsApp, carrier: str, *, last: bool = False) -> str:
    """Return the address of the carrier's first record; with `last`, of one that only the stage `legs` has read."""
    places = [
        (partition, offset)
        for partition, messages in enumerate(app.kafka.topics["flights"])
        for offset, message in enumerate(messages)
        if message.flights[0].carrier == carrier
    ]
    in_flight = app.heads["legs"].inputs["flights"].offsets
    before = app.version("legs", app.heads["legs"].version - 1).inputs["flights"].offsets
    new = [(p, offset) for p, offset in places if before[p] <= offset < in_flight[p]]
    partition, offset = new[0] if last else places[0]
    return f"flights[{partition}]@{offset}"


def test_a_record_is_counted_filtered_or_in_flight(app: FlightsApp) -> None:
    def why_not(key: str, record: str) -> Any:
        return from_json("why-not", TABLE, key, "--record", record)

    first = place_of(app, "C1")
    assert [each["record"] for each in why_not("C1", first)["counted"]] == [first]
    (filtered,) = why_not("ZZ", first)["reasons"]
    assert (filtered["kind"], filtered["record"]) == ("filtered", first)
    (unread,) = why_not("C1", place_of(app, "C1", last=True))["reasons"]
    assert unread["kind"] == "unread"
    assert "in flight" in unread["sentence"]


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("C1", "--record", "flights-1-2"), ("is not the location of a record", "flights[1]@49625")),
        (("C1", "--record", "flights[0]@1+2"), ("is a row in a repartition topic",)),
        (("C1", "--record", "orders[0]@1"), ("orders", "flights")),
        (("C1", "--record", "flights[0]@1", "--where", "true"), ("exclude each other",)),
        (("C1", "C2"), ("carrier",)),
    ],
)
def test_a_malformed_question_is_refused(args: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = slackwater("why-not", TABLE, *args)
    assert result.exit_code != 0
    assert all(word in result.stderr for word in words), result.stderr
