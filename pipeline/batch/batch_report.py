"""Figures of one committed batch, for the terminal, JSON output and Prometheus."""

from dataclasses import dataclass
from typing import Self

from ...state.next_version import TaskReport
from ...state.records import windows
from ...store.compaction.plan import Compaction
from ...store.objects.counting import Stats
from ...store.sst.sorted_runs import l0_files
from ...store.versions.manifest import EventTime
from ...store.versions.side_tables import rejected_of
from .committer import Committed


@dataclass(frozen=True, slots=True)
class StateFigures:
    """Sizes of a stage's state after one batch. All zero for a stage without a table.

    Attributes:
        files, bytes: Number and size of the version's SSTs.
        l0_files: Largest number of L0 SSTs in one state partition.
        debt_bytes: Bytes that compaction has to merge now.
        flushed_bytes: Bytes that this batch wrote.
        compacted_bytes: Bytes written by compactions whose SSTs this version is the first to name.
        snapshots_under_way: Snapshots that this version has recorded and that are not complete.
    """

    files: int
    bytes: int
    l0_files: int
    debt_bytes: int
    flushed_bytes: int
    compacted_bytes: int
    snapshots_under_way: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    """Figures of one committed batch of one stage.

    Attributes:
        rows_in: Records read from the inputs.
        keys: Keys whose state row was written.
        rows_out: Rows written to channels and for sinks.
        windows: Input offsets as `topic[partition] from..to`, `to` excluded. Partitions without records are left out.
        snapshots: Snapshots that this version is part of: ids, or names in the reports of a run.
        seconds: Time from the batch's start until the next batch could start: until its commit, or, with
            `max_unflushed`, until its SSTs were durable on the runner's machine and there was room for the version.
        commit_seconds: Time that the put of the manifest took.
        stall_seconds: Time that the batch was delayed before its start because compaction had fallen behind.
        unflushed: Number of newer versions that were acknowledged and not yet committed.
        rejected: Records that the batch rejected.
        rejected_waiting: Rejected records of all versions that were not retried.
        watermark_ms: Watermark of the stage; None for a stage without a watermark.
        ahead: Rows whose event time was too far ahead of the clock.
        late: Rows left out of the table because they came too late.
        epoch: Epoch of the writer.
        state: Sizes of the table's SSTs.
        stats: Requests and bytes of this version in the store.
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
    stats: Stats
    stall_seconds: float = 0.0
    unflushed: int = 0
    rejected: int = 0
    rejected_waiting: int = 0
    watermark_ms: int | None = None
    ahead: int = 0
    late: int = 0

    @classmethod
    def of(
        cls,
        committed: Committed,
        results: tuple[TaskReport, ...],
        due: tuple[Compaction, ...] = (),
        stall_s: float = 0.0,
    ) -> Self:
        """Return the report of a committed version, from its tasks' reports and the compactions due after it."""
        previous, manifest = committed.previous, committed.manifest
        rejects, times = rejected_of(manifest), manifest.event_time or EventTime()
        flushed = {sst.object: sst.bytes for result in results for sst in result.ssts}
        earlier_objects = flushed.keys() | {sst.object for sst in previous.ssts}
        state = StateFigures(
            files=len(manifest.ssts),
            bytes=sum(sst.bytes for sst in manifest.ssts),
            l0_files=l0_files(manifest.ssts, manifest.table.partitions if manifest.table else 1),
            debt_bytes=sum(compaction.input_bytes for compaction in due),
            flushed_bytes=sum(flushed.values()),
            # A compaction may cut one SST into two entries of one object: count the object once.
            compacted_bytes=sum(
                {sst.object: sst.bytes for sst in manifest.ssts if sst.object not in earlier_objects}.values()
            ),
            snapshots_under_way=len(manifest.recorded),
        )
        return cls(
            app=manifest.app,
            stage=manifest.stage,
            version=manifest.version,
            rows_in=sum(read.rows for read in manifest.inputs.values()),
            keys=sum(sst.rows for result in results for sst in result.ssts),
            rows_out=sum(output.rows for output in manifest.outputs.values())
            + sum(sink.rows for sink in manifest.sinks.values()),
            windows=tuple(
                window
                for name, read in manifest.inputs.items()
                for window in windows(read.topic, previous.inputs[name].offsets, read.offsets)
            ),
            snapshots=tuple(name for name, at in manifest.recorded.items() if at == manifest.version),
            seconds=committed.seconds,
            commit_seconds=committed.commit_seconds,
            time_ms=manifest.time_ms,
            epoch=manifest.epoch,
            state=state,
            stats=manifest.stats or Stats(),
            stall_seconds=stall_s,
            unflushed=committed.unflushed,
            rejected=rejects.rows,
            rejected_waiting=rejects.waiting,
            watermark_ms=manifest.watermark_ms,
            ahead=times.ahead,
            late=times.late,
        )
