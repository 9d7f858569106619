"""`slackwater attach` beside a live Spark query, each in its own process."""

import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from slackwater.operations.attach.protocol import ReadableCheckpoint
from slackwater.operations.attach.tail import Tail
from slackwater.operations.from_spark.checkpoint.checkpoint import open_checkpoint
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.arrow_types import python_rows

from tests.cli.verbs.calling import MODULE, done, from_json
from tests.models.profiles import SEARCHES
from tests.operations.attach.following import rows_at
from tests.support.running import eventually

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("isolated")]

QUERY = Path(__file__).parents[3] / "examples" / "spark_totals.py"


@contextmanager
def live_query(checkpoint: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the query with few keys and a batch at most every 200 ms. It has committed some batches at the start."""
    size = ("--orders-per-second", "2000", "--customers", "300", "--every", "200 milliseconds")
    with subprocess.Popen(
        [sys.executable, str(QUERY), str(checkpoint), *size, *words],
        stdout=subprocess.PIPE,
    ) as query:
        try:
            begun = lambda: (checkpoint / "commits" / "2").exists() or query.poll() is not None  # noqa: E731
            eventually(begun, "its first batches", 240)
            yield query
        finally:
            query.kill()


def end(query: subprocess.Popen[bytes]) -> None:
    """Kill the query, and wait until its JVM, which shares its output, has ended and writes no more."""
    query.kill()
    assert query.stdout is not None
    query.stdout.read()


def bytes_of(folder: Path) -> dict[str, str]:
    """Return every file and folder with its content."""
    return {
        str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() if each.is_file() else ""
        for each in folder.rglob("*")
    }


def truth(checkpoint: ReadableCheckpoint, batch: int) -> dict[tuple[object, ...], tuple[object, ...]]:
    """Return a whole state as read by Spark's own reader."""
    (table,) = checkpoint.tables
    rows = (row for some in checkpoint.read_rows(table, batch) for row in python_rows(some))
    return {(row.pop("customer"),): tuple(row.values()) for row in rows}


def store_here() -> ObjectStore:
    return open_store(str(Path("store").absolute()))


@pytest.mark.usefixtures("one_spark")
@pytest.mark.parametrize("provider", ["rocksdb", pytest.param("hdfs", marks=pytest.mark.ci)])
def test_each_batch_of_a_live_query_becomes_a_version_with_its_state(tmp_path: Path, provider: str) -> None:
    from pyspark.sql import SparkSession

    store, cache, where = store_here(), SstCache(tmp_path / "sst-cache", 1 << 30), tmp_path / "totals"
    spark = SparkSession.getActiveSession()
    assert spark is not None
    compared, enough = 0, 40 if SEARCHES else 3
    with (
        live_query(where, "--provider", provider) as query,
        open_checkpoint(str(where), spark) as found,
    ):
        following = Tail(store, cache, found, "shop", "totals", by="host:1", partitions=2)
        following.claim()
        while compared < enough:
            assert query.poll() is None, "the query ended by itself"
            for landed in following.commit_next()[-1:]:
                batch = landed.manifest.attached
                assert batch is not None
                # As long as both have it: the query cleans up.
                if batch.next_batch - 1 in found.readable_batches():
                    assert rows_at(store, cache, landed.manifest)["totals"] == truth(found, batch.next_batch - 1)
                    compared += 1
        end(query)
        before = bytes_of(where)
        while following.commit_next():
            pass
        head = following.head
        assert head is not None
        assert head.attached is not None
        assert head.attached.next_batch == found.committed_batches()[-1] + 1
        assert rows_at(store, cache, head)["totals"] == truth(found, found.committed_batches()[-1])
        assert bytes_of(where) == before, "nothing was written into the checkpoint"
    assert "consistent" in done("verify", "shop", "--deep")
    batches = [each["attached"] for each in from_json("log", "shop", "--limit", "0")]
    assert batches[0] == f"batch {head.attached.next_batch - 1}"


@pytest.mark.ci
def test_attach_continues_after_it_was_killed_and_restarted(tmp_path: Path) -> None:
    where, chance = tmp_path / "totals", Random(7)
    words = [*MODULE, "attach", str(where), "--app", "shop", "--every", "200ms"]
    with live_query(where, "--seconds", "3600", "--every", "1 second") as query:
        for _ in range(30 if SEARCHES else 3):
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as following:
                assert following.stdout is not None
                for _ in range(chance.randrange(1, 4)):
                    assert "totals@v" in following.stdout.readline()
                with suppress(subprocess.TimeoutExpired):
                    following.wait(chance.uniform(0, 1))
                following.send_signal(signal.SIGKILL)
        end(query)
    before = bytes_of(where)
    done("attach", str(where), "--app", "shop", "--once")
    assert bytes_of(where) == before
    assert "consistent" in done("verify", "shop", "--deep")
    brought = [each["attached"] for each in from_json("log", "shop", "--limit", "0") if each["attached"]]
    assert len(brought) == len(set(brought)) >= (30 if SEARCHES else 3)
    newest = max(int(each.name) for each in (where / "commits").glob("[0-9]*"))
    assert brought[0].rpartition(" ")[2] == str(newest)
