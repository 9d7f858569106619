"""Fields of log lines (app, stage, version, span), and rate-limited warnings of optional clients."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from ...common import runtime
from ...common.install import install_hint

_log = logging.getLogger("slackwater")

_MIN_INTERVAL_S = 600.0
_VERSION_TO_COMMIT: ContextVar[tuple[str, str, int] | None] = ContextVar("version", default=None)

_APPS: list[str] = []


@contextmanager
def running_app(app: str) -> Iterator[None]:
    _APPS.append(app)
    try:
        yield
    finally:
        _APPS.remove(app)


@contextmanager
def committing_version(app: str, stage: str, version: int) -> Iterator[None]:
    """During the block, label this thread's log lines with the version that the thread is about to commit."""
    token = _VERSION_TO_COMMIT.set((app, stage, version))
    try:
        yield
    finally:
        _VERSION_TO_COMMIT.reset(token)


def log_fields() -> dict[str, object]:
    version = _VERSION_TO_COMMIT.get()
    named: dict[str, object] = {"app": _APPS[0]} if len(_APPS) == 1 else {}
    if version is not None:
        named = dict(zip(("app", "stage", "version"), version, strict=True))
    # OpenTelemetry is imported only if tracing is configured.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and (context := trace.get_current_span().get_span_context()).is_valid:
        named |= {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}
    return named


def is_client_missing(module: str, client: str, extra: str) -> bool:
    try:
        is_installed = find_spec(module) is not None
    except ModuleNotFoundError:  # raised if the parent package is missing
        is_installed = False
    if not is_installed:
        _log.warning("%s is configured, but its client is not installed: %s", client, install_hint(extra))
    return not is_installed


def slackwater_version() -> str:
    return str(sys.modules[__name__.partition(".")[0]].__version__)


class RateLimitedHandler(logging.Handler):
    """Logs a client's warnings and errors, at most one line every ten minutes."""

    def __init__(self, client: str) -> None:
        super().__init__(logging.WARNING)
        self._client = client
        self._next_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        if runtime.monotonic() >= self._next_s:
            self._next_s = runtime.monotonic() + _MIN_INTERVAL_S
            line = record.getMessage().partition("\n")[0]
            _log.warning("%s: %s (slackwater continues without it)", self._client, line)


def limit_client_log(logger: str, client: str) -> None:
    log = logging.getLogger(logger)
    if not any(isinstance(handler, RateLimitedHandler) for handler in log.handlers):
        log.addHandler(RateLimitedHandler(client))
        log.propagate = False
