"""What an instance tells Prometheus at /metrics, without a token: no name of an app, a table or a token is in it."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)


class ServeMetrics:
    """The metrics of one instance."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        of: Any = {"namespace": "slackwater", "subsystem": "serve", "registry": registry}
        counted = Counter("requests", "Requests, by route or tool and by status.", ("what", "status"), **of)
        took = Histogram("request_seconds", "From a request's head to its answer.", ("what",), buckets=_SECONDS, **of)
        self._counted, self._took = cache(counted.labels), cache(took.labels)
        self._gauge: Callable[[str, str], Gauge] = partial(Gauge, **of)
        self._replaced = Counter("sql_processes_replaced", "Processes for SQL that ran out of memory or time.", **of)

    def observe(self, what: str, status: int, took_s: float) -> None:
        """Note an answer."""
        self._counted(what, status).inc()
        self._took(what).observe(took_s)

    def replaced(self) -> None:
        """Note a process for SQL that another one takes the place of."""
        self._replaced.inc()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Have a gauge that is looked at when it is asked for."""
        self._gauge(name, text).set_function(value)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text
