"""Records that made rows through several stages, and rows that single records reached."""

from __future__ import annotations

import json
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.operations.debugging.explain.answer import trace_impact
from slackwater.snapshot.bisect.explained import Impact
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.testing import Ran, Record, run

from .programs import explained, fed, one_table, parsed, places, program_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

T0 = 1_767_000_000_000
SINK = "shops-out"


def counted(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Count an account's rows, and emit the count to the account's shop."""
    each = rows.group_by("_key", use_threads=False).aggregate([("x", "count")]).sort_by("_key")
    n = pc.add(pc.fill_null(state["n"], 0), each["x_count"])
    return pa.table({"n": n}), pa.table({"shop": pc.utf8_slice_codeunits(state["k"], 0, 1), "k": state["k"], "n": n})


def three_stages() -> sw.App:
    """Return an app with accounts such as `ax` and `ay`, whose counts go to shop `a`."""
    app = sw.App(f"a-{uuid4().hex[:8]}")
    app.stage(name="parse", reads=sw.topic("in"), writes=sw.repartition("by-k", key="k", partitions=2))(parsed)
    app.stage(
        name="accounts",
        reads="by-k",
        key="k",
        state=sw.update(counted, state="n long", emits="shop string, k string, n long"),
        writes=sw.repartition("by-shop", key="shop", partitions=2),
    )(lambda rows: rows)
    app.stage(
        name="shops",
        reads="by-shop",
        key="shop",
        state=sw.aggregate(changes=sw.count(), most=sw.max("n")),
        writes=sw.sink(SINK, key="shop"),
    )(lambda rows: rows)
    return app


KEYS = ("ax", "ay", "bx")


def impact(ran: Ran, record: str, clones: dict[str, Any] | None = None, **how: Any) -> Impact:
    with program_of(ran) as program:
        return trace_impact(program, RecordLocation.parse(record), clones or {}, **how)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.ci) for seed in range(1, 20))])
def test_a_row_leads_through_three_stages_to_its_records_and_each_record_to_the_row(seed: int) -> None:
    given = fed(three_stages(), Random(seed), keys=KEYS, per_run=4)
    good = {place: row for place, row in given.sent.items() if row["x"] < 90}
    with program_of(given.ran) as program:
        for shop in "ab":
            expected = {place for place, row in good.items() if row["k"][0] == shop}
            found = explained(program, "shops", shop)
            assert places(found) == expected
            assert found.is_whole or not expected
            assert {version.stage for version in found.versions} <= {"shops", "accounts", "parse"}
    place, row = Random(seed).choice([*good.items()])
    reached = impact(given.ran, place)
    assert not reached.unknown
    rows = {(each.stage, *each.key.values()) for each in reached.rows}
    assert rows == {("accounts", row["k"]), ("shops", row["k"][0])}
    assert {each.output for each in reached.outputs} == {"by-k", "by-shop", SINK}
    assert all(each.is_published for each in reached.outputs if each.output == SINK)
    sent = [value for each in reached.outputs if each.output == SINK for value in each.rows]
    assert {value["shop"] for value in sent} == {row["k"][0]}


def test_the_smallest_set_is_searched_through_stages_with_state() -> None:
    records = [{"k": key, "x": 1, "seq": at} for at, key in enumerate(["ax", "ax", "ay", "bx"])]
    ran = run(three_stages(), {"in": records})
    with program_of(ran) as program:
        found = explained(program, "shops", "a", minimal=True)
        assert found.row == {"changes": 2, "most": 2}
        assert found.minimal is not None, found.unknown
        # One record of each account gives two changes, and the second of `ax` the count 2.
        assert {str(record) for record in found.minimal.records} == {"in[0]@0", "in[0]@1", "in[0]@2"}
        assert found.minimal.is_smallest


ORDER, PAYMENT = "k string, item string, at timestamp", "k string, paid long, paid_at timestamp"


def joined(orders: DataFrame, payments: DataFrame) -> tuple[DataFrame, DataFrame]:
    def rows(raw: DataFrame, schema: str, time: str) -> DataFrame:
        fields = raw.select(F.from_json(F.col("value").cast("string"), schema).alias("r")).select("r.*")
        return fields.withWatermark(time, "10 minutes")

    return rows(orders, ORDER, "at"), rows(payments, PAYMENT, "paid_at")


def two_topics() -> sw.App:
    app = sw.App(f"a-{uuid4().hex[:8]}")
    app.stage(
        name="pairs",
        reads=[sw.topic("orders"), sw.topic("payments")],
        key="k",
        state=sw.join("orders", "payments", within="1 minute"),
        writes=sw.repartition("paired", key="item"),
    )(joined)
    app.stage(name="items", reads="paired", key="item", state=sw.aggregate(n=sw.count(), paid=sw.sum("paid")))(
        lambda rows: rows
    )
    return app


def at(minute: float) -> str:
    return f"2026-01-01T00:{int(minute):02d}:{int(minute % 1 * 60):02d}Z"


def test_of_a_join_only_the_two_records_of_a_pair_count() -> None:
    orders = [
        {"k": "a", "item": "pen", "at": at(1)},
        {"k": "a", "item": "ink", "at": at(4)},
        {"k": "b", "item": "pen", "at": at(1)},
    ]
    payments = [{"k": "a", "paid": 7, "paid_at": at(1.5)}, {"k": "a", "paid": 9, "paid_at": at(8)}]
    ran = run(two_topics(), {"orders": orders})
    ran = run(ran.declared, {"payments": payments}, after=ran)
    assert ran.row("items", "pen") == {"item": "pen", "n": 1, "paid": 7}
    with program_of(ran) as program:
        found = explained(program, "items", "pen", minimal=True)
        assert places(found) == {"orders[0]@0", "payments[0]@0"}
        assert found.minimal is not None, found.unknown
        assert {str(record) for record in found.minimal.records} == places(found)
        assert found.minimal.is_smallest
    assert [each.key for each in impact(ran, "orders[0]@0").rows if each.stage == "items"] == [{"item": "pen"}]
    unpaid = impact(ran, "orders[0]@1")
    assert [each.stage for each in unpaid.rows] == ["pairs"]
    assert not unpaid.unknown


def test_snapshots_and_clones_that_have_the_row_are_named_and_no_others() -> None:
    app = one_table("count")
    ran = run(app, {"in": [{"k": "a", "x": 1, "seq": 0}]})
    ran.app.snapshot("before", instant=True)
    ran = run(app, {"in": [{"k": "a", "x": 2, "seq": 1}]}, after=ran)
    ran.app.snapshot("after", instant=True)
    head = ran.app.at().versions["t"]
    clones = {
        "old": (app.name, {"t": ran.app.at("before").versions["t"]}),
        "new": (app.name, {"t": head}),
        "of-new": ("new", {"t": head}),
        "of-other": ("other", {"t": head}),
    }
    reached = impact(ran, "in[0]@1", clones)
    assert [(each.kind, each.name) for each in reached.copies] == [
        *(("snapshot", name) for name in ("after",)),
        *(("clone", name) for name in ("new", "of-new")),
    ]
    first = impact(ran, "in[0]@0", clones)
    assert {each.name for each in first.copies} == {"before", "after", "old", "new", "of-new"}


@pytest.mark.ci
def test_a_rejected_a_late_and_a_filtered_record_are_told_from_one_that_was_not_read() -> None:
    app = sw.App(f"a-{uuid4().hex[:8]}")

    def timed(raw: DataFrame) -> DataFrame:
        fields = raw.select(F.from_json(F.col("value").cast("string"), "k string, x string, at timestamp").alias("r"))
        rows = fields.select("r.*").where("x <> 'no'").withColumn("x", F.expr("cast(x as long)"))
        return rows.withWatermark("at", "1 minute").withColumn("w", F.window("at", "1 minute"))

    app.stage(
        name="t", reads=sw.topic("in"), key=["k", "w"], state=sw.aggregate(n=sw.sum("x")), on_error="reject",
        event_time=sw.event_time(late="table"),
    )(timed)  # fmt: skip
    ran = run(app, {"in": [{"k": "a", "x": "1", "at": at(30)}]})
    later = [{"k": "a", "x": x, "at": at(minute)} for x, minute in (("one", 31), ("2", 1), ("no", 31), ("3", 31))]
    ran = run(app, {"in": later}, after=ran)
    kinds = {n: [each.kind for each in impact(ran, f"in[0]@{n}").not_taken] for n in range(5)}
    assert kinds == {0: [], 1: ["rejected"], 2: ["late"], 3: ["filtered"], 4: []}
    assert "one" in impact(ran, "in[0]@1").not_taken[0].detail
    late = impact(ran, "in[0]@2")
    assert [each.stage for each in late.rows] == ["t_late"]
    nothing = impact(ran, "in[0]@99")
    assert (nothing.readers, nothing.rows) == ((), ())


def test_what_is_not_known_is_said_and_not_guessed() -> None:
    app = one_table("sum")
    ran = run(app, {"in": [{"k": "a", "x": 1, "seq": 0}]})
    ran = run(app, {"in": [{"k": "a", "x": 2, "seq": 1}]}, after=ran)
    ran.kafka.delete_records("in", 1, 0)
    with program_of(ran) as program:
        found = explained(program, "t", "a", minimal=True)
        assert places(found) == {"in[0]@1"}
        assert not found.is_whole
        assert "in[0]" in found.versions[-1].unknown
        assert found.minimal is None
        assert found.unknown
    with program_of(ran) as program:
        found = explained(program, "t", "a", max_batches=1)
        assert "--limit 0" in found.versions[-1].unknown


def test_a_program_that_is_no_function_of_its_input_is_told() -> None:
    app = sw.App(f"a-{uuid4().hex[:8]}")

    def random(raw: DataFrame) -> DataFrame:
        return parsed(raw).withColumn("x", (F.rand() * 1_000_000_000).cast("long"))

    app.stage(name="t", reads=sw.topic("in"), key="k", state=sw.aggregate(total=sw.sum("x")))(random)
    ran = run(app, {"in": [{"k": "a", "x": 1, "seq": 0}]})
    with program_of(ran) as program:
        found = explained(program, "t", "a", minimal=True)
    assert "gives another row than was committed" in found.versions[0].unknown
    assert found.minimal is None
    assert found.row is not None
    assert ran.row("t", "a") == {"k": "a", **found.row}


def test_a_row_that_was_removed_and_added_again_has_only_its_new_records() -> None:
    app = one_table("upsert")
    ran = run(app, {"in": [{"k": "a", "x": 1, "seq": 0}]})
    ran.app.edit("t", "DELETE FROM t WHERE k = 'a'")
    ran = run(app, {"in": [{"k": "a", "x": 2, "seq": 1}]}, after=ran)
    with program_of(ran) as program:
        assert places(explained(program, "t", "a")) == {"in[0]@1"}
    ran.app.edit("t", "UPDATE t SET x = 5 WHERE k = 'a'")
    with program_of(ran) as program:
        found = explained(program, "t", "a", minimal=True)
    assert found.row == {"x": 5, "seq": 1}
    assert "an edit by hand" in found.versions[0].unknown
    assert found.minimal is None


def test_payloads_are_those_of_the_topic() -> None:
    records = [Record(json.dumps({"k": "a", "x": 1, "seq": 0}).encode(), 0, b"key", [("h", b"v")])]
    ran = run(one_table("count"), {"in": records})
    with program_of(ran) as program:
        (source,) = explained(program, "t", "a", payloads=True).sources
    assert (source.key, source.value, source.headers) == (b"key", records[0].value, (("h", b"v"),))
