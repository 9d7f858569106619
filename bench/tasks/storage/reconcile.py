"""Compare a table with an external file: the duration, and how many differing keys get the right reason."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from slackwater.operations.debugging.reconcile.compare import Matching
from slackwater.operations.debugging.reconcile.explain import Place, reconcile
from slackwater.pipeline.kafka.channels import KafkaChannels
from slackwater.pipeline.kafka.memory import MemoryKafka
from slackwater.pipeline.kafka.protocol import Record
from slackwater.pipeline.reject.table import DeadLetter, RejectedTable, rejected_row
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.query.row_source import RowSource
from slackwater.store.archive import index
from slackwater.store.archive.columns import SCHEMA
from slackwater.store.archive.extents import Extent
from slackwater.store.archive.index import ArchiveObject
from slackwater.store.archive.objects import ArchiveWriter
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, commit
from slackwater.store.versions.column_types import FieldSource
from slackwater.store.versions.manifest import AppInfo, Column, EventTime, Input, Manifest, Reset, Rewind, Table
from slackwater.store.versions.side_tables import REJECTED

from ...support.row import Row
from ...support.written import Stage

KEYS, VERSIONS = 5_000_000, 1_000
TABLE = Table((Column("k", "string"),), (Column("n", "int64"),), 4)
LINEAGE = {"": {"k": (FieldSource("events", "$.k"),)}}
PLANTED = {"absent": 20, "filtered": 5, "late": 4, "rejected": 3, "skipped": 3, "rewound": 3, "unread": 3}
"""Number of differing keys for each reason why a key is not in the table."""
_OBJECTS = 100


def rows(folder: Path, quick: bool) -> list[Row]:
    """Measure five million keys of a thousand versions, of which 41 keys differ. The cache is empty."""
    keys, versions = (KEYS // 50, VERSIONS // 50) if quick else (KEYS, VERSIONS)
    history = History(folder, keys, versions)
    history.write()
    place = Place(
        open_store(history.root),
        SstCache(folder / "cold", 8 << 30),
        Cut("bench", {"t": history.stage.head}),
        "t",
        history.stage.head.time_ms,
        KafkaChannels(history.kafka),
    )
    began = time.monotonic()
    found = reconcile(place, RowSource(str(folder / "theirs.parquet")), Matching())
    took = time.monotonic() - began
    assert found.comparison.num_different == sum(PLANTED.values())
    right = [each.reasons[0].kind == str(each.key["k"]).partition("-")[0] for each in found.keys]
    what = f"reconcile: {keys:,} keys, {versions:,} versions, {len(right)} differ"
    return [
        Row.at_most(f"{what}: seconds", f"{took:.1f} s", "", took, 60),
        Row.at_least(f"{what}: right reasons", str(sum(right)), "", sum(right), len(right)),
    ]


class History:
    """Versions of a stage that reads one record for each key, with their archive and the planted records."""

    def __init__(self, folder: Path, keys: int, versions: int) -> None:
        self.root, self._keys, self._versions, self._folder = str(folder / "store"), keys, versions, folder
        self._store, self._cache = open_store(self.root), SstCache(folder / "writer", 8 << 30)
        self.kafka = MemoryKafka(f"memory://{folder}")
        apps.create_app(self._store, AppInfo("bench", 1))
        source = Input("events", (0,))
        first = Manifest(
            "bench", "t", 1, 1, "w", 1_000, "claim", table=TABLE, lineage=LINEAGE, inputs={"events": source}
        )
        commit.commit(self._store, first)
        self.stage = Stage(self._store, self._cache, first)
        self._archived: list[ArchiveObject] = []

    def write(self) -> None:
        numbers = pa.array(np.arange(self._keys)).cast(pa.string())
        names = pc.binary_join_element_wise("key", pc.utf8_lpad(numbers, 9, "0"), "-")
        size = self._keys // self._versions
        for start in range(0, self._keys, size):
            some = names.slice(start, size)
            self.stage.put(
                pa.table({"k": some, "n": pa.array(np.ones(len(some), np.int64))}), self._read_to(start + size)
            )
            self.stage.compact()
        for start in range(0, self._keys, step := self._keys // _OBJECTS):
            self._archive(names.slice(start, step), start)
        planted = self._plant(self._keys)
        theirs = pa.chunked_array([names, pa.array(planted)])
        pq.write_table(pa.table({"k": theirs, "n": np.ones(len(theirs), np.int64)}), self._folder / "theirs.parquet")
        archive = index.empty_index("bench", "events")
        extents = tuple(extent for item in self._archived for extent in item.extents)
        index.change(self._store, archive, index.append_update(tuple(self._archived), extents), by="bench", now_ms=1)

    def _read_to(self, offset: int) -> dict[str, Input]:
        return {"events": replace(self.stage.head.inputs["events"], offsets=(offset,))}

    def _archive(self, names: pa.Array, start: int) -> None:
        count = len(names)
        # Random like real records, which an archive compresses to more than a byte each.
        ids = pa.array(np.random.default_rng(start).integers(0, 1 << 62, count)).cast(pa.string())
        values = pc.binary_join_element_wise('{"k": "', names, '", "n": 1, "id": ', ids, "}", "").cast(pa.binary())
        constant = {"topic": "events", "partition": 0, "timestamp": 0, "timestampType": 0}
        columns = {name: pa.repeat(pa.scalar(value), count) for name, value in constant.items()}
        columns |= {"offset": pa.array(np.arange(start, start + count)), "value": values}
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in SCHEMA
        ]
        writer = ArchiveWriter()
        writer.append(pa.Table.from_arrays(arrays, schema=SCHEMA))
        item, data = writer.finish(
            index.new_object_key(index.empty_index("bench", "events")), (Extent(0, start, start + count),), 1
        )
        self._store.put(item.object, data)
        self._archived.append(item)

    def _plant(self, start: int) -> list[str]:
        """Commit a version for each reason, which reads the records planted for that reason.

        Returns all planted keys.
        """
        at, planted = start, list[str]()
        partition = self._open_log(start)
        for reason, count in PLANTED.items():
            names = [f"{reason}-{number}" for number in range(count)]
            planted += names
            if reason == "absent":
                continue
            self.kafka._append(
                "events", [Record(b'{"k": "%s", "n": 1}' % name.encode(), partition=0) for name in names]
            )
            if reason != "unread":
                self._commit(reason, names, at)
            at += count
        assert len(partition.log) == at
        return planted

    def _open_log(self, start: int):  # type: ignore[no-untyped-def]
        self.kafka.create_topics({"events": 1})
        (partition,) = self.kafka._topics["events"]
        partition.log.extend([None] * start)
        partition.start = start
        return partition

    def _commit(self, reason: str, names: list[str], at: int) -> None:
        head = self.stage.head
        if reason == "rewound":
            self.stage.put(pa.table({"k": names, "n": np.ones(len(names), np.int64)}), self._read_to(at + len(names)))
        draft = commit.successor(
            self.stage.head, kind="reset" if reason == "skipped" else "rewind" if reason == "rewound" else "batch",
            epoch=1, writer="w", by="bench", now_ms=self.stage.head.time_ms + 1_000,
        )  # fmt: skip
        source = self._read_to(at + len(names))["events"]
        changes: dict[str, object] = {"inputs": {"events": replace(source, rows=len(names))}}
        if reason == "late":
            changes["event_time"] = EventTime(watermark_ms=1, late=len(names), late_total=len(names))
        elif reason == "rejected":
            letters = (
                DeadLetter("events", 0, at + n, None, b"", (), "ValueError", name, "", "events")
                for n, name in enumerate(names)
            )
            rejected = [rejected_row(letter, version=draft.version, now_ms=1) for letter in letters]
            table = RejectedTable(self._store, self._cache, "bench", "t")
            changes["side_tables"] = {
                REJECTED: table.upsert(draft, rejected, draft.version, added=len(names), waiting=len(names))
            }
        elif reason == "skipped":
            changes["inputs"] = {"events": replace(source, resets=(Reset(draft.version, (at,), (at + len(names),)),))}
        elif reason == "rewound":
            changes |= {"ssts": head.ssts, "rewinds": (Rewind(draft.version, head.version, table_only=True),)}
        self.stage.head = replace(draft, **changes)
        commit.commit(self._store, self.stage.head)
