"""Patience: what to do while a server does not answer, and what to say."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from ...common.silence import address_of, warn_of
from ...errors import Unavailable
from .protocol import Kafka

_log = logging.getLogger("slackwater")

SETTING = "--kafka, SLACKWATER_KAFKA or kafka in slackwater.toml"
"""What has the brokers' address."""
_QUIET_S = 4
"""A busy broker takes this long now and then: nothing to tell anybody."""


@dataclass(slots=True)
class Patience:
    """Waits for one server: says once that it is away, once that it is back, and gives up in the end."""

    what: str
    """The server and its address, as people should read it."""
    limit_s: float
    """Seconds without an answer after which `waited` raises."""
    setting: str = ""
    """What has its address; empty where that is none of the user's settings."""
    _since: float | None = field(default=None, init=False)
    _warned: bool = field(default=False, init=False)

    def answered(self) -> None:
        """The server answered."""
        if self._warned:
            _log.warning("%s is back", self.what)
        self._since, self._warned = None, False

    def waited(self, why: str = "") -> None:
        """The server did not answer this time. Raises `Unavailable` once it has not for longer than the limit."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elapsed = now - self._since
        if elapsed > self.limit_s:
            again = "nothing is lost: start again when it is back, and the app goes on where it stopped"
            raise Unavailable(
                f"{self.what} has not answered for {elapsed:.0f} s{f' ({why})' if why else ''}",
                hint="; ".join(filter(None, (address_of(self.setting), again))),
            )
        if not self._warned and elapsed > _QUIET_S:
            self._warned = True
            warn_of(f"{self.what} does not answer; trying for {self.limit_s - elapsed:.0f} s more", self.setting)


def patience_with(kafka: Kafka, limit_s: float) -> Patience:
    """Patience with the brokers."""
    return Patience(kafka.name, limit_s, SETTING)
