"""A stage does not run far ahead of those that read it, where they run in the same runner.

What lies in a channel must be read before a marker behind it is reached, so a backlog delays every snapshot, and every
instant cut has it in flight. A reader with an admission limit takes at most so many rows a batch: while more than one
such batch waits for it, its writer starts none. Readers without a limit take all there is, and need no help.

Planners live in processes of their own: they learn of it by a file that is there or not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...fold.records import unread
from ...store.versions.manifest import Manifest


class Backpressure:
    """Holds writers back. Safe with many threads.

    Args:
        folder: Scratch; has a file of a stage's name while that stage is held.
        max_records: The stages of this runner that have an admission limit: records of each input a batch.
    """

    def __init__(self, folder: Path, max_records: Mapping[str, int]) -> None:
        self._folder = folder
        self._max_records = max_records
        self._heads: dict[str, Manifest] = {}
        self._tips: dict[str, Manifest] = {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def flag(self, stage: str) -> Path:
        """The file that is there while the stage is held."""
        return self._folder / stage

    def move(self, head: Manifest, tip: Manifest) -> None:
        """Note where a stage is, hold the writers whose readers lag, and let the others go on.

        Args:
            head: Its newest committed version: what there is to read of it.
            tip: Its newest acknowledged version: how far it has read. What it has read waits for nobody, whether it is
                committed yet or not.
        """
        with self._lock:
            self._heads[head.stage], self._tips[tip.stage] = head, tip
            held = set(self._held())
            for stage in self._heads:
                if stage in held:
                    self.flag(stage).touch()
                else:
                    self.flag(stage).unlink(missing_ok=True)

    def _held(self) -> Iterator[str]:
        """The stages whose next batch has to wait."""
        for reader, max_records in self._max_records.items():
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
