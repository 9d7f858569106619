"""The bad record of an attached query's batch, found by the batch's offsets, the row's key, and a user function."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from slackwater.errors import NotFound, Usage
from slackwater.operations.debugging.causes.window import find_record_in_window, load_function
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.bisect.verdict import RecordPath, Verdict
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache

from tests.operations.attach.following import START_MS, caught_up, query, tail
from tests.operations.attach.memory_checkpoint import MemoryTable

PROGRAM = """
from pyspark.sql import functions as F


def orders(messages):
    order = F.from_json(F.col("value").cast("string"), "country string, cents long")
    return messages.select(order.alias("o")).select("o.*").where("country is not null")


def counted(messages):
    return orders(messages).groupBy("country").count()
"""
TOTALS = MemoryTable(
    "",
    pa.schema([("country", pa.string())]),
    pa.schema([("count", pa.int64()), ("sum", pa.int64()), ("max", pa.int64())]),
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "orders.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return file


def followed(kafka: MemoryKafka, tmp_path: Path, batches: list[list[tuple[str, int]]]) -> Verdict:
    """Return bisect's verdict on a query that sums these orders by country, one list per batch."""
    kafka.create_topics({"orders": 1})
    checkpoint, store, cache = query(TOTALS), MemoryStore(), SstCache(tmp_path / "cache", 1 << 30)
    state: dict[str, tuple[int, int, int]] = {}
    read = 0
    for number, orders in enumerate(batches):
        records = [Record(json.dumps({"country": name, "cents": cents}).encode(), 0) for name, cents in orders]
        kafka.send("orders", records, patience_s=5)
        for name, cents in orders:
            count, total, largest = state.get(name, (0, 0, 0))
            state[name] = (count + 1, total + cents, max(largest, cents))
        read += len(orders)
        changed = {(name,): state[name] for name, _ in orders}
        checkpoint.commit({"": changed}, {"orders": (read,)}, START_MS + 1_000 * number)
    caught_up(tail(store, cache, checkpoint))
    return bisect(store, cache, "shop", "SELECT country FROM totals WHERE sum > 1000000")


def at(found: RecordPath) -> str:
    return str(found.source_record.location) if found.source_record is not None else found.reason


@pytest.mark.spark
@pytest.mark.usefixtures("one_spark")
def test_the_record_with_the_bad_key_in_the_batch_is_named(
    memory_kafka: MemoryKafka, tmp_path: Path, program: Path
) -> None:
    orders = load_function(f"{program}:orders")
    only = followed(memory_kafka, tmp_path, [[("DE", 5), ("FR", 7)], [("FR", 3), ("DE", 2_000_000)], [("DE", 1)]])
    found = find_record_in_window(memory_kafka, only, orders)
    assert (at(found), found.of_key) == ("orders[0]@3", 1)
    assert found.source_record is not None
    assert json.loads(found.source_record.value or b"") == {"country": "DE", "cents": 2_000_000}
    assert [(str(each)) for each in found.windows] == ["orders[0] 3..4"]

    kafka = MemoryKafka("memory://several")
    several = followed(kafka, tmp_path, [[("DE", 5)], [("DE", 3), ("DE", 2_000_000), ("DE", 4), ("FR", 9)]])
    found = find_record_in_window(kafka, several, orders)
    assert (at(found), found.of_key) == ("orders[0]@2", 3)

    kafka = MemoryKafka("memory://alike")
    alike = followed(kafka, tmp_path, [[("DE", 5)], [("DE", 600_000), ("DE", 600_001)]])
    found = find_record_in_window(kafka, alike, orders)
    assert "2 records of the batch have the key, and no number column tells them apart: orders[0]@1, orders[0]@2" in at(
        found
    )

    mixed = find_record_in_window(kafka, alike, load_function(f"{program}:counted"))
    assert "the function mixes records" in at(mixed)


def test_a_missing_or_unknown_function_name_is_refused(program: Path) -> None:
    with pytest.raises(Usage, match="names no function; expected FILE:FUNCTION"):
        load_function(str(program))
    with pytest.raises(NotFound, match="the nearest: orders"):
        load_function(f"{program}:order")
