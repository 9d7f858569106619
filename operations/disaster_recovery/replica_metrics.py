"""Prometheus metrics of `slackwater replicate`: the replica's age, and copied objects and bytes."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from ...pipeline.run.monitoring import serve_metrics
from .replicate import RoundResult


class ReplicaMetrics:
    """Prometheus metrics of one replica, labelled by app and store root."""

    def __init__(self, app: str, root: str) -> None:
        self.registry = CollectorRegistry()
        names = ("app", "root")

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, names, namespace="slackwater", registry=self.registry).labels(app, root)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, names, namespace="slackwater", registry=self.registry).labels(app, root)

        self._seen = gauge(
            "replica_complete_timestamp_seconds",
            "Time up to which the replica is complete; later commits would be lost.",
        )
        self._commit = gauge("replica_commit_timestamp_seconds", "Time of the newest commit in the replica.")
        self._lacks = gauge("replica_lacks", "1 if the newest cut lacks in-flight records, else 0.")
        self._round = gauge("replica_round_seconds", "Duration of the last round.")
        self._objects = counter("replica_copied_objects", "Objects copied.")
        self._bytes = counter("replica_copied_bytes", "Bytes copied.")
        self._removed = counter("replica_removed_objects", "Objects deleted because the app deleted them.")

    def observe(self, done: RoundResult) -> None:
        self._seen.set(done.cut.seen_ms / 1_000)
        self._commit.set(done.cut.time_ms / 1_000)
        self._lacks.set(1 if done.cut.lacks else 0)
        self._round.set(done.took_ms / 1_000)
        self._objects.inc(done.objects)
        self._bytes.inc(done.bytes)
        self._removed.inc(done.removed)

    def serve(self, port: int) -> int:
        return serve_metrics(self.registry, port)
