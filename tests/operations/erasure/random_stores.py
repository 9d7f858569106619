"""Random stores with records of several people in several formats, and a decoder independent of the product.

A store has:

- an input archive of `events`: records in JSON, Avro or Protobuf, in which one field leads to the key of the table
  `people`;
- an input archive of `transfers`: records with the same words and numbers, but not as keys of people;
- a channel with records in flight: some are kept by a snapshot, others unread in Kafka;
- rejected records.

`n` numbers the records.
"""

import io
import json
import random
import string
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from msgspec.structs import replace
from slackwater.pipeline.kafka.messages import encode_rows
from slackwater.pipeline.messages.decode import encode_arguments
from slackwater.pipeline.reject.table import DeadLetter, RejectedTable, rejected_row
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.store.archive import columns, index
from slackwater.store.archive.extents import Extent
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.sst.hashing import hash_keys
from slackwater.store.versions import apps
from slackwater.store.versions.column_types import FieldSource
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import (
    AppInfo,
    Column,
    Input,
    Manifest,
    Output,
    Table,
)
from slackwater.store.versions.side_tables import REJECTED

from tests.store.archive.small_archives import BY, write
from tests.support.histories import write_parts
from tests.support.manifests import claim

APP, CHANNEL, FIELDS = "app", "by-who", pa.schema([("who", pa.string()), ("note", pa.string()), ("n", pa.int64())])
DDL = "`who` string, `note` string, `n` bigint"
AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user", "type": {"type": "record", "name": "User", "fields": [{"name": "id", "type": "string"}]}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "n", "type": "long"},
    ],
}
PROTO = """syntax = "proto3";
message Event { User user = 1; string note = 2; int64 n = 3; }
message User { string id = 1; }
"""
SCHEMAS = {"AVRO": 7, "PROTOBUF": 8}
UNKNOWN = 99
"""A schema id that is not in the registry."""


def answer(path: str, _authorization: str) -> tuple[int, str]:
    """Answer a request as the schema registry does."""
    schemas = {"AVRO": json.dumps(AVRO), "PROTOBUF": PROTO}
    for kind, number in SCHEMAS.items():
        if path in (f"/schemas/ids/{number}", f"/subjects/events-{kind}/versions/latest"):
            return 200, json.dumps({"schema": schemas[kind], "schemaType": kind, "id": number})
    return 404, json.dumps({"error_code": 40403, "message": "none"})


def _event() -> Any:
    """Build the Protobuf class of an event from hand-written descriptors."""
    file = descriptor_pb2.FileDescriptorProto(name="of_test.proto", syntax="proto3")
    user, event = file.message_type.add(name="User"), file.message_type.add(name="Event")
    text, number, message = 9, 3, 11
    user.field.add(name="id", number=1, type=text, label=1)
    event.field.add(name="user", number=1, type=message, type_name=".User", label=1)
    event.field.add(name="note", number=2, type=text, label=1)
    event.field.add(name="n", number=3, type=number, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))


EVENT = _event()
CACHE = Path("/nonexistent")
LETTERS = string.ascii_letters + string.digits + " '\"\\/+@.-_éß\u2028😀\n"


