"""Clients that are there only where they were asked for, and what they log: that a server is away, once."""

import logging
import sys
import time
from importlib.util import find_spec

from ...common.validation import installing

_log = logging.getLogger("slackwater")

_AGAIN_S = 600.0


def is_missing(module: str, what: str, extra: str) -> bool:
    """Whether a client is not installed, which then is said."""
    try:
        there = find_spec(module) is not None
    except ModuleNotFoundError:  # of the package above it
        there = False
    if not there:
        _log.warning("%s is configured, and its client is not installed: %s", what, installing(extra))
    return not there


def own_version() -> str:
    """That of slackwater, by the package that is loaded: to import it here would be a circle."""
    return str(sys.modules[__name__.partition(".")[0]].__version__)


class Once(logging.Handler):
    """Takes all that a client logs as warnings and errors, and passes on a line of it every ten minutes."""

    def __init__(self, what: str) -> None:
        super().__init__(logging.WARNING)
        self._what = what
        self._next_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, unless that was done a moment ago."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _AGAIN_S
            line = record.getMessage().partition("\n")[0]
            _log.warning("%s: %s; nothing here waits for it", self._what, line)


def tell_once(logger: str, what: str) -> None:
    """Have what a client logs said once, and not by others."""
    log = logging.getLogger(logger)
    if not any(isinstance(each, Once) for each in log.handlers):
        log.addHandler(Once(what))
        log.propagate = False
