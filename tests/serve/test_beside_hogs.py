"""SQL that runs out of memory does not slow down a server's other clients, at a steady rate of requests."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import urllib3
from slackwater.client import Client

from tests.support.histories import FlightsApp
from tests.support.running import eventually

from .conftest import Ask, made, serving_apart
from .test_sql import HOGS, QUERY

CARRIERS = "/apps/flights/at/now/tables/carriers?key=C1"
SMALL = f"{QUERY}?sql=SELECT+count(*)+FROM+carriers"
QUICK = HOGS[::3]
"""Statements that exceed their limit within a second on an idle machine."""
MOST_TIMES = 3.0
"""Maximum ratio of other requests' 99th percentile with these statements to the percentile without them."""
SQL_EVERY = 40


@pytest.fixture
def served(app: FlightsApp, tmp_path: Path) -> Iterator[str]:
    """Start a server process that requires tokens; yield its URL."""
    with serving_apart(app.store.url, tmp_path / "cache", "--tokens", "--sql-time", "60s") as (url, _):
        yield url


class Load:
    """Client that sends requests at a steady rate, however long their answers take: for rows, and sometimes for SQL."""

    def __init__(self, url: str, token: str, a_second: float) -> None:
        self._url, self._every_s = url, 1 / a_second
        self._http = urllib3.PoolManager(maxsize=64, retries=False, timeout=180)
        self._headers = {"authorization": f"Bearer {token}"}
        self.statuses: Counter[int] = Counter()
        self.took_s: list[float] = []

    def run(self, is_over: threading.Event, least: int) -> None:
        """Send requests until the event is set, but at least this many."""
        began_s, number = time.perf_counter(), 0
        with ThreadPoolExecutor(64) as pool:
            while number < least or not is_over.is_set():
                due_s = began_s + number * self._every_s
                time.sleep(max(0.0, due_s - time.perf_counter()))
                pool.submit(self._ask, SMALL if number % SQL_EVERY == 0 else CARRIERS, due_s)
                number += 1

    def _ask(self, path: str, due_s: float) -> None:
        found = self._http.request("GET", self._url + path, headers=self._headers)
        self.took_s.append(time.perf_counter() - due_s)
        self.statuses[found.status] += 1

    @property
    def p99_s(self) -> float:
        return float(np.percentile(self.took_s, 99))


def hold_beside(url: str, client: Client, hogs: int, a_second: float, least: int) -> float:
    """Check other clients during this many statements that run out of memory one by one, at this rate of requests.

    Returns the 99th percentile of the other client's latency, relative to the one without these statements.
    """
    hog, other = made(client, "hog", verbs=("sql",)), made(client, "other", verbs=("read", "sql"))
    ask = Ask(url)
    eventually(lambda: {ask.token(other, each).status for each in (CARRIERS, SMALL)} == {200}, "it answers")
    alone, beside = Load(url, other, a_second), Load(url, other, a_second)
    over = threading.Event()
    over.set()
    alone.run(over, least)
    over.clear()
    thread = threading.Thread(target=beside.run, args=(over, least))
    thread.start()
    try:
        found = [ask.token(hog, QUERY, sql=QUICK[number % len(QUICK)]) for number in range(hogs)]
    finally:
        over.set()
        thread.join()
    assert {each.status for each in found} == {413}
    assert {*alone.statuses} == {*beside.statuses} == {200}, (alone.statuses, beside.statuses)
    return beside.p99_s / alone.p99_s


def test_a_few_memory_hogs_do_not_slow_down_others(served: str, client: Client) -> None:
    hold_beside(served, client, hogs=5, a_second=20, least=40)


@pytest.mark.soak
def test_fifty_memory_hogs_slow_down_none_of_200_requests_a_second(
    served: str, client: Client, record_property: Callable[[str, object], None]
) -> None:
    times = hold_beside(served, client, hogs=50, a_second=200, least=4_000)
    record_property("times_p99", times)
    assert times <= MOST_TIMES
