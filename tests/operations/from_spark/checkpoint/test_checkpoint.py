"""Checkpoints are read as by Spark's own reader, at every batch, without being changed."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from slackwater.errors import Corruption, Gone, Refused
from slackwater.operations.attach.tail import Tail
from slackwater.operations.from_spark.checkpoint.checkpoint import DELETED, Checkpoint, open_checkpoint
from slackwater.operations.from_spark.checkpoint.files import CheckpointFiles
from slackwater.operations.from_spark.checkpoint.places import HadoopFiles
from slackwater.operations.from_spark.checkpoint.tables import StateTable
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache

from tests.models.profiles import SEARCHES
from tests.operations.from_spark.checkpoint.by_spark import State, by_spark, plain_arrow
from tests.operations.from_spark.checkpoint.queries import (
    OF_CLASSES,
    PROVIDERS,
    QUERIES,
    RECORDED,
    run_query,
    write_input,
)
from tests.operations.from_spark.checkpoint.test_files import clean_up

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

OTHERS = ("session-spark3", "join-spark3", "two-spark3")
"""Recordings of Spark 3.5 that are only compared with those of this Spark."""
IN_GATE = (
    "aggregate-rocksdb",
    "collected-hdfs",
    "distinct-in-time-changelog",
    "join-format2",
    "map-groups-bean",
    "pandas-changelog",
    "two-hdfs",
    "window-format2",
)
"""One recording for each provider, format and kind of operator; the `ci` profile compares all."""
RECORDINGS = [
    pytest.param(each.stem, marks=() if each.stem in IN_GATE else pytest.mark.ci)
    for each in sorted(RECORDED.glob("*.zip"))
    if each.stem not in OTHERS
]


@pytest.fixture
def spark() -> SparkSession:
    return SparkSession.builder.getOrCreate()


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_checkpoints_are_read_as_by_sparks_own_reader(
    name: str, recorded: Callable[[str], Path], spark: SparkSession
) -> None:
    _hold_to_spark(recorded(name), spark)


@pytest.mark.ci
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("query", QUERIES)
def test_each_state_store_provider_is_read_as_by_sparks_own_reader(
    query: str, provider: str, tmp_path: Path, spark: SparkSession
) -> None:
    if query in OF_CLASSES and provider == "hdfs":
        pytest.skip("Spark has none")
    write_input(tmp_path / "input")
    run_query(spark.newSession(), query, provider, tmp_path / "input", tmp_path / "checkpoint")
    _hold_to_spark(tmp_path / "checkpoint", spark)


@pytest.mark.ci
@pytest.mark.parametrize(("query", "provider"), [("session", "changelog"), ("join", "hdfs"), ("two", "hdfs")])
def test_a_checkpoint_of_spark_3_equals_that_of_this_spark(
    query: str, provider: str, recorded: Callable[[str], Path], tmp_path: Path, spark: SparkSession
) -> None:
    """Both versions ran the same query over the same files.

    The comparison omits standard deviations, which depend on the order of rows in a task. Spark's own reader is not the
    oracle, because it cannot read sessions of Spark 3.
    """
    write_input(tmp_path / "input")
    run_query(spark.newSession(), query, provider, tmp_path / "input", tmp_path / "now")
    with (
        open_checkpoint(str(recorded(f"{query}-spark3")), spark) as older,
        open_checkpoint(str(tmp_path / "now"), spark) as newer,
    ):
        batches = older.readable_batches()[-4:]
        assert len(batches) == 4
        assert [each.schema for each in older.tables] == [each.schema for each in newer.tables]
        for there, here in zip(older.tables, newer.tables, strict=True):
            state = _whole(older, there, batches[0])
            assert state == _whole(newer, here, batches[0])
            for batch, changes in zip(batches[1:], older.read_changes(there, batches[0], batches[-1]), strict=True):
                _apply(state, there, changes)
                assert state == _whole(newer, here, batch)


@pytest.mark.parametrize("name", ["aggregate-hdfs", "aggregate-changelog", "aggregate-format2"])
def test_spark_itself_reads_no_state_with_a_needed_file_missing(
    name: str, recorded: Callable[[str], Path], tmp_path: Path, spark: SparkSession
) -> None:
    files = CheckpointFiles(LocalStore(recorded(name)))
    files.copy_whole_state(files.stores(), 3, tmp_path / "all")
    for victim in sorted((tmp_path / "all/state/0/1").glob("[0-9]*")):
        shutil.copytree(tmp_path / "all", tmp_path / victim.name)
        (tmp_path / victim.name / "state/0/1" / victim.name).unlink()
        session = spark.newSession()
        session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", files.format_of(3))
        reader = session.read.format("statestore").option("path", f"file:{tmp_path / victim.name}")
        with pytest.raises((PySparkException, Py4JJavaError)):
            reader.option("batchId", 3).load().count()


@pytest.mark.parametrize(
    ("name", "victim"),
    [("aggregate-hdfs", "3.delta"), ("aggregate-changelog", "3.changelog"), ("aggregate-rocksdb", "4.zip")],
)
def test_a_damaged_file_is_named_with_its_batch(
    name: str, victim: str, recorded: Callable[[str], Path], spark: SparkSession
) -> None:
    """Also for files without checksums, and for reads of several batches at once."""
    folder = recorded(name)
    file = folder / "state/0/1" / victim
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    is_whole = victim.endswith("zip")
    has = "the state at the end of batch 3" if is_whole else "the changes of batch 2"
    said = f"state/0/1/{victim} of the checkpoint is damaged .*: it has {has}"
    with open_checkpoint(str(folder), spark) as checkpoint:
        (table,) = checkpoint.tables
        with pytest.raises(Corruption, match=said):
            list(checkpoint.read_rows(table, 3))
        with pytest.raises(Corruption, match=said):
            list(checkpoint.read_changes(table, 0, 4))


def test_a_missing_state_file_leaves_no_empty_app(
    recorded: Callable[[str], Path], cache: SstCache, spark: SparkSession
) -> None:
    folder, store = recorded("aggregate-changelog"), MemoryStore()
    (folder / "state/0/1/3.changelog").unlink()
    with open_checkpoint(str(folder), spark) as checkpoint:
        following = Tail(store, cache, checkpoint, "shop", "totals", by="host:1")
        with pytest.raises(Gone, match=r"state/0/1/3\.changelog is missing"):
            following.plan()
        following.claim()
        with pytest.raises(
            Refused, match=r"cannot continue to read .*, after 8 more attempts: .* state/0/1/3\.changelog is"
        ):
            following.commit_next()


@pytest.mark.parametrize("name", ["aggregate-hdfs", "aggregate-rocksdb"])
def test_batches_that_were_cleaned_up_are_reported_as_gone(
    name: str, recorded: Callable[[str], Path], spark: SparkSession
) -> None:
    folder = recorded(name)
    with open_checkpoint(str(folder), spark) as checkpoint:
        (table,) = checkpoint.tables
        changes = checkpoint.read_changes(table, 0, 4)
        clean_up(LocalStore(folder), 4)
        with pytest.raises(Gone, match="is incomplete"):
            list(changes)
        with pytest.raises(Gone, match=r"batch 1 of .* is incomplete"):
            list(checkpoint.read_rows(table, 1))


def test_other_file_systems_are_read_through_sparks_hadoop_client(
    recorded: Callable[[str], Path], spark: SparkSession
) -> None:
    folder = recorded("aggregate-hdfs")
    ours, theirs = open_store(str(folder)), HadoopFiles(f"file:{folder}", spark)
    keys = {info.key: info.size_bytes for info in ours.list("")}
    assert {info.key: info.size_bytes for info in theirs.list("")} == keys
    assert all(theirs.get(key) == ours.get(key) for key in keys)
    assert theirs.get_range("metadata", 2, 5) == ours.get_range("metadata", 2, 5)
    assert CheckpointFiles(theirs).readable_batches() == CheckpointFiles(ours).readable_batches()
    assert not list(theirs.list("none/"))


def test_a_checkpoint_on_s3_is_read_without_hadoop(
    recorded: Callable[[str], Path], s3_url: str, spark: SparkSession
) -> None:
    folder, bucket = recorded("aggregate-format2"), open_store(s3_url)
    for each in folder.rglob("*"):
        if each.is_file():
            bucket.put(each.relative_to(folder).as_posix(), each.read_bytes())
    with open_checkpoint(s3_url.replace("s3:", "s3a:"), spark) as there, open_checkpoint(str(folder), spark) as here:
        assert there.readable_batches() == here.readable_batches()
        assert _whole(there, there.tables[0], 4) == _whole(here, here.tables[0], 4)
        changed = zip(there.read_changes(there.tables[0], 0, 4), here.read_changes(here.tables[0], 0, 4), strict=True)
        assert all(one.sort_by("k").equals(other.sort_by("k")) for one, other in changed)


def _hold_to_spark(folder: Path, spark: SparkSession) -> None:
    """Compare the first and last states with Spark's reader. The profiles `ci` and `nightly` also compare changes."""
    before = _listing(folder)
    with open_checkpoint(str(folder), spark) as checkpoint:
        batches = checkpoint.readable_batches()[-4 if SEARCHES else -3 :]
        assert len(batches) == (4 if SEARCHES else 3)
        assert len({table.name for table in checkpoint.tables}) == len(checkpoint.tables) > 0
        for table in checkpoint.tables:
            state: State = {}
            changes: Iterator[pa.Table] = iter([])
            for batch in batches:
                if batch == batches[0]:
                    state = _whole(checkpoint, table, batch)
                    changes = checkpoint.read_changes(table, batch, batches[-1])
                else:
                    _apply(state, table, next(changes))
                if SEARCHES or batch in (batches[0], batches[-1]):
                    expected = by_spark(spark, folder, checkpoint, table, batch)
                    assert state == expected, f"{table.name or table.kind} at the end of batch {batch}"
            assert _whole(checkpoint, table, batches[-1]) == state
            assert next(changes, None) is None
    assert _listing(folder) == before


def _rows(table: StateTable, found: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(map(plain_arrow, (row[name] for name in table.schema.names))) for row in found.to_pylist()]


def _whole(checkpoint: Checkpoint, table: StateTable, batch: int) -> State:
    rows = [row for each in checkpoint.read_rows(table, batch) for row in _rows(table, each)]
    state = {row[: len(table.key)]: row[len(table.key) :] for row in rows}
    assert len(state) == len(rows), "a key is there twice"
    return state


def _apply(state: State, table: StateTable, changes: pa.Table) -> None:
    assert changes.schema.names == [*table.schema.names, DELETED]
    rows = _rows(table, changes)
    for row, deleted in zip(rows, changes[DELETED].to_pylist(), strict=True):
        key = row[: len(table.key)]
        if deleted:
            state.pop(key, None)
        else:
            state[key] = row[len(table.key) :]
    assert len({row[: len(table.key)] for row in rows}) == len(rows), "a key is there twice"


def _listing(folder: Path) -> Sequence[tuple[str, int, int, bytes]]:
    return [
        (str(each), each.stat().st_mtime_ns, each.stat().st_ctime_ns, each.read_bytes() if each.is_file() else b"")
        for each in sorted(folder.rglob("*"))
    ]
