"""A stage does not run far ahead of those that read it, where they run in the same runner.

What lies in a channel must be read before a marker behind it is reached, so a backlog delays every snapshot, and every
instant cut has it in flight. A reader with an admission limit takes at most so many rows a batch: while more than one
such batch waits for it, its writer starts none. Readers without a limit take all there is, and need no help.

Planners live in processes of their own: they learn of it by a file that is there or not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...store.versions.manifest import Manifest

__all__ = ["Backpressure", "LimitedReader"]


@dataclass(frozen=True, slots=True)
class LimitedReader:
    """A stage that reads channels under an admission limit: rows of each input a batch."""

    stage: str
    channels: tuple[str, ...]
    max_records: int


class Backpressure:
    """Holds writers back. Safe with many threads.

    Args:
        folder: Scratch; has a file of a stage's name while that stage is held.
        readers: The stages of this runner that have an admission limit.
    """

    def __init__(self, folder: Path, readers: Sequence[LimitedReader]) -> None:
        self._folder = folder
        self._readers = tuple(readers)
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
        for reader in self._readers:
            tip = self._tips.get(reader.stage)
            if tip is None:
                continue
            for channel in reader.channels:
                for writer, head in self._heads.items():
                    if channel in head.outputs and _backlog(head, tip, channel) > reader.max_records:
                        yield writer


def _backlog(writer: Manifest, reader: Manifest, channel: str) -> int:
    """Rows sent that wait to be consumed; 0 where that is not known."""
    sent, passed = writer.outputs[channel].sent, reader.inputs[channel].passed
    return sum(sent) - sum(passed) if sent and passed else 0
