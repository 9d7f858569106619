"""Monitoring of a runner: Prometheus metrics, and liveness and readiness for probes.

The metrics are in one registry. The events of a run, which the terminal also shows, update them. Names follow
Prometheus' conventions (base units, `_total` for counters). Terms for the store are RocksDB's: L0, compaction, write
amplification (exported as two counters of bytes, written by batches and by compactions).

A run is live while it makes progress on pending work. Waiting for records, or for a broker or a store within its
timeout, is healthy: a restart would not help. A run counts as hanging if its JVM does not answer, if the driver's loop
does not complete a round, if no Spark task of a batch ends, or if a stage starts no batch although there are unread
records. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app, start_http_server

from ...common import runtime
from ...errors import Refused
from ...snapshot.status.overview import StageLag
from ..listener import ArchiveState, BatchReport, Listener

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


HANG_AFTER_S = 600.0
"""Minimum time in seconds without progress after which a run with pending work counts as hanging."""
_HANG_FACTOR = 10
"""Allowed time without progress, as a multiple of the stage's longest recent batch."""
_JVM_SILENCE_S = 60.0
_MAX_LOOP_S = 60.0
"""Maximum seconds of one round of the driver's loop, in addition to the timeout of store and broker."""
_OWNERSHIP_VALID_S = 30.0
_NUM_RECENT_BATCHES = 20


@dataclass(slots=True)
class _StageProgress:
    progressed_s: float
    """Time of the last progress: a batch began or ended, a version was committed, or a Spark task ended."""
    trigger_s: float
    busy: bool = False
    version: int = 0
    began_s: float = 0.0
    elapsed_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_RECENT_BATCHES))
    unread: bool = False
    unread_since_s: float = 0.0


