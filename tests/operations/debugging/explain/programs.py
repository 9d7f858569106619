"""Random programs with one table, and plain Python that computes the table from the same records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.operations.debugging.explain.answer import explain_row
from slackwater.operations.debugging.replay.program import LoadedProgram, open_program
from slackwater.snapshot.bisect.explained import RowExplanation
from slackwater.snapshot.query.columns import parse_key
from slackwater.store.versions import history
from slackwater.testing import Ran, Record, run

Raw = dict[str, Any]
Fold = Callable[[Sequence[Raw]], "Raw | None"]
SCHEMA = "k string, x long, seq long"


def parsed(raw: DataFrame) -> DataFrame:
    return raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*").where("x < 90")


def largest_of_pairs(rows: pa.Table, state: pa.Table) -> pa.Table:
    """Keep the largest value, and a flag that is true if any value is odd."""
    batch = rows.append_column("odd", pc.cast(pc.bit_wise_and(rows["x"], 1), pa.int64()))
    most = batch.group_by("_key", use_threads=False).aggregate([("x", "max"), ("odd", "max")]).sort_by("_key")
    return pa.table({
        "largest": pc.max_element_wise(state["largest"], most["x_max"]),
        "odd": pc.max_element_wise(state["odd"], most["odd_max"]),
    })  # fmt: skip


STATES: dict[str, tuple[Callable[[], Any], Fold]] = {
    "count": (lambda: sw.aggregate(n=sw.count()), lambda rows: {"n": len(rows)}),
    "sum": (lambda: sw.aggregate(total=sw.sum("x")), lambda rows: {"total": sum(row["x"] for row in rows)}),
    "max and last": (
        lambda: sw.aggregate(most=sw.max("x"), last=sw.last("x", by="seq")),
        lambda rows: {
            "most": max(row["x"] for row in rows),
            "last": max(rows, key=lambda row: row["seq"])["x"],
        },
    ),
    "upsert": (
        lambda: sw.upsert(by="seq"),
        lambda rows: {name: value for name, value in max(rows, key=lambda row: row["seq"]).items() if name != "k"},
    ),
    "custom": (
        lambda: sw.update(largest_of_pairs, state="largest long, odd long"),
        lambda rows: {"largest": max(row["x"] for row in rows), "odd": max(row["x"] & 1 for row in rows)},
    ),
}


def one_table(kind: str) -> sw.App:
    app = sw.App(f"a-{uuid4().hex[:8]}")
    app.stage(name="t", reads=sw.topic("in"), key="k", state=STATES[kind][0]())(parsed)
    return app


@dataclass
class Input:
    """Records with their locations, in two partitions, that were sent in several runs."""

    ran: Ran
    sent: dict[str, Raw]

    def of_key(self, key: str) -> dict[str, Raw]:
        return {place: row for place, row in self.sent.items() if row["k"] == key and row["x"] < 90}


def fed(app: sw.App, random: Random, *, runs: int = 3, per_run: int = 6, keys: Sequence[str] = "ab") -> Input:
    """Run an app over random records, with one batch for each run."""
    ran: Ran | None = None
    sent: dict[str, Raw] = {}
    offsets = [0, 0]
    for _ in range(runs):
        records = []
        for _ in range(per_run):
            row = {"k": random.choice(keys), "x": random.choice([1, 2, 2, 3, 95]), "seq": len(sent)}
            partition = random.randrange(2)
            sent[f"in[{partition}]@{offsets[partition]}"] = row
            offsets[partition] += 1
            records.append(Record(json.dumps(row).encode(), partition, b"key"))
        ran = run(app, {"in": records}, partitions=2, after=ran)
    assert ran is not None
    return Input(ran, sent)


@contextmanager
def program_of(ran: Ran) -> Iterator[LoadedProgram]:
    client = ran.app._client
    kafka = client.require_channels("to read the records").kafka
    with open_program(ran.declared, client.store, client.cache, kafka) as program:
        yield program


def explained(program: LoadedProgram, table: str, *key: object, version: int = 0, **how: Any) -> RowExplanation:
    head = history.head(program.store, program.app.name, table)
    assert head is not None
    newest = history.read(program.store, program.app.name, table, version or head.version)
    assert newest.table is not None
    return explain_row(program, newest, parse_key(table, newest.table, key), **how)


def places(found: RowExplanation) -> set[str]:
    return {str(record.location) for record in found.sources}


def smallest_size(rows: Iterable[Raw], fold: Fold, wanted: Mapping[str, object]) -> int:
    """Return the size of the smallest subset of records whose fold is the row. Tries all subsets."""
    some = [*rows]
    return next(
        size for size in range(1, len(some) + 1) for subset in combinations(some, size) if fold(subset) == dict(wanted)
    )
