"""Turns Ctrl-C and SIGTERM into an event, for an orderly stop. Has few imports, for a fast command line."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ...common import runtime

_GRACE_S = 0.5
"""Maximum seconds until this process gets a signal that is sent to all processes of the run."""


class StopRequested(BaseException):
    """A stop was requested. Ends the run; `stop_signals` catches it."""


class StopEvent:
    """Event of a stop request. A second request (Ctrl-C) sets `immediate`: the run then ends without waiting."""

    def __init__(self) -> None:
        self._event = runtime.event()
        self.immediate = runtime.event()
        self._is_interruptible = self._signalled = False
        self.set, self.clear, self.wait = self._event.set, self._event.clear, self._event.wait

    def is_set(self) -> bool:
        return self._signalled or self._event.is_set()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise `StopRequested` within the `with` block as soon as a stop is requested.

        Use it for waits that may be interrupted.
        """
        previous, self._is_interruptible = self._is_interruptible, True
        try:
            if self.is_set():
                raise StopRequested
            yield
        finally:
            self._is_interruptible = previous

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Run the `with` block to its end despite a stop request; then raise `StopRequested`, even if the block failed.

        A signal to all processes of the run may make the block fail before this process gets the signal. So if the
        block fails, this method waits a moment for the signal.
        """
        previous, self._is_interruptible = self._is_interruptible, False
        try:
            yield
        except Exception:
            if self.is_set() or self.wait(_GRACE_S):
                raise StopRequested from None
            raise
        finally:
            self._is_interruptible = previous
        if self.is_set():
            raise StopRequested

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True
        if self._is_interruptible:
            raise StopRequested


@contextmanager
def stop_signals(on_stop: Callable[[StopEvent], None] = lambda _stop: None) -> Iterator[StopEvent]:
    """Yield an event that SIGINT and SIGTERM set. If this is not the main thread, nothing sets it.

    `StopRequested` ends the block, and is not raised outside of it. `on_stop` is called with the event when the event
    is set, and again when its `immediate` is set. It is called at once, on a separate thread, even if the main thread
    is busy.
    """
    stop = StopEvent()
    if not runtime.is_main_thread():
        yield stop
        return
    # Python runs signal handlers between two bytecodes of the main thread. The main thread may spend seconds inside a
    # library, or may hold the lock of this event. The byte that Python writes for each signal arrives at once.
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen() -> None:
        while numbers := receiver.recv(64):
            for number in numbers:
                if number not in (signal.SIGINT, signal.SIGTERM):
                    continue
                if not stop._event.is_set():
                    stop.set()
                    on_stop(stop)
                elif number == signal.SIGINT and not stop.immediate.is_set():
                    # Service managers and wrappers may send SIGTERM several times for one stop.
                    stop.immediate.set()
                    on_stop(stop)

    listener = runtime.thread(listen, name="stop-signals")
    listener.start()
    previous_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, stop._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except StopRequested:
        pass
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        sender.close()
        listener.join()
        receiver.close()
        if stop._signalled and not stop._event.is_set():
            # Another thread got the signal: this thread ended before the other thread wrote its byte.
            stop.set()
            on_stop(stop)
