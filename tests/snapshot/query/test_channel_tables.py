"""Records in flight as relations, in queries and in bisect's predicates.

A snapshot keeps them beyond Kafka's retention.
"""

from contextlib import closing

import pyarrow as pa
import pytest
from msgspec.structs import replace
from slackwater.errors import Corruption, NotFound, Usage
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import read_snapshot
from slackwater.snapshot.query.answers import arrow_schema_from_ddl, channel_tables
from slackwater.snapshot.query.sql import connect, names_channels, run_query
from slackwater.snapshot.take.snapshots import delete_snapshot, pin_cut
from slackwater.store.read.cache import SstCache

from tests.support.histories import CAPTURED, SCHEMA, Flight, FlightsApp, Kafka, app_of, flights
from tests.support.manifests import claim


@pytest.fixture
def app() -> FlightsApp:
    """Return an app that has processed 20 flights, of which `aircraft` has 6 still to read."""
    app = app_of(20)
    app.send(*flights(6, delay=99))
    app.step("legs")
    return app


def ask(app: FlightsApp, cache: SstCache, sql: str, ref: str = "flights", reader: Kafka | None = None) -> pa.Table:
    cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
    flying = channel_tables(app.store, cut, sql, reader)
    with closing(connect(app.store, cache, cut, channels=flying)) as con:
        return run_query(con, sql)


@pytest.mark.parametrize("spelled", ["inflight('by-aircraft')", 'inflight."by-aircraft"', "INFLIGHT('by-aircraft')"])
def test_a_channel_is_a_relation_with_partitions_and_offsets(app: FlightsApp, cache: SstCache, spelled: str) -> None:
    rows = ask(app, cache, f"SELECT * FROM {spelled} ORDER BY _partition, _offset, _row", reader=app.kafka)
    assert rows.column_names == [*CAPTURED.names, "_receiver"]
    assert rows["delay"].to_pylist() == [99] * 6
    assert set(rows["_receiver"].to_pylist()) == {"aircraft"}
    messages = app.kafka.topics["flights-by-aircraft-repartition"]
    for row in rows.to_pylist():
        flight = messages[row["_partition"]][row["_offset"]].flights[row["_row"]]
        assert flight == Flight(row["tail"], row["carrier"], row["delay"])


def test_a_channel_without_records_has_its_columns_and_an_unknown_one_is_refused(
    app: FlightsApp, cache: SstCache
) -> None:
    rows = ask(app, cache, "SELECT * FROM inflight('by-carrier')")
    assert rows.num_rows == 0
    assert rows.schema.names == [*CAPTURED.names, "_receiver"]
    with pytest.raises(NotFound, match="by-carrier"):
        ask(app, cache, "SELECT * FROM inflight('by-carier')", reader=app.kafka)


def test_a_table_can_be_joined_with_its_in_flight_records(app: FlightsApp, cache: SstCache) -> None:
    late = "SELECT count(*) AS n FROM inflight('by-aircraft') JOIN aircraft USING (tail) WHERE flights > 2"
    assert ask(app, cache, late, reader=app.kafka)["n"].to_pylist() == [6]


def test_records_that_only_kafka_has_require_kafka(app: FlightsApp, cache: SstCache) -> None:
    with pytest.raises(Usage, match="6 in-flight records of 'by-aircraft' are in no snapshot") as refused:
        ask(app, cache, "SELECT * FROM inflight('by-aircraft')")
    assert "--kafka" in refused.value.hint


def test_a_snapshot_keeps_its_records_beyond_retention(app: FlightsApp, cache: SstCache) -> None:
    cut = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    pin_cut(app.store, cut, "kept", reader=app.kafka)
    app.kafka.topics["flights-by-aircraft-repartition"] = [[], []]
    rows = ask(app, cache, "SELECT sum(delay)::INT AS late FROM inflight('by-aircraft')", "flights@kept")
    assert rows["late"].to_pylist() == [6 * 99]
    (kept,) = read_snapshot(app.store, "flights", "kept").channels
    assert (kept.rows, sum(kept.counts)) == (6, 6)
    delete_snapshot(app.store, "flights", "kept")
    assert not list(app.store.list("flights/snapshots/"))


def test_each_reader_of_a_channel_has_its_own_records_in_flight(app: FlightsApp, cache: SstCache) -> None:
    before = app.version("aircraft", app.heads["aircraft"].version - 1)
    claim(
        app.store,
        "flights",
        "again",
        writer="w",
        by="test:1",
        now_ms=app.clock.tick("again"),
        build=lambda draft: replace(draft, inputs=before.inputs),
    )
    counts = "SELECT _receiver, count(*) AS n FROM inflight('by-aircraft') GROUP BY ALL"
    expected = {"aircraft": 6, "again": 16}
    cut = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    pin_cut(app.store, cut, "kept", reader=app.kafka)
    for ref, reader in (("flights", app.kafka), ("flights@kept", None)):
        rows = ask(app, cache, counts, ref, reader)
        assert dict(zip(rows["_receiver"].to_pylist(), rows["n"].to_pylist(), strict=True)) == expected


def test_a_captured_object_that_was_damaged_is_named(app: FlightsApp, cache: SstCache) -> None:
    cut = resolve(app.store, "flights", now_ms=app.clock.now_ms)
    snapshot = pin_cut(app.store, cut, "kept", reader=app.kafka)
    key = snapshot.channels[0].objects[0].key
    app.store.put(key, app.store.get(key)[:-1] + b"?")
    with pytest.raises(Corruption, match=key):
        ask(app, cache, "SELECT * FROM inflight('by-aircraft')", "flights@kept")
    app.store.delete(key)
    with pytest.raises(Corruption, match=key):
        ask(app, cache, "SELECT * FROM inflight('by-aircraft')", "flights@kept")


def test_bisect_sees_records_in_flight(app: FlightsApp, cache: SstCache) -> None:
    where = "SELECT tail FROM inflight('by-aircraft') WHERE delay = 99"
    verdict = bisect(app.store, cache, "flights", where, now_ms=app.clock.now_ms, reader=app.kafka)
    assert (verdict.stage, verdict.bad_version) == ("legs", app.heads["legs"].version)
    assert verdict.rows.num_rows == 6


def test_channels_are_requested_only_by_queries_that_name_them() -> None:
    assert names_channels("FROM InFlight('x')")
    assert not names_channels("SELECT inflightness FROM t")


def test_columns_are_parsed_from_sparks_ddl() -> None:
    assert arrow_schema_from_ddl(SCHEMA).names == ["tail", "carrier", "delay"]
    nested = arrow_schema_from_ddl(
        "`a b` struct<p q:int,r:array<map<string,decimal(10,2)>>>, `t` timestamp, `e` struct<>"
    )
    inner = pa.list_(pa.map_(pa.string(), pa.decimal128(10, 2)))
    assert nested.field("a b").type == pa.struct([("p q", pa.int32()), ("r", inner)])
    assert nested.field("t").type == pa.timestamp("us", "UTC")
    assert nested.field("e").type == pa.struct([])
    assert arrow_schema_from_ddl("").names == []
    for wrong in ("`a`", "`a` array<int", "`a` nonsense", "`a` int `b` int"):
        with pytest.raises(Corruption):
            arrow_schema_from_ddl(wrong)
