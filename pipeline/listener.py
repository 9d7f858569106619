"""Interface of listeners to a run's events (the terminal, the metrics), and the figures of a batch."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..snapshot.gc.collect import Collected
    from ..snapshot.status.overview import StageLag
    from ..store.objects.counting import Stats
    from ..store.versions.manifest import Manifest


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Sizes of a stage's state after one batch; zeros for a stage without a table.

    Attributes:
        files, bytes: Number and size of the version's SSTs.
        l0_files: Largest number of L0 SSTs in one hash range.
        debt_bytes: Bytes that compaction has to merge now.
        flushed_bytes: Bytes that this batch wrote.
        compacted_bytes: Bytes written by compactions whose SSTs appear in this version for the first time.
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
        keys: Keys whose row in the table was written.
        rows_out: Rows written to channels and for sinks.
        windows: Input offsets as `topic[partition] from..to`, `to` excluded. Partitions without records are left out.
        snapshots: Snapshots of which this version is a part, by id, or by name in the reports of a run.
        seconds: Time from the batch's start until the next batch could start: until its commit, or, with
            `max_unflushed`, until its SSTs were durable on the runner's machine and there was room for the version.
        commit_seconds: Time that the put of the manifest took.
        stall_seconds: Time that the batch was delayed before its start because compaction had fallen behind.
        unflushed: Number of newer versions that were acknowledged and not yet committed.
        rejected: Records that the batch rejected.
        rejected_waiting: Rejected records of all versions that wait for a retry.
        watermark_ms: Watermark of the stage; None for a stage without a watermark.
        ahead: Rows whose event time was too far ahead of the clock.
        late: Rows left out of the table because they came too late.
        epoch: Epoch of the writer.
        state: Sizes of the table's SSTs.
        stats: Requests to the store for this version, and their bytes.
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
    state: StateSizes
    stats: "Stats"
    stall_seconds: float = 0.0
    unflushed: int = 0
    rejected: int = 0
    rejected_waiting: int = 0
    watermark_ms: int | None = None
    ahead: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """Progress of a topic's input archive."""

    app: str
    topic: str
    lag: int
    """Number of offsets that committed batches have read and that are not yet archived."""
    objects: int
    bytes: int
    error: str = ""
    """Reason why the archive makes no progress; empty if it makes progress."""


class Listener:
    """Receives the events of a run, from several threads. The methods of this base class do nothing."""

    def on_activity(self, activity: str) -> None:
        """Report the run's current activity, such as "starting Spark"; an empty text once batches run."""

    def on_running(self, triggers_s: Mapping[str, float], patience_s: float, is_held: Callable[[str], bool]) -> None:
        """Report that batches run. A stage starts at most one batch every `triggers_s[stage]` seconds.

        `patience_s` is the time for which a store or broker may be unavailable. `is_held(stage)` is True while the
        stage starts no batch because its readers lag.
        """

    def on_version(self, head: "Manifest", tip: "Manifest") -> None:
        """Report a stage's newest committed version, `head`, and its newest acknowledged version, `tip`."""

    def on_commit(self, batch: BatchReport) -> None:
        """Report a committed batch."""

    def on_loop(self) -> None:
        """Report one pass of the driver's loop."""

    def on_stage_polled(self, stage: str, *, busy: bool, version: int) -> None:
        """Report a stage's newest version. `busy` is True while a batch of the stage runs."""

    def on_ownership_checked(self) -> None:
        """Report that this runner still owns all its stages."""

    def on_spark_answered(self, tasks: Hashable) -> None:
        """Report that Spark's JVM has answered. `tasks` has a new value whenever a task has ended."""

    def on_lags(self, stages: "tuple[StageLag, ...]") -> None:
        """Report the lag of every stage of the app, every few seconds."""

    def on_archive_progress(self, states: tuple[ArchiveState, ...]) -> None:
        """Report the progress of the input archives of the topics read by this run, every few seconds."""

    def on_gc(self, done: "Collected") -> None:
        """Report a completed garbage collection of the app, with its result."""

    def on_ending(self) -> None:
        """Report that the run starts no more batches."""


class Listeners(Listener):
    """Passes each event to several listeners, in order. Listeners that are None are ignored."""

    def __init__(self, *listeners: Listener | None) -> None:
        for name in [name for name in vars(Listener) if not name.startswith("_")]:
            setattr(self, name, _call_all([getattr(listener, name) for listener in listeners if listener is not None]))


def _call_all(methods: "list[Callable[..., None]]") -> Callable[..., None]:
    def told(*args: object, **how: object) -> None:
        for method in methods:
            method(*args, **how)

    return told


class Callbacks(Listener):
    """Listener that passes each activity to one function, and each committed batch to another function."""

    def __init__(
        self,
        doing: Callable[[str], None] = lambda _activity: None,
        committed: Callable[[BatchReport], None] = lambda _batch: None,
    ) -> None:
        self._doing, self._committed = doing, committed

    def on_activity(self, activity: str) -> None:
        if activity:
            self._doing(activity)

    def on_commit(self, batch: BatchReport) -> None:
        self._committed(batch)
