"""Writers of one stage over the real store: each a process of its own, with what it has seen and not committed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from msgspec.structs import replace
from slackwater.snapshot.requests import open_requests
from slackwater.store.cache import SstCache
from slackwater.store.commit import claim, commit, successor
from slackwater.store.compaction import Done, apply
from slackwater.store.errors import Unavailable
from slackwater.store.manifest import Kind, Manifest, Table
from slackwater.store.objects import ObjectStore

from .collecting import AgingStore, fresh
from .state_rows import Hashes, Key, Values, write_version

__all__ = ["STAGE", "Writer", "patiently"]

STAGE = "stage"
STEP_MS = 60_000
"""What a commit takes."""

T = TypeVar("T")
_numbers = count(1)


@dataclass
class Writer:
    """Claims the stage when made; as the runner does it, a batch puts SSTs first, then the manifest that names them."""

    store: AgingStore
    app: str
    table: Table
    """As it is born; afterwards the manifest's counts."""
    hashes: Hashes
    merges: list[Done] = field(default_factory=list)
    """Carried out, and not yet in the place of their inputs: the next batch takes them along."""
    fenced: bool = False
    """Whether somebody has taken the stage over."""

    def __post_init__(self) -> None:
        self.name = f"writer-{next(_numbers)}"
        self.view: ObjectStore = fresh(self.store)
        self.head = claim(
            self.view, self.app, STAGE, writer=self.name, by=self.name, now_ms=self.tick(), build=self._at_birth
        )

    def _at_birth(self, draft: Manifest) -> Manifest:
        return replace(draft, table=self.table) if draft.version == 1 else draft

    @property
    def partitions(self) -> int:
        """State partitions, as far as this writer knows."""
        return self.head.table.partitions if self.head.table else 0

    def tick(self) -> int:
        self.store.clock_ms += STEP_MS
        return self.store.clock_ms

    def sleep(self) -> None:
        """Be away for so long that nothing this process has seen of the store counts any more."""
        self.view = fresh(self.store)

    def batch(self, changes: Mapping[Key, Values | None], cache: SstCache | None) -> Manifest:
        """Put the SSTs of a batch, and return the manifest that is to be committed."""
        draft = self._draft("batch")
        assert draft.table is not None
        parts = write_version(self.view, cache, draft.table, changes, draft.version, self.hashes, self.app)
        asked = {request.id for request in open_requests(self.view, self.app)}
        recorded = {asked_for: draft.recorded.get(asked_for, draft.version) for asked_for in sorted(asked)}
        return replace(draft, ssts=(*parts, *apply(draft.ssts, self.merges)), recorded=recorded)

    def landing(self) -> Manifest:
        """A version that puts merges in the place of their inputs, and nothing else."""
        draft = self._draft("compaction")
        return replace(draft, ssts=apply(draft.ssts, self.merges))

    def commit(self, manifest: Manifest) -> None:
        commit(self.view, manifest)
        self.head = manifest
        self.merges.clear()

    def _draft(self, kind: Kind) -> Manifest:
        head = self.head
        return successor(head, kind=kind, epoch=head.epoch, writer=self.name, by=self.name, now_ms=self.tick())


def patiently(do: Callable[[], T]) -> T:
    """Try again while storage does not answer."""
    while True:
        try:
            return do()
        except Unavailable:
            continue
