"""The fan-in example on a real broker and Spark: flights meet their weather in either order."""

import importlib.util
from pathlib import Path
from types import ModuleType

import duckdb
import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "departures": """
        SELECT coalesce(f.airport, w.airport) airport, coalesce(f.hour, w.hour) AT TIME ZONE 'UTC' AS hour,
               w.hour AT TIME ZONE 'UTC' observed, temp, wind_speed, precip, visib,
               coalesce(n, 0) departures, coalesce(delay, 0) dep_delay,
               CASE WHEN waits THEN n ELSE 0 END waiting, CASE WHEN waits THEN delay ELSE 0 END waiting_delay
        FROM hours f FULL JOIN observed w USING (airport, hour)
    """,
    "arrivals": """
        SELECT origin airport, dest, count(*) arrivals, sum(arr_delay) arr_delay, sum(dep_delay - arr_delay) made_up
        FROM flown WHERE arr_delay IS NOT NULL GROUP BY ALL
    """,
    "airports": """
        SELECT * FROM (
            SELECT airport, sum(n)::BIGINT departures, sum(delay) dep_delay,
                   sum(n) FILTER (precip > 0)::BIGINT in_rain, sum(delay) FILTER (precip > 0) rain_delay,
                   sum(n) FILTER (visib < 3)::BIGINT in_fog, sum(delay) FILTER (visib < 3) fog_delay
            FROM hours LEFT JOIN observed w USING (airport, hour) WHERE NOT waits GROUP BY airport
        ) FULL JOIN (
            SELECT origin airport, count(*) arrivals, sum(arr_delay) arr_delay, sum(dep_delay - arr_delay) made_up
            FROM flown WHERE arr_delay IS NOT NULL GROUP BY ALL
        ) USING (airport)
    """,
}
"""Each table of the app as SQL over the raw events."""

HOURS = """
    CREATE VIEW hours AS
    SELECT *, (airport, hour) NOT IN (SELECT (airport, hour) FROM observed)
              AND hour + INTERVAL 1 hour > (SELECT max(hour) FROM observed) - INTERVAL 6 hours AS waits
    FROM (
        SELECT origin airport, date_trunc('hour', time::TIMESTAMP) AS hour, count(*) n, sum(dep_delay) delay
        FROM flown GROUP BY ALL
    )
"""
"""Departures by airport and hour; they wait for weather until the watermark rules out more."""


def load_feed() -> ModuleType:
    """Import the feeder, a script."""
    spec = importlib.util.spec_from_file_location("feed", EXAMPLES / "feed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_tables(flights: Ledger, weather: Ledger) -> None:
    with duckdb.connect() as connection:
        connection.register("flights_sent", flights.raw())
        connection.register("weather_sent", weather.raw())
        connection.execute("CREATE VIEW flown AS FROM flights_sent WHERE dep_delay IS NOT NULL")
        connection.execute("CREATE VIEW observed AS SELECT *, time::TIMESTAMP AS hour FROM weather_sent")
        connection.execute(HOURS)
        for name, sql in EXPECTED.items():
            expected = connection.sql(sql).to_arrow_table()
            found = flights.table(name).select(expected.column_names)
            assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str), name


@pytest.mark.ci
def test_departures_are_joined_with_their_weather_in_either_order(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    feed = load_feed()
    feed.main(kafka=kafka.bootstrap, end=1_200, weather_topic="weather")
    feed.main(kafka=kafka.bootstrap, start=1_200, end=2_400)
    flights = Ledger(kafka.bootstrap, tmp_path, topic="flights", program=EXAMPLES / "weather.py")
    weather = Ledger(kafka.bootstrap, tmp_path, topic="weather")
    flights.catch_up(max_records=1_200)
    check_tables(flights, weather)
    assert sum(flights.table("departures")["waiting"].to_pylist()) > 1_000

    late = feed.weather_messages(feed.observations(), feed.events(), "weather", 1_200, 2_400)
    feed.send(kafka.bootstrap, late)
    flights.catch_up("observations", "departures", "airports")
    check_tables(flights, weather)
    # There is no weather observation for noon on the first of January, except at La Guardia: these departures left
    # without one.
    left = {row["airport"]: row["departures"] for row in flights.table("departures").to_pylist() if not row["observed"]}
    assert left == {"EWR": 22, "JFK": 17}
    assert not any(flights.table("departures")["waiting"].to_pylist())
