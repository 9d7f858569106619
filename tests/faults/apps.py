"""Generated test programs for planted faults. A number determines each program.

orders    a topic; with hops, `parse`, then `enrich` (with or without state) send rows on
tables    totals (aggregate, may reject), ids (of each order), win (windows, late rows kept), recent (with a time to
          live), settled (orders joined with refunds of another topic)
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random

TABLES = ("totals", "ids", "win", "recent", "settled")
CLOCK_TTL_S, EVENT_TTL_S = 4, 100
"""Time to live of a row in `recent`: by the wall clock, or by record time, which advances a second per record."""
NEVER_RAN = 3
"""Release that never ran, and that may be mistaken for the release that ran."""
BUG = "d"
"""First letter of the keys for which the second release computes wrong fees."""


@dataclass(frozen=True)
class Shape:
    """The structure of a program, which is the same in all of its releases."""

    number: int
    hops: int
    """Number of stages from the topic to the tables, including both ends: 1 to 3."""
    opaque: tuple[str, ...]
    """Stages for which Spark's plan does not show the source record of a row."""
    stateful: bool
    """True if `enrich` keeps the balance of each key and emits rows from its state."""
    partitions: tuple[int, int, int]
    """Number of partitions of topics, of channels, and of the tables' state."""
    fee_in: str
    """Stage that computes the fee."""
    ttl: str
    """Time to live of rows in `recent`, with its clock."""
    tables: tuple[str, ...]

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages that come before the tables."""
        return ("parse", "enrich")[: self.hops - 1]


def shape(number: int, tables: tuple[str, ...], hops: int | None = None) -> Shape:
    """Return the structure of a program with these tables, derived from a number."""
    chosen = Random(f"shape {number}")
    drawn = chosen.choice((1, 2, 2, 3, 3))
    hops = hops or drawn
    between = ("parse", "enrich")[: hops - 1]
    opaque = tuple(name for name in (*between, "totals") if chosen.random() < 0.3)
    stateful = hops == 3 and chosen.random() < 0.4
    partitions = (chosen.randint(1, 4), chosen.randint(1, 3), chosen.randint(1, 3))
    fee_in = chosen.choice(("totals", *between))
    ttl = chosen.choice((f'ttl="{CLOCK_TTL_S} seconds"', f'ttl="{EVENT_TTL_S} seconds", ttl_by="sent"'))
    return Shape(number, hops, opaque, stateful, partitions, fee_in, ttl, tables)


_HEAD = '''"""An app of the generator of faults: {words}; release {release}."""

import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = sw.App("{app}")
FEE = "{fee}"
ORDERS = sw.topic("{topic}")
REFUNDS = sw.topic("{topic}-refunds")
TABLE = sw.table(partitions={state})


def opaque(rows: DataFrame) -> DataFrame:
    return rows.mapInArrow(lambda batches: batches, rows.schema)


def orders_of(messages: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), "id long, seq long, k string, amount string, ts long")
    rows = messages.select(order.alias("o")).select("o.*").where("k is not null")
    {parsed}
    return rows.withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "1 minute")
'''

_PARSE = """

BY_KEY = sw.repartition("by-key", key="k", partitions={channel})


@app.stage(reads=ORDERS, writes=BY_KEY)
def parse(messages: DataFrame) -> DataFrame:
    return orders_of(messages)
"""

_ENRICH = """

ENRICHED = sw.repartition("enriched", key="k", partitions={channel})


@app.stage(reads=BY_KEY, writes=ENRICHED)
def enrich(rows: DataFrame) -> DataFrame:
    {enriched}
    return rows
"""

_ENRICH_STATEFUL = """

ENRICHED = sw.repartition("enriched", key="k", partitions={channel})


