"""How many repeated requests one process may send to one server, however many of its threads wait for it."""

import time
from collections.abc import Callable
from threading import Lock

AT_ONCE = 20.0
"""Repetitions that may follow each other at once, where nobody says otherwise."""
PER_S = 1.0
"""Repetitions a second that a server may get at length, likewise."""

_PER_ANSWER = 0.1


class RetryBudget:
    """A bucket of tokens; a repetition takes one, and without one it is not sent. Safe to use from many threads.

    Backoff alone slows each request down, but a hundred threads that back off still send many times what an
    overloaded server can answer, most of it for the second or third time. The bucket bounds the sum: tokens come
    with time, one a tenth of the requests answered, and a repetition that was answered gives its own back, so that
    a server that has come back is believed at once. ("Handling Overload" in Site Reliability Engineering, Beyer et
    al. 2016, has a client's repetitions at 10 % of its requests; the standard retry mode of AWS's SDKs has the
    bucket, with a refund.)

    Args:
        at_once: tokens in a full bucket, which it is at first; at least 1.
        per_s: tokens that come back each second; above 0.
        clock: seconds, never going back.
    """

    def __init__(
        self, at_once: float = AT_ONCE, per_s: float = PER_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._clock = clock
        self._lock = Lock()
        self._tokens = at_once
        self._filled_s = clock()

    def take(self) -> bool:
        """Whether a repetition may be sent now; if so, its token is gone."""
        with self._lock:
            now_s = self._clock()
            self._tokens = min(self._at_once, self._tokens + (now_s - self._filled_s) * self._per_s)
            self._filled_s = now_s
            # What ticks of the clock add up to may fall short of a whole by a rounding.
            if self._tokens < 1 - 1e-9:
                return False
            self._tokens -= 1
            return True

    def answered(self, *, repeated: bool) -> None:
        """The server has answered a request; `repeated` when a token was taken for it."""
        with self._lock:
            self._tokens = min(self._at_once, self._tokens + (1 if repeated else _PER_ANSWER))
