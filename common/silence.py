"""Early warnings that a server does not answer, with the setting that has its address."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

SILENCE_S = 5.0

_log = logging.getLogger("slackwater")


def address_hint(setting: str) -> str:
    """Return a hint to check a server and its address in the given setting; empty if `setting` is empty."""
    return f"check that it is running, and its address in {setting}" if setting else ""


def warn_silent(silence: str, setting: str) -> None:
    _log.warning("%s", ": ".join(filter(None, (silence, address_hint(setting)))))


@contextmanager
def call_on_silence(warn: Callable[[], None], after_s: float = SILENCE_S) -> Iterator[None]:
    """Call `warn` once, in a thread, if the block takes longer than `after_s`. Starts a thread per call."""
    timer = Timer(after_s, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
