"""A realistic app without Spark and Kafka, whose history is written through the store's API.

The three stages are those of the flights example: `legs` reads the topic `flights` and sends every flight on, by
aircraft; `aircraft` counts flights and delay by tail number, and sends them on, by carrier; `carriers` counts by
carrier. The channels are real enough to be cloned: their messages have attempts, some by fenced writers, and offsets in
partitions.
"""

import itertools
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from slackwater.errors import AnotherTopic, NotFound, Refused
from slackwater.snapshot.change.stages import rescale
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.snapshot.cut.stored import open_requests
from slackwater.snapshot.query.log import Remaining, RemainingOf
from slackwater.state.records import TopicState, is_other_topic
from slackwater.store.compaction.plan import rebase
from slackwater.store.objects.local import LocalStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst import writer
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.sst.schema import PUT, TOMBSTONE, sst_schema
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.entries.ssts import Sst
from slackwater.store.versions.manifest import AppInfo, Column, Input, Manifest, Output, Table, VersionKind

from tests.support.manifests import LINEAGE, claim
from tests.support.state_rows import decoded

START_MS = 1_735_689_600_000
"""Start of a history's clock: 2025-01-01T00:00:00Z."""

STAGES = ("legs", "aircraft", "carriers")
KAFKA_PARTITIONS = 2
STATE_PARTITIONS = 2
TOTALS = (Column("flights", "int64"), Column("delay", "int64"), Column("_squares", "int64"))
"""Value columns of both tables. The last one is internal."""
TABLES = {
    "aircraft": Table((Column("tail", "string"),), TOTALS, STATE_PARTITIONS),
    "carriers": Table((Column("carrier", "string"),), TOTALS, STATE_PARTITIONS),
}

SCHEMA = "`tail` string, `carrier` string, `delay` bigint"
"""Schema of both channels."""
CAPTURED = pa.schema(
    [
        *(("tail", pa.string()), ("carrier", pa.string()), ("delay", pa.int64())),
        *(("_partition", pa.int32()), ("_offset", pa.int64()), ("_row", pa.int32())),
    ]
)
"""Schema of records in flight."""


class Flight(NamedTuple):
    tail: str
    carrier: str
    delay: int


Totals = tuple[int, int, int]
"""Number of flights, sum of delays, and sum of their squares."""


class Message(NamedTuple):
    """A message at an offset. `attempt` is empty in users' topics. `marker` is the id of a snapshot, or empty."""

    flights: tuple[Flight, ...]
    app: str = ""
    version: int = 0
    attempt: str = ""
    marker: str = ""


