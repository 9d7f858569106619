"""A version that a batch makes, on its way to be committed, and what became of it. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...store.compaction.plan import Done
from ...store.compaction.rebase import rebase
from ...store.objects.stats import Stats
from ...store.versions.aside import all_ssts
from ...store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a change.

    Attributes:
        before: The version before it.
        manifest: Its version.
        seconds: From the batch's start until the next one could start.
        commit_seconds: What the put of the manifest took.
        unflushed: Versions behind it that are not committed yet.
    """

    before: Manifest
    manifest: Manifest
    seconds: float
    commit_seconds: float
    unflushed: int


@dataclass(frozen=True, slots=True)
class Change:
    """A version to commit, and what it was built on.

    Attributes:
        before: The version the batch began with.
        manifest: The one after it.
        merges: Those that `manifest` has in the place of their inputs.
        started: When the batch did, on the monotonic clock.
        on_commit: Called once it is committed.
        taken: What its tasks took of the store.
    """

    before: Manifest
    manifest: Manifest
    merges: tuple[Done, ...]
    started: float
    on_commit: Callable[[Committed], None]
    taken: Stats = field(default_factory=Stats)

    @property
    def added(self) -> frozenset[str]:
        """The SSTs that the version before did not have, by object."""
        return frozenset(
            {sst.object for sst in all_ssts(self.manifest)} - {sst.object for sst in all_ssts(self.before)}
        )

    def onto(self, head: Manifest) -> Change:
        """The same, built on this head."""
        if head.version == self.before.version:
            # No other version: at most, what it took has been written up since.
            return replace(self, before=head)
        return replace(self, before=head, manifest=rebase(self.before, self.manifest, head, self.merges))
