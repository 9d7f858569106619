"""Clones of apps that read files instead of a topic."""

from pathlib import Path

import slackwater as sw
from slackwater.pipeline.kafka.declared_source import find_source
from slackwater.store.objects.local import LocalStore

from tests.pipeline.kafka.sources.reading import OpenSource

from .test_clone import make, running


def test_a_clone_under_another_root_has_the_lists_of_its_sources(tmp_path: Path) -> None:
    app = running(LocalStore(tmp_path / "production"))
    (tmp_path / "in").mkdir()
    topic = sw.read_files(str(tmp_path / "in"))
    (tmp_path / "in" / "a.jsonl").write_text("1\n")
    source = OpenSource(topic, app.store)
    app.kafka.topics[topic.name] = [list(messages) for messages in app.kafka.topics["flights"]]
    other = LocalStore(tmp_path / "staging")
    make(app, target_store=other, topics={"flights": topic.name})
    (tmp_path / "in" / "0.jsonl").write_text("2\n")
    assert find_source(other, topic.name) == find_source(app.store, topic.name)
    assert source.values().items() >= OpenSource(topic, other).values(0, 1).items() == {(0, b"1")}