class Kafka:
    """Topics in memory, with the methods that cloning needs (`Channels`)."""

    def __init__(self) -> None:
        self.topics: dict[str, list[list[Message]]] = {}
        self.earliest: dict[str, tuple[int, ...]] = {}
        """Earliest remaining offsets of topics that retention has shortened."""
        self.ids: dict[str, str] = {}
        self.groups: dict[str, dict[str, tuple[int, ...]]] = {}
        """Announced offsets, by `APP/STAGE`."""
        self._attempts = itertools.count(1)

    def with_archives(self, _store: ObjectStore, *_apps: str) -> "Kafka":
        """Return itself, because no records are archived."""
        return self

    def create(self, topic: str, partitions: int = KAFKA_PARTITIONS) -> None:
        self.topics.setdefault(topic, [[] for _ in range(partitions)])

    def topic_id(self, topic: str) -> str:
        return self.ids.get(topic, f"id-of-{topic}") if topic in self.topics else ""

    def state(self, topic: str) -> TopicState | None:
        ends = self.ends(topic)
        return TopicState(self.starts(topic) or (), ends, self.topic_id(topic)) if ends is not None else None

    def topic_state(self, topic: str, *, timeout_s: float = 0) -> TopicState:
        """Return the state of a topic, or raise `NotFound`, as the product's Kafka client does."""
        if (state := self.state(topic)) is None:
            raise NotFound("topic", topic, self.topics)
        return state

    def ends(self, topic: str) -> tuple[int, ...] | None:
        return tuple(map(len, self.topics[topic])) if topic in self.topics else None

    def starts(self, topic: str) -> tuple[int, ...] | None:
        """Return the earliest offsets of a topic, or `None` if it does not exist."""
        return self.earliest.get(topic, (0,) * len(self.topics[topic])) if topic in self.topics else None

    def held(self) -> RemainingOf:
        """Return the remaining offsets as `KafkaChannels` does; there is no archive."""

        def held_of(source: Input) -> Remaining:
            is_another = is_other_topic(source.topic_id, self.topic_id(source.topic))
            return Remaining(() if is_another else self.starts(source.topic) or (), is_another)

        return held_of

    def retention_ms(self, topic: str) -> int | None:
        return 7 * 86_400_000 if topic in self.topics else None

    def since(self, topic: str, time_ms: int) -> tuple[int, ...]:
        """Return zero offsets, because messages have no times here."""
        return (0,) * len(self.topics[topic])

    def check_topic(self, topic: str, offsets: tuple[int, ...], topic_id: str) -> None:
        if (ends := self.ends(topic)) is None:
            raise NotFound("topic", topic, self.topics)
        if is_other_topic(topic_id, self.topic_id(topic)):
            raise AnotherTopic(f"topic {topic!r} was deleted and created again since it was read")
        starts = self.earliest.get(topic, (0,) * len(ends))
        held = zip(starts, offsets, ends, strict=True)
        if len(ends) != len(offsets) or not all(start <= offset <= end for start, offset, end in held):
            raise Refused(f"topic {topic!r} holds {starts} to {ends}; expected {offsets}")

    def copy(
        self, in_flight: InFlight, topic: str, app: str, kept: Iterable[pa.Table] | None = None
    ) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
        self.create(topic, len(in_flight.ends))
        starts = self.ends(topic)
        attempt = self.attempt()
        rows = (row for table in kept or () for row in table.to_pylist())
        for row in rows:
            flight = Flight(row["tail"], row["carrier"], row["delay"])
            self.topics[topic][row["_partition"]].append(Message((flight,), app, in_flight.up_to, attempt))
        for partition, messages in enumerate(self.between(in_flight) if kept is None else ()):
            flights = (message.flights for message in messages)
            self.topics[topic][partition] += (Message(f, app, in_flight.up_to, attempt) for f in flights)
        ends = self.ends(topic)
        assert starts is not None
        assert ends is not None
        return ends, attempt, starts

    def commit_positions(self, app: str, stage: str, positions: Mapping[str, tuple[int, ...]]) -> None:
        self.groups[f"{app}/{stage}"] = dict(positions)

    @property
    def kafka(self) -> "Kafka":
        """Return itself as the Kafka client, which `KafkaChannels` has as an attribute."""
        return self

    def delete_topics(self, topics: Iterable[str]) -> dict[str, str]:
        for topic in topics:
            self.topics.pop(topic, None)
        return {}

    def delete_groups(self, _groups: Iterable[str]) -> None:
        """Do nothing, because there are no consumer groups here."""

    def read(self, in_flight: InFlight) -> Iterator[pa.Table]:
        """See `snapshot.take.KafkaTopics`."""
        for partition, (start, end) in enumerate(zip(in_flight.starts, in_flight.ends, strict=True)):
            for offset in range(start, end):
                message = self.topics[in_flight.topic][partition][offset]
                if message.attempt in in_flight.attempts and not message.marker:
                    places = [(partition, offset, row) for row in range(len(message.flights))]
                    rows = [(*flight, *place) for flight, place in zip(message.flights, places, strict=True)]
                    columns = zip(*rows, strict=True)
                    yield pa.table([pa.array(c, f.type) for c, f in zip(columns, CAPTURED, strict=True)], CAPTURED)

    def between(self, in_flight: InFlight) -> tuple[list[Message], ...]:
        """Return the valid messages of each partition."""
        return tuple(
            [message for message in messages[start:end] if message.attempt in in_flight.attempts]
            for messages, start, end in zip(self.topics[in_flight.topic], in_flight.starts, in_flight.ends, strict=True)
        )

    def attempt(self) -> str:
        return f"attempt-{next(self._attempts)}"

    def send(self, topic: str, flights: Iterable[Flight]) -> None:
        """Send users' events, each as one message."""
        self.create(topic)
        for flight in flights:
            self.topics[topic][_partition(flight.tail)].append(Message((flight,)))