@dataclass
class RandomStore:
    """A store and its expected content."""

    store: ObjectStore
    registry: str
    random: random.Random
    people: list[str] = field(default_factory=list)
    kind: str = "JSON"
    path: str = "$.user.id"
    """Field of an event whose value leads to the key."""
    unread: list[pa.Table] = field(default_factory=list)
    garbage: int = 0
    """Number of records that cannot be decoded."""
    _n: int = 0

    def write(self) -> None:
        """Write the whole store."""
        rnd = self.random
        self.kind = rnd.choice(("JSON", "JSON", "AVRO", "PROTOBUF"))
        self.path = "$.user.id" if self.kind != "JSON" else rnd.choice(("$.user.id", "$.users.id", "$.payload.user.id"))
        self.people = self._people()
        apps.create_app(self.store, AppInfo(APP, 1))
        send, people = self._stages()
        for topic, of in (("events", self._event), ("transfers", self._transfer)):
            self._archive(topic, [of(rnd.choice(self.people)) for _ in range(rnd.randint(4, 25))])
        self._archive("channel", [encode_rows(self._rows(rnd.randint(1, 4)).to_batches()[0]) for _ in range(4)])
        self._table(people)
        self.unread = [self._rows(rnd.randint(1, 8))]
        self._send(send)
        cut = resolve(self.store, APP, now_ms=2_000_000_000_000)
        pin_cut(self.store, cut, "kept", reader=self)

    def number(self) -> int:
        self._n += 1
        return self._n

    def _people(self) -> list[str]:
        """Return people's names; some contain others or look like numbers."""
        rnd = self.random
        first = "".join(rnd.choice(LETTERS) for _ in range(rnd.randint(1, 6)))
        number = str(rnd.randint(1, 99))
        some = [first, f"{first}-{first}", f"x{first}", number, f"{number}.0", f"{number}0", "a", first.swapcase()]
        return [*dict.fromkeys(each for each in some if each.strip())]

    def _text(self, text: str) -> str:
        """Return JSON text with randomly escaped characters."""
        if self.random.random() < 0.4:
            return json.dumps(text, ensure_ascii=self.random.random() < 0.5)
        made = ""
        for letter in text:
            units = letter.encode("utf-16-be")
            escaped = "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2))
            made += escaped if self.random.random() < 0.5 else json.dumps(letter, ensure_ascii=False)[1:-1]
        return f'"{made}"'

    def _event(self, who: str) -> bytes:
        """Return a record of a person; its note names another person."""
        rnd, n, note = self.random, self.number(), f"of {self.random.choice(self.people)}"
        if rnd.random() < 0.05:
            self.garbage += 1
            return b"\0" + struct.pack(">I", UNKNOWN) + who.encode() if rnd.random() < 0.5 else b"\xfe{" + who.encode()
        if self.kind == "AVRO":
            out = io.BytesIO()
            fastavro.schemaless_writer(out, AVRO, {"user": {"id": who}, "note": note, "n": n})
            return b"\0" + struct.pack(">I", SCHEMAS["AVRO"]) + out.getvalue()
        if self.kind == "PROTOBUF":
            body = EVENT(user={"id": who}, note=note, n=n).SerializeToString()
            return b"\0" + struct.pack(">I", SCHEMAS["PROTOBUF"]) + b"\0" + body
        said = who if who.isdigit() and rnd.random() < 0.5 else self._text(who)
        user = f'{{"id": {said}, "friend": {self._text(rnd.choice(self.people))}}}'
        match self.path:
            case "$.users.id":
                inside = f'"users": [{{"id": {self._text(rnd.choice(self.people))}}}, {user}]'
            case "$.payload.user.id":
                inside = f'"payload": {self._text(f"""{{"user": {user}}}""")}'
            case _:
                inside = f'"user": {user}'
        return f'{{"n": {n}, {inside}, "note": {self._text(rnd.choice(self.people))}}}'.encode()

    def _transfer(self, who: str) -> bytes:
        """Return a record that belongs to no person. A person's name is its amount, its note and its key."""
        amount = who if who.isdigit() else self._text(who)
        return f'{{"n": {self.number()}, "amount": {amount}, "note": {self._text(who)}}}'.encode()

    def _stages(self) -> tuple[Manifest, Manifest]:
        form = {"JSON": ""}.get(self.kind, encode_arguments(self.registry, f"events-{self.kind}", None, "Event"))
        if self.kind == "AVRO":
            form = encode_arguments(self.registry, "events-AVRO", None, "")
        who = {
            "who": (FieldSource("events", self.path, (), form),),
            "note": (FieldSource("events", "$.note"),),
            "n": (),
        }
        table = Table((Column("who", "string"),), (Column("n", "int64"),), 1)

        def build(draft: Manifest) -> Manifest:
            match draft.stage:
                case "send":
                    out = Output("channel", (0,), (0,), schema=DDL)
                    return replace(
                        draft, inputs={"events": Input("events", (0,))}, outputs={CHANNEL: out}, lineage={CHANNEL: who}
                    )
                case "people":
                    read = Input("channel", (0,), "send", 0, consumed=(0,))
                    lineage = {"": {"who": (FieldSource(CHANNEL, "who"),)}}
                    return replace(draft, inputs={CHANNEL: read}, table=table, lineage=lineage)
            lineage = {"": {"account": (FieldSource("transfers", "$.account"),)}}
            other = Table((Column("account", "string"),), (Column("n", "int64"),), 1)
            return replace(draft, inputs={"transfers": Input("transfers", (0,))}, table=other, lineage=lineage)

        made = [
            claim(self.store, APP, stage, writer="w", by="test:1", now_ms=at, build=build)
            for at, stage in enumerate(("send", "people", "accounts"), 1)
        ]
        return made[0], made[1]

    def _archive(self, topic: str, values: list[bytes]) -> None:
        count = len(values)
        rows = pa.Table.from_arrays(
            [
                pa.array([topic] * count),
                pa.array([0] * count, pa.int32()),
                pa.array(range(count), pa.int64()),
                pa.array([1_000] * count, columns.TIME),
                pa.array([0] * count, pa.int32()),
                pa.array([self.random.choice(self.people).encode() for _ in values], pa.binary()),
                pa.array(values, pa.binary()),
                pa.array([None] * count, columns.HEADERS),
            ],
            schema=columns.SCHEMA,
        )
        half = count // 2
        for first, end in ((0, half), (half, count)):
            archive = index.newest(self.store, APP, topic) or index.empty_index(APP, topic)
            extents = (Extent(0, first, end),)
            one = write(self.store, archive, [rows.slice(first, end - first)], extents, 1)
            index.change(self.store, archive, index.append_update((one,), extents), by=BY, now_ms=1)

    def _rows(self, count: int) -> pa.Table:
        """Return random rows of the channel."""
        some = [self.random.choice(self.people) for _ in range(2 * count)]
        numbers = [self.number() for _ in range(count)]
        return pa.table([some[:count], some[count:], numbers], schema=FIELDS)

    def _table(self, head: Manifest) -> None:
        """Write versions of the table, and rejected rows of the channel."""
        for _ in range(self.random.randint(1, 3)):
            some = sorted(self.random.sample(self.people, self.random.randint(1, len(self.people))))
            keys = pa.table({"who": some})
            seq = head.version + 1
            rows = pa.table(
                {
                    "_hash": hash_keys(keys, ["who"]),
                    "who": some,
                    "n": pa.array([self.number() for _ in some], pa.int64()),
                    "_seq": np.full(len(some), seq),
                    "_op": np.zeros(len(some), np.int8),
                }
            )
            assert head.table is not None
            ssts = write_parts(self.store, APP, "people", head.table, rows)
            rejected = RejectedTable(self.store, SstCache(CACHE, 0), APP, "people")
            row = self._rows(1)
            letter = DeadLetter(
                "channel", 0, seq, None, encode_rows(row.to_batches()[0]), [], "E", "no", "", input=CHANNEL
            )
            side = rejected.upsert(head, [rejected_row(letter, version=seq, now_ms=1)], seq, added=1, waiting=1)
            head = self._commit(head, ssts=(*ssts, *head.ssts), side_tables={REJECTED: side})

    def _send(self, head: Manifest) -> None:
        count = sum(each.num_rows for each in self.unread)
        out = Output("channel", (1,), (count,), ("attempt",), count, DDL)
        self._commit(head, outputs={CHANNEL: out})

    def _commit(self, head: Manifest, **more: Any) -> Manifest:
        draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="t:1", now_ms=head.time_ms + 10)
        made = replace(draft, **more)
        commit(self.store, made)
        return made

    # What is asked of Kafka.

    def read(self, _in_flight: InFlight) -> Iterator[pa.Table]:
        for rows in self.unread:
            count = rows.num_rows
            address = {"_partition": pa.array([0] * count, pa.int32()), "_offset": pa.array([0] * count, pa.int64())}
            address["_row"] = pa.array(range(count), pa.int32())
            yield pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **address})

    def retention_ms(self, _topic: str) -> int | None:
        return None


