"""What a runner tells of each committed batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

from ..store.compaction import pick
from ..store.manifest import Manifest
from ..store.runs import by_partition
from .task import Result

__all__ = ["Progress", "StateFigures"]


@dataclass(frozen=True, slots=True)
class StateFigures:
    """What a batch left of the state, as the field counts it. All zero for a stage without a table.

    Attributes:
        files, bytes: The version's SSTs.
        l0_files: SSTs of level 0 in the state partition that has most of them.
        debt_bytes: What compaction would merge now.
        flushed_bytes: What this batch wrote.
        compacted_bytes: What compactions wrote that this version names for the first time.
        snapshots_under_way: Snapshots that this version has recorded and that are not complete.
    """

    files: int
    bytes: int
    l0_files: int
    debt_bytes: int
    flushed_bytes: int
    compacted_bytes: int
    snapshots_under_way: int

    @classmethod
    def of(cls, before: Manifest, manifest: Manifest, results: tuple[Result, ...]) -> Self:
        """From the versions before and after a batch, and its tasks' reports."""
        flushed = {sst.object: sst.bytes for result in results for sst in result.ssts}
        known = {sst.object for sst in before.ssts}
        new = {sst.object: sst.bytes for sst in manifest.ssts if sst.object not in known}
        partitions = manifest.table.partitions if manifest.table else 1
        l0 = by_partition((sst for sst in manifest.ssts if sst.level == 0), partitions)
        due = pick(manifest.ssts, partitions, clock_ms=manifest.clock_ms)
        return cls(
            files=len(manifest.ssts),
            bytes=sum(sst.bytes for sst in manifest.ssts),
            l0_files=max(map(len, l0.values()), default=0),
            debt_bytes=sum(sst.bytes for picked in due for sst in picked.inputs),
            flushed_bytes=sum(flushed.values()),
            compacted_bytes=sum(size for name, size in new.items() if name not in flushed),
            snapshots_under_way=len(manifest.recorded),
        )


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
        commit_seconds: Of these, what the put of the manifest took.
        epoch: The writer's.
        state: Figures of the table's SSTs.
    """

    app: str
    stage: str
    version: int
    rows_in: int
    keys: int
    rows_out: int
    windows: tuple[str, ...]
    snapshots: tuple[str, ...]
    seconds: float
    commit_seconds: float
    time_ms: int
    epoch: int
    state: StateFigures

    @classmethod
    def of(
        cls,
        before: Manifest,
        manifest: Manifest,
        results: tuple[Result, ...],
        *,
        seconds: float,
        commit_seconds: float,
    ) -> Self:
        """From the versions before and after a batch, and its tasks' reports."""
        return cls(
            app=manifest.app,
            stage=manifest.stage,
            version=manifest.version,
            rows_in=sum(read.rows for read in manifest.inputs.values()),
            keys=sum(sst.rows for result in results for sst in result.ssts),
            rows_out=sum(output.rows for output in manifest.outputs.values()),
            windows=tuple(
                f"{read.topic}[{partition}] {first}..{last}"
                for name, read in manifest.inputs.items()
                for partition, (first, last) in enumerate(
                    zip_longest(before.inputs[name].offsets, read.offsets, fillvalue=0)
                )
                if first < last
            ),
            snapshots=tuple(name for name, at in manifest.recorded.items() if at == manifest.version),
            seconds=seconds,
            commit_seconds=commit_seconds,
            time_ms=manifest.time_ms,
            epoch=manifest.epoch,
            state=StateFigures.of(before, manifest, results),
        )
