"""Kafka requests of replicas and recoveries, on in-memory Kafka, and MirrorMaker's offset-sync format."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Refused
from slackwater.operations.disaster_recovery.mirror_offsets import (
    AnchorMatch,
    SourcePartition,
    StartOffset,
    find_start_offset,
    match_anchors,
    mirrored_name,
)
from slackwater.pipeline.kafka.channels import KafkaChannels, parse_offset_sync
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.snapshot.cut.replicas import Anchor


def kafka_with(topic: str, values: list[str], *, partitions: int = 1) -> KafkaChannels:
    kafka = MemoryKafka(f"memory://{topic}")
    kafka.create_topics({topic: partitions})
    records = (Record(each.encode(), 0, time_ms=1_000 + number) for number, each in enumerate(values))
    kafka.send(topic, records, patience_s=1)
    return KafkaChannels(kafka)


def sync(topic: str, partition: int, there: int, here: int) -> tuple[bytes, bytes]:
    name = topic.encode()
    return struct.pack(">h", len(name)) + name + struct.pack(">i", partition), struct.pack(">qq", there, here)


@given(st.text("abcdefghijkl.-_", min_size=1, max_size=40), st.integers(0, 100), st.integers(0), st.integers(0))
def test_an_offset_sync_is_read_as_mirrormaker_writes_it(topic: str, partition: int, there: int, here: int) -> None:
    there, here = there % (1 << 63), here % (1 << 63)
    assert parse_offset_sync(*sync(topic, partition, there, here)) == (topic, partition, (there, here))


@given(st.binary(max_size=40) | st.none(), st.binary(max_size=20) | st.none())
def test_other_records_of_the_offset_sync_topic_are_skipped(key: bytes | None, value: bytes | None) -> None:
    found = parse_offset_sync(key, value)
    assert found is None or sync(found[0], found[1], *found[2]) == (key, value)


def test_offset_syncs_of_one_topic_are_picked_out() -> None:
    kafka = kafka_with("primary.orders", ["a", "b"])
    kafka.kafka.create_topics({"mm2-offset-syncs.primary.internal": 1})
    written = [sync("orders", 0, 5, 1), sync("others", 0, 7, 7), sync("orders", 1, 6, 2), (b"", b"")]
    records = (Record(value, 0, key=key) for key, value in written)
    kafka.kafka.send("mm2-offset-syncs.primary.internal", records, patience_s=1)
    assert kafka.offset_syncs("primary", "orders") == {0: [(5, 1)], 1: [(6, 2)]}
    assert kafka.offset_syncs("elsewhere", "orders") == {}
    assert mirrored_name(kafka, "orders", "primary") == "primary.orders"


def test_the_records_before_an_offset_locate_it_in_a_mirror() -> None:
    values = [f"order {number}" for number in range(60)]
    primary, mirror = kafka_with("orders", values), kafka_with("primary.orders", ["older"] * 9 + values[:50])
    anchors = primary.records_before("orders", 0, 40, 16)
    assert [each.offset for each in anchors] == list(range(24, 40))
    source = SourcePartition("primary.orders", "orders", 0, 40, anchors)
    assert find_start_offset(mirror, source, "primary") == StartOffset(49, "records")
    late = SourcePartition("primary.orders", "orders", 0, 58, primary.records_before("orders", 0, 58, 16))
    assert find_start_offset(mirror, late, "primary") == StartOffset(59, "end", unmirrored=True)
    with pytest.raises(Refused, match="before offset 40 are not those"):
        find_start_offset(mirror, source, None)


def test_ambiguous_or_missing_records_are_refused() -> None:
    primary = kafka_with("orders", ["same"] * 40)
    anchors = primary.records_before("orders", 0, 30, 16)
    with pytest.raises(Refused, match="occur in it more than once"):
        find_start_offset(
            kafka_with("primary.orders", ["same"] * 40),
            SourcePartition("primary.orders", "orders", 0, 30, anchors),
            "primary",
        )
    with pytest.raises(Refused, match="are not in it"):
        find_start_offset(
            kafka_with("primary.orders", ["other"] * 99),
            SourcePartition("primary.orders", "orders", 0, 30, anchors),
            "primary",
        )


digests = st.lists(st.sampled_from("abc"), max_size=30)


@given(digests, st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
def test_a_match_has_all_anchor_records_in_a_row_or_as_many_as_the_mirror_has(
    there: list[str], wanted: list[str]
) -> None:
    records = [Anchor(number, 0, each) for number, each in enumerate(there)]
    found = match_anchors(records, [Anchor(0, 0, each) for each in wanted], 0, len(there))
    n = len(wanted)
    whole = [at + n for at in range(len(there) - n + 1) if there[at : at + n] == wanted]
    if whole:
        assert found == tuple(AnchorMatch(at, n) for at in whole[:2])
    else:
        part = max((k for k in range(1, n) if there[-k:] == wanted[:k] and len(there) >= k), default=0)
        assert found == ((AnchorMatch(len(there), part),) if part or not there else ())
