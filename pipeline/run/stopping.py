"""Ctrl-C and SIGTERM as an event, for what ends in order. Light: the command line imports it, too."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_GRACE_S = 0.5
"""How much later than other processes of the run this one may hear of a signal that is sent to all of them."""


class StopRequested(BaseException):
    """Somebody asked to stop where nothing needs an end in order."""


class Stop(threading.Event):
    """Set once somebody asked to stop; `now` once they asked again, by Ctrl-C, and would not wait for anything."""

    def __init__(self) -> None:
        super().__init__()
        self.now = threading.Event()
        self._raises = self._asked = False

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return self._asked or super().is_set()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, to be asked raises `StopRequested`: for what may wait long, and may be broken off anywhere."""
        before, self._raises = self._raises, True
        try:
            if self.is_set():
                raise StopRequested
            yield
        finally:
            self._raises = before

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Inside, nothing is broken off, and what fails after somebody asked to stop is an end.

        Who asks may ask all processes of the run at once, and what fails because of that may be heard of first.
        """
        before, self._raises = self._raises, False
        try:
            yield
        except Exception:
            if self.is_set() or self.wait(_GRACE_S):
                raise StopRequested from None
            raise
        finally:
            self._raises = before
        if self.is_set():
            raise StopRequested

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        if self._raises:
            raise StopRequested


@contextmanager
def stop_signals(on_ask: Callable[[Stop], None] = lambda _stop: None) -> Iterator[Stop]:
    """An event that SIGINT and SIGTERM set; where this is not the main thread, nobody sets it.

    `StopRequested` ends the block, and goes no further. `on_ask` is called with the event when it is set, and when
    `now` is: at once and on a thread of its own, whatever the main thread is doing.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # Python runs handlers between two steps of the main thread, which may be within a library for seconds, or hold the
    # lock of the very event. The byte that it writes for each signal is there at once.
    hears, tells = socket.socketpair()
    tells.setblocking(False)

    def listen() -> None:
        while numbers := hears.recv(64):
            for number in numbers:
                if number not in (signal.SIGINT, signal.SIGTERM):
                    continue
                if not threading.Event.is_set(stop):
                    stop.set()
                    on_ask(stop)
                elif number == signal.SIGINT and not stop.now.is_set():
                    # Service managers and wrappers send SIGTERM several times to mean it once.
                    stop.now.set()
                    on_ask(stop)

    listener = threading.Thread(target=listen, name="stop-signals", daemon=True)
    listener.start()
    wakes = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, stop._ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except StopRequested:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakes)
        tells.close()
        listener.join()
        hears.close()
        if stop._asked and not threading.Event.is_set(stop):
            # The signal came to another thread: this one heard of it and was done before that one wrote its byte.
            stop.set()
            on_ask(stop)
