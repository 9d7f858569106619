"""Does bad weather delay New York's flights? This app joins two topics in one stage; its paths fork and join.

      flights                 weather           topics, JSON events
         |                       |
       legs                observations
         | by-airport-flights    | by-airport-weather
     .---+-------------.         |
     |                 |         |
  arrivals            departures             each hour's departures meet the weather of their hour
     | by-airport-     | by-airport-
     | arrivals        | departures
     '----- airports --'                     totals by airport, in rain and in fog

Run it with `slackwater run examples/weather.py`; `python examples/feed.py --weather-topic weather` sends the events.
The weather data of 2013 has an error: a wind of more than 1,000 miles an hour. This finds the record:

    slackwater bisect weather --where "SELECT airport, hour FROM departures WHERE wind_speed > 200"
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

FLIGHT = "time timestamp, origin string, dest string, dep_delay double, arr_delay double"
OBSERVATION = "airport string, time timestamp, temp double, wind_speed double, precip double, visib double"
WEATHER = ("temp", "wind_speed", "precip", "visib")
OUT_OF_ORDER = "6 hours"
"""Maximum delay of an event behind others of the same event time."""
HOUR = pa.scalar(3600 * 10**6, pa.duration("us"))

app = sw.App("weather")
by_airport_flights = sw.repartition("by-airport-flights", key="airport", partitions=2)
by_airport_weather = sw.repartition("by-airport-weather", key="airport", partitions=2)
by_airport_departures = sw.repartition("by-airport-departures", key="airport", partitions=2)
by_airport_arrivals = sw.repartition("by-airport-arrivals", key="airport", partitions=2)


@app.stage(reads=sw.topic("flights"), writes=by_airport_flights, on_error="reject")
def legs(flights: DataFrame) -> DataFrame:
    """Return one row per flight, including cancelled ones; an event that is not JSON is rejected."""
    event = F.from_json(F.col("value").cast("string"), FLIGHT, {"mode": "FAILFAST"})
    leg = flights.select(event.alias("e")).select("e.*").where("origin is not null and time is not null")
    return leg.withColumnRenamed("origin", "airport").withWatermark("time", OUT_OF_ORDER)


@app.stage(reads=sw.topic("weather"), writes=by_airport_weather, on_error="reject")
def observations(weather: DataFrame) -> DataFrame:
    """Return one row per hourly observation."""
    event = F.from_json(F.col("value").cast("string"), OBSERVATION, {"mode": "FAILFAST"})
    observed = weather.select(event.alias("e")).select("e.*").where("airport is not null and time is not null")
    return observed.withWatermark("time", OUT_OF_ORDER)


def meet(flights: pa.Table, weather: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Send each hour's departures on, once, with the weather of their hour.

    The two topics are read independently, and either may be months ahead. The state therefore keeps what arrives first.
    An hour's weather stays in its row for later departures. Departures that arrive before their weather are counted as
    `waiting`, and are sent on when it arrives. Once the watermark rules out an observation of their hour, they become
    due (`leaves`): the function is called with their rows and without events, and sends them on without weather.
    """
    gone_by = flights.num_rows + weather.num_rows == 0
    hour = flights["_key"].to_numpy()
    num = state.num_rows
    new_departures = np.bincount(hour, minlength=num)
    new_delay = np.bincount(hour, flights["dep_delay"].to_numpy(), num)

    # Rows are sorted by time, so the last one that is assigned is the hour's latest observation.
    latest = np.full(num, -1)
    latest[weather["_key"].to_numpy()] = np.arange(weather.num_rows)
    came = pa.array(latest >= 0)
    row = pa.array(latest, mask=latest < 0)
    observed = pc.if_else(came, weather["time"].take(row), state["observed"])
    now = {name: pc.if_else(came, weather[name].take(row), state[name]) for name in WEATHER}

    waiting = plus(state["waiting"], new_departures)
    waiting_delay = plus(state["waiting_delay"], new_delay)
    leaving = pc.or_(pc.is_valid(observed), gone_by)
    stays = pc.and_(pc.invert(leaving), pc.greater(waiting, 0))
    counts = {
        "departures": plus(state["departures"], new_departures),
        "dep_delay": plus(state["dep_delay"], new_delay),
        "waiting": pc.if_else(leaving, 0, waiting),
        "waiting_delay": pc.if_else(leaving, 0.0, waiting_delay),
        "leaves": pc.if_else(stays, pc.add(state["hour"], HOUR), None),
    }
    met = pa.table({"airport": state["airport"], "departures": waiting, "dep_delay": waiting_delay, **now})
    return pa.table({"observed": observed, **now, **counts}), met.filter(pc.and_(leaving, pc.greater(waiting, 0)))


