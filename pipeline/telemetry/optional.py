"""Detection of optional clients, and rate-limited logging of their warnings."""

import logging
import sys
import time
from importlib.util import find_spec

from ...common.validation import installing

_log = logging.getLogger("slackwater")

_AGAIN_S = 600.0


def is_missing(module: str, client: str, extra: str) -> bool:
    """Return True, and log a warning, if a client is not installed."""
    try:
        is_installed = find_spec(module) is not None
    except ModuleNotFoundError:  # raised if the parent package is missing
        is_installed = False
    if not is_installed:
        _log.warning("%s is configured, but its client is not installed: %s", client, installing(extra))
    return not is_installed


def own_version() -> str:
    """Return slackwater's version, from the loaded package: importing it here would be circular."""
    return str(sys.modules[__name__.partition(".")[0]].__version__)


class Once(logging.Handler):
    """Logs a client's warnings and errors, at most one line every ten minutes."""

    def __init__(self, client: str) -> None:
        super().__init__(logging.WARNING)
        self._what = client
        self._next_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record, unless one was logged recently."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _AGAIN_S
            line = record.getMessage().partition("\n")[0]
            _log.warning("%s: %s (slackwater continues without it)", self._what, line)


def tell_once(logger: str, client: str) -> None:
    """Route a client's log through `Once` only."""
    log = logging.getLogger(logger)
    if not any(isinstance(handler, Once) for handler in log.handlers):
        log.addHandler(Once(client))
        log.propagate = False
