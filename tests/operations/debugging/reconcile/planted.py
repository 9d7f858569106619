"""An app with planted records that are not in its table, each for a known reason.

`totals` reads the topic `events` and counts `n` by `k`. Its versions are written as by a runner; verbs are the
product's own. Each record has its own key, which begins with the reason why the record is not in the table.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
from msgspec.structs import replace
from slackwater.client.app import StoredApp
from slackwater.client.client import Client
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.reject.table import DeadLetter, RejectedTable, rejected_row
from slackwater.settings import Settings
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.store.archive import index
from slackwater.store.archive.columns import SCHEMA
from slackwater.store.archive.extents import Extent, union
from slackwater.store.versions import apps, commit, history
from slackwater.store.versions.column_types import FieldSource
from slackwater.store.versions.manifest import (
    AppInfo,
    Column,
    EventTime,
    Input,
    LostRecords,
    Manifest,
    Table,
    Ttl,
)
from slackwater.store.versions.side_tables import REJECTED

from tests.store.archive.small_archives import write
from tests.support.manifests import claim
from tests.support.state_rows import Key, Values, write_version

APP, STAGE, TOPIC = "plants", "totals", "events"
PARTITIONS = 2
TTL_MS = 1_000
TABLE = Table(
    (Column("k", "string"),), (Column("n", "int64"), Column("at", "timestamp[us, tz=UTC]")), 2, ttl=Ttl(TTL_MS, "at")
)
LINEAGE = {"": {"k": (FieldSource(TOPIC, "$.k"),)}}
NEVER = datetime(2100, 1, 1, tzinfo=UTC)
START = datetime(2025, 1, 1, tzinfo=UTC)


class Plants:
    """The app in the store of a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = Random(seed)
        self.kafka = MemoryKafka.named(f"memory://{folder}")
        self.kafka.create_topics({TOPIC: PARTITIONS})
        self.client = Client(
            Settings(store=str(folder / "store"), brokers=self.kafka.address, cache=str(folder / "cache"))
        )
        self.store = self.client.store
        self.clock = START
        self.sent: list[list[str]] = [[] for _ in range(PARTITIONS)]
        """Key of each record, by partition and offset."""
        self.places: dict[str, RecordLocation] = {}
        self.number = 0
        apps.create_app(self.store, AppInfo(APP, 1))
        self.claim()

    @property
    def app(self) -> StoredApp:
        return self.client.app(APP)

    @property
    def head(self) -> Manifest:
        head = history.head(self.store, APP, STAGE)
        assert head is not None
        return head

    def claim(self, build: Callable[[Manifest], Manifest] = lambda draft: draft) -> None:
        def begin(draft: Manifest) -> Manifest:
            if draft.inputs:
                return build(draft)
            source = Input(TOPIC, (0,) * PARTITIONS, topic_id=self.kafka.topic_id(TOPIC))
            return replace(draft, inputs={TOPIC: source}, table=TABLE, lineage=LINEAGE)

        claim(self.store, APP, STAGE, writer=f"w{self.random.random()}", by="test:1", now_ms=1, build=begin)

    def send(self, reason: str) -> str:
        """Send a record with a new key to a random partition. Returns the key."""
        self.number += 1
        key, partition = f"{reason}-{self.number}", self.random.randrange(PARTITIONS)
        self.kafka._append(TOPIC, [Record(_value(key), partition=partition)])
        self.places[key] = RecordLocation(TOPIC, partition, len(self.sent[partition]))
        self.sent[partition].append(key)
        return key

    def batch(self, *reasons: str) -> list[str]:
        """Send records, and commit a version that reads all unread records. Returns the sent keys."""
        keys = [self.send(reason) for reason in reasons]
        head = self.head
        draft = commit.successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test:1", now_ms=1)
        source = head.inputs[TOPIC]
        read = [
            (partition, offset, self.sent[partition][offset])
            for partition, start in enumerate(source.offsets)
            for offset in range(start, len(self.sent[partition]))
        ]
        named = [key.partition("-")[0] for _, _, key in read]
        self.clock += timedelta(milliseconds=10)
        changes: dict[Key, Values | None] = {
            (key,): (1, self.clock if reason == "expired" else NEVER)
            for reason, (_, _, key) in zip(named, read, strict=True)
            if reason not in ("rejected", "late", "filtered")
        }
        clock_ms = max(head.clock_ms, _ms(self.clock))
        ssts = write_version(
            self.store, None, TABLE, changes, draft.version, app=APP, stage=STAGE, clock_ms=clock_ms, base=head.ssts
        )
        late = named.count("late")
        manifest = replace(
            draft,
            inputs={TOPIC: replace(source, offsets=tuple(map(len, self.sent)), rows=len(read))},
            ssts=(*ssts, *head.ssts),
            clock_ms=clock_ms,
            event_time=EventTime(watermark_ms=_ms(self.clock), late=late) if late else None,
            side_tables=self._rejected(head, draft.version, [one for one in read if one[2].startswith("rejected")]),
        )
        commit.commit(self.store, manifest)
        self._archive(read)
        return keys

    def _archive(self, read: list[tuple[int, int, str]]) -> None:
        rows = [
            {"topic": TOPIC, "partition": partition, "offset": offset, "timestamp": 1, "value": _value(key)}
            for partition, offset, key in read
        ]
        extents = union(Extent(partition, offset, offset + 1) for partition, offset, _ in read)
        archive = index.newest(self.store, APP, TOPIC) or index.empty_index(APP, TOPIC)
        item = write(self.store, archive, [pa.Table.from_pylist(rows, SCHEMA)], extents, 1)
        index.change(self.store, archive, index.append_update((item,), extents), by="test:1", now_ms=1)

    def in_kafka(self, key: str) -> bool:
        place = self.places[key]
        return place.offset >= self.kafka._topics[TOPIC][place.partition].start

    def _rejected(self, head: Manifest, version: int, read: list[tuple[int, int, str]]) -> dict[str, object]:
        rows = [
            rejected_row(
                DeadLetter(TOPIC, partition, offset, None, _value(key), (), "ValueError", key, "", TOPIC),
                version=version,
                now_ms=1_000,
            )
            for partition, offset, key in read
        ]
        if not rows:
            return dict(head.side_tables)
        table = RejectedTable(self.store, self.client.cache, APP, STAGE)
        count = len(rows)
        return {**head.side_tables, REJECTED: table.upsert(head, rows, version, added=count, waiting=count)}

    def let_expire(self) -> None:
        """Commit a batch whose clock is after the expiry of all rows that have a time."""
        self.batch("expired")
        self.clock += timedelta(milliseconds=2 * TTL_MS)
        self.batch("counted")

    def skip(self) -> None:
        """Reset the offsets, so that some records are skipped."""
        for _ in range(self.random.randrange(1, 4)):
            self.send("skipped")
        self.app.reset(TOPIC, to_latest=True)
        self.claim()

    def lose(self) -> None:
        """Let Kafka delete some records before the app reads them; the next claim skips them."""
        for _ in range(self.random.randrange(1, 4)):
            self.send("lost")
        head = self.head
        ends = tuple(map(len, self.sent))
        for partition, end in enumerate(ends):
            self.kafka.delete_records(TOPIC, end, partition)
        source = head.inputs[TOPIC]
        lost = LostRecords(TOPIC, source.offsets, ends)
        counts = tuple(end - start for start, end in zip(source.offsets, ends, strict=True))
        self.claim(
            lambda draft: replace(draft, inputs={TOPIC: replace(source, offsets=ends, lost=counts)}, lost={TOPIC: lost})
        )

    def undo(self) -> None:
        """Count a record, then roll the table back to before the record. The offset is kept."""
        before = self.head.version
        self.batch("rewound")
        self.app.rewind(f"{APP}/{STAGE}@v{before}", keep_offsets=True)
        self.claim()

    def forget(self) -> None:
        (key,) = self.batch("forgotten")
        self.app.forget(STAGE, key)

    def edit(self) -> None:
        (key,) = self.batch("edited")
        self.app.edit(STAGE, f"DELETE FROM {STAGE} WHERE k = '{key}'")
        self.claim()

    def compact(self) -> None:
        self.app.compact(full=self.random.random() < 0.5)

    def undo_and_wait(self) -> None:
        """Count a record, then roll the app back to before the record. The app does not run again."""
        before = self.head.version
        self.batch("rewound")
        self.app.rewind(f"{APP}/{STAGE}@v{before}")

    def plain(self) -> None:
        # Only a replay can tell which of the two applies to a record of such a batch.
        reasons = ("counted", "counted", "rejected", self.random.choice(("late", "filtered")))
        self.batch(*self.random.choices(reasons, k=self.random.randrange(1, 6)))


EVENTS = (
    Plants.plain, Plants.let_expire, Plants.skip, Plants.lose, Plants.undo, Plants.forget, Plants.edit, Plants.compact,
)  # fmt: skip


def _value(key: str) -> bytes:
    return json.dumps({"k": key, "n": 1}).encode()


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)
