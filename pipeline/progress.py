"""What a runner tells of each committed batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ..store.manifest import Manifest
from .task import Result

__all__ = ["Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One committed batch of one stage.

    Attributes:
        rows_in: Records read from the input.
        keys: Keys whose state row was written.
        rows_out: Rows written to channels.
        windows: Input offsets as `topic[partition] from..to`, `to` excluded; partitions without records left out.
        snapshots: Names of no snapshot, or ids of those that this version is part of.
        seconds: From the batch's start to its commit, in all.
    """

    stage: str
    version: int
    rows_in: int
    keys: int
    rows_out: int
    windows: tuple[str, ...]
    snapshots: tuple[str, ...]
    seconds: float
    time_ms: int

    @classmethod
    def of(cls, manifest: Manifest, start: tuple[int, ...], results: tuple[Result, ...], seconds: float) -> Self:
        """From the committed manifest and its tasks' reports; `start` is where the input stood before."""
        (read,) = manifest.inputs.values()
        known = start + (0,) * (len(read.offsets) - len(start))
        return cls(
            stage=manifest.stage,
            version=manifest.version,
            rows_in=read.rows,
            keys=sum(sst.rows for result in results for sst in result.ssts),
            rows_out=sum(output.rows for output in manifest.outputs.values()),
            windows=tuple(
                f"{read.topic}[{partition}] {first}..{last}"
                for partition, (first, last) in enumerate(zip(known, read.offsets, strict=True))
                if first < last
            ),
            snapshots=tuple(name for name, at in manifest.recorded.items() if at == manifest.version),
            seconds=seconds,
            time_ms=manifest.time_ms,
        )
