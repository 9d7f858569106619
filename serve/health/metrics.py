"""Prometheus metrics of a server instance at /metrics. Labels contain no names of apps, tables or tokens."""

from collections.abc import Callable
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
_GAUGES = {
    "requests_under_way": "Requests in progress.",
    "connections": "Open connections.",
    "streams": "Open streams of events.",
    "sql_waiting": "SQL statements that run or wait.",
    "store_answers": "1 if the store answered when last checked, else 0; a scrape starts a check for the next one.",
}


class ServeMetrics:
    """Prometheus metrics of one instance."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        common: Any = {"namespace": "slackwater", "subsystem": "serve", "registry": registry}
        requests = Counter("requests", "Requests, by route or tool and by status.", ("what", "status"), **common)
        seconds = Histogram(
            "request_seconds", "Seconds from a request's headers to its answer.", ("what",), buckets=_SECONDS, **common
        )
        self._counted, self._seconds_histogram = cache(requests.labels), cache(seconds.labels)
        self._gauges = {name: Gauge(name, text, **common) for name, text in _GAUGES.items()}
        self._replaced = Counter(
            "sql_processes_replaced", "SQL processes that exceeded their memory or time.", **common
        )

    def observe(self, action: str, status: int, elapsed_s: float) -> None:
        self._counted(action, status).inc()
        self._seconds_histogram(action).observe(elapsed_s)

    def count_replaced_process(self) -> None:
        self._replaced.inc()

    def set_gauge_function(self, gauge: str, value: Callable[[], float]) -> None:
        self._gauges[gauge].set_function(value)

    def text(self) -> bytes:
        text: bytes = generate_latest(self.registry)
        return text
