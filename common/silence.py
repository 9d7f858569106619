"""Early warnings that a server is silent, with the setting that has its address, for whoever mistyped it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

SILENT_S = 5.0
"""A silence that is longer gets a warning."""

_log = logging.getLogger("slackwater")


def address_of(setting: str) -> str:
    """Where people should look when a server does not answer; empty where its address is of no setting."""
    return f"is it running, and is its address right? It is that of {setting}" if setting else ""


def warn_of(silence: str, setting: str) -> None:
    """One line in the log: what is silent, and which setting has its address."""
    _log.warning("%s", ": ".join(filter(None, (silence, address_of(setting)))))


@contextmanager
def on_silence(warn: Callable[[], None], after_s: float = SILENT_S) -> Iterator[None]:
    """While a request may take longer: call `warn` once, in a thread, if it does. Not for requests by the thousand."""
    timer = Timer(after_s, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