@dataclass
class Clock:
    """The clock of a history. `skew_ms` has how far the clock of a stage's machine is ahead."""

    now_ms: int = START_MS
    skew_ms: dict[str, int] = field(default_factory=dict)

    def tick(self, stage: str, step_ms: int = 1_000) -> int:
        self.now_ms += step_ms
        return self.now_ms + self.skew_ms.get(stage, 0)


class FlightsApp:
    """An app and its runner.

    The runner claims its stages when it is created, and commits a version with each `step`.
    """

    def __init__(
        self,
        store: ObjectStore,
        kafka: Kafka,
        name: str = "flights",
        *,
        clock: Clock | None = None,
        zombies: bool = True,
        start: Iterable[str] = STAGES,
        topic: str = "flights",
    ) -> None:
        self.store, self.kafka, self.name = store, kafka, name
        self.clock = clock or Clock()
        self.zombies = zombies
        info = apps.ensure_app(store, AppInfo(name, self.clock.now_ms))
        self.topic = info.origin.topics.get("flights", topic) if info.origin else topic
        kafka.create(self.topic)
        self.heads: dict[str, Manifest] = {}
        self.state: dict[str, dict[str, Totals]] = {}
        self.overtaken: dict[str, Manifest] = {}
        """Compactions that the stage's next version has to follow."""
        for stage in start:
            self.claim(stage)

    def claim(self, stage: str) -> Manifest:
        """Claim the stage for a new writer, which starts from nothing or from the head."""
        manifest = claim(
            self.store,
            self.name,
            stage,
            writer=self.kafka.attempt(),
            by="test:1",
            now_ms=self.clock.tick(stage),
            build=self.at_birth,
        )
        self.heads[stage] = manifest
        self.state[stage] = rows_of(self.store, manifest)
        return manifest

    def send(self, *flights: Flight) -> None:
        self.kafka.send(self.topic, flights)

    def run(self, flights: Iterable[Flight], *, a_batch: int = 10) -> None:
        """Feed flights in batches, and let every stage process each batch."""
        for batch in _batched(flights, a_batch):
            self.send(*batch)
            self.step_all()

    def step_all(self) -> None:
        for stage in STAGES:
            self.step(stage)

    def step(self, stage: str, *, max_versions: int = 1_000_000, max_records: int = 1_000_000) -> Manifest:
        """Run a micro-batch: read the available records, up to a marker and within the limits, and commit."""
        head = self.heads[stage]
        draft = replace(self._next(stage), duration_ms=85)
        requests = {request.id for request in open_requests(self.store, self.name)}
        recorded = {id_: version for id_, version in head.recorded.items() if id_ in requests}
        if self.role(stage) == "legs":
            name, source, flights = self._read_topic(head, max_records)
            markers = requests - recorded.keys()
        else:
            name, source, flights, markers = self._read_channel(head, max_versions, recorded)
            markers &= requests
        output = self._write(stage, draft.version, flights, markers)
        manifest = replace(
            draft,
            inputs={name: source},
            outputs=output,
            recorded=recorded | dict.fromkeys(markers, draft.version),
            ssts=(*self._upsert(stage, draft.version, flights), *draft.ssts),
        )
        return self.commit(manifest)

    def _next(self, stage: str, kind: VersionKind = "batch") -> Manifest:
        """Return a draft of a stage's next version, as its writer prepares it."""
        head, now_ms = self.heads[stage], self.clock.tick(stage)
        return successor(head, kind=kind, epoch=head.epoch, writer=head.writer, by="test:1", now_ms=now_ms)

    def commit(self, manifest: Manifest) -> Manifest:
        if (onto := self.overtaken.pop(manifest.stage, None)) is not None:
            manifest = rebase(self.heads[manifest.stage], manifest, onto)
        commit(self.store, manifest)
        self.heads[manifest.stage] = manifest
        return manifest

    def compact(self, stage: str) -> Manifest:
        """Merge all SSTs of each partition into one."""
        head = self.heads[stage]
        draft = self._next(stage, "compaction")
        table = self.table(stage)
        newest: dict[str, dict[str, Any]] = {}
        for run in head.ssts:
            for row in decoded(self.store.at(run.root).get(run.object)):
                known = newest.setdefault(str(row[table.key[0].name]), dict(row))
                known.update(max(known, row, key=lambda row: row["_seq"]))
        # Nothing older is left that a tombstone would have to hide.
        kept = [row for row in newest.values() if not row["_op"]]
        rows = pa.Table.from_pylist(kept, schema=sst_schema(table))
        merged = write_parts(self.store, self.name, stage, table, rows, level=1)
        return self.commit(replace(draft, ssts=tuple(merged)))

    def step_behind_a_compaction(self, stage: str) -> Manifest:
        """Run a micro-batch. Before it commits, a compaction by another process takes its version number."""
        head = self.heads[stage]
        self.overtaken[stage] = self.compact(stage)
        self.heads[stage] = head
        return self.step(stage)

    def rescale(self, stage: str, partitions: int) -> Manifest:
        """Rescale the stage, and claim it again for its writer."""
        now_ms = self.clock.tick(stage)
        rescale(self.store, self.name, stage, partitions, by="ada@host", now_ms=now_ms)
        return self.claim(stage)

    def table(self, stage: str) -> Table:
        """Return the stage's table as stored."""
        table = self.heads[stage].table
        assert table is not None
        return table

    def delete(self, stage: str, *names: str) -> Manifest:
        """Commit a version that deletes these keys."""
        head = self.heads[stage]
        draft = self._next(stage)
        for name in names:
            del self.state[stage][name]
        columns = {column.name: np.zeros(len(names), np.int64) for column in TOTALS}
        table = self.table(stage)
        runs = write_columns(
            self.store, self.name, stage, draft.version, pa.array(names), columns, op=TOMBSTONE, table=table
        )
        return self.commit(replace(draft, ssts=(*runs, *head.ssts)))

    def load(self, stage: str, num_keys: int) -> Manifest:
        """Commit a version with this many additional keys, written directly. They are not in `state`."""
        head = self.heads[stage]
        draft = self._next(stage)
        numbers = np.arange(num_keys, dtype=np.int64)
        names = pc.binary_join_element_wise("K", pa.array(numbers).cast(pa.string()), "")
        columns = {"flights": np.ones_like(numbers), "delay": numbers, "_squares": numbers}
        runs = write_columns(self.store, self.name, stage, draft.version, names, columns, table=self.table(stage))
        return self.commit(replace(draft, ssts=(*runs, *head.ssts)))

    def role(self, stage: str) -> str:
        """Return the original name of a stage, which tests use."""
        formerly = self.heads[stage].formerly
        return formerly[0].stage if formerly else stage

    def version(self, stage: str, version: int) -> Manifest:
        return history.read(self.store, self.name, stage, version)

    def at_birth(self, draft: Manifest) -> Manifest:
        """Return a claim. The first claim of a stage gets the initial inputs, outputs and table."""
        if draft.inputs:
            return draft
        zeros = (0,) * KAFKA_PARTITIONS
        if draft.stage == "legs":
            inputs = {"flights": Input(self.topic, zeros, topic_id=self.kafka.topic_id(self.topic))}
        else:
            channel, sender = {"aircraft": ("by-aircraft", "legs"), "carriers": ("by-carrier", "aircraft")}[draft.stage]
            # A clone's sender does not begin at version 1.
            unread = max(history.first_version(self.store, self.name, sender) - 1, 0)
            consumed = () if unread else zeros
            topic_id = self.kafka.topic_id(topic := self._channel(channel))
            inputs = {channel: Input(topic, zeros, sender, unread, consumed=consumed, topic_id=topic_id)}
        outputs = {
            name: Output(topic, zeros, zeros, schema=SCHEMA, topic_id=self.kafka.topic_id(topic))
            for name, topic in ((each, self._channel(each)) for each in _WRITES[draft.stage])
        }
        table, lineage = TABLES.get(draft.stage), LINEAGE[draft.stage]
        return replace(draft, inputs=inputs, outputs=outputs, table=table, lineage=lineage)

    def _channel(self, name: str) -> str:
        topic = f"{self.name}-{name}-repartition"
        self.kafka.create(topic)
        return topic

    def _read_topic(self, head: Manifest, max_records: int) -> tuple[str, Input, list[Flight]]:
        source = head.inputs["flights"]
        flights: list[Flight] = []
        offsets = list(source.offsets)
        for partition, messages in enumerate(self.kafka.topics[source.topic]):
            for message in messages[offsets[partition] :][:max_records]:
                flights += message.flights
                offsets[partition] += 1
        return "flights", replace(source, offsets=tuple(offsets), rows=len(flights)), flights

    def _read_channel(
        self, head: Manifest, max_versions: int, recorded: Mapping[str, int]
    ) -> tuple[str, Input, list[Flight], set[str]]:
        ((name, source),) = head.inputs.items()
        later = list(history.iter_after(self.store, self.name, source.upstream, source.version))
        counting = history.iter_base_versions(self.store, later[-1], source.version) if later else ()
        # One that took a stage back to before it began has no channel.
        sent = [each for each in counting if name in each.outputs][:max_versions]
        markers: set[str] = set()
        for count, manifest in enumerate(sent, 1):
            markers = set(manifest.outputs[name].markers) - recorded.keys()
            if markers:
                sent = sent[:count]
                break
        if not sent:
            return name, replace(source, rows=0), [], markers
        attempts = {attempt for manifest in sent for attempt in manifest.outputs[name].attempts}
        last = sent[-1].outputs[name]
        ends = last.ends
        flights = [
            flight
            for messages, start, end in zip(self.kafka.topics[source.topic], source.offsets, ends, strict=True)
            for message in messages[start:end]
            if message.attempt in attempts
            for flight in message.flights
        ]
        consumed = tuple(sent - lost for sent, lost in zip(last.sent, source.lost or (0,) * len(ends), strict=True))
        read = replace(source, offsets=ends, version=sent[-1].version, rows=len(flights), consumed=consumed)
        return name, read, flights, markers

    def _write(self, stage: str, version: int, flights: list[Flight], markers: set[str]) -> dict[str, Output]:
        outputs: dict[str, Output] = {}
        for name, key in _WRITES[self.role(stage)].items():
            earlier = self.heads[stage].outputs[name]
            partitions = self.kafka.topics[earlier.topic]
            attempt = self.kafka.attempt()
            by_partition: dict[int, list[Flight]] = {}
            for flight in flights:
                by_partition.setdefault(_partition(key(flight)), []).append(flight)
            for partition, some in by_partition.items():
                if self.zombies:
                    partitions[partition].append(Message(tuple(some), self.name, version, f"dead-{attempt}"))
                partitions[partition].append(Message(tuple(some), self.name, version, attempt))
            placed: dict[str, tuple[int, ...]] = {}
            for marker in sorted(markers):
                placed[marker] = tuple(map(len, partitions))
                for messages in partitions:
                    messages.append(Message((), self.name, version, attempt, marker))
            outputs[name] = replace(
                earlier,
                ends=tuple(map(len, partitions)),
                attempts=(attempt,) if by_partition else (),
                rows=len(flights),
                markers=placed,
                sent=tuple(rows + len(by_partition.get(p, ())) for p, rows in enumerate(earlier.sent)),
            )
        return outputs

    def _upsert(self, stage: str, version: int, flights: list[Flight]) -> list[Sst]:
        if (role := self.role(stage)) not in TABLES:
            return []
        state, key_of = self.state[stage], _KEYS[role]
        changed: dict[str, Totals] = {}
        for flight in flights:
            num, delay, squares = state.get(key_of(flight), (0, 0, 0))
            changed[key_of(flight)] = state[key_of(flight)] = (
                num + 1,
                delay + flight.delay,
                squares + flight.delay**2,
            )
        if not changed:
            return []
        values = np.array(list(changed.values()), np.int64)
        columns = {column.name: values[:, index] for index, column in enumerate(TOTALS)}
        names = pa.array(list(changed))
        return write_columns(self.store, self.name, stage, version, names, columns, table=self.table(stage))


