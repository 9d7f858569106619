"""A diamond that runs without Spark and Kafka, with real plans, positions, messages and manifests.

             moves          reads numbers 0, 1, 2, … from a topic without end
               | moved
        .------+------.
      evens          odds
        | even        | odd
        '------+------'
             joined

Loops over lists do the work of Spark and Kafka; all decisions are made by the product's own code. A schedule of steps,
crashes, fenced writers and snapshots therefore takes milliseconds.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import count

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from slackwater.errors import Gone
from slackwater.pipeline.batch.snapshot_events import compute_outcome
from slackwater.pipeline.kafka.messages import (
    check_row_count,
    decode_addressed,
    decode_rows,
    header_value,
    marker_header,
    snapshot_of_marker,
    split_into_messages,
)
from slackwater.pipeline.run.start_positions import StartFinder, with_start_positions
from slackwater.pipeline.source.planner import ChannelPlanner, Pace
from slackwater.pipeline.source.readers import _ranges_by_task
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.snapshot.cut.stored import open_requests
from slackwater.state.event_time import BatchTimes, TimeRules
from slackwater.state.next_version import BatchResult, PartitionWrite, ProtocolOutcome, TaskReport, next_version
from slackwater.state.records import Position, TopicState
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.versions import apps
from slackwater.store.versions.commit import commit
from slackwater.store.versions.manifest import AppInfo, Input, Manifest, Output

from tests.support.manifests import claim

APP = "diamond"
STAGES = ("moves", "evens", "odds", "joined")
READS = {"moves": (), "evens": ("moved",), "odds": ("moved",), "joined": ("even", "odd")}
WRITES = {"moves": ("moved",), "evens": ("even",), "odds": ("odd",), "joined": ()}
SENDER = {channel: stage for stage, channels in WRITES.items() for channel in channels}
PARTITIONS = {"moved": 3, "even": 2, "odd": 2}
SCHEMA = pa.schema([("n", pa.int64())])


class Message:
    """The parts of a Kafka message that are used."""

    def __init__(self, value: bytes | None, header: bytes | None, at: tuple[str, int, int] = ("t", 3, 14)) -> None:
        self._value, self._header, self._at = value, header, at

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("other", b"x"), ("slackwater", self._header)] if self._header is not None else None

    def topic(self) -> str:
        return self._at[0]

    def partition(self) -> int:
        return self._at[1]

    def offset(self) -> int:
        return self._at[2]


class Logs:
    """Topics in memory, with the requests of capturing and verification (`KafkaTopics`)."""

    def __init__(self) -> None:
        self.topics = {channel: tuple([] for _ in range(PARTITIONS[channel])) for channel in SENDER}
        self.topics: dict[str, tuple[list[Message], ...]]
        self.lost = 0
        """Number of records that are missing at the end of in-flight reads."""
        self.earliest: dict[str, tuple[int, ...]] = {}
        """Earliest remaining offsets of topics whose records were deleted."""

    def append(self, topic: str, partition: int, value: bytes, header: bytes) -> None:
        log = self.topics[topic][partition]
        log.append(Message(value, header, (topic, partition, len(log))))

    def ends(self, topic: str) -> tuple[int, ...]:
        return tuple(map(len, self.topics[topic]))

    def delete(self, topic: str, *before: int) -> None:
        """Delete the records of each partition before an offset, as Kafka's DeleteRecords does."""
        held = zip(self.first(topic), before, self.ends(topic), strict=True)
        self.earliest[topic] = tuple(max(first, min(offset, end)) for first, offset, end in held)

    def first(self, topic: str) -> tuple[int, ...]:
        return self.earliest.get(topic, (0,) * len(self.topics[topic]))

    def state(self, topic: str) -> TopicState:
        """Return the topic's state as `kafka.state` does."""
        return TopicState(self.first(topic), self.ends(topic))

    def messages(self, topic: str, partition: int, start: int, end: int, rows: int | None) -> list[Message]:
        """Return messages as `records.read_range` does. If rows are counted, deleted messages are skipped."""
        first = self.first(topic)[partition]
        if start < first and rows is None:
            raise Gone(f"offsets {start} to {first - 1} of {topic}[{partition}] are gone from Kafka")
        return self.topics[topic][partition][max(start, first) : end]

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        lost = zip(in_flight.starts, self.first(in_flight.topic), in_flight.counts or in_flight.ends, strict=True)
        if any(start < first and rows for start, first, rows in lost):
            raise Gone(f"offsets of {in_flight.topic} are gone from Kafka")
        spans = zip(in_flight.starts, in_flight.ends, strict=True)
        tables = [
            table
            for partition, (start, end) in enumerate(spans)
            for table in decode_addressed(
                self.topics[in_flight.topic][partition][start:end],  # type: ignore[arg-type]
                frozenset(in_flight.attempts),
            )
        ]
        if self.lost:
            tables[-1] = tables[-1].slice(0, tables[-1].num_rows - self.lost)
        yield from tables

    def marker_at(self, topic: str, partition: int, offset: int, /) -> str | None:
        messages = self.topics[topic][partition]
        there = self.first(topic)[partition] <= offset < len(messages)
        return snapshot_of_marker(header_value(messages[offset])) if there else None  # type: ignore[arg-type]


