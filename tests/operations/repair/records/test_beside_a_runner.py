"""A repair of a running app: the runner applies it between two batches, and continues with the repaired rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from threading import Thread
from typing import Any

import pytest
from slackwater.common import runtime
from slackwater.pipeline.listener import Listener
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.program import run_app
from slackwater.pipeline.run.stopping import StopEvent, StopRequested
from slackwater.snapshot.under_way.runners import find_hold
from slackwater.store.versions import history
from slackwater.testing import Ran, Record

from tests.operations.debugging.explain.programs import fed, one_table
from tests.operations.debugging.explain.test_stages import KEYS, three_stages

from .test_law import folded, repaired, tables

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

_PATIENCE_S = 120


@contextmanager
def running(ran: Ran) -> Iterator[None]:
    stop, failed = StopEvent(), list[BaseException]()
    options = Options(
        store=str(ran.folder.path / "store"),
        kafka=ran.kafka.properties,
        cache_folder=ran.folder.path / "cache",
        gc_every_ms=None,
    )

    def work() -> None:
        try:
            with suppress(StopRequested):
                run_app(ran.declared, options, Listener(), stop=stop)
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_PATIENCE_S)
    assert not failed, failed


def wait_until_read(ran: Ran, stage: str, rows: list[dict[str, Any]], expected: int) -> None:
    """Send records, and wait until a stage has read this many offsets of the topic `in`."""
    ran.kafka.send("in", [Record(json.dumps(row).encode(), 0) for row in rows], patience_s=0)
    deadline = runtime.monotonic() + _PATIENCE_S
    while runtime.monotonic() < deadline:
        head = history.head(ran.app._client.store, ran.declared.name, stage)
        if head is not None and sum(head.inputs["in"].offsets) >= expected:
            return
        runtime.sleep(0.1)
    raise AssertionError(f"{stage} did not read what was sent")


def test_a_runner_applies_a_repair_between_its_batches_and_goes_on() -> None:
    given = fed(one_table("sum"), Random(3), runs=3, per_run=4)
    place = next(place for place, row in given.sent.items() if row["x"] < 90)
    with running(given.ran):
        for number in range(3):
            more = {"k": given.sent[place]["k"], "x": 1, "seq": 100 + number}
            given.sent[f"more{number}"] = more
            wait_until_read(given.ran, "t", [more], len(given.sent))
            if number == 1:
                done = repaired(given.ran, {place: None})
                assert done.held_s > 0
                assert find_hold(given.ran.app._client.store, given.ran.declared.name) is None
    assert tables(given.ran)["t"] == folded("sum", given, {place: None})
    kinds = [entry.kind for entry in history.iter_after(given.ran.app._client.store, given.ran.declared.name, "t", 0)]
    assert kinds[kinds.index("repair") + 1 :] == ["batch"]


def test_stages_come_to_rest_before_their_rows_are_computed() -> None:
    given = fed(three_stages(), Random(4), runs=2, per_run=4, keys=KEYS)
    place, row = next((place, row) for place, row in given.sent.items() if row["x"] < 90)
    before = tables(given.ran)
    with running(given.ran):
        more = {"k": row["k"], "x": 1, "seq": 100}
        given.sent["more"] = more
        wait_until_read(given.ran, "parse", [more], len(given.sent))
        done = repaired(given.ran, {place: None})
        assert not done.plan.in_flight
    counts = {line["k"]: line["n"] for line in tables(given.ran)["accounts"]}
    assert counts == {line["k"]: line["n"] for line in before["accounts"]} | {row["k"]: counts[row["k"]]}
    good = [other for name, other in given.sent.items() if other["x"] < 90 and name != place]
    assert counts[row["k"]] == sum(other["k"] == row["k"] for other in good)
