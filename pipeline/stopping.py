"""Ctrl-C and SIGTERM as an event, for what ends in order. Light: the command line imports it, too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stop_signals"]


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; where this is not the main thread, nobody sets it."""
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
