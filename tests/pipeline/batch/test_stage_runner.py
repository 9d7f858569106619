"""One batch of a stage, from Spark's plan to the manifest, with Kafka in memory and a loop instead of a Spark job."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.types import LongType, StructField, StructType
from slackwater.errors import Corruption, Fenced
from slackwater.pipeline.api.stage import Stage
from slackwater.pipeline.api.table import DEFAULT_TABLE
from slackwater.pipeline.api.topic import Repartition, topic
from slackwater.pipeline.batch.committer import StageMeter
from slackwater.pipeline.batch.job import BatchLimits, Engine, StageConfig, StageJob
from slackwater.pipeline.batch.schemas import StageSchemas
from slackwater.pipeline.batch.stage_runner import StageRunner
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.messages import header_value, send_messages, split_into_messages
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.listener import BatchReport
from slackwater.pipeline.source.options import ScratchCheckpoint
from slackwater.pipeline.source.wake import PlannerFiles
from slackwater.pipeline.spark.worker_resources import WorkerResources
from slackwater.state.event_time import BatchTimes
from slackwater.state.next_version import PartitionWrite, TaskReport
from slackwater.state.records import Position
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.ttl import BEFORE_FIRST_EVENT_MS, claim_clock_ms
from slackwater.store.versions import history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import Column, Input, Manifest, Output, Table, Ttl, VersionSpan

from tests.support.manifests import claim

ROWS = StructType([StructField("n", LongType())])
SNAPSHOT = "s1"
NO_ENGINE = cast("Engine", None)


class Looped(StageJob):
    """A job that writes numbers to its channel, each to the partition `number % 2`, in two attempts.

    A number is also its row's event time.
    """

    def __init__(self, config: StageConfig, store: ObjectStore, cache: SstCache) -> None:
        super().__init__(config, NO_ENGINE, store, cache, homes=None, access=lambda: None, stopping=lambda: False)
        self.stage, self.kafka = config.stage, open_kafka(config.resources.kafka)
        self.jobs = 0
        self.clocks: list[int] = []
        """Clock that each attempt uses for look-ups."""
        self.records: list[object] = []
        """Number of records that each job was given."""

    def _compute_rows(  # type: ignore[override]
        self, rows: list[int], base: Manifest, times: BatchTimes, **more: object
    ) -> tuple[TaskReport, ...]:
        self.jobs += 1
        self.records.append(more["records"])
        (channel,) = self.stage.writes
        name, partitions = base.outputs[channel.name].topic, len(base.outputs[channel.name].ends)
        results = []
        for task in range(2):
            mine = [n for n in rows if n // 10 % 2 == task]
            if mine:
                attempt = f"w.{base.version + 1}.{task}"
                messages = list(split_into_messages(pa.table({"n": mine}), np.array(mine) % partitions))
                ends = send_messages(self.kafka, name, messages, attempt.encode(), patience_s=180)
                sent = {p: PartitionWrite(sum(n % partitions == p for n in mine), end) for p, end in ends.items()}
                self.clocks.append(times.clock_ms)
                results.append(TaskReport(attempt, len(mine), sent={channel.name: sent}, event_ms=max(mine)))
        return tuple(results)


class Running:
    """A stage that reads channels `left` and `right`, or the topic `events`, and writes `out` in two partitions."""

    def __init__(self, memory_kafka: MemoryKafka, folder: Path, *reads: str, table: Table | None = None) -> None:
        self.kafka = memory_kafka
        self.store = CountingStore(LocalStore(folder / "store"))
        self.topic = f"out-{uuid4().hex[:8]}"
        self.kafka.create_topics({self.topic: 2})
        self.scratch = folder / "scratch"
        self.told: list[BatchReport] = []
        self.at: dict[str, Position] = {}
        stage = Stage(
            name="s",
            transform=lambda frame: frame,
            reads=reads or (topic("events"),),
            writes=(Repartition("out", ("n",), 2),),
            state=None,
            key=(),
            table=DEFAULT_TABLE,
        )
        inputs = {name: Input(name, (0, 0), f"writer-of-{name}", consumed=(0, 0)) for name in reads}
        claimed = claim(
            self.store,
            "a",
            "s",
            writer="w",
            by="test:1",
            now_ms=1,
            build=lambda draft: replace(
                draft,
                table=table,
                clock_ms=claim_clock_ms(None, table, 0),
                inputs=inputs or {"events": Input("events", (0, 0))},
                outputs={"out": Output(self.topic, (0, 0), schema="n long", sent=(0, 0))},
            ),
        )
        config = StageConfig(
            stage,
            StageSchemas(dict.fromkeys(reads, ROWS), {"out": ROWS}, (), None, None),
            WorkerResources("a", "s", str(folder / "store"), self.kafka.properties, (folder / "cache", 1 << 20), 30),
            BatchLimits(None, 0),
            ScratchCheckpoint(self.scratch),
            PlannerFiles(folder / "told"),
        )
        self.runner = StageRunner(
            config,
            claimed,
            engine=NO_ENGINE,
            store=self.store,
            meter=StageMeter(folder / "counts", self.store),
            on_commit=self.told.append,
        )
        self.job = self.runner._job = Looped(config, self.store, SstCache(folder / "cache", 1 << 20))
        self.batch = 1
        self.at = {name: Position(name, (0, 0), 0, (0, 0) if reads else ()) for name in claimed.inputs}
        ScratchCheckpoint(self.scratch).write(1, tuple(self.at.values()))

    def run(self, rows: list[int], *ends: Position) -> Manifest:
        """Log the ends of the inputs as Spark does, run the batch, and return the new head."""
        self.at |= {end.input: end for end in ends}
        self.batch += 1
        lines = "\n".join(json.dumps(position.to_json()) for position in self.at.values())
        (self.scratch / "offsets" / str(self.batch)).write_text(f"v1\n{{}}\n{lines}")
        self.runner._on_batch(rows, self.batch)
        head = history.head(self.store, "a", "s")
        assert head is not None
        assert head == self.runner.head
        return head

    def headers(self) -> list[list[str]]:
        """Return the headers of the messages in each partition of the output."""
        ends = self.kafka.offset_bounds(self.topic)[1]
        return [
            [
                header_value(message)
                for chunk in self.kafka.read(self.topic, p, 0, end, patience_s=180)
                for message in chunk
            ]
            for p, end in enumerate(ends)
        ]


def at(name: str, version: int, rows: int, *snapshots: str) -> Position:
    """Return the position after a version. Each partition has one message per version, and `rows` rows."""
    return Position(name, (version, version), version, (rows, rows), snapshots)


@pytest.fixture
def joined(memory_kafka: MemoryKafka, tmp_path: Path) -> Iterator[Running]:
    running = Running(memory_kafka, tmp_path, "left", "right")
    yield running
    running.runner.close()


@pytest.fixture
def source(memory_kafka: MemoryKafka, tmp_path: Path) -> Iterator[Running]:
    running = Running(memory_kafka, tmp_path)
    yield running
    running.runner.close()


def test_a_commit_has_the_offsets_read_and_the_rows_sent(joined: Running) -> None:
    head = joined.run([0, 2, 11, 13], at("left", 3, 2))
    assert (head.version, head.kind) == (2, "batch")
    read = head.inputs["left"]
    assert (read.offsets, read.version, read.consumed, read.rows) == ((3, 3), 3, (2, 2), 4)
    assert head.inputs["right"] == Input("right", (0, 0), "writer-of-right", consumed=(0, 0))
    out = head.outputs["out"]
    assert (out.ends, out.sent, out.rows, out.attempts) == ((1, 1), (2, 2), 4, ("w.2.0", "w.2.1"))
    head = joined.run([4, 12], at("left", 4, 3))
    out = head.outputs["out"]
    assert (out.ends, out.sent, out.rows, out.attempts) == ((3, 1), (4, 2), 2, ("w.3.0", "w.3.1"))
    assert [(told.version, told.rows_in, told.rows_out) for told in joined.told] == [(2, 4, 4), (3, 2, 2)]


def test_a_commit_has_the_position_of_each_input(joined: Running) -> None:
    head = joined.run([0, 1], at("left", 3, 2), at("right", 5, 4))
    for name, version, rows in (("left", 3, 2), ("right", 5, 4)):
        read = head.inputs[name]
        assert (read.offsets, read.version, read.consumed) == ((version, version), version, (rows, rows))
        assert (read.rows, read.upstream) == (2 * rows, f"writer-of-{name}")
    assert joined.job.records == [12], "rows of both inputs, by which the number of tasks is chosen"


def test_the_marker_is_written_to_every_partition_after_the_rows_of_its_version(joined: Running) -> None:
    head = joined.run([0, 10, 2], at("left", 3, 2, SNAPSHOT))  # nothing for partition 1
    assert [sorted(headers[:-1]) for headers in joined.headers()] == [["w.2.0", "w.2.1"], []]
    assert [headers[-1] for headers in joined.headers()] == [f"marker {SNAPSHOT}"] * 2
    out = head.outputs["out"]
    assert (out.ends, out.markers, out.rows, out.sent) == ((3, 1), {SNAPSHOT: (2, 0)}, 3, (3, 0))
    assert (head.recorded, head.awaited, head.captured) == ({SNAPSHOT: 2}, {SNAPSHOT: ("right",)}, {})
    assert joined.told[-1].snapshots == (SNAPSHOT,)
    assert joined.run([1], at("left", 4, 3)).outputs["out"].markers == {}, "a marker belongs to one version"


def test_a_stage_takes_part_in_a_snapshot_from_its_first_marker_until_the_request_is_closed(joined: Running) -> None:
    joined.run([1], at("left", 3, 2, SNAPSHOT))
    assert joined.run([2], at("right", 5, 4)).captured == {SNAPSHOT: {"right": VersionSpan(0, 5)}}
    head = joined.run([], at("right", 6, 4, SNAPSHOT))
    assert (head.recorded, head.awaited) == ({SNAPSHOT: 2}, {})
    assert head.captured == {SNAPSHOT: {"right": VersionSpan(0, 6)}}
    joined.runner.drop_snapshots(frozenset({SNAPSHOT}))
    head = joined.run([3], at("right", 7, 5))
    assert (head.recorded, head.awaited, head.captured) == ({}, {}, {})
    assert [headers.count(f"marker {SNAPSHOT}") for headers in joined.headers()] == [1, 1]


def test_a_batch_of_markers_starts_no_spark_job(joined: Running) -> None:
    joined.run([1], at("left", 3, 2))
    head = joined.run([], at("left", 4, 2, SNAPSHOT))
    assert (joined.job.jobs, head.inputs["left"].offsets, head.recorded) == (1, (4, 4), {SNAPSHOT: 3})
    joined.run([2], at("left", 5, 3), at("right", 1, 0, SNAPSHOT))
    assert joined.job.jobs == 2


def test_a_marker_without_rows_is_committed_and_an_empty_batch_is_not(source: Running) -> None:
    head = source.run([], Position("events", (0, 0), snapshots=(SNAPSHOT,)))
    assert (head.version, head.recorded) == (2, {SNAPSHOT: 2})
    assert source.run([], Position("events", (0, 0), snapshots=(SNAPSHOT,))).version == 2
    source.runner.drop_snapshots(frozenset({SNAPSHOT}))
    assert source.run([], Position("events", (0, 0), snapshots=(SNAPSHOT,))).version == 2
    head = source.run([8], Position("events", (1, 0)))
    assert (head.version, head.recorded, head.inputs["events"].rows) == (3, {}, 1)
    # A partition that the topic was given meanwhile.
    assert source.run([9], Position("events", (1, 0, 2))).inputs["events"].rows == 2


def test_a_batch_whose_number_a_compaction_has_taken_is_committed_whole_after_it(joined: Running) -> None:
    before = joined.run([1], at("left", 3, 2))
    compaction = successor(before, kind="compaction", epoch=before.epoch, writer="c", by="test:3", now_ms=2)
    commit(joined.store, compaction)
    head = joined.run([0, 2], at("left", 4, 3, SNAPSHOT))
    assert (head.version, head.row_seq, head.recorded) == (4, 3, {SNAPSHOT: 4})
    out = head.outputs["out"]
    assert (out.rows, out.sent, out.attempts, out.markers) == (2, (2, 1), ("w.3.0",), {SNAPSHOT: (1, 1)})
    assert (joined.told[-1].version, joined.told[-1].snapshots) == (4, (SNAPSHOT,))
    assert joined.run([3], at("left", 5, 4)).outputs["out"].attempts == ("w.5.0",)


def test_uncommitted_messages_are_named_by_no_manifest(joined: Running) -> None:
    other = claim(joined.store, "a", "s", writer="other", by="test:2", now_ms=2)
    with pytest.raises(Fenced):
        joined.run([0, 1], at("left", 3, 2, SNAPSHOT))
    assert history.head(joined.store, "a", "s") == other
    assert isinstance(joined.runner.error, Fenced)
    assert joined.headers() == [["w.2.0", f"marker {SNAPSHOT}"]] * 2
    assert joined.told == []


def expiring(column: str) -> Table:
    return Table((Column("k", "int64"),), (Column("at", "timestamp[us]"),), 1, ttl=Ttl(1_000, column))


def test_the_event_time_clock_is_the_largest_time_of_earlier_batches(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    running = Running(memory_kafka, tmp_path, "left", table=expiring("at"))
    heads = [
        running.run(rows, at("left", version, version)) for version, rows in enumerate(([3, 17], [5], [], [11, 20]), 1)
    ]
    assert [head.clock_ms for head in heads] == [17, 17, 17, 20]
    assert running.job.clocks == [BEFORE_FIRST_EVENT_MS, BEFORE_FIRST_EVENT_MS, 17, 17, 17], (
        "every attempt has the same"
    )


def test_the_write_time_clock_is_the_drivers_at_the_batchs_start(memory_kafka: MemoryKafka, tmp_path: Path) -> None:
    running = Running(memory_kafka, tmp_path, "left", table=expiring(""))
    before_ms = time.time_ns() // 1_000_000
    head = running.run([3, 17], at("left", 1, 1))
    assert before_ms <= head.clock_ms <= head.time_ms
    assert running.job.clocks == [head.clock_ms] * 2


def test_a_batch_that_misses_an_object_deleted_by_a_forget_is_computed_again(joined: Running) -> None:
    job, compute = joined.job, joined.job._compute_rows

    def meanwhile(rows: list[int], base: Manifest, times: BatchTimes, **more: object) -> tuple[TaskReport, ...]:
        done = compute(rows, base, times, **more)
        if job.jobs > 1:
            return done
        forgot = successor(base, kind="forget", epoch=base.epoch, writer="forget", by="ada", now_ms=base.time_ms + 1)
        commit(joined.store, replace(forgot, forgotten=1))
        raise Corruption("the object is missing", object_key="a/stages/s/sst/gone.parquet")

    job._compute_rows = meanwhile  # type: ignore[method-assign, assignment]
    head = joined.run([0, 2, 11], at("left", 3, 2))
    assert (head.version, head.kind, head.forgotten, job.jobs) == (3, "batch", 1, 2)
    assert head.outputs["out"].attempts == ("w.3.0", "w.3.1")
    assert head.outputs["out"].sent == (2, 1)
    # Where nothing was forgotten, it fails.
    job.jobs = 0
    job._compute_rows = lambda *_args, **_more: (_ for _ in ()).throw(Corruption("missing", object_key="x"))  # type: ignore[method-assign, assignment]
    with pytest.raises(Corruption):
        joined.run([4], at("left", 4, 3))