def copied(app: FlightsApp, store: ObjectStore) -> FlightsApp:
    """Copy the app, its clock and Kafka into another, empty store.

    For tests that share a history: writing one takes a tenth of a second of CPU time; copying it takes a tenth of that.
    """
    if isinstance(app.store, LocalStore):
        shutil.copytree(app.store.url, store.url)  # its puts wait for the disk
    else:
        for info in app.store.list(""):
            store.put(info.key, app.store.get(info.key))
    attempts = app.kafka._attempts
    # Python will copy no `count` any more; this one gives later numbers, too.
    return deepcopy(app, {id(app.store): store, id(attempts): itertools.count(next(attempts))})


@cache
def _written(count: int) -> FlightsApp:
    app = FlightsApp(MemoryStore(), Kafka())
    app.run(flights(count))
    return app


def app_of(count: int = 40) -> FlightsApp:
    """Return an app in memory whose stages have read this many flights, in batches of ten."""
    return copied(_written(count), MemoryStore())


_WRITES: dict[str, dict[str, Callable[[Flight], str]]] = {
    "legs": {"by-aircraft": lambda flight: flight.tail},
    "aircraft": {"by-carrier": lambda flight: flight.carrier},
    "carriers": {},
}
_KEYS: dict[str, Callable[[Flight], str]] = {
    "aircraft": lambda flight: flight.tail,
    "carriers": lambda flight: flight.carrier,
}


