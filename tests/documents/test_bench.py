"""The benchmark's table: comparison of figures with limits, and the processes whose memory counts."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.support.memory import Workers
from bench.support.row import Row
from bench.support.side import PEER
from tests.support.running import eventually

RATIOS = st.floats(0.01, 100)


@given(RATIOS, RATIOS)
def test_a_figure_is_reached_exactly_if_it_is_better_than_the_limit(ratio: float, limit: float) -> None:
    for row in (Row.at_least("", "", "", ratio, limit), Row.at_most("", "", "", ratio, limit)):
        assert row.against_asked is not None
        # Limits are shown with six digits.
        if abs(ratio - limit) > 1e-4 * limit:
            assert row.reached == (row.against_asked > 1)


@pytest.mark.parametrize(("asked", "against"), [(">= 2", 2), ("> 8", 0.5), ("<= 2", 0.5), ("< 8", 2), ("= 4", 1)])
def test_a_figure_twice_as_good_as_asked_scores_two(asked: str, against: float) -> None:
    assert Row("", "", "", 4, asked, True).against_asked == against


def test_a_limit_in_words_is_not_compared() -> None:
    assert Row("", "", "", 4, "at most the optimum", True).against_asked is None


def test_memory_counts_executor_workers_and_no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(size: int, module: str) -> "subprocess.Popen[bytes]":
        code = f"import sys; kept = bytearray({size}); print(flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", code, module]
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert started.stdout is not None
        started.stdout.readline()
        return started

    with process(20 << 20, "pyspark.worker") as worker, process(200 << 20, "planner") as planner:
        monkeypatch.setenv(PEER, "1")
        with process(200 << 20, "pyspark.worker") as peer, Workers() as workers:
            eventually(lambda: workers.own > 0, "the worker is seen")
            for each in (worker, planner, peer):
                each.communicate()
    assert 20 << 20 < workers.own < 100 << 20
