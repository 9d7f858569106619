"""Cost of sinks: publishing beside a plain producer, and a batch with a sink beside one without; age of rows in tables.

`python -m bench.tasks.sinks SIDE BOOTSTRAP FOLDER TOPIC SINK` runs the app in a fresh process until it has read the
topic, and prints a JSON list: seconds from batch to batch. `SIDE` is `topic`, `delta` or `iceberg`, or `without`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from ..support import side, table_ages
from ..support.events import KEYS, PARTITIONS, cycles, fill
from ..support.row import Row

if TYPE_CHECKING:
    import slackwater as sw
    from pyspark.sql import DataFrame

RECORDS = 1_000_000
BATCH = 400_000
WARM_UP = 3
MEASURED = 6
LATE = 60.0
"""Minutes of delay in a batch above which a leg is published. A tenth of the legs exceed it."""
TABLES = ("delta", "iceberg")
SIDES = ("topic", "without", *TABLES)


def rows(bootstrap: str, folder: Path, quick: bool) -> Iterator[Row]:
    """Compare publishing with a plain producer, and a batch with a sink with a batch without; measure rows' ages."""
    for kind in TABLES:
        yield from table_ages.rows(bootstrap, folder, kind)
    records = RECORDS // 10 if quick else RECORDS
    ours, plain = publishing(bootstrap, folder, records, rounds=1 if quick else 3)
    yield Row.at_least(
        f"publishing {records:,} records of a sink, exactly once",
        f"{records / ours:,.0f} records/s",
        f"a plain producer: {records / plain:,.0f} records/s",
        plain / ours,
        0.8,
    )
    seconds = batches(bootstrap, folder, rounds=1 if quick else 2)
    without = median(seconds["without"])
    for name in ("topic", *TABLES):
        with_sink = median(seconds[name])
        yield Row.at_most(
            f"batch of {BATCH:,} rows with a sink ({name}) for a tenth of the keys, median of {len(seconds[name])}",
            f"{with_sink:.2f} s",
            f"without the sink: {without:.2f} s",
            with_sink / without,
            1.1,
        )


def publishing(bootstrap: str, folder: Path, records: int, *, rounds: int) -> tuple[float, float]:
    """Return the seconds of the publisher and of a plain producer for the same records; the best of several rounds."""
    values = [
        json.dumps({"leg": f"leg-{number % KEYS:07}", "flights": number, "delay": number % 90}).encode()
        for number in range(records)
    ]
    keys = [f"leg-{number % KEYS:07}".encode() for number in range(records)]
    made = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    ours, plain = [], []
    for number in range(rounds):
        ours.append(_published(bootstrap, folder / f"published-{number}", made, f"bench-sink-{number}"))
        plain.append(_produced(bootstrap, keys, values, f"bench-plain-{number}"))
    return min(ours), min(plain)


def _published(bootstrap: str, folder: Path, records: pa.Table, topic: str) -> float:
    """Return the seconds from when the publisher learns of the records until all of them are published."""
    import slackwater as sw
    from msgspec.structs import replace
    from slackwater.pipeline.kafka.messages import send_messages, split_into_messages
    from slackwater.pipeline.kafka.open import open_kafka
    from slackwater.pipeline.publish.publishers import Publishers
    from slackwater.pipeline.publish.sinks import claim_sinks, create_internal_topics
    from slackwater.store.objects.open import open_store
    from slackwater.store.versions import amend, apps, commit
    from slackwater.store.versions.manifest import AppInfo, Manifest

    app, kafka, store = sw.App(topic), open_kafka(bootstrap), open_store(str(folder))
    app.stage(reads=sw.topic("in"), writes=sw.sink(topic), name="s")(lambda raw: raw)
    (stage,) = app.stages_in_order()
    info = apps.ensure_app(store, AppInfo(topic, 1))
    kafka.create_topics({topic: PARTITIONS})
    create_internal_topics(kafka, topic, (stage,), None, validate_only=False)

    def build(draft: Manifest) -> Manifest:
        return replace(draft, sinks=claim_sinks(store, kafka, stage, draft, None, False))

    head = amend.amend(store, (topic, "s"), amend.Amendment("claim", build), writer="w", by="bench", now_ms=1).manifest
    publishers = Publishers(store, info, kafka, (stage,), {"s": head}, accept_loss=False, patience_s=60)

    def written(part: pa.Table) -> Manifest:
        sink, attempt = head.sinks[topic], f"w.{head.version}"
        messages = list(split_into_messages(part, np.zeros(len(part), np.int32)))
        end = send_messages(kafka, sink.topic, messages, attempt.encode(), patience_s=60)[0]
        draft = commit.successor(head, kind="batch", epoch=1, writer="w", by="bench", now_ms=head.time_ms)
        sinks = {topic: replace(sink, end=end, attempts=(attempt,), rows=len(part), sent=sink.sent + len(part))}
        commit.commit(store, made := replace(draft, sinks=sinks))
        return made

    def publish() -> float:
        began = time.perf_counter()
        publishers.on_version(head)
        while not publishers.is_done:
            publishers.check()
            time.sleep(0.002)
        return time.perf_counter() - began

    publishers.start()
    # Clients are already connected, like the clients of a producer after its first record.
    head = written(records.slice(0, 100))
    publish()
    for at in range(0, len(records), 100_000):
        head = written(records.slice(at, 100_000))
    took = publish()
    publishers.close()
    return took


