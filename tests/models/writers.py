"""Writers of one stage on the real store, each with its own view and uncommitted rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from msgspec.structs import replace
from slackwater.errors import Unavailable
from slackwater.pipeline.batch.committer import Committer, PendingVersion
from slackwater.pipeline.run.claim import with_tasks
from slackwater.snapshot.cut.stored import open_requests
from slackwater.store.compaction.plan import CompactionResult, apply_results
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst import schema, ttl
from slackwater.store.versions.commit import successor
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import Manifest, Table

from tests.support.collecting import AgingStore, fresh
from tests.support.manifests import claim
from tests.support.state_rows import Hashes, Key, Values, state_rows, write_version

STAGE = "stage"
STEP_MS = 60_000
"""Duration of a commit."""

T = TypeVar("T")
_numbers = count(1)


@dataclass
class Writer:
    """Writer that claims the stage when it is created. Like a runner, it puts a batch's SSTs before its manifest."""

    store: AgingStore
    app: str
    table: Table
    """Table as the writer's program declares it. Once the table exists, only the declared time to live counts."""
    hashes: Hashes
    behind_ms: int = 0
    """Milliseconds by which this machine's clock is behind storage's."""
    merges: list[CompactionResult] = field(default_factory=list)
    """Finished merges that the next batch will commit."""
    tasks: int = 0
    """Number of tasks per batch that the program declares; 0 means one per state partition."""
    varies_tasks: bool = False
    """True if the number of tasks varies from batch to batch, as for small batches."""
    fenced: bool = False
    """True if another writer has taken over the stage."""
    began_ms: int = 0
    """Time at which the last batch began, by this machine's clock."""

    def __post_init__(self) -> None:
        self.name = f"writer-{next(_numbers)}"
        self.view: ObjectStore = fresh(self.store)
        self.head = claim(
            self.view, self.app, STAGE, writer=self.name, by=self.name, now_ms=self.tick(), build=self._declared
        )

    def _declared(self, draft: Manifest) -> Manifest:
        table = self.table
        if draft.table is not None:
            table = replace(draft.table, ttl=ttl.reconcile_ttl(STAGE, draft.table.ttl, self.table.ttl))
        table = with_tasks(table, self.tasks or None, 0)
        return replace(draft, table=table, clock_ms=ttl.claim_clock_ms(draft.table, table, draft.clock_ms))

    @property
    def partitions(self) -> int:
        """Return the number of state partitions that this writer knows."""
        return self.head.table.partitions if self.head.table else 0

    @property
    def ranges(self) -> int:
        return self.head.table.ranges if self.head.table else 0

    def tick(self) -> int:
        """Advance the clock by the duration of one commit, and return it."""
        self.store.clock_ms += STEP_MS
        return self.store.clock_ms - self.behind_ms

    def sleep(self) -> None:
        """Forget everything that this process has read from the store, as after a long pause."""
        self.view = fresh(self.store)

    def batch(self, changes: Mapping[Key, Values | None], cache: SstCache | None) -> Manifest:
        """Put the SSTs of a batch, and return the manifest to commit."""
        self.began_ms = self.tick()
        draft = self._draft("batch", self.began_ms)
        table, clock_ms = draft.table, ttl.batch_clock_ms(self.head, self.began_ms)
        assert table is not None
        # The number of tasks of a batch is any divisor of the number of hash ranges.
        divisors = [tasks for tasks in range(1, table.ranges + 1) if table.ranges % tasks == 0]
        tasks = divisors[-1 - (draft.version % len(divisors) if self.varies_tasks else 0)]
        parts = write_version(
            self.view,
            cache,
            replace(table, tasks=tasks),
            changes,
            draft.version,
            self.hashes,
            self.app,
            clock_ms=clock_ms,
            base=apply_results(self.head.ssts, self.merges),
        )
        latest_ms = schema.latest_event_ms(state_rows(table, changes, draft.version, self.hashes), table.ttl)
        asked = {request.id for request in open_requests(self.view, self.app)}
        recorded = {asked_for: draft.recorded.get(asked_for, draft.version) for asked_for in sorted(asked)}
        return replace(
            draft,
            clock_ms=clock_ms if latest_ms is None else max(clock_ms, latest_ms),
            ssts=(*parts, *apply_results(draft.ssts, self.merges)),
            recorded=recorded,
        )

    def landing(self) -> Manifest:
        """Return a version that only replaces SSTs by merged SSTs."""
        draft = self._draft("compaction", self.tick())
        return replace(draft, ssts=apply_results(draft.ssts, self.merges))

    def commit(self, manifest: Manifest) -> None:
        """Commit under the manifest's number, or under the next free one if compactions have taken that number."""
        committer = Committer(self.view, self.head)
        committer.submit(PendingVersion(self.head, manifest, tuple(self.merges), 0.0, lambda _done: None))
        self.head = committer.head
        self.merges.clear()

    def _draft(self, kind: VersionKind, now_ms: int) -> Manifest:
        head = self.head
        return successor(head, kind=kind, epoch=head.epoch, writer=self.name, by=self.name, now_ms=now_ms)


def patiently(do: Callable[[], T]) -> T:
    """Retry while storage is unavailable."""
    while True:
        try:
            return do()
        except Unavailable:
            continue
