"""An app's history with one outlier record, and an archived input."""

from collections.abc import Sequence

import pyarrow as pa
from slackwater.store.archive import columns, index
from slackwater.store.archive.extents import Extent
from slackwater.store.objects.local import LocalStore

from tests.store.archive.small_archives import BY, write
from tests.support.histories import START_MS, Clock, Flight, FlightsApp, Kafka

TOPIC = "flights"


def written(store: LocalStore, flights: Sequence[Flight], *, a_batch: int) -> FlightsApp:
    """Return an app that has read these flights and archived them."""
    app = FlightsApp(store, Kafka(), clock=Clock(START_MS))
    app.run(flights, a_batch=a_batch)
    archive = index.empty_index(app.name, TOPIC)
    partitions = app.kafka.topics[TOPIC]
    extents = tuple(Extent(number, 0, len(messages)) for number, messages in enumerate(partitions) if messages)
    rows = [_records(each.partition, [m.flights[0] for m in partitions[each.partition]]) for each in extents]
    one = write(store, archive, rows, extents, read_ms=1)
    index.change(store, archive, index.append_update((one,), extents), by=BY, now_ms=1)
    return app


def place_of(app: FlightsApp, flight: Flight) -> tuple[int, int]:
    """Return partition and offset of a record."""
    return next(
        (partition, offset)
        for partition, messages in enumerate(app.kafka.topics[TOPIC])
        for offset, message in enumerate(messages)
        if message.flights == (flight,)
    )


def _records(partition: int, flights: Sequence[Flight]) -> pa.Table:
    count = len(flights)
    values = [f'{{"tail":"{each.tail}","carrier":"{each.carrier}","delay":{each.delay}}}'.encode() for each in flights]
    made = [
        pa.array([TOPIC] * count, pa.string()),
        pa.array([partition] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array(range(count), columns.TIME),
        pa.array([0] * count, pa.int32()),
        pa.array([each.tail.encode() for each in flights], pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(count, columns.HEADERS),
    ]
    return pa.Table.from_arrays(made, schema=columns.SCHEMA)
