"""Random programs over records, run and repaired without Spark, with plain Python that folds the same records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import slackwater as sw
from slackwater.common import runtime
from slackwater.operations.debugging.replay.program import LoadedProgram
from slackwater.operations.repair.records.commit import RepairCall, RepairDone
from slackwater.pipeline.batch.rerun import RecordNumbers
from slackwater.pipeline.kafka.archived import with_archives
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Kafka, Record
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.state.failing import RECORD
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.schema import HASH
from slackwater.store.versions import history
from slackwater.testing.simulation import Faults, Simulation
from slackwater.testing.simulation.engine import SimulatedEngine, TaskFate, call, union_tagged

from tests.operations.debugging.explain.programs import STATES, Raw, largest_of_pairs

OUT, KEY = "out", ("g", "k")
ROW = pa.schema([("g", pa.string()), ("k", pa.string()), ("x", pa.int64()), ("seq", pa.int64())])
LARGEST = pa.schema([("largest", pa.int64()), ("odd", pa.int64())])
Place = tuple[str, int, int]
"""Topic, partition and offset."""
Table = dict[tuple[object, ...], Raw]
"""Rows without their key, by key."""


class SimulatedProgram(LoadedProgram):
    """Program whose functions take and return Arrow tables. They get each record by itself."""

    def run_function(
        self, stage: str, inputs: Mapping[str, pa.Table], numbers: Mapping[str, RecordNumbers], output: str
    ) -> tuple[pa.Table, bool]:
        declared, shape = self.app.stages[stage], self.shapes[stage]

        def rows_of(tables: Sequence[pa.Table], number: int) -> pa.Table:
            frames = call(declared, tables)
            if output and shape.bound is None and len(frames) > 1:
                frames = (frames[[sink.name for sink in declared.writes].index(output)],)
            rows = union_tagged(frames, shape.key)
            if shape.bound is not None:
                rows = rows.append_column(HASH, pa.array(hash_keys(rows, shape.key)))
                rows = rows.select([HASH, *shape.key, *shape.bound.needed_columns])
            return rows.append_column(RECORD, pa.array(np.full(rows.num_rows, number)))

        nothing = {name: rows.slice(0, 0) for name, rows in inputs.items()}
        return pa.concat_tables([
            rows_of([*nothing.values()], 0),
            *(
                rows_of([*(nothing | {name: rows.slice(at, 1)}).values()], int(number))
                for name, rows in inputs.items()
                for at, number in enumerate(numbers[name])
            ),
        ]), True  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Structure of a random program: a table over one or two topics.

    A channel may precede it, and another table follow.
    """

    state: str
    topics: tuple[str, ...]
    below: int
    """Rows with at least this value are filtered out."""
    twice: int
    """Records with at least this value give a second row, with another key."""
    has_parser: bool
    has_groups: bool
    sink_key: tuple[str, ...] | None
    """Key of the records for the table's sink; None if the table has no sink."""

    @classmethod
    def of(cls, random: Random) -> Shape:
        state = random.choice([*STATES])
        emits = state != "custom"
        topics = random.choice((("in",), ("in", "more")))
        return cls(
            state,
            topics,
            random.choice((7, 9, 10)),
            random.choice((4, 8, 99)),
            random.random() < 0.5,
            emits and random.random() < 0.6,
            KEY if emits and random.random() < 0.5 else None,
        )

    def app(self, name: str) -> sw.App:
        app = sw.App(name)

        def parsed(*topics: pa.Table) -> pa.Table:
            return pa.concat_tables([self._parse(topic["value"].to_pylist()) for topic in topics])

        def same(*channels: pa.Table) -> pa.Table:
            return pa.concat_tables(channels)

        reads: tuple[Any, ...] = tuple(map(sw.topic, self.topics))
        if self.has_parser:
            channels = tuple(sw.repartition(f"{topic}-rows", KEY, partitions=2) for topic in self.topics)
            for topic, channel in zip(reads, channels, strict=True):
                app.stage(reads=topic, writes=channel, name=f"parse-{topic.name}")(parsed)
            reads = channels
        writes: list[Any] = [sw.repartition("by-group", "g", partitions=2)] if self.has_groups else []
        writes += [sw.sink(OUT, key=self.sink_key)] if self.sink_key is not None else []
        table = sw.table(partitions=2)
        state = STATES[self.state][0]() if self.state != "custom" else sw.update(largest_of_pairs, state=LARGEST)
        app.stage(reads=reads, writes=writes, key=KEY, state=state, name="t", table=table)(
            same if self.has_parser else parsed
        )
        if self.has_groups:
            newest = sw.upsert(by="seq") if self.state == "upsert" else sw.aggregate(most=sw.max(self._column))
            app.stage(reads=writes[0], key="g", state=newest, name="groups")(same)
        return app

    @property
    def _column(self) -> str:
        return {"count": "n", "sum": "total", "max and last": "most"}[self.state]

    def _parse(self, values: Sequence[bytes]) -> pa.Table:
        return pa.Table.from_pylist([row for value in values for row in self._rows(json.loads(value))], ROW)

    def _rows(self, record: Raw) -> Iterator[Raw]:
        if record["x"] < self.below:
            yield {"g": record["k"][0], **record}
        if record["x"] >= self.twice:
            yield {"g": "z", "k": record["k"], "x": 1, "seq": record["seq"]}

    def tables(self, records: Sequence[Raw]) -> dict[str, Table]:
        """Return the tables after these records, computed in plain Python."""
        rows = [row for record in records for row in self._rows(record)]
        keys = sorted({(row["g"], row["k"]) for row in rows})
        fold = STATES[self.state][1]
        first: Table = {}
        for key in keys:
            values = fold(
                [{name: row[name] for name in ("k", "x", "seq")} for row in rows if (row["g"], row["k"]) == key]
            )
            if values is not None:
                first[key] = values
        tables = {"t": first}
        if self.has_groups:
            tables["groups"] = {
                (group,): self._newest([(key, row) for key, row in first.items() if key[0] == group])
                for group in sorted({key[0] for key in first})
            }
        return tables

    def _newest(self, rows: Sequence[tuple[tuple[object, ...], Raw]]) -> Raw:
        if self.state == "upsert":
            key, row = max(rows, key=lambda item: item[1]["seq"])
            return {"k": key[1], **row}
        return {"most": max(row[self._column] for _, row in rows)}


