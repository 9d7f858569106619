"""Which app this process runs, and which version the code that runs is about to commit: lines of the log name them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_VERSION: ContextVar[tuple[str, str, int] | None] = ContextVar("version", default=None)

_APPS: list[str] = []
"""Those that are run here."""


@contextmanager
def running(app: str) -> Iterator[None]:
    """Inside, this process runs an app."""
    _APPS.append(app)
    try:
        yield
    finally:
        _APPS.remove(app)


@contextmanager
def working_on(app: str, stage: str, version: int) -> Iterator[None]:
    """Inside, on this thread, it is this version."""
    token = _VERSION.set((app, stage, version))
    try:
        yield
    finally:
        _VERSION.reset(token)


def fields() -> dict[str, object]:
    """App, stage and version, and the ids of the span: those that there are."""
    found = _VERSION.get()
    named: dict[str, object] = {"app": _APPS[0]} if len(_APPS) == 1 else {}
    if found is not None:
        named = dict(zip(("app", "stage", "version"), found, strict=True))
    # Where nobody traces, it was never imported.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and (context := trace.get_current_span().get_span_context()).is_valid:
        named |= {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}
    return named
