"""The retries of many threads together, while a server is down, has recovered, or is overloaded."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.errors import Unavailable
from slackwater.store.objects.retry import Retry, RetryBudget, TransientError

from tests.models.profiles import scaled
from tests.support.crowd import Crowd

PATIENCE_S = 60.0


class Server:
    """A server that is down from `away_s` until `back_s`, and that answers only `per_s` requests in each second."""

    def __init__(self, crowd: Crowd, *, away_s: float = 0, back_s: float = 0, per_s: float = 1e9) -> None:
        self._crowd = crowd
        self._away_s, self._back_s, self._per_s = away_s, back_s, per_s
        self._answers: dict[int, int] = {}
        self.asked_s: list[float] = []
        self.answered_s: list[float] = []

    def ask(self) -> None:
        now_s = self._crowd.now_s
        self.asked_s.append(now_s)
        answers = self._answers.get(int(now_s), 0)
        if self._away_s <= now_s < self._back_s or answers >= self._per_s:
            raise TransientError("503 SlowDown")
        self._answers[int(now_s)] = answers + 1
        self.answered_s.append(now_s)


def retries(crowd: Crowd, budget: RetryBudget, num: int) -> list[Retry]:
    return [
        Retry("S3", PATIENCE_S, budget=budget, clock=crowd.clock, sleep=crowd.sleep, seed=seed) for seed in range(num)
    ]


@scaled(17, in_ci=100)
@given(st.integers(1, 40), st.integers(1, 30), st.floats(0.1, 5))
def test_many_clients_of_a_server_that_is_down_retry_no_more_than_the_budget_allows(
    num: int, at_once: int, per_s: float
) -> None:
    crowd = Crowd()
    server = Server(crowd, back_s=1e9)
    ended_s = []

    def patient(retry: Retry) -> None:
        with pytest.raises(Unavailable):
            retry.call(server.ask)
        ended_s.append(crowd.now_s)

    budget = RetryBudget(at_once, per_s, clock=crowd.clock)
    crowd.run([partial(patient, retry) for retry in retries(crowd, budget, num)])
    # Each asks once at first and once at last.
    assert len(server.asked_s) <= 2 * num + at_once + per_s * PATIENCE_S + 1
    assert ended_s == pytest.approx([PATIENCE_S] * num, abs=0.001)


def waiting(at_once: float) -> Server:
    """Return a server that was down for 50 s, after 32 threads have waited for it."""
    crowd = Crowd()
    server = Server(crowd, back_s=50)
    budget = RetryBudget(at_once, 1, clock=crowd.clock)
    crowd.run([partial(retry.call, server.ask) for retry in retries(crowd, budget, 32)])
    assert len(server.answered_s) == 32
    return server


def test_without_a_budget_the_same_clients_would_retry_many_times_as_often() -> None:
    assert 5 * len(waiting(20).asked_s) < len(waiting(1e6).asked_s)


def test_all_clients_succeed_soon_after_a_server_recovers() -> None:
    # A token a second would let the last of them wait for half a minute.
    assert max(waiting(20).answered_s) < 50 + 10


def test_an_overloaded_server_gets_few_retries_beyond_the_requests() -> None:
    crowd = Crowd()
    server = Server(crowd, per_s=10)
    budget = RetryBudget(max_burst=20, retries_per_s=1, clock=crowd.clock)

    def worker(retry: Retry) -> None:
        for _ in range(30):
            retry.call(server.ask)
            crowd.sleep(0.5)

    crowd.run([partial(worker, retry) for retry in retries(crowd, budget, 16)])
    refused = len(server.asked_s) - len(server.answered_s)
    assert len(server.answered_s) == 16 * 30
    # Of each request the first attempt is free; of the others those that were answered gave their tokens back.
    assert refused <= 16 * 30 + 20 + crowd.now_s + 0.1 * len(server.answered_s)


def test_the_tokens_never_exceed_the_maximum_burst() -> None:
    crowd = Crowd()
    budget = RetryBudget(3, 1, clock=crowd.clock)
    crowd.now_s = 1000
    for _ in range(100):
        budget.refill(repeated=False)
    assert [budget.take_token() for _ in range(4)] == [True, True, True, False]


def test_an_answered_retry_returns_its_token_and_ten_answers_earn_one() -> None:
    budget = RetryBudget(2, 0.001, clock=lambda: 0.0)
    assert [budget.take_token() for _ in range(3)] == [True, True, False]
    budget.refill(repeated=True)
    assert [budget.take_token() for _ in range(2)] == [True, False]
    for _ in range(10):
        assert not budget.take_token()
        budget.refill(repeated=False)
    assert [budget.take_token() for _ in range(2)] == [True, False]
