"""One record is taken out of a table with a day of history: seconds and bytes, beside those to read the day again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.operations.debugging.replay.program import open_program
from slackwater.operations.repair.records.commit import RepairCall
from slackwater.pipeline.kafka.protocol import Record
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Input
from slackwater.store.versions.side_tables import added_ssts
from slackwater.testing import Ran, run

from ...support.row import Row
from ...support.written import Stage

KEYS, VERSIONS, BATCH = 5_000_000, 86_400, 20
SECONDS = 3600
"""Maximum seconds of the measurement, most of which write the history."""
_WRITING = 5
"""One in this many versions writes rows. The others read records that the program filters out."""
_LATER = 24
"""Number of later records of the dropped record's key."""
_OLD, _BORN = range(2)
"""Numbers of the keys whose first record of the day is dropped. The first key has an older row, the second none."""


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """Repair two of five million keys in a day with one version a second.

    One key has a row from before the day, the other begins at noon. With `TMPDIR=/dev/shm`, the history is written much
    sooner.
    """
    keys, versions = (KEYS // 50, VERSIONS // 50) if quick else (KEYS, VERSIONS)
    ran = run(_app(), {"events": [{"k": _name(0), "x": 1}]})
    day = _Day(ran, folder, keys)
    for version in range(versions):
        at = version % (versions // (_LATER + 1))
        if at == _OLD or (at == _BORN and version > versions // 2):
            day.write(hot=at)
        elif version % _WRITING:
            day.skip()
        else:
            day.write()
    store = open_store(str(ran.folder.path / "store"))
    kafka = ran.app._client.require_channels("to read the records").kafka
    with open_program(ran.declared, store, SstCache(folder / "cold", 8 << 30), kafka) as program:
        for hot, how in ((_OLD, "cold"), (_BORN, "then of a key that began at noon")):
            before, (offset, amount) = history.head(store, "bench", "t"), day.firsts[hot]
            began = time.monotonic()
            done = RepairCall(program, {RecordLocation("events", 0, offset): None}, "bench").run()
            took = time.monotonic() - began
            after = history.head(store, "bench", "t")
            assert before is not None
            assert after is not None
            (change,) = done.plan.changes["t"]
            assert change.after == {"n": int(day.counts[hot]) - 1, "total": int(day.totals[hot]) - amount}
            written = sum(sst.bytes for sst in added_ssts(before, after))
            what = f"repair: 1 record of {keys:,} keys, {versions:,} versions, {done.plan.versions} replayed; {how}"
            yield Row.at_most(f"{what}: seconds", f"{took:.1f} s", "limit: 30 s; Spark runs already", took / 30, 1)
            yield Row.at_most(f"{what}: bytes of SSTs written", f"{written:,}", "limit: 100,000", written / 100_000, 1)


def _name(number: int) -> str:
    return f"key{number:09}"


def _app() -> sw.App:
    app = sw.App("bench")

    def parsed(raw: DataFrame) -> DataFrame:
        return (
            raw.select(F.from_json(F.col("value").cast("string"), "k string, x long").alias("r"))
            .select("r.*")
            .where("x > 0")
        )

    state = sw.aggregate(n=sw.count(), total=sw.sum("x"))
    app.stage(name="t", reads=sw.topic("events"), key="k", state=state, table=sw.table(partitions=1))(parsed)
    return app


class _Day:
    """History of one table: a version with all keys, and then small versions, each with the records that it read."""

    def __init__(self, ran: Ran, folder: Path, keys: int) -> None:
        self._store, self._kafka = open_store(str(ran.folder.path / "store")), ran.kafka
        head = history.head(self._store, "bench", "t")
        assert head is not None
        self.stage = Stage(self._store, SstCache(folder / "writer", 8 << 30), head)
        self.counts, self.totals = np.ones(keys, np.int64), np.ones(keys, np.int64)
        self.firsts: dict[int, tuple[int, int]] = {}
        """Offset and amount of the first record of each key of which one is dropped."""
        self._offset, self._random = 1, np.random.default_rng(1)
        numbers = pa.array(np.arange(keys)).cast(pa.string())
        self._names = pc.binary_join_element_wise("key", pc.utf8_lpad(numbers, 9, "0"), "")
        self._seqs = np.full(keys, self.stage.head.version + 1)
        self.counts[_BORN] = self.totals[_BORN] = self._seqs[_BORN] = 0
        self.stage.put(
            pa.table({"k": self._names, "n": self.counts, "total": self.totals}).filter(pa.array(self.counts > 0))
        )
        self.stage.compact(full=True)

    def skip(self) -> None:
        """Commit a batch of records that give no row."""
        self._send([b'{"x": 0}'] * BATCH)
        self.stage.read(self._read(BATCH))

    def write(self, *, hot: int | None = None) -> None:
        """Commit a batch of some keys, and of key number `hot`."""
        chosen = np.unique(self._random.integers(_BORN + 1, len(self.counts), BATCH))
        if hot is not None:
            chosen = np.insert(chosen, 0, hot)
        amounts = self._random.integers(1, 1_000, len(chosen))
        if hot is not None:
            self.firsts.setdefault(hot, (self._offset, int(amounts[0])))
        self.counts[chosen] += 1
        self.totals[chosen] += amounts
        names = self._names.take(pa.array(chosen))
        values = (
            json.dumps({"k": name, "x": amount})
            for name, amount in zip(names.to_pylist(), amounts.tolist(), strict=True)
        )
        self._send([value.encode() for value in values])
        rows = pa.table({"k": names, "n": self.counts[chosen], "total": self.totals[chosen]})
        before, self._seqs[chosen] = self._seqs[chosen], self.stage.head.version + 1
        self.stage.put(rows, self._read(len(chosen)), before)
        self.stage.compact()

    def _send(self, values: list[bytes]) -> None:
        self._kafka._append("events", [Record(value, partition=0) for value in values])
        self._offset += len(values)

    def _read(self, count: int) -> dict[str, Input]:
        source = self.stage.head.inputs["events"]
        return {"events": replace(source, offsets=(self._offset,), rows=count)}
