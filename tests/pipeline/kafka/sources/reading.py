"""A source as a topic, for tests: its records by offset, and the places that messages name."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from slackwater.pipeline.api.topic import Topic
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Message
from slackwater.pipeline.kafka.sources.topics import SourcedKafka
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore


class OpenSource:
    """A source of a program, over a store: `end` looks for new files, as a runner does."""

    def __init__(self, topic: Topic, root: Path | ObjectStore) -> None:
        assert topic.source is not None
        self.topic, self.store = topic.name, root if not isinstance(root, Path) else open_store(str(root))
        self.kafka = SourcedKafka(MemoryKafka(f"memory://{uuid4().hex}"), lambda: self.store)
        self.source = topic.source
        self.kafka.declare(topic.source)

    @property
    def end(self) -> int:
        self.kafka.declare(self.source)
        return self.kafka.topic_state(self.topic).ends[0]

    def messages(self, first: int = 0, end: int | None = None) -> list[Message]:
        last = self.end if end is None else end
        chunks = self.kafka.read(self.topic, 0, first, last, patience_s=1)
        return [message for chunk in chunks for message in chunk]

    def values(self, first: int = 0, end: int | None = None) -> dict[int, bytes]:
        return {message.offset(): message.value() or b"" for message in self.messages(first, end)}

    def rows(self, first: int = 0, end: int | None = None) -> list[dict[str, Any]]:
        return [json.loads(value) for value in self.values(first, end).values()]

    def place(self, offset: int) -> str:
        return self.kafka.place(self.topic, offset)