def _produced(bootstrap: str, keys: list[bytes], values: list[bytes], topic: str) -> float:
    """Return the seconds of a plain idempotent producer, without transactions, for records that are in memory."""
    from slackwater.pipeline.kafka.open import open_kafka

    open_kafka(bootstrap).create_topics({topic: PARTITIONS})
    properties = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 5,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 2 * len(keys),
        "queue.buffering.max.kbytes": 1 << 20,
    }
    producer = Producer(properties)
    producer.produce(topic, values[0], keys[0])
    producer.flush(60)
    began = time.perf_counter()
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        producer.produce(topic, value, key)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return time.perf_counter() - began


def batches(bootstrap: str, folder: Path, *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds from batch to batch, with a sink and without, after the warm-up.

    Runs alternate, since a machine's speed drifts.
    """
    from slackwater.pipeline.kafka.open import open_kafka

    topic, sink = "bench-flights-sink", "bench-late-legs"
    open_kafka(bootstrap).create_topics({sink: PARTITIONS})
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(rounds):
        fill(bootstrap, (1 + WARM_UP + MEASURED) * BATCH, topic=topic, seed=number)
        for name in SIDES if number % 2 == 0 else reversed(SIDES):
            found: list[float] = side.run("tasks.sinks", name, bootstrap, folder / f"{name}-{number}", topic, sink)
            seconds[name] += found[WARM_UP:]
    return seconds


def add(rows: pa.Table, state: pa.Table, *, tells: bool) -> pa.Table | tuple[pa.Table, pa.Table]:
    """Add the rows to each leg's count and sum. With `tells`, also emit the legs that are late in this batch."""
    added = rows.group_by("_key", use_threads=False).aggregate([("arr_delay", "sum")])["arr_delay_sum"]
    flights = pc.add(pc.fill_null(state["flights"], 0), np.bincount(rows["_key"].to_numpy()))
    delay = pc.add(pc.fill_null(state["delay"], 0.0), added)
    after = pa.table({"flights": flights, "delay": delay})
    told = pa.table({"leg": state["leg"], "flights": flights, "delay": delay})
    return (after, told.filter(pc.greater(added, LATE))) if tells else after


def app_of(topic: str, sink: Any) -> sw.App:
    """Return an app that counts and sums flights by leg; late legs go to the sink if there is one."""
    import slackwater as sw

    from ..throughput import _legs

    app = sw.App("bench")
    update = partial(add, tells=sink is not None)
    columns = "flights long, delay double"
    state = sw.update(update, state=columns, emits=None if sink is None else f"leg string, {columns}")

    @app.stage(
        reads=sw.topic(topic),
        key="leg",
        state=state,
        writes=() if sink is None else sink,
        table=sw.table(partitions=PARTITIONS),
    )
    def legs(flights: DataFrame) -> DataFrame:
        return _legs(flights)

    return app


if __name__ == "__main__":
    name, bootstrap, folder, topic, sink = sys.argv[1:]
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    app = app_of(topic, table_ages.sink_of(name, sink, work))
    print(json.dumps(cycles(side.commits_ms(app, bootstrap, str(work / "store"), work / "cache", BATCH), 0)))
