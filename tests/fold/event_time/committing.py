"""A stage whose versions are committed as batches commit them, without Spark."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slackwater.fold.event_time import Watermark
from slackwater.pipeline.batch.next_manifest import next_manifest
from slackwater.pipeline.batch.snapshot_events import Outcome
from slackwater.pipeline.batch.task import Result
from slackwater.pipeline.source.planner import Position
from slackwater.snapshot.clone.clone import clone
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import codec, commit, history
from slackwater.store.versions.manifest import Input, Manifest, Table

from tests.support.histories import Kafka, Message


@dataclass
class Committing:
    """The stage `a/s`, or that of a clone, which reads the topic `t`, or others."""

    store: ObjectStore = field(init=False)
    head: Manifest = field(init=False)

    def begin(self, store: ObjectStore, table: Table, *topics: str) -> None:
        """Claim it."""
        self.store = store
        inputs = {topic: Input(topic, (0,)) for topic in topics or ("t",)}
        self._commit(Manifest("a", "s", 1, 1, "w", 1, "claim", inputs, table=table))

    def batch_done(self, records: int, results: Sequence[Result], *watermarks: Watermark, **more: Any) -> None:
        """Commit the version of a batch of so many records; `more` is what else `next_manifest` is told."""
        ends = {topic: Position(topic, (at.offsets[0] + records,)) for topic, at in self.head.inputs.items()}
        self._commit(
            next_manifest(
                self.head,
                ends,
                Outcome((), {}, {}, {}, changed=False),
                results,
                markers={},
                merges=(),
                watermarks=watermarks,
                timed=set(ends),
                clock_ms=0,
                now_ms=self.head.time_ms + 1,
                duration_ms=1,
                **more,
            )
        )

    def restart(self) -> None:
        """Another runner claims the stage, and knows nothing but what is stored."""
        head = codec.decode(codec.encode(self.head), Manifest, key="k")
        now_ms = head.time_ms + 1
        self._commit(commit.successor(head, kind="claim", epoch=head.epoch + 1, writer="w", by="h:1", now_ms=now_ms))

    def clone(self) -> None:
        """Go on as a clone of the newest moment, which has its SSTs and knows nothing but what is stored."""
        name, kafka = f"{self.head.app}b", Kafka()
        for topic, at in self.head.inputs.items():
            kafka.topics[topic] = [[Message(())] * at.offsets[0]]
        clone(self.store, self.head.app, name, topics={}, channels=kafka, by="h:1", now_ms=self.head.time_ms)
        self.head = history.read(self.store, name, "s", self.head.version)
        self.restart()

    def _commit(self, manifest: Manifest) -> None:
        commit.commit(self.store, manifest)
        self.head = manifest
