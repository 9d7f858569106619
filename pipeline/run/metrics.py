"""What a runner tells Prometheus: one registry, fed by the same news of commits that the terminal shows.

Names follow Prometheus' conventions (base units, `_total` for counters) and, for the store, the words that RocksDB's
users know: L0, compaction, write amplification (bytes written by batches and by compactions, to be divided).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from ...errors import Refused
from ...snapshot.status.lag import StageLag
from ..batch.batch_report import BatchReport

__all__ = ["Metrics"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one process, labelled by app and stage. Safe to observe from many threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._batch_seconds = self._histogram("batch_seconds", "From a batch's start until the next could start.")
        self._commit_seconds = self._histogram("commit_seconds", "The put of a version's manifest.")
        self._stalled = self._counter("write_stall_seconds", "Waited by batches because compaction had fallen behind.")
        self._rows_read = self._counter("rows_read", "Records read from topics and channels.")
        self._rows_written = self._counter("rows_written", "Rows written to channels.")
        self._keys_written = self._counter("state_keys_written", "State rows written by batches.")
        self._flushed = self._counter("flushed_bytes", "SST bytes written by batches (L0).")
        self._compacted = self._counter("compaction_written_bytes", "SST bytes written by compactions.")
        self._unflushed = self._gauge("unflushed_versions", "Versions acknowledged and not yet committed.")
        self._version = self._gauge("version", "Newest committed version.")
        self._epoch = self._gauge("epoch", "Epoch of the writer.")
        self._committed = self._gauge("last_commit_timestamp_seconds", "Wall clock of the newest commit.")
        self._ssts = self._gauge("sst_files", "SSTs of the newest version.")
        self._bytes = self._gauge("sst_bytes", "Bytes of the newest version's SSTs.")
        self._l0 = self._gauge("l0_files", "L0 SSTs of the state partition that has most: what a look-up may search.")
        self._debt = self._gauge("compaction_debt_bytes", "Bytes of the SSTs that compaction would merge now.")
        self._snapshots = self._gauge("snapshots_under_way", "Snapshots recorded and not complete.")
        self._running = self._gauge("stage_running", "1 when a runner has the stage, here or elsewhere, else 0.")
        self._lag = {
            "records": self._lag_gauge("lag_records", "Records of a topic, rows of a channel, that are not read yet."),
            "versions": self._lag_gauge("lag_versions", "Versions of a channel's writer that are not read yet."),
        }
        self._requests = Counter(
            "slackwater_store_requests",
            "Requests to the store, of all processes.",
            ("app", "stage", "verb"),
            registry=self.registry,
        )
        self._read_bytes = self._counter("store_read_bytes", "Bytes of objects received from the store.")
        self._written_bytes = self._counter("store_written_bytes", "Bytes of objects sent to the store.")
        self._keys = self._counter("lookup_keys", "Keys that batches looked up.")
        self._probes = self._counter("sst_probes", "Pairs of a key looked up and an SST that could have it.")
        self._filtered = self._counter("filter_hits", "Of the probes, those that a filter ruled out.")
        self._hits = self._counter("cache_hits", "SSTs looked into that the machine had.")
        self._misses = self._counter("cache_misses", "SSTs looked into that it did not have.")
        self._row_groups = self._counter("row_groups_read", "Row groups read from the store by pieces.")

    def observe(self, commit: BatchReport) -> None:
        """Note a committed batch."""
        labels = (commit.app, commit.stage)
        self._batch_seconds.labels(*labels).observe(commit.seconds)
        self._commit_seconds.labels(*labels).observe(commit.commit_seconds)
        self._stalled.labels(*labels).inc(commit.stall_seconds)
        self._rows_read.labels(*labels).inc(commit.rows_in)
        self._rows_written.labels(*labels).inc(commit.rows_out)
        self._keys_written.labels(*labels).inc(commit.keys)
        self._flushed.labels(*labels).inc(commit.state.flushed_bytes)
        self._compacted.labels(*labels).inc(commit.state.compacted_bytes)
        self._unflushed.labels(*labels).set(commit.unflushed)
        self._version.labels(*labels).set(commit.version)
        self._epoch.labels(*labels).set(commit.epoch)
        self._committed.labels(*labels).set(commit.time_ms / 1000)
        self._ssts.labels(*labels).set(commit.state.files)
        self._bytes.labels(*labels).set(commit.state.bytes)
        self._l0.labels(*labels).set(commit.state.l0_files)
        self._debt.labels(*labels).set(commit.state.debt_bytes)
        self._snapshots.labels(*labels).set(commit.state.snapshots_under_way)
        took = commit.stats
        for verb, number in (("get", took.gets), ("put", took.puts), ("list", took.lists), ("delete", took.deletes)):
            self._requests.labels(*labels, verb).inc(number)
        self._read_bytes.labels(*labels).inc(took.bytes_read)
        self._written_bytes.labels(*labels).inc(took.bytes_written)
        self._keys.labels(*labels).inc(took.keys)
        self._probes.labels(*labels).inc(took.searched)
        self._filtered.labels(*labels).inc(took.filtered)
        self._hits.labels(*labels).inc(took.cache_hits)
        self._misses.labels(*labels).inc(took.cache_misses)
        self._row_groups.labels(*labels).inc(took.row_groups)

    def observe_lags(self, stages: tuple[StageLag, ...]) -> None:
        """Note how far stages are. What is not known has no sample, so that no alarm takes it for none."""
        for stage in stages:
            if stage.running is None:
                self._running.remove(stage.app, stage.stage)
            else:
                self._running.labels(stage.app, stage.stage).set(stage.running)
            for one in stage.inputs:
                labels = (stage.app, stage.stage, one.topic)
                for name, value in (("records", one.records), ("versions", one.versions)):
                    if value is None:
                        self._lag[name].remove(*labels)
                    else:
                        self._lag[name].labels(*labels).set(value)

    def serve(self, port: int) -> int:
        """Answer `GET /metrics` on this port of all interfaces, for the rest of the process; 0 for any that is free.

        Returns:
            The port.

        Raises:
            Refused: The port is taken.
        """
        try:
            server, _ = start_http_server(port, registry=self.registry)
        except OSError as error:
            raise Refused(
                f"metrics cannot be served on port {port}: {error.strerror or error}",
                hint="give --metrics another port; 0 takes one that is free",
            ) from error
        return int(server.server_port)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"slackwater_{name}", text, ("app", "stage"), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"slackwater_{name}", text, ("app", "stage"), registry=self.registry)

    def _lag_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"slackwater_{name}", text, ("app", "stage", "topic"), registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"slackwater_{name}", text, ("app", "stage"), registry=self.registry, buckets=_SECONDS)
