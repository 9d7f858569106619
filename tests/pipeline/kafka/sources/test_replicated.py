"""The list of a source's files goes with a replica, so that offsets mean the same rows there."""

from contextlib import suppress
from pathlib import Path

import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.errors import Refused, Unavailable
from slackwater.operations.disaster_recovery.kafka_state import read_anchors
from slackwater.operations.disaster_recovery.mirror_offsets import SourcePartition, StartOffset, find_start_offset
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.sources.copying import copy_sources
from slackwater.pipeline.kafka.sources.file_list import FileList
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
    copy_sources(Copier(store, target), [topic.name, "topic-of-kafka"])
    replica = OpenSource(topic, target)
    assert replica.values() == source.values()
    anchors = read_anchors(Cut("app", {version.stage: version}), KafkaChannels(source.kafka))
    (of_partition,) = anchors.values()
    place = SourcePartition(topic.name, topic.name, 0, 30, of_partition[0])
    assert find_start_offset(KafkaChannels(replica.kafka), place, "primary") == StartOffset(30, "same offset")
    other = MemoryStore()
    OpenSource(topic, other)
    with pytest.raises(Refused, match="has another source named 'files:in'"):
        copy_sources(Copier(store, other), [topic.name])


def test_lists_that_diverged_are_not_mixed(tmp_path: Path) -> None:
    """A primary that ran on for a moment found a file in another order than its replica that was promoted."""
    folder, store, target = tmp_path / "in", MemoryStore(), MemoryStore()
    folder.mkdir()
    (folder / "0.jsonl").write_text("0\n")
    topic = sw.read_files(str(folder))
    OpenSource(topic, store)
    copy_sources(Copier(store, target), [topic.name])
    (folder / "a.jsonl").write_text("1\n")
    OpenSource(topic, store)
    (folder / "a.jsonl").rename(tmp_path / "a.jsonl")
    (folder / "b.jsonl").write_text("2\n")
    OpenSource(topic, target)
    (tmp_path / "a.jsonl").rename(folder / "a.jsonl")
    for name in ("a", "c"):
        OpenSource(topic, target)
        (folder / f"{name}.jsonl").touch()
    before = {info.key: store.get(info.key) for info in store.list("")}
    with pytest.raises(Refused, match="has another source named 'files:in', with another list of files"):
        copy_sources(Copier(target, store), [topic.name])
    assert {info.key: store.get(info.key) for info in store.list("")} == before


def test_a_copy_that_was_interrupted_can_be_continued(tmp_path: Path) -> None:
    class EndsAfter(MemoryStore):
        """A store that takes a number of objects."""

        left = 0

        def put(self, key: str, data: bytes) -> None:
            if not self.left:
                raise Unavailable("no answer")
            self.left -= 1
            super().put(key, data)

    store, target, topic = MemoryStore(), EndsAfter(), sw.read_files(str(tmp_path / "in"))
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number:03}.jsonl").write_text(f"{number}\n")
        OpenSource(topic, store)
    whole = FileList(topic.name)
    whole.refresh(store)
    done = False
    while not done:
        target.left = 3
        with suppress(Unavailable):
            copy_sources(Copier(store, target), [topic.name])
            done = True
        copied = FileList(topic.name)
        copied.refresh(target)
        assert copied.files == whole.files[: len(list(target.list(f"_sources/{topic.name}/files/")))]
    assert copied.files == whole.files
