"""What a runner tells of each committed batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

from ..store.manifest import Input, Manifest
from .task import Result

__all__ = ["Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One committed batch of one stage.

    Attributes:
        rows_in: Records read from the inputs.
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
    def of(cls, manifest: Manifest, start: Mapping[str, Input], results: tuple[Result, ...], seconds: float) -> Self:
        """From the committed manifest and its tasks' reports; `start` is where the inputs stood before."""
        return cls(
            stage=manifest.stage,
            version=manifest.version,
            rows_in=sum(read.rows for read in manifest.inputs.values()),
            keys=sum(sst.rows for result in results for sst in result.ssts),
            rows_out=sum(output.rows for output in manifest.outputs.values()),
            windows=tuple(
                f"{read.topic}[{partition}] {first}..{last}"
                for name, read in manifest.inputs.items()
                for partition, (first, last) in enumerate(zip_longest(start[name].offsets, read.offsets, fillvalue=0))
                if first < last
            ),
            snapshots=tuple(name for name, at in manifest.recorded.items() if at == manifest.version),
            seconds=seconds,
            time_ms=manifest.time_ms,
        )