def plus(before: pa.ChunkedArray, added: npt.NDArray[np.generic]) -> pa.ChunkedArray:
    """Add to a column of the state, in which new keys are null."""
    return pc.add(pc.fill_null(before, 0), pa.array(added))


@app.stage(
    reads=(by_airport_flights, by_airport_weather),
    key=["airport", "hour"],
    state=sw.update(
        meet,
        state="observed timestamp, temp double, wind_speed double, precip double, visib double, "
        "departures long, dep_delay double, waiting long, waiting_delay double, leaves timestamp",
        emits="airport string, departures long, dep_delay double, precip double, visib double",
        order_by="time",
        due="leaves",
    ),
    writes=by_airport_departures,
    table=sw.table(partitions=2),
)
def departures(flights: DataFrame, weather: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Keep one row per airport and hour: its weather, and the number and delay of its departures."""
    hour = F.date_trunc("hour", "time").alias("hour")
    left = flights.where("dep_delay is not null").select("airport", hour, "time", "dep_delay")
    return left, weather.select("airport", hour, "time", *WEATHER)


def land(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Sum the minutes that the flights of each route made up in the air, and send every flight on."""
    route = rows["_key"].to_numpy()
    made_up = pc.subtract(rows["dep_delay"], rows["arr_delay"])
    after = {
        "arrivals": plus(state["arrivals"], np.bincount(route)),
        "arr_delay": plus(state["arr_delay"], np.bincount(route, rows["arr_delay"].to_numpy())),
        "made_up": plus(state["made_up"], np.bincount(route, made_up.to_numpy())),
    }
    return pa.table(after), rows.append_column("made_up", made_up)


@app.stage(
    reads=by_airport_flights,
    key=["airport", "dest"],
    state=sw.update(
        land,
        state="arrivals long, arr_delay double, made_up double",
        emits="airport string, arr_delay double, made_up double",
    ),
    writes=by_airport_arrivals,
    table=sw.table(partitions=2),
)
def arrivals(flights: DataFrame) -> DataFrame:
    """Keep one row per route: delays on arrival, and minutes made up in the air."""
    return flights.where("dep_delay is not null and arr_delay is not null")


@app.stage(
    reads=(by_airport_departures, by_airport_arrivals),
    state=sw.aggregate(
        departures=sw.sum("departures"),
        dep_delay=sw.sum("dep_delay"),
        in_rain=sw.sum("in_rain"),
        rain_delay=sw.sum("rain_delay"),
        in_fog=sw.sum("in_fog"),
        fog_delay=sw.sum("fog_delay"),
        arrivals=sw.count("arr_delay"),
        arr_delay=sw.sum("arr_delay"),
        made_up=sw.sum("made_up"),
    ),
    table=sw.table(partitions=2),
)
def airports(departures: DataFrame, arrivals: DataFrame) -> DataFrame:
    """Keep one row per airport: minutes of departure delay, in rain, in fog, and minutes of arrival delay."""
    rain, fog = F.col("precip") > 0, F.col("visib") < 3
    left = departures.select(
        "airport",
        "departures",
        "dep_delay",
        F.when(rain, F.col("departures")).alias("in_rain"),
        F.when(rain, F.col("dep_delay")).alias("rain_delay"),
        F.when(fog, F.col("departures")).alias("in_fog"),
        F.when(fog, F.col("dep_delay")).alias("fog_delay"),
    )
    # An aggregate passes over nulls, so each row counts for the columns that it has.
    return left.unionByName(arrivals, allowMissingColumns=True)
