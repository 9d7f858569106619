"""Read the topic that `flights.py` publishes to, as any Kafka consumer would.

    python examples/alerts.py --kafka localhost:9092

With `isolation.level=read_committed`, a reader gets each alert once, whichever processes were killed, at any time.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from feed import ALERTS, PARTITIONS


def committed(kafka: str) -> Iterator[dict[str, Any]]:
    """Return all alerts up to the current end of the topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "alerts",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(ALERTS, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        if message is None:
            raise SystemExit(f"{kafka} does not answer")
        error = message.error()
        if error is None:
            yield json.loads(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            ended += 1
        else:
            raise SystemExit(str(error))
    consumer.close()


def main(kafka: Annotated[str, typer.Option(envvar="SLACKWATER_KAFKA", help="Brokers.")] = "localhost:9092") -> None:
    """Count the alerts, and show the newest three."""
    found = sorted(committed(kafka), key=lambda alert: alert["time"])
    legs = {(alert["tailnum"], alert["time"], alert["flight"]) for alert in found}
    print(f"{len(found):,} alerts of {len(legs):,} legs; the newest:")
    for alert in found[-3:]:
        print("  {carrier} {flight} from {origin}, {time}: {inherited:.0f} minutes late with {tailnum}".format(**alert))
    if len(found) != len(legs):
        raise SystemExit("a leg was told of twice: that is a bug in slackwater")


if __name__ == "__main__":
    typer.run(main)
