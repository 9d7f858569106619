"""A stage does not run far ahead of those that read it, where they run in the same runner.

What lies in a channel must be read before a marker behind it is reached, so a backlog delays every snapshot, and every
instant cut has it in flight. A reader with an admission limit takes at most so many rows a batch: while more than one
such batch waits for it, its writer starts none. Readers without a limit take all there is, and need no help.

Planners live in processes of their own: they learn of it by a file that is there or not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...fold.records import unread
from ...store.versions.manifest import Manifest
from ..source.wake import PlannerFiles


@dataclass(slots=True)
class Backpressure:
    """Holds writers back. Safe with many threads."""

    planners: PlannerFiles
    max_records: Mapping[str, int]
    """The stages of this runner that have an admission limit: records of each input a batch."""
    _heads: dict[str, Manifest] = field(default_factory=dict)
    _tips: dict[str, Manifest] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def move(self, head: Manifest, tip: Manifest) -> None:
        """Note where a stage is, hold the writers whose readers lag, and let the others go on.

        `head` is its newest committed version: what there is to read of it. `tip` is its newest acknowledged version:
        what that has read waits for nobody, whether it is committed yet or not.
        """
        with self._lock:
            self._heads[head.stage], self._tips[tip.stage] = head, tip
            held = set(self._held())
            for stage in self._heads:
                self.planners.hold(stage, held=stage in held)

    def _held(self) -> Iterator[str]:
        """The stages whose next batch has to wait."""
        for reader, max_records in self.max_records.items():
            inputs = self._tips[reader].inputs if reader in self._tips else {}
            for name, at in inputs.items():
                writer = self._heads.get(at.upstream)
                # Who wrote the channel may not do so any more.
                if (
                    writer is not None
                    and name in writer.outputs
                    and (unread(writer.outputs[name], at) or 0) > max_records
                ):
                    yield at.upstream