class Diamond:
    """The app and its runners. `seen` has, for each version, all numbers that the stage has read by then."""

    def __init__(self, stages: Sequence[str] = STAGES) -> None:
        self.store = MemoryStore()
        self.logs = Logs()
        self.heads: dict[str, Manifest] = {}
        self.positions: dict[str, dict[str, Position]] = {}
        self.handled: set[str] = set()
        self.seen: dict[tuple[str, int], tuple[int, ...]] = {}
        self._attempts = count(1)
        self._now = count(1)
        apps.ensure_app(self.store, AppInfo(APP, 0))
        for stage in stages:
            self.start(stage)

    def start(self, stage: str, *, accept_loss: bool = False) -> None:
        """Claim the stage, and start at its head, as a starting runner does."""

        def build(draft: Manifest) -> Manifest:
            known = draft if draft.version > 1 else None
            finder = StartFinder(self.store, APP, stage, known, self.logs.state, accept_loss)
            entries = {name: finder.start_on_channel(name, name, SENDER[name]) for name in READS[stage]}
            return (
                with_start_positions(self.store, _at_birth(draft), entries, "test:1") if entries else _at_birth(draft)
            )

        head = claim(
            self.store,
            APP,
            stage,
            writer=f"w{next(self._attempts)}",
            by="test:1",
            now_ms=next(self._now),
            build=build,
        )
        before = self.seen.get((stage, head.version - 1), ())
        self._committed(head, before)
        self.positions[stage] = {
            name: Position(name, read.offsets, read.version, read.rows_passed) for name, read in head.inputs.items()
        }
        if stage == "moves":
            self.handled = set(head.recorded)

    def step(self, stage: str, *, records: int = 3, max_records: int | None = None, crash: bool = False) -> Manifest:
        """Run one micro-batch, from its plan to its commit. With `crash`, it writes everything except the manifest."""
        head, before = self.heads[stage], self.positions[stage]
        asked = {request.id for request in open_requests(self.store, APP)}
        if stage == "moves":
            start = before["numbers"]
            ids = tuple(sorted(asked - self.handled))
            self.handled.update(ids)
            end = start.offsets[0] + records
            after = {"numbers": Position("numbers", (end,), snapshots=ids or (() if records else start.snapshots))}
            rows = list(range(start.offsets[0], end))
        else:
            planners = {name: self.planner(name, max_records) for name in before}
            after = {name: planners[name].plan_end(start) for name, start in before.items()}
            rows = [n for name in before for n in self.read(name, before[name], after[name], planners[name])]
        outcome = compute_outcome(head, before, after, head.recorded.keys() - asked)
        self.positions[stage] = after
        if before == after and not outcome.changed:
            return head
        manifest = self._write(head, rows, after, outcome)
        if crash:
            self.start(stage)
            return self.heads[stage]
        commit(self.store, manifest)
        self._committed(manifest, (*self.seen[stage, head.version], *rows))
        return manifest

    def step_all(self, **options: int) -> None:
        for stage in STAGES:
            self.step(stage, **options)

    def settle(self) -> None:
        """Let every stage continue until nothing changes. There are no new numbers."""
        for _ in range(200):
            before = dict(self.heads)
            self.step_all(records=0)
            if before == self.heads:
                return
        raise AssertionError("the diamond does not come to rest")

    def planner(self, channel: str, max_records: int | None = None) -> ChannelPlanner:
        return ChannelPlanner(self.store, APP, SENDER[channel], channel, pace=Pace(0), max_records=max_records)

    def read(self, channel: str, before: Position, after: Position, planner: ChannelPlanner) -> Iterator[int]:
        """Yield the numbers of a batch, read and counted as by a source's tasks."""
        attempts = planner.counted_attempts(before.version, after.version)
        for part in (part for task in _ranges_by_task(channel, before, after, attempts, 2) for part in task.parts):
            found = 0
            messages = self.logs.messages(channel, part.partition, part.first, part.last, part.rows)
            for batch in decode_rows(messages, attempts, SCHEMA):  # type: ignore[arg-type]
                found += batch.num_rows
                yield from batch["n"].to_pylist()
            check_row_count(channel, part, found, [])

    def zombie(self, stage: str, snapshot: str) -> None:
        """Write rows and markers as a writer that has lost its stage. No manifest names them."""
        for channel in WRITES[stage]:
            for partition in range(PARTITIONS[channel]):
                rows = pa.table({"n": pa.array([10**9], pa.int64())})
                for _, value in split_into_messages(rows, np.zeros(1, np.int32)):
                    self.logs.append(channel, partition, value, f"dead.{next(self._attempts)}".encode())
                self.logs.append(channel, partition, b"", marker_header(snapshot))

    def place(self, **versions: int) -> dict[str, tuple[int, ...]]:
        return {stage: self.seen[stage, version] for stage, version in versions.items()}

    def _committed(self, manifest: Manifest, seen: Sequence[int]) -> None:
        self.heads[manifest.stage] = manifest
        self.seen[manifest.stage, manifest.version] = tuple(seen)

    def _write(
        self, head: Manifest, rows: Sequence[int], after: dict[str, Position], outcome: ProtocolOutcome
    ) -> Manifest:
        """Write rows, markers and the manifest, as `StageRunner` does."""
        kept = {"evens": 0, "odds": 1}
        sent = [n for n in rows if head.stage not in kept or n % 2 == kept[head.stage]]
        results = [self._send(head, name, sent) for name in head.outputs if sent]
        markers = {}
        for snapshot, name in outcome.markers:
            for partition in range(PARTITIONS[name]):
                self.logs.append(name, partition, b"", marker_header(snapshot))
            markers[snapshot, name] = tuple(end - 1 for end in self.logs.ends(name))
        return next_version(
            head,
            after,
            outcome,
            BatchResult(results, markers),
            (),
            TimeRules(),
            BatchTimes(0, 0),
            with_rows=False,
            now_ms=next(self._now),
            duration_ms=0,
        )

    def _send(self, head: Manifest, channel: str, numbers: Sequence[int]) -> TaskReport:
        attempt = f"{head.writer}.{head.version + 1}.{next(self._attempts)}"
        targets = np.array([n // 2 % PARTITIONS[channel] for n in numbers], np.int32)
        for partition, value in split_into_messages(pa.table({"n": pa.array(numbers, pa.int64())}), targets):
            self.logs.append(channel, partition, value, attempt.encode())
        counts = np.bincount(targets, minlength=PARTITIONS[channel]).tolist()
        ends = self.logs.ends(channel)
        sent = {partition: PartitionWrite(counts[partition], ends[partition]) for partition in set(targets.tolist())}
        return TaskReport(attempt, len(numbers), sent={channel: sent})


def _at_birth(draft: Manifest) -> Manifest:
    if draft.version > 1:
        return draft
    none = {channel: (0,) * partitions for channel, partitions in PARTITIONS.items()}
    outputs = {name: Output(name, none[name], schema="n long", sent=none[name]) for name in WRITES[draft.stage]}
    return replace(draft, inputs={"numbers": Input("numbers", (0,))}, outputs=outputs)


def markers_in(messages: Collection[Message]) -> list[str]:
    """Return the snapshots of the markers among these messages, in order."""
    headers = (header_value(message) for message in messages)  # type: ignore[arg-type]
    return [header.removeprefix("marker ") for header in headers if header.startswith("marker ")]