@dataclass(slots=True)
class Health(Listener):
    """Collects signs of progress, and answers probes. Thread-safe."""

    hang_after_s: float = HANG_AFTER_S
    clock: Callable[[], float] = runtime.monotonic
    _max_loop_s: float = _MAX_LOOP_S
    _stages: dict[str, _StageProgress] = field(default_factory=dict)
    _is_held: Callable[[str], bool] = lambda _stage: False
    _activity: str = "starting"
    _round_began_s: float = 0.0
    """Time when the loop last began a round. Outside of the loop, time when the current step began."""
    _jvm_answered_s: float = 0.0
    _task_progress: Hashable = None
    _ownership_checked_s: float = float("-inf")
    _lock: runtime.Lock = field(default_factory=runtime.lock)

    def __post_init__(self) -> None:
        self._round_began_s = self.clock()

    def on_activity(self, activity: str) -> None:
        with self._lock:
            self._activity, self._round_began_s = activity, self.clock()

    def on_running(self, triggers_s: Mapping[str, float], patience_s: float, is_held: Callable[[str], bool]) -> None:
        with self._lock:
            now = self.clock()
            self._max_loop_s, self._is_held = patience_s + min(_MAX_LOOP_S, self.hang_after_s), is_held
            self._round_began_s = self._jvm_answered_s = self._ownership_checked_s = now
            self._stages = {name: _StageProgress(now, trigger_s) for name, trigger_s in triggers_s.items()}

    def on_ending(self) -> None:
        with self._lock:
            self._stages, self._ownership_checked_s, self._round_began_s = {}, float("-inf"), self.clock()

    def on_loop(self) -> None:
        self._round_began_s = self.clock()

    def on_stage_polled(self, stage: str, *, busy: bool, version: int) -> None:
        with self._lock:
            if (seen := self._stages.get(stage)) is None or (seen.busy, seen.version) == (busy, version):
                return
            now = self.clock()
            if seen.busy and not busy:
                seen.elapsed_s.append(now - seen.began_s)
            if busy:
                seen.began_s = now
            seen.busy, seen.version, seen.progressed_s = busy, version, now

    def on_spark_answered(self, tasks: Hashable) -> None:
        with self._lock:
            self._jvm_answered_s = now = self.clock()
            if tasks != self._task_progress:
                self._task_progress = tasks
                for seen in self._stages.values():
                    if seen.busy:
                        seen.progressed_s = now

    def on_ownership_checked(self) -> None:
        self._ownership_checked_s = self.clock()

    def on_lags(self, stages: tuple[StageLag, ...]) -> None:
        with self._lock:
            for lag in stages:
                if (seen := self._stages.get(lag.stage)) is not None:
                    unread = bool(lag.records)
                    if unread and not seen.unread:
                        seen.unread_since_s = self.clock()
                    seen.unread = unread

    def liveness_problems(self) -> tuple[str, ...]:
        """Return the parts of the run that hang, as sentences; empty if the run is live."""
        with self._lock:
            return tuple(self._find_hangs(self.clock()))

    def readiness_problems(self) -> tuple[str, ...]:
        """Return the reasons why this runner may not write now, as sentences; empty if the runner is ready."""
        with self._lock:
            if not self._stages:
                return (f"no batches are running: {self._activity}",)
            since_s = self.clock() - self._ownership_checked_s
            return (
                ()
                if since_s <= _OWNERSHIP_VALID_S
                else (f"ownership of its stages was last confirmed {since_s:.0f} s ago",)
            )

    def _find_hangs(self, now: float) -> Iterator[str]:
        quiet_s = now - self._round_began_s
        if not self._stages:
            if quiet_s > max(self.hang_after_s, self._max_loop_s):
                yield f"{self._activity} for {quiet_s:.0f} s"
            return
        if quiet_s > self._max_loop_s:
            yield f"the driver's loop has been stuck for {quiet_s:.0f} s"
        if (silent_s := now - self._jvm_answered_s) > min(_JVM_SILENCE_S, self.hang_after_s):
            yield f"Spark's JVM has not answered for {silent_s:.0f} s"
        for name, seen in self._stages.items():
            usual_s = max(seen.elapsed_s, default=0.0)
            allowed_s = max(self.hang_after_s, self._max_loop_s, _HANG_FACTOR * usual_s, 3 * seen.trigger_s)
            if seen.busy and now - seen.progressed_s > allowed_s:
                yield f"stage {name!r}: no task of its batch has ended for {now - seen.progressed_s:.0f} s"
            elif not seen.busy and seen.unread:
                waited_s = now - max(seen.progressed_s, seen.unread_since_s)
                if waited_s > allowed_s and not self._is_held(name):
                    yield f"stage {name!r}: records are waiting, but no batch has started for {waited_s:.0f} s"


_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STAGE_LABELS = ("app", "stage")
Probe = Callable[[], tuple[str, ...]]
_BatchMetrics = dict[str, tuple[str, Callable[[BatchReport], float]]]