@dataclass
class SimulatedApp:
    """App of a random program in a simulation. Keeps the records that it has read, by place."""

    shape: Shape
    simulation: Simulation
    folder: Path
    sent: dict[Place, Raw] = field(default_factory=dict)
    _number: int = 0

    @property
    def store(self) -> ObjectStore:
        return self.simulation.world.objects

    @property
    def kafka(self) -> MemoryKafka:
        return self.simulation.world.kafka

    @property
    def name(self) -> str:
        return self.simulation.app.name

    def feed(self, records: Sequence[tuple[str, int, Raw]]) -> None:
        """Send records (topic, partition, value), and run the app until all are read and published."""
        for topic, partition, row in records:
            offset = len(self.kafka._topics[topic][partition].log)
            self.sent[topic, partition, offset] = row
            self.kafka._append(topic, [Record(json.dumps(row).encode(), partition)])
        process = self.simulation.start_runner(until_caught_up=True, gc_every_ms=None)
        while process.is_alive:
            runtime.sleep(1.0)
        assert process.ended is None, process.ended

    def program(self, store: ObjectStore | None = None, kafka: Kafka | None = None) -> SimulatedProgram:
        self._number += 1
        engine = SimulatedEngine(cast("TaskFate", None))
        root, store = self.folder / str(self._number), store or self.store
        return SimulatedProgram(
            self.simulation.app,
            cast("Any", None),
            engine.derive_schemas(self.simulation.app),
            store,
            SstCache(root / "cache", 1 << 30),
            with_archives(kafka or self.kafka, store, self.name),
            LocalStore(root / "scratch"),
        )

    def repair(self, substitutes: Mapping[Place, Raw | None], *, dry_run: bool = False, **how: Any) -> RepairDone:
        program = how.pop("program", None) or self.program()
        return RepairCall(program, requested(substitutes), "ada@host", **how).run(dry_run=dry_run)

    def tables(self, store: ObjectStore | None = None) -> dict[str, Table]:
        """Read the visible columns of all tables from stored objects, without the product's readers."""
        names = ("t", "groups") if self.shape.has_groups else ("t",)
        return {name: table_of(store or self.store, self.name, name) for name in names}

    def published(self) -> Table:
        """Return the newest record of each key in the sink, as a consumer keeps it."""
        newest: Table = {}
        for partition in self.kafka._topics[OUT]:
            for message in partition.log:
                if message is not None:
                    key = tuple(json.loads(message.key()).values())
                    if message.value() is None:
                        newest.pop(key, None)
                    else:
                        row = json.loads(message.value())
                        newest[key] = {name: value for name, value in row.items() if name not in ("g", "k")}
        return newest

    def expected(self, substitutes: Mapping[Place, Raw | None]) -> dict[str, Table]:
        records = (substitutes.get(place, row) for place, row in self.sent.items())
        return self.shape.tables([record for record in records if record is not None])


def requested(substitutes: Mapping[Place, Raw | None]) -> dict[RecordLocation, bytes | None]:
    return {
        RecordLocation(*place): json.dumps(row).encode() if row is not None else None
        for place, row in substitutes.items()
    }


def table_of(store: ObjectStore, app: str, stage: str) -> Table:
    head = history.head(store, app, stage)
    assert head is not None
    assert head.table is not None
    key = [column.name for column in head.table.key]
    newest: dict[tuple[object, ...], Raw] = {}
    for sst in head.ssts:
        for row in pq.read_table(pa.BufferReader(store.get(sst.object))).to_pylist():
            place = tuple(row[name] for name in key)
            if place not in newest or row["_seq"] > newest[place]["_seq"]:
                newest[place] = row
    return {
        place: {name: value for name, value in row.items() if name not in key and not name.startswith("_")}
        for place, row in sorted(newest.items())
        if row["_op"] == 0
    }


def random_record(random: Random, seq: int) -> Raw:
    return {"k": random.choice(("ax", "ay", "bx")), "x": random.randrange(12), "seq": seq}


@contextmanager
def simulated(
    random: Random, folder: Path, shape: Shape | None = None, rows: Sequence[tuple[str, int, Raw]] = ()
) -> Iterator[SimulatedApp]:
    """Yield an app that has read records; each is a topic, a partition and a value.

    Without `rows`, the records are random, in a few batches. Without a shape, the program is random.
    """
    shape = shape or Shape.of(random)
    topics = {**dict.fromkeys(shape.topics, 2), OUT: 2}
    simulation = Simulation(shape.app("repaired"), random.getrandbits(32), Faults(), topics=topics, folder=folder)
    with simulation.running():
        app = SimulatedApp(shape, simulation, folder)
        if rows:
            app.feed(rows)
        for at in range(random.randrange(2, 5) if not rows else 0):
            app.feed([
                (random.choice(shape.topics), random.randrange(2), random_record(random, 100 * at + number))
                for number in range(random.randrange(1, 6))
            ])  # fmt: skip
        yield app
