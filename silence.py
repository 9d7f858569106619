"""Says early that a server is silent, and which setting has its address: whoever mistyped it need not wait on."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

SILENT_S = 5.0
"""Who waits for longer is told for what."""

_log = logging.getLogger("slackwater")


def address_of(setting: str) -> str:
    """Where people should look when a server does not answer; empty where its address is of no setting."""
    return f"is it running, and is its address right? It is that of {setting}" if setting else ""


def warn_of(silence: str, setting: str) -> None:
    """One line in the log: what is silent, and which setting has its address."""
    _log.warning("%s", ": ".join(filter(None, (silence, address_of(setting)))))


@contextmanager
def told_of_silence(tell: Callable[[], None], after_s: float = SILENT_S) -> Iterator[None]:
    """While something is asked that may take longer: `tell` is called once, in a thread, if it does.

    A thread for each question: not for those that are asked by the thousand.
    """
    timer = Timer(after_s, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