_HISTOGRAMS: _BatchMetrics = {
    "batch_seconds": ("Time from a batch's start until the next batch could start.", lambda b: b.seconds),
    "commit_seconds": ("Duration of the put of a version's manifest.", lambda b: b.commit_seconds),
}
_COUNTERS: _BatchMetrics = {
    "write_stall_seconds": (
        "Time that batches waited because compaction had fallen behind.",
        lambda b: b.stall_seconds,
    ),
    "rows_read": ("Records read from topics and channels.", lambda b: b.rows_in),
    "rows_written": ("Rows written to channels.", lambda b: b.rows_out),
    "rows_ahead": ("Records whose event time was too far ahead of the clock.", lambda b: b.ahead),
    "rows_late": ("Rows left out of the table, because they came too late.", lambda b: b.late),
    "state_keys_written": ("State rows written by batches.", lambda b: b.keys),
    "records_rejected": ("Records left out because they made a batch fail.", lambda b: b.rejected),
    "flushed_bytes": ("SST bytes written by batches (L0).", lambda b: b.state.flushed_bytes),
    "compaction_written_bytes": ("SST bytes written by compactions.", lambda b: b.state.compacted_bytes),
    "store_read_bytes": ("Bytes of objects received from the store.", lambda b: b.stats.bytes_read),
    "store_written_bytes": ("Bytes of objects sent to the store.", lambda b: b.stats.bytes_written),
    "lookup_keys": ("Keys that batches looked up.", lambda b: b.stats.keys),
    "sst_probes": ("Pairs of a looked-up key and an SST that may have the key.", lambda b: b.stats.searched),
    "filter_hits": ("Pairs of a looked-up key and an SST that a filter ruled out.", lambda b: b.stats.filtered),
    "cache_hits": ("SSTs searched that were in the machine's cache.", lambda b: b.stats.cache_hits),
    "cache_misses": ("SSTs searched that were not in the machine's cache.", lambda b: b.stats.cache_misses),
    "row_groups_read": (
        "Row groups of uncached SSTs of which pages were read from the store.",
        lambda b: b.stats.row_groups,
    ),
}
_GAUGES: _BatchMetrics = {
    "rejected_waiting": ("Rejected records that were not retried.", lambda b: b.rejected_waiting),
    "unflushed_versions": ("Versions acknowledged and not yet committed.", lambda b: b.unflushed),
    "version": ("Newest committed version.", lambda b: b.version),
    "epoch": ("Epoch of the writer.", lambda b: b.epoch),
    "last_commit_timestamp_seconds": ("Wall clock of the newest commit.", lambda b: b.time_ms / 1000),
    "sst_files": ("SSTs of the newest version.", lambda b: b.state.files),
    "sst_bytes": ("Bytes of the newest version's SSTs.", lambda b: b.state.bytes),
    "l0_files": (
        "Largest number of L0 SSTs in a hash range, all of which a look-up may search.",
        lambda b: b.state.l0_files,
    ),
    "compaction_debt_bytes": ("Bytes of the SSTs that compaction would merge now.", lambda b: b.state.debt_bytes),
    "snapshots_under_way": ("Snapshots recorded and not complete.", lambda b: b.state.snapshots_under_way),
}


