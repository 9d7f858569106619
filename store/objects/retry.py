"""Retries of requests to a server that does not answer: backoff, a deadline, and one visible warning.

A budget limits the retries that a process sends to a server from all its threads.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeVar

from ...common import runtime
from ...common.silence import SILENCE_S, address_hint, call_on_silence, warn_silent
from ...errors import Unavailable

MAX_RETRY_BURST = 20.0
RETRIES_PER_S = 1.0
_TOKENS_PER_ANSWER = 0.1

_FIRST_DELAY_S = 0.1
_MAX_DELAY_S = 5.0
_MIN_DELAY_S = 0.001
_MIN_REPORTED_OUTAGE_S = 1.0

_log = logging.getLogger("slackwater")

T = TypeVar("T")


@dataclass(eq=False)
class RetryBudget:
    """A token bucket for retries: a retry takes one token, and waits while there is none. Thread-safe.

    Backoff alone does not suffice: a hundred threads that back off still send many times the requests that an
    overloaded server can answer, mostly retries. The bucket limits the sum of all retries. Tokens refill with time, by
    a tenth for each answered request, and by one for each answered retry, so that a recovered server gets full traffic
    at once. ("Handling Overload" in Site Reliability Engineering, Beyer et al. 2016, limits a client's retries to 10 %
    of its requests; the standard retry mode of AWS's SDKs has the bucket, with a refund.)
    """

    max_burst: float = MAX_RETRY_BURST
    retries_per_s: float = RETRIES_PER_S
    clock: Callable[[], float] = field(default=runtime.monotonic, kw_only=True)

    def __post_init__(self) -> None:
        self._lock = runtime.lock()
        self._tokens = self.max_burst
        self._filled_s = self.clock()

    def take_token(self) -> bool:
        with self._lock:
            now_s = self.clock()
            self._tokens = min(self.max_burst, self._tokens + (now_s - self._filled_s) * self.retries_per_s)
            self._filled_s = now_s
            # Sums of refills may miss a whole token by a rounding error.
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True

    def refill(self, *, repeated: bool) -> None:
        """Add tokens after an answered request. `repeated` is True if the request was a retry that took a token."""
        with self._lock:
            self._tokens = min(self.max_burst, self._tokens + (1 if repeated else _TOKENS_PER_ANSWER))


class TransientError(Exception):
    """A failed attempt that may succeed when it is repeated. The message is the reason, shown to users."""


# botocore limits the number of attempts, not the time. tenacity has no shared budget and no injectable clock, which the
# tests of many concurrent clients (test_retry_budget.py) need.
@dataclass(eq=False)
class Retry:
    """Retries requests to one server until they succeed, or until `patience_s` is over. Thread-safe.

    Between attempts it sleeps a random part of a delay that doubles up to 5 s ("full jitter", M. Brooker, Exponential
    Backoff And Jitter, AWS Architecture Blog 2015), and then until the budget has a token. When the server has been
    unreachable for a second, the logger "slackwater" logs one warning for the outage, regardless of the number of
    waiting threads. Later it logs the recovery.
    """

    server: str
    patience_s: float
    """Duration for which a request is retried, in seconds from its first failure."""
    _: KW_ONLY
    setting: str = ""
    silent_s: float = SILENCE_S
    """Seconds without an answer before a warning, for a server that has never answered."""
    budget: RetryBudget | None = None
    clock: Callable[[], float] = runtime.monotonic
    sleep: Callable[[float], None] = runtime.sleep
    seed: int | None = None

    def __post_init__(self) -> None:
        self._budget = self.budget or RetryBudget(clock=self.clock)
        self._random = runtime.random(self.seed)
        self._lock = runtime.lock()
        self._has_answered = self._is_reported = False
        self._outage_since_s: float | None = None

    def call(self, attempt: Callable[[], T]) -> T:
        """Call `attempt`, and repeat the call after a `TransientError`. Raises `Unavailable` after `patience_s`."""
        first_failure_s: float | None = None
        delay_s = _FIRST_DELAY_S
        paid = False
        while True:
            began_s = self.clock()
            try:
                # A server that never answered may be a wrong address, so report its silence before the request ends.
                with nullcontext() if self._has_answered else call_on_silence(self._report_silence, self.silent_s):
                    result = attempt()
            except TransientError as error:
                now_s = self.clock()
                if first_failure_s is None:
                    first_failure_s = now_s
                elapsed_s = now_s - first_failure_s
                left_s = self.patience_s - elapsed_s
                # A remainder below the clock's resolution would never elapse.
                if left_s < _MIN_DELAY_S:
                    raise Unavailable(
                        f"{self.server} did not answer for {elapsed_s:.0f} s: {error}",
                        hint=address_hint(self.setting) or "check that it runs and can be reached from this machine",
                    ) from error.__cause__
                trying = f"{self.server} does not answer ({error}); retrying for up to {self.patience_s:.0f} s"
                self._record_outage(began_s, _MIN_REPORTED_OUTAGE_S, trying)
                paid, delay_s = self._back_off(delay_s, left_s)
            except Exception:
                self._record_answer(repeated=paid)  # a refusal is an answer
                raise
            else:
                self._record_answer(repeated=paid)
                return result

    def _report_silence(self) -> None:
        if not self._has_answered:
            since_s = self.clock() - self.silent_s
            self._record_outage(since_s, 0, f"{self.server} has not answered for {self.silent_s:.0f} s")

    def _record_outage(self, since_s: float, quiet_s: float, silence: str) -> None:
        with self._lock:
            if self._outage_since_s is None:
                self._outage_since_s = since_s
            if self._is_reported or self.clock() - self._outage_since_s < quiet_s:
                return
            self._is_reported = True
        warn_silent(silence, self.setting)

    def _back_off(self, delay_s: float, left_s: float) -> tuple[bool, float]:
        while True:
            wait_s = min(self._random.uniform(0, delay_s), left_s)
            self.sleep(wait_s)
            left_s -= wait_s
            delay_s = min(2 * delay_s, _MAX_DELAY_S)
            if self._budget.take_token():
                return True, delay_s
            if left_s < _MIN_DELAY_S:
                return False, delay_s

    def _record_answer(self, *, repeated: bool) -> None:
        self._budget.refill(repeated=repeated)
        self._has_answered = True
        if self._outage_since_s is None:
            return
        with self._lock:
            away_since, reported = self._outage_since_s, self._is_reported
            self._outage_since_s, self._is_reported = None, False
        if reported and away_since is not None:
            _log.warning("%s is back after %.0f s", self.server, self.clock() - away_since)