def balance(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    count = rows.group_by("_key", use_threads=False).aggregate([("seq", "count")]).sort_by("_key")
    seen = pc.add(pc.fill_null(state["seen"], 0), count["seq_count"])
    return pa.table({{"seen": seen}}), rows.drop_columns(["_key"])


@app.stage(
    reads=BY_KEY,
    writes=ENRICHED,
    key="k",
    state=sw.update(balance, state="seen long", emits="{emits}", order_by="seq"),
    table=TABLE,
)
def enrich(rows: DataFrame) -> DataFrame:
    {enriched}
    return rows
"""

_SOURCE = """

def rows_of(rows: DataFrame) -> DataFrame:
    return {rows}
"""

_TABLES = {
    "totals": """

@app.stage(
    reads={source},
    key="k",
    state=sw.aggregate(
        n=sw.count(),
        total=sw.sum("cents"),
        top=sw.max("cents"),
        low=sw.min("cents"),
        fee=sw.max("fee"),
        mass=sw.sum("mass"),
        last_seq=sw.max("seq"),
        last=sw.last("cents", by="seq"),
    ),
    table=TABLE,
    on_error="reject",
)
def totals(rows: DataFrame) -> DataFrame:
    rows = rows_of(rows)
    {totals}
    return rows.withColumn("cents", F.expr("cast(amount as long)")).withColumn("mass", F.col("seq") / F.lit(7.0))
""",
    "ids": """

@app.stage(reads={source}, key="id", state=sw.aggregate(n=sw.count(), last_seq=sw.max("seq")), table=TABLE)
def ids(rows: DataFrame) -> DataFrame:
    return rows_of(rows)
""",
    "win": """

@app.stage(
    reads={source},
    key=["k", "w"],
    state=sw.aggregate(n=sw.count(), last_seq=sw.max("seq")),
    table=TABLE,
    event_time=sw.event_time(late="table"),
)
def win(rows: DataFrame) -> DataFrame:
    return rows_of(rows).withColumn("w", F.window("at", "1 minute"))
""",
    "recent": """

@app.stage(reads={source}, key="k", state=sw.upsert(by="seq"), table=sw.table(partitions={state}, {ttl}))
def recent(rows: DataFrame) -> DataFrame:
    sent = F.timestamp_seconds(F.lit(1_700_000_000) + F.col("seq"))
    return rows_of(rows).select("k", "seq", "at", sent.alias("sent"))
""",
    "settled": """

PAIRED = sw.repartition("paired", key="id", partitions={channel})


@app.stage(
    reads=({source}, REFUNDS),
    writes=PAIRED,
    key="id",
    state=sw.join({source}.name, REFUNDS.name, within="5 hours"),
)
def pairs(rows: DataFrame, messages: DataFrame) -> tuple[DataFrame, DataFrame]:
    refund = F.from_json(F.col("value").cast("string"), "id long, refund long, ts long")
    refunds = messages.select(refund.alias("r")).select("r.*").withColumn("back_at", F.timestamp_millis("ts"))
    return (
        rows_of(rows).select("id", "k", "at"){left},
        refunds.select("id", "refund", "back_at").withWatermark("back_at", "5 hours"),
    )


@app.stage(reads=PAIRED, key="k", state=sw.aggregate(n=sw.count(), top=sw.max("refund")), table=TABLE)
def settled(pairs: DataFrame) -> DataFrame:
    return pairs
""",
}
_MAKE_OPAQUE = "rows = opaque(rows)"


def write(shape: Shape, file: Path, app: str, topic: str, release: int) -> Path:
    """Write the program of a release: 1, or 2 (which computes some fees wrong), or `NEVER_RAN`."""
    amount = "try_cast(amount as long)"
    right = f"{amount} div 100"
    fee = {1: right, 2: f"case when k like '{BUG}%' then {amount} else {right} end", NEVER_RAN: f"{amount} div 10"}
    computes = 'rows = rows.withColumn("fee", F.expr(FEE))'
    body = {
        name: "; ".join(([_MAKE_OPAQUE] if name in shape.opaque else []) + ([computes] if name == shape.fee_in else []))
        or "pass"
        for name in ("parse", "enrich", "totals")
    }
    source = ("ORDERS", "BY_KEY", "ENRICHED")[shape.hops - 1]
    columns = {
        "app": app,
        "topic": topic,
        "words": f"number {shape.number}, {shape.hops} hops",
        "release": release,
        "fee": fee[release],
        "state": shape.partitions[2],
        "channel": shape.partitions[1],
        "parsed": body["parse"] if shape.hops > 1 else "pass",
        "enriched": body["enrich"],
        "totals": body["totals"],
        "source": source,
        "rows": "orders_of(rows)" if shape.hops == 1 else "rows",
        "ttl": shape.ttl,
        # For rows of a topic, the manifest shows where they are read.
        "left": "" if shape.hops == 1 else '.withWatermark("at", "5 hours")',
        "emits": "id long, seq long, k string, amount string, ts long, at timestamp"
        + (", fee long" if shape.fee_in in ("parse", "enrich") else ""),
    }
    parts = [_HEAD]
    if shape.hops > 1:
        parts.append(_PARSE)
    if shape.hops > 2:
        parts.append(_ENRICH_STATEFUL if shape.stateful else _ENRICH)
    parts += [_SOURCE, *(_TABLES[name] for name in shape.tables)]
    file.write_text("".join(parts).format_map(columns))
    return file
