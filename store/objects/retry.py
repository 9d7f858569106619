"""Patience with a server that does not answer: backoff, one visible line, and an end.

A budget bounds how many repeated requests one process sends to one server, however many of its threads wait for it.
"""

import logging
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from threading import Lock
from typing import TypeVar

from ...common.silence import SILENT_S, address_of, on_silence, warn_of
from ...errors import Unavailable

AT_ONCE = 20.0
"""Repetitions that may follow each other at once, where nobody says otherwise."""
PER_S = 1.0
"""Repetitions a second that a server may get at length, where nobody says otherwise."""
_PER_ANSWER = 0.1

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 5.0
_SHORTEST_S = 0.001
_QUIET_S = 1.0
"""An outage shorter than this is nobody's concern."""

_log = logging.getLogger("slackwater")

T = TypeVar("T")


@dataclass(eq=False)
class RetryBudget:
    """A bucket of tokens; a repetition takes one, and without one it is not sent. Safe to use from many threads.

    Backoff alone slows each request down, but a hundred threads that back off still send many times what an overloaded
    server can answer, most of it for the second or third time. The bucket bounds the sum: tokens come with time, one a
    tenth of the requests answered, and a repetition that was answered gives its own back, so that a server that has
    come back is believed at once. ("Handling Overload" in Site Reliability Engineering, Beyer et al. 2016, has a
    client's repetitions at 10 % of its requests; the standard retry mode of AWS's SDKs has the bucket, with a refund.)
    """

    at_once: float = AT_ONCE
    """Tokens in a full bucket, which it is at first; at least 1."""
    per_s: float = PER_S
    """Tokens that come back each second; above 0."""
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    """Seconds, never going back."""

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._tokens = self.at_once
        self._filled_s = self.clock()

    def take(self) -> bool:
        """Whether a repetition may be sent now; if so, its token is gone."""
        with self._lock:
            now_s = self.clock()
            self._tokens = min(self.at_once, self._tokens + (now_s - self._filled_s) * self.per_s)
            self._filled_s = now_s
            # What ticks of the clock add up to may fall short of a whole by a rounding.
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True

    def answered(self, *, repeated: bool) -> None:
        """The server has answered a request; `repeated` when a token was taken for it."""
        with self._lock:
            self._tokens = min(self.at_once, self._tokens + (1 if repeated else _PER_ANSWER))


class TransientError(Exception):
    """An attempt failed in a way that may pass; its text is the reason as a person should read it."""


# Not botocore's retries, which end after a number of attempts and not of seconds, nor tenacity's, which share no budget
# and take no clock: the laws over crowds of requests (test_retry_budget.py) could not be tested.
@dataclass(eq=False)
class Retry:
    """Repeats requests to one server until they succeed or patience ends. Safe to use from many threads.

    Between attempts it waits a random part of a delay that doubles up to 5 s ("full jitter", M. Brooker, Exponential
    Backoff And Jitter, AWS Architecture Blog 2015), and on until the budget has a token for it. When the server has
    been away for a second, logger "slackwater" says so, once for each outage and however many threads wait; and once
    that it is back.
    """

    what: str
    """The server as people should read it, without credentials."""
    patience_s: float
    """How long one request is repeated, in seconds from its first failure."""
    _: KW_ONLY
    setting: str = ""
    """What has its address; empty where that is none of the user's settings."""
    silent_s: float = SILENT_S
    """After how long a request that waits for the server's very first answer is reported."""
    budget: RetryBudget | None = None
    """What all who talk to the server share; None for one of its own."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    seed: int | None = None
    """Of the jitter; None for one of the system's."""

    def __post_init__(self) -> None:
        self._budget = self.budget or RetryBudget(clock=self.clock)
        self._random = random.Random(self.seed)  # noqa: S311 - spreads load, guards nothing
        self._lock = Lock()
        self._has_answered = self._reported = False
        self._away_since: float | None = None

    def call(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, once it does not raise `TransientError`. Raises `Unavailable` when patience ends."""
        first_failure_s: float | None = None
        delay_s = _FIRST_DELAY_S
        paid = False
        while True:
            began_s = self.clock()
            try:
                # A server that never answered may be none: its silence is reported before it ends.
                with nullcontext() if self._has_answered else on_silence(self._silent, self.silent_s):
                    result = attempt()
            except TransientError as error:
                now_s = self.clock()
                if first_failure_s is None:
                    first_failure_s = now_s
                elapsed_s = now_s - first_failure_s
                left_s = self.patience_s - elapsed_s
                # A rest that the clock is too coarse to see would never be slept away.
                if left_s < _SHORTEST_S:
                    raise Unavailable(
                        f"{self.what} did not answer for {elapsed_s:.0f} s: {error}",
                        hint=address_of(self.setting) or "see that it runs and can be reached from here",
                    ) from error.__cause__
                trying = f"{self.what} does not answer ({error}); trying again for {self.patience_s:.0f} s"
                self._away(began_s, _QUIET_S, trying)
                paid, delay_s = self._rest(delay_s, left_s)
            except Exception:
                self._answered(repeated=paid)  # it refused, so it is there
                raise
            else:
                self._answered(repeated=paid)
                return result

    def _silent(self) -> None:
        if not self._has_answered:
            since_s = self.clock() - self.silent_s
            self._away(since_s, 0, f"{self.what} has not answered for {self.silent_s:.0f} s")

    def _away(self, since_s: float, quiet_s: float, silence: str) -> None:
        """Note that the server is away since then or before; say so once, if that is at least `quiet_s` ago."""
        with self._lock:
            if self._away_since is None:
                self._away_since = since_s
            if self._reported or self.clock() - self._away_since < quiet_s:
                return
            self._reported = True
        warn_of(silence, self.setting)

    def _rest(self, delay_s: float, left_s: float) -> tuple[bool, float]:
        """Wait for a random part of `delay_s`, and on until the budget has a token, but no longer than `left_s`.

        Returns:
            Whether there was a token, and the next delay. The last attempt, when patience ends, needs none: one
            a request is no multitude, and it may find a server that has come back at last.
        """
        while True:
            wait_s = min(self._random.uniform(0, delay_s), left_s)
            self.sleep(wait_s)
            left_s -= wait_s
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)
            if self._budget.take():
                return True, delay_s
            if left_s < _SHORTEST_S:
                return False, delay_s

    def _answered(self, *, repeated: bool) -> None:
        self._budget.answered(repeated=repeated)
        self._has_answered = True
        if self._away_since is None:
            return
        with self._lock:
            away_since, reported = self._away_since, self._reported
            self._away_since, self._reported = None, False
        if reported and away_since is not None:
            _log.warning("%s is back after %.0f s", self.what, self.clock() - away_since)