@dataclass(frozen=True)
class Found:
    """Content of an object, decoded by Spark's rules in plain Python."""

    records: Mapping[int, frozenset[str]]
    """The people to whom each record belongs, by record number."""
    undecoded: int


def decoded(made: RandomStore, store: ObjectStore) -> dict[str, Found]:
    """Decode every Parquet object of a store."""
    return {
        info.key: _decoded(made, info.key, pq.read_table(io.BytesIO(store.get(info.key))))
        for info in store.list("")
        if info.key.endswith(".parquet")
    }


def _decoded(made: RandomStore, key: str, rows: pa.Table) -> Found:
    found: dict[int, frozenset[str]] = {}
    undecoded = 0
    for row in rows.to_pylist():
        if "/input/transfers/" in key:
            found[json.loads(row["value"])["n"]] = frozenset()
        elif "/input/channel/" in key:
            with pa.ipc.open_stream(row["value"]) as stream:
                found |= {each["n"]: frozenset({each["who"]}) for each in stream.read_all().to_pylist()}
        elif "/input/events/" in key:
            try:
                n, people = _of_event(made, row["value"])
                found[n] = people
            except (ValueError, KeyError):
                undecoded += 1
        elif "error" in rows.column_names:
            with pa.ipc.open_stream(row["value"]) as stream:
                (inside,) = stream.read_all().to_pylist()
            found[inside["n"]] = frozenset({inside["who"]})
        else:
            found[row["n"]] = frozenset({row["who"]})
    return Found(found, undecoded)


def _of_event(made: RandomStore, value: bytes) -> tuple[int, frozenset[str]]:
    if made.kind != "JSON" or value[:1] == b"\0":
        if value[0] != 0 or struct.unpack(">I", value[1:5])[0] == UNKNOWN:
            raise ValueError
        if made.kind == "AVRO":
            said: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), AVRO, None)
            return said["n"], frozenset({said["user"]["id"]})
        event = EVENT.FromString(value[6:])
        return event.n, frozenset({event.user.id})
    said = json.loads(value, parse_int=str, parse_float=str)
    match made.path:
        case "$.users.id":
            users = said["users"]
        case "$.payload.user.id":
            users = [json.loads(said["payload"], parse_int=str, parse_float=str)["user"]]
        case _:
            users = [said["user"]]
    return int(said["n"]), frozenset(user["id"] for user in users)
