"""An app that has processed faulty records: the records that were sent, and the app's commits."""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import Message, Producer
from slackwater.cli import main
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.pipeline.listener import Listener
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.program import load_app
from slackwater.pipeline.run.runner import run
from slackwater.snapshot.cut.moments import later_stages
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.answers import run_statement
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Manifest
from typer.testing import CliRunner

from tests.faults import apps
from tests.faults.apps import Shape

HOUR_MS = 3_600_000


@dataclass(eq=False)
class Record:
    """A record to send, and its position."""

    fields: dict[str, object]
    refund: bool = False
    """True for a record of the refunds topic, False for one of the orders topic."""
    healthy: bool = True
    topic: str = ""
    partition: int = -1
    offset: int = -1
    time_ms: int = 0

    @property
    def address(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def number(self, name: str) -> int:
        """Return a numeric field."""
        return int(str(self.fields[name]))


@dataclass
class History:
    """An app with its own store and topics."""

    bootstrap: str
    folder: Path
    shape: Shape
    random: Random
    app: str = field(default_factory=lambda: f"faults-{uuid4().hex[:8]}")
    sent: list[Record] = field(default_factory=list)
    seq: int = 0
    ran: list[Path] = field(default_factory=list)
    """Copy of the program of each run."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.kafka = open_kafka(self.bootstrap)
        self.store = open_store(str(self.folder / "store"))
        self.cache = SstCache(self.folder / "cache" / "query", 1 << 30)
        partitions = self.shape.partitions[0]
        self.kafka.create_topics({self.app: partitions, f"{self.app}-refunds": partitions})
        self.began_ms = time.time_ns() // 1_000_000 - 6 * HOUR_MS
        # Number of records with the same time. Two such records in different partitions have no order.
        self.alike = self.random.choice((1, 1, 3, 50))
        # Clock errors of the producers to each partition.
        self.wrong_by_ms = [self.random.choice((0, 0, 0, 40)) for _ in range(partitions)]

    def send(self, records: Iterable[Record]) -> None:
        """Send records in this order. Records with the same key go to the same partition, as with a keyed producer."""
        producer = Producer(self.kafka.properties)
        for record in records:
            record.fields.setdefault("seq", self.seq)
            ahead_ms = int(str(record.fields.pop("ahead", 0)))
            record.fields.setdefault("ts", self.began_ms + self.seq * 1000 + ahead_ms)
            record.topic = f"{self.app}-refunds" if record.refund else self.app
            place = sum(str(record.fields.get("k", record.fields["id"])).encode()) % self.shape.partitions[0]
            record.time_ms = self.began_ms + self.seq // self.alike + self.wrong_by_ms[place]
            self.seq += 1
            self.sent.append(record)

            def delivered(_error: object, message: Message, record: Record = record) -> None:
                record.partition, record.offset = message.partition(), message.offset()

            producer.produce(
                record.topic,
                json.dumps(record.fields).encode(),
                partition=place,
                timestamp=record.time_ms,
                on_delivery=delivered,
            )
            producer.poll(0)
        assert producer.flush(60) == 0

    def program(self, release: int) -> Path:
        """Return the file of a release."""
        file = self.folder / f"release{release}.py"
        return file if file.exists() else apps.write(self.shape, file, "faults", self.app, release)

    def run(self, release: int) -> None:
        """Run the program of a release over all available records, in batches of random size."""
        file = self.program(release)
        options = Options(
            store=str(self.folder / "store"),
            kafka=self.kafka.properties,
            until_caught_up=True,
            max_records=self.random.choice((40, 80, 150, 400)),
            cache_folder=self.folder / "cache" / "sst",
            gc_every_ms=None,
        )
        run(load_app(str(file), name=self.app), options, Listener())
        self.ran.append(file)

    def verb(self, *words: str) -> tuple[int, str, str]:
        """Run a verb; return its exit code and outputs."""
        environment = {
            **os.environ,
            "SLACKWATER_STORE": str(self.folder / "store"),
            "SLACKWATER_KAFKA": self.bootstrap,
            "SLACKWATER_CACHE": str(self.folder / "cache"),
        }
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            said = CliRunner().invoke(main.app, words, env=environment)
        finally:
            os.chdir(before)
        if said.exception is not None and not isinstance(said.exception, SystemExit):
            raise said.exception
        return said.exit_code, said.stdout, said.stderr

    def did(self, *words: str) -> str:
        """Run a verb that must succeed; return its output."""
        code, out, error = self.verb(*words)
        assert code == 0, (words, error)
        return out

    def versions(self, stage: str) -> Iterator[Manifest]:
        """Yield all versions of a stage, oldest first."""
        head = history.head(self.store, self.app, stage)
        assert head is not None
        return (history.read(self.store, self.app, stage, version) for version in range(1, head.version + 1))

    def rows(self, where: str, ref: str) -> pa.Table:
        """Return the rows of a query at a moment."""
        cut = resolve(self.store, ref, now_ms=time.time_ns() // 1_000_000)
        return run_statement(self.store, self.cache, cut, where, later=later_stages(self.store, cut))

    def turns(self, stage: str, where: str, after: int = 0) -> list[int]:
        """Return the versions of a stage at which a query over its tables starts to return rows."""
        found, was = [], False
        for manifest in self.versions(stage):
            if manifest.version <= after:
                continue
            now = bool(self.rows(where, f"{self.app}/{stage}@v{manifest.version}").num_rows)
            if now and not was:
                found.append(manifest.version)
            was = now
        return found

    def read_up_to(self, stage: str, version: int, records: Sequence[Record]) -> list[Record]:
        """Return the given records that the stage had read by this version."""
        ends, nothing = self._ends(stage, version), (0,) * self.shape.partitions[0]
        return [record for record in records if record.offset < ends.get(record.topic, nothing)[record.partition]]

    def read_by(self, stage: str, version: int, records: Sequence[Record]) -> list[Record]:
        """Return the given records that the stage read with this version."""
        before = self.read_up_to(stage, version - 1, records)
        return [record for record in self.read_up_to(stage, version, records) if record not in before]

    def _ends(self, stage: str, version: int) -> dict[str, tuple[int, ...]]:
        """Return the offsets in users' topics up to which a version has read."""
        ends: dict[str, tuple[int, ...]] = {}
        if version < 1:
            return ends
        manifest = history.read(self.store, self.app, stage, version)
        for at in manifest.inputs.values():
            if at.upstream:
                for topic, upstream in self._ends(at.upstream, at.version).items():
                    ends[topic] = max(ends.get(topic, upstream), upstream)
            else:
                ends[at.topic] = at.offsets
        return ends
