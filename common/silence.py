"""Warnings that a server does not answer, with a hint to the setting that has the server's address."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import runtime

SILENCE_S = 5.0

_log = logging.getLogger("slackwater")


def address_hint(setting: str) -> str:
    """Return a hint to check the server, and the server's address in `setting`; empty without a setting."""
    return f"check that it is running, and its address in {setting}" if setting else ""


def warn_silent(silence: str, setting: str) -> None:
    _log.warning("%s", ": ".join(filter(None, (silence, address_hint(setting)))))


@contextmanager
def call_on_silence(warn: Callable[[], None], after_s: float = SILENCE_S) -> Iterator[None]:
    """Call `warn` once, in a timer thread, if the `with` block takes longer than `after_s` seconds."""
    cancel = runtime.timer(after_s, warn)
    try:
        yield
    finally:
        cancel()
