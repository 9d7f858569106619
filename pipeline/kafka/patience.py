"""Patience: what to do while a server does not answer, and what to say."""

from __future__ import annotations

import logging
import time

from ...errors import Unavailable

__all__ = ["Patience"]

_log = logging.getLogger("slackwater")

_QUIET_S = 4
"""A busy broker takes this long now and then: nothing to tell anybody."""


class Patience:
    """Waits for one server: says once that it is away, once that it is back, and gives up in the end.

    Args:
        what: The server and its address, as people should read it.
        limit_s: Seconds without an answer after which `waited` raises.
    """

    def __init__(self, what: str, limit_s: float) -> None:
        self._what = what
        self._limit_s = limit_s
        self._since: float | None = None
        self._told = False

    def answered(self) -> None:
        """The server answered."""
        if self._told:
            _log.warning("%s is back", self._what)
        self._since, self._told = None, False

    def waited(self, why: str = "") -> None:
        """The server did not answer this time.

        Raises:
            Unavailable: It has not for longer than the limit.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elapsed = now - self._since
        if elapsed > self._limit_s:
            raise Unavailable(
                f"{self._what} has not answered for {elapsed:.0f} s{f' ({why})' if why else ''}",
                hint="nothing is lost: start again when it is back, and the app goes on where it stopped",
            )
        if not self._told and elapsed > _QUIET_S:
            self._told = True
            _log.warning("%s does not answer; trying for %.0f s more", self._what, self._limit_s - elapsed)
