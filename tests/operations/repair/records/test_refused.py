"""Inexact repairs are refused, with the name of the cause, and change nothing; repeating a killed one finishes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import slackwater as sw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from slackwater.common import runtime
from slackwater.errors import NotFound, Refused, SlackwaterError
from slackwater.operations.repair.records.journal import REPAIRS, Repair, standing_repairs
from slackwater.snapshot.bisect.verdict import RecordLocation
from slackwater.snapshot.under_way.runners import EDITS
from slackwater.testing import Ran, run

from tests.operations.debugging.explain.programs import fed, one_table, parsed
from tests.operations.debugging.explain.test_stages import KEYS, three_stages, two_topics

from .test_law import at, repaired, runs_of, tables, windows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def one(state: Any, function: Callable[[DataFrame], DataFrame] = parsed, **more: Any) -> sw.App:
    app = sw.App(f"a-{uuid4().hex[:8]}")
    app.stage(name="t", reads=sw.topic("in"), key="k", state=state, **more)(function)
    return app


def refuse(ran: Ran, place: str, kind: type[SlackwaterError], *words: str, **how: Any) -> None:
    before = tables(ran)
    with pytest.raises(kind) as told:
        repaired(ran, {place: None}, **how)
    assert all(word in f"{told.value.message} {told.value.hint}" for word in words), told.value
    assert tables(ran) == before
    store = ran.app._client.store
    assert (REPAIRS.all(store, ran.declared.name), EDITS.all(store, ran.declared.name)) == ((), ())


ROWS = [{"k": "a", "x": 1, "seq": 0}, {"k": "a", "x": 2, "seq": 1}]


def test_a_row_edited_since_is_refused() -> None:
    ran = run(one_table("sum"), {"in": ROWS})
    ran.app.edit("t", "UPDATE t SET total = 50 WHERE k = 'a'")
    refuse(ran, "in[0]@0", Refused, "t@v3", "an edit by hand", "slackwater edit")


def test_a_program_that_is_no_function_of_its_input_is_refused() -> None:
    def random(raw: DataFrame) -> DataFrame:
        return parsed(raw).withColumn("x", (F.rand() * 1_000_000_000).cast("long"))

    ran = run(one(sw.aggregate(total=sw.sum("x")), random), {"in": ROWS})
    refuse(ran, "in[0]@0", Refused, "gives another row than was committed", "slackwater check")


def test_rows_that_expire_or_wait_are_refused() -> None:
    ran = run(one(sw.aggregate(n=sw.count()), table=sw.table(ttl="1 day")), {"in": ROWS})
    refuse(ran, "in[0]@0", Refused, "cannot repair keys of", ", because its rows expire")
    orders = [{"k": "a", "item": "pen", "at": at(1)}]
    ran = run(two_topics(), {"orders": orders})
    refuse(ran, "orders[0]@0", Refused, "cannot repair keys of", "slackwater rewind")


def test_a_record_that_moved_the_watermark_is_refused_and_one_beside_it_is_not() -> None:
    rows = [{"k": "a", "x": 1, "at": at(minute)} for minute in (30, 29.9, 31)]
    ran = runs_of(windows(), [[json.dumps(row).encode()] for row in rows])  # type: ignore[list-item]
    refuse(ran, "in[0]@2", Refused, "moved the watermark")
    with pytest.raises(Refused, match="moved the watermark"):
        repaired(ran, {"in[0]@1": {"k": "a", "x": 1, "at": at(40)}})
    assert repaired(ran, {"in[0]@1": None}).versions


def test_more_keys_than_allowed_are_refused() -> None:
    given = fed(three_stages(), Random(1), keys=KEYS)
    place = next(place for place, row in given.sent.items() if row["x"] < 90)
    refuse(given.ran, place, Refused, "at least 2 keys of accounts, shops", "--max-keys", max_keys=1)


def test_what_was_never_read_or_never_taken_is_refused() -> None:
    app = one(sw.aggregate(total=sw.sum("x")), on_error="reject")
    ran = run(app, {"in": ROWS})
    refuse(ran, "in[0]@9", NotFound, "in[0]@9")
    refuse(ran, "other[0]@0", NotFound, "other[0]@0")
    with pytest.raises(NotFound, match="repair of"):
        repaired(ran, undo=True)


def test_a_rejected_record_is_refused() -> None:
    def strict(raw: DataFrame) -> DataFrame:
        return raw.select(F.from_json(F.col("value").cast("string"), "k string, x string").alias("r")).select(
            "r.k", F.expr("cast(r.x as long)").alias("x")
        )

    app = one(sw.aggregate(total=sw.sum("x")), strict, on_error="reject")
    ran = run(app, {"in": [{"k": "a", "x": "1"}, {"k": "a", "x": "one"}]})
    refuse(ran, "in[0]@1", Refused, "rejected in[0]@1", "slackwater rejected")


def begin(ran: Ran, *places: str) -> Repair:
    """Write the journal entry of a repair that was killed before its first commit."""
    begun = Repair(str(runtime.ulid()), "eve@host", 1, places, {})
    REPAIRS.put(ran.app._client.store, begun, ran.declared.name)
    return begun


def test_another_repair_waits_for_one_that_is_under_way_and_an_undo_ends_it() -> None:
    ran = run(one(sw.aggregate(total=sw.sum("x"))), {"in": ROWS})
    begun, before = begin(ran, "in[0]@0"), tables(ran)
    with pytest.raises(
        Refused, match=rf"repair {begun.id}, by eve@host, is under way or was interrupted: drop in\[0\]"
    ):
        repaired(ran, {"in[0]@1": None})
    assert REPAIRS.all(ran.app._client.store, ran.declared.name) == (begun,)
    repaired(ran, undo=True)
    assert (standing_repairs(ran.app._client.store, ran.declared.name), tables(ran)) == ([], before)
    begin(ran, "in[0]@0")
    repaired(ran, {"in[0]@0": None})
    assert ran.app.at().get("t", "a") == {"k": "a", "total": 2}


def test_a_repair_of_other_keys_needs_no_record_of_an_earlier_one() -> None:
    rows = [*ROWS, {"k": "b", "x": 4, "seq": 2}, {"k": "b", "x": 8, "seq": 3}]
    ran = run(one(sw.aggregate(total=sw.sum("x"))), {"in": rows})
    repaired(ran, {"in[0]@0": None})
    ran = run(ran.declared, {"in": [{"k": "b", "x": 16, "seq": 4}]}, after=ran)
    done = repaired(ran, {"in[0]@4": None}, max_keys=1)
    assert list(done.plan.read_by) == [RecordLocation.parse("in[0]@4")]
    assert [(row["k"], row["total"]) for row in tables(ran)["t"]] == [("a", 2), ("b", 12)]
    # The same key: what was taken out earlier stays out.
    done = repaired(ran, {"in[0]@1": None})
    assert {str(record) for record in done.plan.read_by} == {"in[0]@0", "in[0]@1"}
    assert [(row["k"], row["total"]) for row in tables(ran)["t"]] == [("b", 12)]


def test_a_repair_that_a_rewind_undid_is_forgotten() -> None:
    ran = run(one(sw.aggregate(total=sw.sum("x"))), {"in": ROWS})
    moment = f"t@v{ran.app.at().versions['t']}"
    repaired(ran, {"in[0]@0": None})
    ran.app.rewind(f"{ran.declared.name}/{moment}", keep_offsets=True)
    assert ran.app.at().get("t", "a") == {"k": "a", "total": 3}
    with pytest.raises(NotFound, match="repair of"):
        repaired(ran, undo=True)
    repaired(ran, {"in[0]@1": None})
    assert ran.app.at().get("t", "a") == {"k": "a", "total": 1}
    assert repaired(ran, {"in[0]@0": None}).versions
    assert ran.app.at().get("t", "a") is None
