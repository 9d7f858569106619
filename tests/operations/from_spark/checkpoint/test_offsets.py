"""Offsets of sources in Spark's logs: Kafka, files, rate, and sources without numbers."""

import json

import pytest
from slackwater.operations.from_spark.checkpoint.logs import offsets_by_source, parse_offset_log

HEAD = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {}})


def log(*sources: str) -> dict[str, tuple[int, ...]]:
    """Return the offsets of a file in `offsets/` with these sources, one per line."""
    return offsets_by_source(parse_offset_log("\n".join(("v1", HEAD, *sources)).encode(), "offsets/7").sources)


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        (['{"orders":{"0":17,"1":4}}'], {"orders": (17, 4)}),
        (['{"orders":{"1":4,"0":17},"refunds":{"0":3}}'], {"orders": (17, 4), "refunds": (3,)}),
        # Nothing is known about a partition that is not read.
        (['{"orders":{"2":4}}'], {"orders": (0, 0, 4)}),
        (['{"orders":{"0":17}}', '{"orders":{"0":9}}'], {"orders": (17,), "orders.1": (9,)}),
        (['{"logOffset":3}'], {"source-0": (4,)}),
        (["42"], {"source-0": (42,)}),
        (["-", '{"orders":{"0":1}}'], {"orders": (1,)}),
        (['"a text"', "no json"], {}),
    ],
)
def test_offsets_are_returned_by_topic_or_by_source(sources: list[str], found: dict[str, tuple[int, ...]]) -> None:
    assert log(*sources) == found
