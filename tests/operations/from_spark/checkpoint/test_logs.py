"""Spark's offset and commit logs in a checkpoint."""

import json

import pytest
from slackwater.errors import Corruption, Refused
from slackwater.operations.from_spark.checkpoint.logs import (
    CommitLog,
    SourceOffsets,
    parse_commit_log,
    parse_offset_log,
    query_id,
)

SAID = {"batchWatermarkMs": 0, "batchTimestampMs": 1_795_704_731_880, "conf": {"spark.sql.shuffle.partitions": "2"}}
KAFKA = {"orders": {"1": 30, "0": 12}, "late": {"0": 4}}


def _log(version: str, *lines: object) -> bytes:
    return "\n".join([version, *(each if isinstance(each, str) else json.dumps(each) for each in lines)]).encode()


def test_kafka_offsets_are_by_partition_and_other_offsets_are_text() -> None:
    said = parse_offset_log(_log("v1", SAID, KAFKA, {"logOffset": 3}, "-", {"pinned": {"0": 1, "2": 5}}), "offsets/3")
    assert said.sources == (
        SourceOffsets("0", {"orders": (12, 30), "late": (4,)}, json.dumps(KAFKA)),
        SourceOffsets("1", {}, '{"logOffset": 3}'),
        SourceOffsets("2", {}, ""),
        SourceOffsets("3", {"pinned": (1, -1, 5)}, '{"pinned": {"0": 1, "2": 5}}'),
    )
    assert (said.time_ms, said.watermark_ms, said.operation) == (1_795_704_731_880, None, "")
    assert said.conf == {"spark.sql.shuffle.partitions": "2"}


def test_named_sources_keep_their_names() -> None:
    head = SAID | {"batchWatermarkMs": 7, "controlBatchInfo": {"operationType": "REPARTITION"}}
    said = parse_offset_log(_log("v2", head, f"shop:{json.dumps(KAFKA)}", "rates:41", "new:-"), "offsets/3")
    assert [(each.source, each.text) for each in said.sources] == [
        ("shop", json.dumps(KAFKA)),
        ("rates", "41"),
        ("new", ""),
    ]
    assert (said.watermark_ms, said.operation) == (7, "REPARTITION")


def test_state_store_ids_are_read_from_format_2_of_the_commit_log() -> None:
    assert parse_commit_log(_log("v1", {"nextBatchWatermarkMs": 0}), "commits/0") == CommitLog(None, {})
    assert parse_commit_log(b"v1\n{}", "commits/0") == CommitLog(None, {})
    both = {"0": [["a"], ["b"]], "1": [["c", "d"], ["e", "f"]]}
    assert parse_commit_log(_log("v2", {"nextBatchWatermarkMs": 5, "stateUniqueIds": both}), "commits/0") == CommitLog(
        5,
        {
            0: (("a",), ("b",)),
            1: (("c", "d"), ("e", "f")),
        },
    )


@pytest.mark.parametrize("data", [b"", b"v1", b"v1\n[]", b"v1\n{", b"\xff\xfe", b"vx\n{}", b'v1\n{"conf": 3}'])
def test_a_damaged_log_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corruption, match="offsets/7 of the checkpoint"):
        parse_offset_log(data, "offsets/7")


def test_a_log_of_a_newer_spark_is_refused() -> None:
    with pytest.raises(Refused, match="commits/7 of the checkpoint has version 9; supported up to 3"):
        parse_commit_log(b"v9\n{}", "commits/7")


def test_metadata_without_a_query_id_is_corrupt() -> None:
    assert query_id(b'{"id": "x"}') == "x"
    with pytest.raises(Corruption, match="metadata of the checkpoint"):
        query_id(b"{}")
