"""The list of a source's files goes with a replica, so that offsets mean the same rows there."""

from pathlib import Path

import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.errors import Refused
from slackwater.operations.disaster_recovery.kafka_state import read_anchors
from slackwater.operations.disaster_recovery.mirror_offsets import SourcePartition, StartOffset, find_start_offset
from slackwater.operations.disaster_recovery.replica_objects import copy_sources
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.snapshot.cut.graph import Cut
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.copier import Copier
from slackwater.store.versions.manifest import Input

from tests.pipeline.kafka.sources.reading import OpenSource
from tests.support.manifests import manifest


def test_a_replica_reads_the_same_rows_at_the_same_offsets(tmp_path: Path) -> None:
    topic, store, target = sw.read_files(str(tmp_path / "in")), MemoryStore(), MemoryStore()
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number % 7}{number:03}.jsonl").write_text(f"{number}\n")
        source = OpenSource(topic, store)
    version = replace(
        manifest(1), inputs={topic.name: Input(topic.name, (30,), topic_id=source.kafka.topic_id(topic.name))}
    )
    copy_sources(Copier(store, target), [version])
    replica = OpenSource(topic, target)
    assert replica.values() == source.values()
    anchors = read_anchors(Cut("app", {version.stage: version}), KafkaChannels(source.kafka))
    (of_partition,) = anchors.values()
    place = SourcePartition(topic.name, topic.name, 0, 30, of_partition[0])
    assert find_start_offset(KafkaChannels(replica.kafka), place, "primary") == StartOffset(30, "same offset")
    other = MemoryStore()
    OpenSource(topic, other)
    with pytest.raises(Refused, match="has another source named 'files:in'"):
        copy_sources(Copier(store, other), [version])