class Metrics(Listener):
    """Metrics of one process, labelled by app and stage. Listens to events of a run; `health` answers the probes."""

    def __init__(self, health: Health | None = None) -> None:
        self.registry = CollectorRegistry()
        self.health = health or Health()
        counter = partial(Counter, namespace="slackwater", registry=self.registry)
        gauge = partial(Gauge, namespace="slackwater", registry=self.registry)
        histogram = partial(Histogram, namespace="slackwater", registry=self.registry, buckets=_BUCKETS_S)
        self._histograms = {name: histogram(name, text, _STAGE_LABELS) for name, (text, _) in _HISTOGRAMS.items()}
        self._counters = {name: counter(name, text, _STAGE_LABELS) for name, (text, _) in _COUNTERS.items()}
        self._gauges = {name: gauge(name, text, _STAGE_LABELS) for name, (text, _) in _GAUGES.items()}
        lives = gauge("runner_live", "0 while a part of this runner hangs, else 1.")
        lives.set_function(lambda: not self.health.liveness_problems())
        ready = gauge("runner_ready", "1 while this runner has its stages and runs batches, else 0.")
        ready.set_function(lambda: not self.health.readiness_problems())
        self._requests = counter("store_requests", "Requests to the store, of all processes.", (*_STAGE_LABELS, "verb"))
        self._running = gauge(
            "stage_running", "1 when a runner has the stage, here or elsewhere, else 0.", _STAGE_LABELS
        )
        text = "Watermark of the newest version, if it has one."
        self._watermark = gauge("watermark_timestamp_seconds", text, _STAGE_LABELS)
        of_input, of_sink = (*_STAGE_LABELS, "topic"), (*_STAGE_LABELS, "sink")
        self._lag = {
            "records": gauge("lag_records", "Unread offsets of a topic, or unread rows of a channel.", of_input),
            "versions": gauge("lag_versions", "Versions of a channel's writer that are not read yet.", of_input),
        }
        of_archive = ("app", "topic")
        self._archives = {
            "lag": gauge("archive_lag_records", "Offsets read and not in the input archive yet.", of_archive),
            "objects": gauge("archive_objects", "Objects of the input archive.", of_archive),
            "bytes": gauge("archive_bytes", "Bytes of the input archive.", of_archive),
        }
        self._sinks = {
            "rows": gauge("sink_lag_rows", "Rows committed for a sink and not published yet.", of_sink),
            "versions": gauge(
                "sink_lag_versions", "Committed versions that are newer than the newest published one.", of_sink
            ),
        }

    def on_commit(self, batch: BatchReport) -> None:
        labels = (batch.app, batch.stage)
        for name, (_, value) in _HISTOGRAMS.items():
            self._histograms[name].labels(*labels).observe(value(batch))
        for name, (_, value) in _COUNTERS.items():
            self._counters[name].labels(*labels).inc(value(batch))
        for name, (_, value) in _GAUGES.items():
            self._gauges[name].labels(*labels).set(value(batch))
        if batch.watermark_ms is not None:
            self._watermark.labels(*labels).set(batch.watermark_ms / 1000)
        for verb in ("get", "put", "list", "delete"):
            self._requests.labels(*labels, verb).inc(getattr(batch.stats, f"{verb}s"))

    def on_lags(self, stages: tuple[StageLag, ...]) -> None:
        """Export the lag of each stage. An unknown lag is not exported, so that an alert cannot mistake it for zero."""
        for stage in stages:
            at = (stage.app, stage.stage)
            samples: list[tuple[Gauge, tuple[str, ...], float | None]] = [(self._running, at, stage.running)]
            for source in stage.inputs:
                samples += [(gauge, (*at, source.topic), getattr(source, name)) for name, gauge in self._lag.items()]
            for sink in stage.sinks:
                samples += [(gauge, (*at, sink.name), getattr(sink, name)) for name, gauge in self._sinks.items()]
            for gauge, labels, value in samples:
                if value is None:
                    gauge.remove(*labels)
                else:
                    gauge.labels(*labels).set(value)

    def on_archive_progress(self, states: tuple[ArchiveState, ...]) -> None:
        for state in states:
            for name, gauge in self._archives.items():
                gauge.labels(state.app, state.topic).set(getattr(state, name))

    def serve(self, port: int) -> int:
        return serve_metrics(self.registry, port, self.probes)

    @property
    def probes(self) -> dict[str, Probe]:
        return {"/livez": self.health.liveness_problems, "/readyz": self.health.readiness_problems}


def serve_metrics(registry: CollectorRegistry, port: int, probes: Mapping[str, Probe] | None = None) -> int:
    """Serve `GET /metrics` on a port of all network interfaces until the process ends. Return the port.

    Port 0 chooses a free port. A probe without problems is answered with 200, otherwise with 503 and the problems.
    Raises `Refused` if the port is taken.
    """
    try:
        server, _ = start_http_server(port, registry=registry)
    except OSError as error:
        raise Refused(
            f"metrics cannot be served on port {port}: {error.strerror or error}",
            hint="choose another port with --metrics; 0 takes any free one",
        ) from error
    server.set_app(_with_probes(make_wsgi_app(registry), probes or {}))
    return int(server.server_port)


def _with_probes(metrics: WSGIApplication, probes: Mapping[str, Probe]) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = probes.get(environ["PATH_INFO"])
        if probe is None:
            return metrics(environ, start_response)
        wrong = probe()
        start_response(
            "503 Service Unavailable" if wrong else "200 OK", [("Content-Type", "text/plain; charset=utf-8")]
        )
        return ["".join(f"{line}\n" for line in wrong or ("ok",)).encode()]

    return answer