def write_columns(
    store: ObjectStore,
    app: str,
    stage: str,
    version: int,
    names: pa.Array,
    columns: Mapping[str, npt.NDArray[np.int64]],
    *,
    op: int = PUT,
    table: Table | None = None,
) -> list[Sst]:
    """Write one L0 SST for each state partition to which some of these keys belong."""
    table = table or TABLES[stage]
    keys = pa.table({table.key[0].name: names})
    hashes = hash_keys(keys, keys.schema.names)
    filled = {"_seq": np.full(len(names), version), "_op": np.full(len(names), op, np.int8)}
    rows = pa.table({"_hash": hashes, **dict(zip(keys.schema.names, keys.columns, strict=True)), **columns, **filled})
    return write_parts(store, app, stage, table, rows)


def write_parts(
    store: ObjectStore,
    app: str,
    stage: str,
    table: Table,
    rows: pa.Table,
    level: int = 0,
    cache: SstCache | None = None,
) -> list[Sst]:
    """Write one SST for each state partition that has rows."""
    ssts = writer.write_partitions(store, cache, app=app, stage=stage, table=table, rows=rows)
    return [replace(sst, level=level) for sst in ssts]


def rows_of(store: ObjectStore, manifest: Manifest) -> dict[str, Totals]:
    """Return the table at a version, merged without the code under test."""
    if manifest.table is None:
        return {}
    key = manifest.table.key[0].name
    newest: dict[str, tuple[int, int, Totals]] = {}
    for run in manifest.ssts:
        for row in decoded(store.at(run.root).get(run.object)):
            found = (row["_seq"], row["_op"], (row["flights"], row["delay"], row["_squares"]))
            newest[row[key]] = max(newest.get(row[key], found), found)
    return {name: totals for name, (_, op, totals) in newest.items() if op == PUT}


def flights(count: int, *, aircraft: int = 7, carriers: int = 3, delay: int = 5) -> list[Flight]:
    """Return `count` flights of several aircraft. Each aircraft belongs to one carrier."""
    return [Flight(f"N{number % aircraft:03}", f"C{number % aircraft % carriers}", delay) for number in range(count)]


def _partition(key: str) -> int:
    return zlib.crc32(key.encode()) % KAFKA_PARTITIONS


def _batched(flights: Iterable[Flight], size: int) -> Iterable[tuple[Flight, ...]]:
    iterator = iter(flights)
    while batch := tuple(itertools.islice(iterator, size)):
        yield batch
