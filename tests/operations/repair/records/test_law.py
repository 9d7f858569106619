"""After a repair, tables equal those of an app that never read the record, and an undo restores the old tables.

The expected tables come from plain Python over the other records, or from a second app without the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.errors import Refused
from slackwater.operations.repair.records.commit import RepairCall, RepairDone
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.store.versions import history
from slackwater.store.versions.side_tables import added_ssts
from slackwater.testing import Ran, Record, run

from tests.models.profiles import SEARCHES
from tests.operations.debugging.explain.programs import STATES, Input, Raw, fed, one_table, parsed, program_of
from tests.operations.debugging.explain.test_stages import KEYS, three_stages

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

Substitutes = Mapping[str, Raw | None]


def repaired(ran: Ran, substitutes: Substitutes = {}, *, dry_run: bool = False, **how: Any) -> RepairDone:  # noqa: B006
    values = {
        RecordLocation.parse(place): json.dumps(row).encode() if row is not None else None
        for place, row in substitutes.items()
    }
    with program_of(ran) as program:
        return RepairCall(program, values, "ada@host", no_sinks=True, **how).run(dry_run=dry_run)


def tables(ran: Ran) -> dict[str, list[dict[str, object]]]:
    newest = ran.app.at()
    return {name: newest.query(f'FROM "{name}" ORDER BY ALL').to_arrow_table().to_pylist() for name in newest.tables}


def folded(kind: str, given: Input, without: Substitutes) -> list[dict[str, object]]:
    """Return the expected table of a program with one table, with some records dropped or replaced."""
    sent = {place: without.get(place, row) for place, row in given.sent.items()}
    good = [row for row in sent.values() if row is not None and row["x"] < 90]
    rows = (
        (key, STATES[kind][1]([row for row in good if row["k"] == key])) for key in sorted({row["k"] for row in good})
    )
    return [{"k": key, **row} for key, row in rows if row is not None]


@contextmanager
def unchanged_but(ran: Ran, keys: set[str]) -> Iterator[None]:
    """Check that the newest version of the table `t` changed only rows of these keys."""
    before = history.head(ran.app._client.store, ran.declared.name, "t")
    yield
    after = history.head(ran.app._client.store, ran.declared.name, "t")
    assert before is not None
    assert after is not None
    assert after.version <= before.version + 1
    assert sum(sst.rows for sst in added_ssts(before, after)) <= len(keys)


IN_GATE = [("sum", 1), ("custom", 1)]


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(kind, seed, marks=[] if (kind, seed) in IN_GATE else pytest.mark.ci)
        for kind in STATES
        for seed in range(20)
    ],
)
def test_a_table_is_then_that_of_an_app_that_never_read_the_record(kind: str, seed: int) -> None:
    random = Random(f"{kind} {seed} repair")
    given = fed(one_table(kind), random, runs=4, per_run=4, keys="abc")
    before = tables(given.ran)["t"]
    assert before == folded(kind, given, {})
    gone: dict[str, Raw | None] = {}
    for place in random.sample([*given.sent], 2):
        gone[place] = None
        planned = repaired(given.ran, {place: None}, dry_run=True)
        assert tables(given.ran)["t"] == before
        with unchanged_but(given.ran, {given.sent[place]["k"]}):
            done = repaired(given.ran, {place: None})
        assert {stage: len(rows) for stage, rows in planned.plan.changes.items()} == {
            stage: len(rows) for stage, rows in done.plan.changes.items()
        }
        assert tables(given.ran)["t"] == (before := folded(kind, given, gone))
        again = repaired(given.ran, {place: None})
        assert (again.repair, again.versions) == (None, {})
    # Later batches go on from the repaired rows.
    more = [{"k": random.choice("abc"), "x": random.choice([1, 2]), "seq": 100 + at} for at in range(4)]
    given.ran = run(given.ran.declared, {"in": [Record(json.dumps(row).encode(), 0) for row in more]}, after=given.ran)
    given.sent |= {f"more{at}": row for at, row in enumerate(more)}
    assert tables(given.ran)["t"] == folded(kind, given, gone)
    while gone:
        gone.popitem()
        assert repaired(given.ran, undo=True).undone
        assert tables(given.ran)["t"] == folded(kind, given, gone)


def runs_of(app: sw.App, runs: Sequence[Sequence[Record]]) -> Ran:
    ran: Ran | None = None
    for records in runs:
        ran = run(app, {"in": records}, partitions=2, after=ran)
    assert ran is not None
    return ran


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.ci) for seed in range(1, 20))])
def test_stages_downstream_are_those_of_an_app_that_never_read_the_record(seed: int) -> None:
    random = Random(f"{seed} stages")
    runs, places = [], dict[str, tuple[int, int]]()
    offsets, size = [0, 0], 4 if SEARCHES else 2
    for number in range(size):
        records = []
        for at in range(4):
            row = {"k": random.choice(KEYS), "x": random.choice([1, 2, 3]), "seq": 10 * number + at}
            partition = random.randrange(2)
            places[f"in[{partition}]@{offsets[partition]}"] = number, at
            offsets[partition] += 1
            records.append(Record(json.dumps(row).encode(), partition, b"key"))
        runs.append(records)
    ran, gone = runs_of(three_stages(), runs), set[tuple[int, int]]()
    original = tables(ran)
    for place in random.sample([*places], size // 2):
        gone.add(places[place])
        done = repaired(ran, {place: None})
        assert not done.plan.in_flight
        assert done.plan.sinks
        # A run in which every record is missing makes no batch in the other app either.
        others = [
            [record for at, record in enumerate(records) if (number, at) not in gone]
            for number, records in enumerate(runs)
        ]
        assert tables(ran) == tables(runs_of(three_stages(), others))
    while gone:
        gone.pop()
        repaired(ran, undo=True)
    assert tables(ran) == original


def test_another_record_is_put_in_the_place_of_one() -> None:
    given = fed(one_table("sum"), Random(5), runs=3, per_run=4)
    place = next(place for place, row in given.sent.items() if row["x"] < 90)
    other = {"k": "new", "x": 50, "seq": 1}
    done = repaired(given.ran, {place: other})
    assert tables(given.ran)["t"] == folded("sum", given, {place: other})
    assert done.repair is not None
    with pytest.raises(Refused, match="is in force for"):
        repaired(given.ran, {place: None})
    with pytest.raises(Refused, match="only the checksum of the new value"):
        repaired(given.ran, undo=True)
    repaired(given.ran, {place: other}, undo=True)
    assert tables(given.ran)["t"] == folded("sum", given, {})


@pytest.mark.ci
def test_a_function_that_mixes_records_is_replayed_whole() -> None:
    def largest(raw: DataFrame) -> DataFrame:
        return parsed(raw).mapInPandas(
            lambda batches: (rows[rows["x"] > 1] for rows in batches), "k string, x long, seq long"
        )

    app = sw.App(f"a-{uuid4().hex[:8]}")
    app.stage(name="t", reads=sw.topic("in"), key="k", state=sw.aggregate(total=sw.sum("x")))(largest)
    ran = run(app, {"in": [{"k": "a", "x": x, "seq": x} for x in (1, 2, 3)]})
    assert repaired(ran, {"in[0]@0": None}).versions == {}
    repaired(ran, {"in[0]@1": None})
    assert ran.row("t", "a") == {"k": "a", "total": 5}
    assert tables(ran)["t"] == [{"k": "a", "total": 3}]
    repaired(ran, {"in[0]@2": None})
    assert tables(ran)["t"] == []


def at(minute: float) -> str:
    return f"2026-01-01T00:{int(minute):02d}:{int(minute % 1 * 60):02d}Z"


def windows() -> sw.App:
    def timed(raw: DataFrame) -> DataFrame:
        fields = raw.select(F.from_json(F.col("value").cast("string"), "k string, x long, at timestamp").alias("r"))
        return fields.select("r.*").withWatermark("at", "1 minute").withColumn("w", F.window("at", "1 minute"))

    app = sw.App(f"a-{uuid4().hex[:8]}")
    app.stage(
        name="t", reads=sw.topic("in"), key=["k", "w"], state=sw.aggregate(n=sw.sum("x")),
        event_time=sw.event_time(late="table"),
    )(timed)  # fmt: skip
    return app


def test_rows_of_windows_are_repaired_and_a_late_record_leaves_the_table_of_late_rows() -> None:
    records = [("a", 1, 30), ("a", 2, 30.2), ("a", 4, 29.5), ("b", 8, 30)]
    runs = [[{"k": k, "x": x, "at": at(minute)}] for k, x, minute in [*records, ("a", 16, 31), ("a", 32, 1)]]
    ran = runs_of(windows(), [[Record(json.dumps(row).encode(), 0) for row in rows] for rows in runs])
    assert [len(tables(ran)[name]) for name in ("t", "t_late")] == [4, 1]
    for offset in (2, 5):
        repaired(ran, {f"in[0]@{offset}": None})
    others = [rows for at, rows in enumerate(runs) if at not in (2, 5)]
    expected = runs_of(windows(), [[Record(json.dumps(row).encode(), 0) for row in rows] for rows in others])
    assert tables(ran)["t"] == tables(expected)["t"]
    assert len(tables(ran)["t"]) == 3
    assert tables(ran)["t_late"] == []
