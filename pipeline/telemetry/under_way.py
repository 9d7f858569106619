"""The app that this process runs, and the version being committed, for log lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_VERSION: ContextVar[tuple[str, str, int] | None] = ContextVar("version", default=None)

_APPS: list[str] = []
"""Apps that this process runs."""


@contextmanager
def running(app: str) -> Iterator[None]:
    """Register an app as run by this process, for the block."""
    _APPS.append(app)
    try:
        yield
    finally:
        _APPS.remove(app)


@contextmanager
def working_on(app: str, stage: str, version: int) -> Iterator[None]:
    """Register the version being committed on this thread, for the block."""
    token = _VERSION.set((app, stage, version))
    try:
        yield
    finally:
        _VERSION.reset(token)


def fields() -> dict[str, object]:
    """Return app, stage and version, and the ids of the span, as far as known."""
    version = _VERSION.get()
    named: dict[str, object] = {"app": _APPS[0]} if len(_APPS) == 1 else {}
    if version is not None:
        named = dict(zip(("app", "stage", "version"), version, strict=True))
    # OpenTelemetry is imported only if tracing is configured.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and (context := trace.get_current_span().get_span_context()).is_valid:
        named |= {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}
    return named
