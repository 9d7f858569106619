"""A query with seven state tables is followed with a small backlog; each version equals Spark's state."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from slackwater.operations.attach.rows import declare_tables
from slackwater.operations.attach.steps import SMALL_BACKLOG
from slackwater.operations.from_spark.checkpoint.checkpoint import open_checkpoint
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest
from slackwater.store.versions.side_tables import table_name

from tests.cli.verbs.calling import MODULE, done
from tests.operations.attach.following import rows_at
from tests.operations.from_spark.checkpoint.by_spark import by_spark, plain_arrow
from tests.support.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("isolated", "one_spark"), pytest.mark.timeout(1_800)]
ROOT = Path(__file__).parents[3]
MOST_BEHIND = 3
EVERY_S = 2


@contextmanager
def process(out: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and kill it with all its children at the end."""
    with (
        out.open("wb") as file,
        out.with_suffix(".err").open("wb") as errors,
        subprocess.Popen(words, stdout=file, stderr=errors, start_new_session=True, cwd=ROOT) as running,
    ):
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("seconds", [pytest.param(40, marks=pytest.mark.ci), pytest.param(600, marks=pytest.mark.soak)])
def test_a_query_with_seven_tables_is_followed_without_falling_behind(
    seconds: int, tmp_path: Path, spark: SparkSession, record_property: Callable[[str, object], None]
) -> None:
    where, out = tmp_path / "seven", tmp_path / "attach"
    query = (
        sys.executable,
        "-m",
        "tests.operations.attach.seven_tables",
        str(where),
        "--every",
        f"{EVERY_S} seconds",
    )
    with process(tmp_path / "query", *query) as running:

        def newest() -> int:
            assert running.poll() is None, (tmp_path / "query.err").read_text()[-2_000:]
            return max((int(each.name) for each in (where / "commits").glob("[0-9]*")), default=-1)

        eventually(lambda: newest() >= 2, "its first batches", 240)
        with process(out, *MODULE, "attach", str(where), "--app", "seven", "--json") as following:

            def landed() -> int:
                assert following.poll() is None, out.with_suffix(".err").read_text()[-2_000:]
                return max((each["batch"] for each in _lines(out)), default=-1)

            eventually(lambda: newest() - landed() <= 1, "the batches that there are", 240)
            first, ends_s = landed(), time.monotonic() + seconds
            eventually(lambda: newest() > first and time.monotonic() >= ends_s, "its batches", seconds + 60)
            last = newest()
            eventually(lambda: landed() >= last, "versions of them", 60)
    store = open_store(str(Path("store").absolute()))
    numbers = history.list_versions(store, "seven", "seven")
    manifests = [history.read_stored(store, "seven", "seven", number) for number in numbers]
    largest = max(_behind(_lines(out), manifests, first))
    record_property("largest_lag", largest)
    record_property("batches", last - first)
    assert largest <= MOST_BEHIND
    brought = [each.attached.batches for each in manifests if each.kind == "batch" and each.attached]
    assert set(brought[1:]) == {1} or largest > SMALL_BACKLOG, "where it keeps up, history has each batch"
    done("attach", str(where), "--app", "seven", "--once")
    head = history.head(store, "seven", "seven")
    assert head is not None
    assert head.attached is not None
    found = rows_at(store, SstCache(tmp_path / "cache", 1 << 30), head)
    with open_checkpoint(str(where), spark) as checkpoint:
        assert len(found) == len(checkpoint.tables) == 7
        for name, table in zip(declare_tables(checkpoint.tables, 1), checkpoint.tables, strict=True):
            rows = found[table_name("seven", name) if name else "seven"]
            read = {plain_arrow(key): plain_arrow(values) for key, values in rows.items()}
            assert read == by_spark(spark, where, checkpoint, table, head.attached.next_batch - 1), table.name


def _behind(lines: Sequence[dict[str, int]], manifests: Sequence[Manifest], first: int) -> Iterator[int]:
    """Yield the backlog in batches before each version after the first."""
    committed_ms = {
        each.attached.next_batch - 1: each.time_ms for each in manifests if each.kind == "batch" and each.attached
    }
    before = first
    for line in lines:
        if line["batch"] > first and line["batch"] in committed_ms:
            landed_ms = committed_ms[line["batch"]] + line["behind_ms"]
            yield max(batch for batch, at_ms in committed_ms.items() if at_ms <= landed_ms) - before
            before = line["batch"]


def _lines(file: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
