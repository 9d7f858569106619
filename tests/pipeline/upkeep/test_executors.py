"""Merges on executors: the merges that are sent there, lost executors, and a stopped runner."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slackwater.pipeline.batch.committer import StageMeter
from slackwater.pipeline.spark.session import _settings
from slackwater.pipeline.upkeep.executors import MAX_MERGES, MergeSlots
from slackwater.pipeline.upkeep.upkeep import exceeding
from slackwater.store.compaction.plan import Compaction
from slackwater.store.objects.counting import Stats

from tests.pipeline.upkeep.on_cluster import BATCHES, Outcome
from tests.store.compaction.runs import compaction_of, runs_of

ROOT = Path(__file__).parents[3]


def merge_of(size: int) -> Compaction:
    return compaction_of(runs_of(size, 0), drops_tombstones=True)


@given(st.lists(st.integers(0, 100)), st.integers(0, 200), st.integers(0, 200))
def test_executors_get_merges_only_if_the_debt_exceeds_what_the_driver_can_merge_in_time(
    sizes: list[int], running_bytes: int, driver_bytes: int
) -> None:
    waiting = [merge_of(size) for size in sizes]
    elsewhere = list(exceeding(waiting, running_bytes, driver_bytes))
    assert bool(elsewhere) == (running_bytes + sum(sizes) > driver_bytes and sum(sizes) > 0)
    ahead = running_bytes + sum(sizes) - sum(merge.input_bytes for merge in elsewhere)
    assert ahead <= max(driver_bytes, running_bytes)


def test_the_most_urgent_merges_stay_with_the_driver() -> None:
    first, second, third = merges = [merge_of(60), merge_of(40), merge_of(1)]
    assert list(exceeding(merges, 0, 101)) == []
    assert list(exceeding(merges, 0, 100)) == [third]
    assert list(exceeding(merges, 1, 100)) == [second, third]
    assert list(exceeding(merges, 41, 100)) == [first, second, third]


@pytest.mark.parametrize(("slots", "expected"), [(0, 1), (2, 1), (7, 1), (8, 2), (1000, MAX_MERGES)])
def test_merges_take_a_quarter_of_the_slots_and_at_least_one(slots: int, expected: int) -> None:
    merge_slots = MergeSlots(lambda: slots)
    assert [merge_slots.take() for _ in range(expected + 1)] == [True] * expected + [False]
    merge_slots.give_back()
    assert (merge_slots.take(), merge_slots.take()) == (True, False)


def test_a_version_counts_the_requests_of_merges_on_executors(tmp_path: Path) -> None:
    meter = StageMeter(tmp_path)
    for gets in (1, 2):
        meter.add(Stats(gets=gets, puts=1))
    assert (meter.take().gets, meter.take().puts) == (3, 0)


def test_only_sessions_on_a_cluster_run_merges_on_executors() -> None:
    mode, pools = "spark.scheduler.mode", "spark.scheduler.allocation.file"
    assert not {mode, pools} & _settings("app", "local[2]", {}).keys()
    settings = _settings("app", "spark://head:7077", {})
    assert settings[mode] == "FAIR"
    assert Path(settings[pools].removeprefix("file:")).is_file()
    assert _settings("app", "spark://head:7077", {pools: "file:/own.xml"})[pools] == "file:/own.xml"


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Outcome]]:
    """Return a function by which a driver with two executors merges, as `on_cluster.py` describes."""
    folder = tmp_path_factory.mktemp("merging")
    home = folder / "spark"
    home.mkdir()
    installed = Path(pyspark.__file__).parent
    for entry in installed.iterdir():
        # Spark's executors write into a folder of its home.
        (home / entry.name).symlink_to(entry)
    scala = next(installed.glob("jars/spark-core_*.jar")).name.split("_")[1].partition("-")[0]
    environment = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": scala}
    command = [sys.executable, "-m", "tests.pipeline.upkeep.on_cluster", str(folder)]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None

        def tell(case: str) -> Outcome:
            driver.stdin.write(f"{case}\n")
            driver.stdin.flush()
            return Outcome(**json.loads(driver.stdout.readline()))

        yield tell
        driver.stdin.close()
        assert driver.wait(60) == 0


def newest_rows() -> dict[str, int]:
    """Return the rows expected after the stage's batches. The newest batch has all keys."""
    version = BATCHES + 2
    return {f"o{n}": version * 100 + n for n in range(version * 10)}


@pytest.mark.ci
@pytest.mark.spark
def test_below_the_bound_the_driver_merges(merging: Callable[[str], Outcome]) -> None:
    outcome = merging("below")
    assert (outcome.executors, outcome.puts, outcome.named, outcome.rows) == ([], 0, 2, newest_rows())
    # Its results are sent to the executors.
    assert outcome.cached == 2


@pytest.mark.spark
def test_above_the_bound_an_executor_merges_and_the_next_version_adopts_its_result(
    merging: Callable[[str], Outcome],
) -> None:
    outcome = merging("above")
    assert (outcome.puts, outcome.named, outcome.rows) == (1, 2, newest_rows())
    assert (len(outcome.executors), outcome.cached) == (1, 2)
    assert outcome.ran_at == outcome.homes
    assert outcome.weights == [1000, 1]


@pytest.mark.spark
def test_a_merge_whose_executor_is_killed_is_repeated_on_another(merging: Callable[[str], Outcome]) -> None:
    outcome = merging("killed")
    assert (outcome.puts, outcome.named, outcome.rows) == (1, 2, newest_rows())
    lost, other = outcome.executors
    assert other != lost


@pytest.mark.spark
def test_a_merge_that_fails_on_an_executor_is_postponed_and_picked_again(merging: Callable[[str], Outcome]) -> None:
    outcome = merging("damaged")
    assert (outcome.named, outcome.rows) == (2, newest_rows())
    (warning,) = outcome.warnings
    assert warning.startswith("compaction of app/stage postponed: ")
    assert ".parquet" in warning


@pytest.mark.ci
@pytest.mark.spark
def test_a_runner_that_stops_during_a_merge_on_an_executor_ends_at_once_and_leaves_no_job(
    merging: Callable[[str], Outcome],
) -> None:
    outcome = merging("stopped")
    assert outcome.stop_s < 30  # the merge would last a minute
    assert outcome.progress != "under way"
