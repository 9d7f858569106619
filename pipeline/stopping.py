"""Ctrl-C and SIGTERM as an event, for what ends in order. Light: the command line imports it, too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stop", "Stopped", "stop_signals"]


class Stopped(BaseException):
    """Somebody asked to stop where nothing needs an end in order."""


class Stop(threading.Event):
    """Set once somebody asked to stop."""

    _raises = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, to be asked raises `Stopped`: for what may wait long, and may be broken off anywhere."""
        self._raises = True
        try:
            if self.is_set():
                raise Stopped
            yield
        finally:
            self._raises = False

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Inside, what fails after somebody asked to stop is an end: who asks may ask the JVM, too."""
        try:
            yield
        except Exception:
            if self.is_set():
                raise Stopped from None
            raise
        if self.is_set():
            raise Stopped

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.set()
        if self._raises:
            raise Stopped


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """An event that SIGINT and SIGTERM set; where this is not the main thread, nobody sets it.

    `Stopped` ends the block, and goes no further.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop._ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except Stopped:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
