"""A stage that commits versions as batches do, without Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slackwater.operations.staging.clone import clone
from slackwater.operations.staging.clone_plan import CloneTerms
from slackwater.state.event_time import BatchTimes, Due, TimeRules, Watermark
from slackwater.state.kinds.kind import DueBy
from slackwater.state.next_version import BatchResult, ProtocolOutcome, TaskReport, next_version
from slackwater.state.records import Position
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import codec, commit, history
from slackwater.store.versions.manifest import Input, Manifest, SideTable, Table

from tests.support.histories import Kafka, Message


@dataclass
class Committing:
    """The stage `a/s` or its clone. It reads the topic `t`, or the given topics."""

    store: ObjectStore = field(init=False)
    head: Manifest = field(init=False)

    def begin(
        self, store: ObjectStore, table: Table, *topics: str, side_tables: Mapping[str, SideTable] | None = None
    ) -> None:
        """Claim the stage."""
        self.store = store
        inputs = {topic: Input(topic, (0,)) for topic in topics or ("t",)}
        sides = dict(side_tables or {})
        self._commit(Manifest("a", "s", 1, 1, "w", 1, "claim", inputs, table=table, side_tables=sides))

    def batch_done(
        self,
        records: int,
        results: Sequence[TaskReport],
        *watermarks: Watermark,
        due_by: DueBy | None = None,
        due: Due | None = None,
        behind_ms: int = 0,
        bound_ms: int | None = None,
    ) -> None:
        """Commit the version of a batch with this many records."""
        ends = {topic: Position(topic, (at.offsets[0] + records,)) for topic, at in self.head.inputs.items()}
        self._commit(
            next_version(
                self.head,
                ends,
                ProtocolOutcome((), {}, {}, {}, changed=False),
                BatchResult(results),
                (),
                TimeRules(watermarks, set(ends), due_by, behind_ms),
                BatchTimes(0, bound_ms or 0, due),
                with_rows=bound_ms is not None,
                now_ms=self.head.time_ms + 1,
                duration_ms=1,
            )
        )

    def restart(self) -> None:
        """Claim the stage with another runner, which knows only the stored state."""
        head = codec.decode(codec.encode(self.head), Manifest, key="k")
        now_ms = head.time_ms + 1
        self._commit(commit.successor(head, kind="claim", epoch=head.epoch + 1, writer="w", by="h:1", now_ms=now_ms))

    def clone(self, masks: Mapping[str, str] | None = None, cache: SstCache | None = None) -> None:
        """Continue as a clone of the newest moment. The clone has the same SSTs, and knows only what is stored."""
        name, kafka = f"{self.head.app}b", Kafka()
        for topic, at in self.head.inputs.items():
            kafka.topics[topic] = [[Message(())] * at.offsets[0]]
        terms = CloneTerms(masks=masks or {})
        clone(
            self.store,
            self.head.app,
            name,
            terms=terms,
            channels=kafka,
            cache=cache,
            by="h:1",
            now_ms=self.head.time_ms,
        )
        self.head = history.read(self.store, name, "s", self.head.version)
        self.restart()

    def _commit(self, manifest: Manifest) -> None:
        commit.commit(self.store, manifest)
        self.head = manifest
