"""Waiting for a server that does not answer: warnings, and a timeout."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from ...common.silence import address_of, warn_of
from ...errors import Unavailable
from .protocol import Kafka

_log = logging.getLogger("slackwater")

SETTING = "--kafka, SLACKWATER_KAFKA or kafka in slackwater.toml"
"""The setting with the brokers' address, as messages name it."""
_QUIET_S = 4
"""Seconds without an answer before a warning; a busy broker occasionally takes this long."""


@dataclass(slots=True)
class Patience:
    """Timeout for one server. Warns once when the server stops answering, and once when it answers again."""

    server: str
    """Server and address, for messages."""
    limit_s: float
    """Seconds without an answer after which `waited` raises."""
    setting: str = ""
    """The setting with the server's address, as messages name it; empty if users cannot configure it."""
    _since: float | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)

    def answered(self) -> None:
        if self._warned:
            _log.warning("%s is back", self.server)
        self._since, self._warned = None, False

    def waited(self, reason: str = "") -> None:
        """Note that a request got no answer. Raises `Unavailable` after `limit_s` without an answer."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elapsed = now - self._since
        if elapsed > self.limit_s:
            next_step = "nothing is lost: restart when it is back, and the app resumes where it stopped"
            raise Unavailable(
                f"{self.server} has not answered for {elapsed:.0f} s{f' ({reason})' if reason else ''}",
                hint="; ".join(filter(None, (address_of(self.setting), next_step))),
            )
        if not self._warned and elapsed > _QUIET_S:
            self._warned = True
            warn_of(f"{self.server} does not answer; trying for {self.limit_s - elapsed:.0f} s more", self.setting)


def patience_with(kafka: Kafka, limit_s: float) -> Patience:
    return Patience(kafka.name, limit_s, SETTING)
