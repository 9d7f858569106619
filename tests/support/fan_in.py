"""Two senders and a stage that reads both, without Spark and Kafka. A snapshot by markers keeps in-flight records.

Rows are only counted: a message contains the number of its rows.
"""

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
from msgspec.structs import replace
from slackwater.errors import Refused, Unavailable
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.snapshot.cut.stored import Snapshot
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import apps, history
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.kinds import VersionKind
from slackwater.store.versions.manifest import AppInfo, Input, Manifest, Output, VersionSpan

CHANNELS = {"left": "by-left", "right": "by-right"}
PARTITIONS = 2


class Topics:
    """Kafka in memory. A message is its header and its number of rows."""

    def __init__(self) -> None:
        self.messages: dict[str, list[list[tuple[str, int]]]] = {}
        self.expired = self.away = False
        self.asked = 0

    def append(self, topic: str, partition: int, header: str, rows: int = 0) -> None:
        self._partitions(topic)[partition].append((header, rows))

    def ends(self, topic: str) -> tuple[int, ...]:
        return tuple(map(len, self._partitions(topic)))

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        """See `KafkaTopics`."""
        self._ask()
        if self.expired:
            raise Refused(f"offsets of {in_flight.topic} are gone from Kafka")
        for partition, messages in enumerate(self._partitions(in_flight.topic)):
            for offset in range(in_flight.starts[partition], in_flight.ends[partition]):
                header, rows = messages[offset]
                if header in in_flight.attempts:
                    yield records(partition, offset, rows)

    def marker_at(self, topic: str, partition: int, offset: int, /) -> str | None:
        """See `KafkaTopics`."""
        self._ask()
        messages = self._partitions(topic)[partition]
        if self.expired or offset >= len(messages):
            return None
        header = messages[offset][0]
        return header.removeprefix("marker ") if header.startswith("marker ") else ""

    def _ask(self) -> None:
        self.asked += self.away
        if self.away:
            raise Unavailable("Kafka does not answer")

    def _partitions(self, topic: str) -> list[list[tuple[str, int]]]:
        return self.messages.setdefault(topic, [[] for _ in range(PARTITIONS)])


def records(partition: int, offset: int, rows: int, first: int = 0) -> pa.Table:
    """Return the rows of a message, with their partition and offset."""
    numbers = pa.array(range(first, first + rows), pa.int32())
    return pa.table(
        {
            "amount": numbers,
            "_partition": pa.array([partition] * rows, pa.int32()),
            "_offset": pa.array([offset] * rows, pa.int64()),
            "_row": numbers,
        }
    )


class FanIn:
    """The app `bank`. Each method commits a version."""

    def __init__(self, store: ObjectStore) -> None:
        self.store, self.topics = store, Topics()
        self.heads: dict[str, Manifest] = {}
        self._attempts = count(1)
        apps.ensure_app(store, AppInfo("bank", 1_000))
        zeros = (0,) * PARTITIONS
        outputs = {
            stage: {name: Output(name, zeros, schema="amount int", sent=zeros)} for stage, name in CHANNELS.items()
        }
        reads = {name: Input(name, zeros, stage, 0, consumed=zeros) for stage, name in CHANNELS.items()}
        for stage in (*CHANNELS, "join"):
            inputs = reads if stage == "join" else {"events": Input("events", zeros)}
            first = Manifest("bank", stage, 1, 1, "w", 1_000, "claim", inputs, outputs.get(stage, {}))
            self._commit(first)

    def send(self, stage: str, *rows: int, marker: str = "") -> Manifest:
        """Commit a version of a sender that has this number of rows in each partition.

        The messages of a failed attempt come before them.
        """
        name, attempt = CHANNELS[stage], f"attempt-{next(self._attempts)}"
        for partition, number in enumerate(rows):
            if number:
                self.topics.append(name, partition, f"dead-{attempt}", number)
                self.topics.append(name, partition, attempt, number)
        markers = {marker: self.topics.ends(name)} if marker else {}
        for partition in range(PARTITIONS if marker else 0):
            self.topics.append(name, partition, f"marker {marker}")
        draft = self._next(stage)
        before = draft.outputs[name]
        output = replace(
            before,
            ends=self.topics.ends(name),
            attempts=(attempt,) if any(rows) else (),
            rows=sum(rows),
            markers=markers,
            sent=tuple(map(sum, zip(before.sent, rows, strict=True))),
        )
        source = draft.inputs["events"]
        offsets = tuple(map(sum, zip(source.offsets, rows, strict=True)))
        recorded = draft.recorded | ({marker: draft.version} if marker else {})
        read = replace(source, offsets=offsets, rows=sum(rows))
        return self._commit(replace(draft, inputs={"events": read}, outputs={name: output}, recorded=recorded))

    def join(
        self,
        left: int,
        right: int,
        *,
        recorded: dict[str, int] | None = None,
        awaited: dict[str, tuple[str, ...]] | None = None,
        captured: dict[str, dict[str, VersionSpan]] | None = None,
    ) -> Manifest:
        """Commit a version of the reader that has read the senders' versions up to these."""
        draft = self._next("join")
        inputs = {}
        for (stage, name), version in zip(CHANNELS.items(), (left, right), strict=True):
            read, sent = draft.inputs[name], history.read(self.store, "bank", stage, version).outputs[name]
            rows = sum(sent.sent) - sum(read.consumed)
            inputs[name] = replace(read, offsets=sent.ends, version=version, rows=rows, consumed=sent.sent)
        return self._commit(
            replace(draft, inputs=inputs, recorded=recorded or {}, awaited=awaited or {}, captured=captured or {})
        )

    def restart(self, stage: str) -> Manifest:
        """Claim the stage again."""
        draft = self._next(stage, "claim")
        return self._commit(replace(draft, epoch=draft.epoch + 1))

    def snapshot(self, name: str = "good") -> Snapshot:
        """Take a snapshot by markers.

        The left marker arrives first, so rows that the right sender sends later are in flight.
        """
        asked = request_snapshot(self.store, "bank", name, "ada@host")
        left = self.send("left", 2, 1, marker=asked.id)
        right = self.heads["right"]
        at = {asked.id: self.heads["join"].version + 1}
        awaited = {asked.id: ("by-right",)}
        self.join(left.version, right.version, recorded=at, awaited=awaited)
        self.send("right", 2, 2)
        late = self.send("right", 1, 0, marker=asked.id)
        spans = {asked.id: {"by-right": VersionSpan(right.version, late.version)}}
        self.join(left.version, late.version, recorded=at, captured=spans)
        self.send("right", 5, 5)
        taken = try_complete(self.store, "bank", asked, self.topics)
        assert taken is not None
        return taken

    def _next(self, stage: str, kind: VersionKind = "batch") -> Manifest:
        head = self.heads[stage]
        return successor(head, kind=kind, epoch=head.epoch, writer="w", by="test:1", now_ms=head.time_ms + 10)

    def _commit(self, manifest: Manifest) -> Manifest:
        commit(self.store, manifest)
        self.heads[manifest.stage] = manifest
        return manifest


def bank(store: ObjectStore) -> FanIn:
    """Return the app with versions before and after its snapshot `good`."""
    app = FanIn(store)
    app.send("left", 3, 2)
    app.send("right", 1, 4)
    app.join(2, 2)
    app.restart("right")
    app.snapshot()
    app.send("left", 1, 1)
    return app
