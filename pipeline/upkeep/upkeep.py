"""All that goes on beside the batches of one stage with a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...store.compaction import plan
from ...store.compaction.plan import Compaction, Done
from ...store.objects.protocol import ObjectStore
from ...store.read.cache import SstCache
from ...store.sst import sorted_runs
from ...store.versions.manifest import Manifest
from .compactor import Compactor
from .prefetcher import Delivery, Prefetcher
from .write_stall import Stall, Triggers


class Upkeep:
    """Merges a table's SSTs, fetches what batches will need, and holds batches back when merges fall behind.

    Args:
        store: Where SSTs are.
        cache: This machine's.
        claimed: The claim's manifest.
        threads: Merges that go on at once; 0 for none, when another process merges.
        triggers: From how many SSTs of level 0 on batches wait.
        prefetch: Whether SSTs are fetched before they are needed; for tasks that run on this machine.
        deliver: Brings merged SSTs to the machines that need them; None where there is only this one.
        tip: Gives the newest acknowledged version.
    """

    def __init__(
        self,
        store: ObjectStore,
        cache: SstCache,
        claimed: Manifest,
        *,
        threads: int,
        triggers: Triggers,
        prefetch: bool,
        deliver: Delivery | None,
        tip: Callable[[], Manifest],
    ) -> None:
        self._tip = tip
        self._compactor = compactor = Compactor(store, cache, claimed, threads=threads, deliver=deliver)
        self._prefetcher = Prefetcher(store, cache, claimed) if prefetch else None
        name = f"stage {claimed.app}/{claimed.stage}"
        self._stall = Stall(name, triggers, self._l0_files, lambda: compactor.doing, self._begin)

    @property
    def finished(self) -> tuple[Done, ...]:
        """Merges that the next version may adopt."""
        return self._compactor.finished

    def wait(self, batch_s: float, stopping: Callable[[], bool]) -> float:
        """Hold a batch back while merges are behind; seconds. `batch_s` is what the one before took."""
        return self._stall.wait(batch_s, stopping)

    def consider(self, tip: Manifest, adopted: tuple[Done, ...], missed: Iterable[str]) -> tuple[Compaction, ...]:
        """Merge and fetch what a new version makes due: it `adopted` merges, and its batch `missed` SSTs. Those due."""
        due = self._compactor.consider(tip, adopted)
        if self._prefetcher is not None:
            self._prefetcher.consider(tip, missed)
        return due

    def close(self) -> None:
        """Stop merges and fetches under way."""
        if self._prefetcher is not None:
            self._prefetcher.close()
        self._compactor.close()

    def _l0_files(self) -> int:
        tip = self._tip()
        assert tip.table is not None  # noqa: S101  only a stage with a table has upkeep
        return sorted_runs.l0_files(plan.apply(tip.ssts, self._compactor.finished), tip.table.partitions)

    def _begin(self) -> None:
        if self._compactor.doing == "nothing":
            self._compactor.consider(self._tip())
