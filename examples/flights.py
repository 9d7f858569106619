"""Delays of New York's flights in 2013 by carrier, and the part of them that came from the aircraft's last flight.

    legs      reads the topic `flights`, JSON events
      | by-aircraft
    aircraft  keeps each aircraft's last leg; computes the delay that a leg inherits from it
      |  '-- knock-on         a topic for others: each leg that is an hour late because of its aircraft, once
      | by-carrier
    carriers  totals by carrier

`python examples/feed.py` creates both topics and sends the flights; `slackwater run examples/flights.py` runs the app.
`make demo` shows what can be done with it.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

EVENT = (
    "time timestamp, carrier string, flight int, tailnum string, origin string, dest string, "
    "dep_delay double, arr_delay double"
)

app = sw.App("flights")
by_aircraft = sw.repartition("by-aircraft", key="tailnum")
by_carrier = sw.repartition("by-carrier", key="carrier", partitions=2)
knock_on = sw.sink("knock-on", key="tailnum")


@app.stage(reads=sw.topic("flights"), writes=by_aircraft, on_error="reject")
def legs(flights: DataFrame) -> DataFrame:
    """Return one row per flight that arrived; an event that is not JSON is rejected."""
    event = F.from_json(F.col("value").cast("string"), EVENT, {"mode": "FAILFAST"})
    return flights.select(event.alias("e")).select("e.*").where("tailnum is not null and arr_delay is not null")


def inherit(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Compute how much of each leg's late departure comes from its aircraft's late arrival in the 12 hours before."""
    key = rows["_key"].to_numpy()
    position = np.arange(len(key))
    first = np.append(True, key[1:] != key[:-1])
    last = np.append(first[1:], True)

    # A leg's predecessor is the row above it; for an aircraft's first row here, it is what the state remembers.
    above = pa.array(position - 1, mask=first)
    time_before = pc.if_else(first, state["last_time"].take(rows["_key"]), rows["time"].take(above))
    late_before = pc.if_else(first, state["last_arr_delay"].take(rows["_key"]), rows["arr_delay"].take(above))

    recent = pc.less(pc.subtract(rows["time"], time_before), pa.scalar(12 * 3600 * 10**6, pa.duration("us")))
    owed = pc.max_element_wise(pc.min_element_wise(late_before, rows["dep_delay"]), 0.0)
    inherited = pc.if_else(pc.fill_null(recent, False), owed, 0.0)

    legs = pc.add(pc.fill_null(state["legs"], 0), np.bincount(key))
    remembered = rows.filter(last).select(["time", "arr_delay"]).rename_columns(["last_time", "last_arr_delay"])
    told = rows.append_column("inherited", inherited)
    return remembered.append_column("legs", legs), told, told.filter(pc.greater_equal(inherited, 60))


@app.stage(
    reads=by_aircraft,
    state=sw.update(
        inherit,
        state="last_time timestamp, last_arr_delay double, legs long",
        emits=(
            "carrier string, tailnum string, time timestamp, arr_delay double, inherited double",
            "tailnum string, carrier string, flight int, origin string, time timestamp, inherited double",
        ),
        order_by=["time", "flight"],
    ),
    writes=(by_carrier, knock_on),
)
def aircraft(legs: DataFrame) -> DataFrame:
    """Keep one row per aircraft: its last departure from New York, its last arrival delay, and its number of legs."""
    return legs


@app.stage(
    reads=by_carrier,
    state=sw.aggregate(
        flights=sw.count(),
        delay=sw.sum("arr_delay"),
        mean_delay=sw.mean("arr_delay"),
        worst=sw.max("arr_delay"),
        inherited=sw.sum("inherited"),
        last_flight=sw.max("time"),
    ),
    table=sw.table(partitions=2),
)
def carriers(legs: DataFrame) -> DataFrame:
    """Keep one row per carrier: totals of delay in minutes."""
    return legs
