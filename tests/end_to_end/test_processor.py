"""Classes written for Spark's stateful operators run as they are, on the real thing."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.replay.compare import compare, sent_rows
from slackwater.pipeline.replay.program import open_program
from slackwater.pipeline.replay.stage_replay import StageReplay
from slackwater.pipeline.run.program import load_app
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history

from tests.support.running import APPS, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def test_a_class_for_transform_with_state_runs_rejects_replays_and_bisects(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    app = Ledger(kafka.bootstrap, tmp_path, program=APPS / "carts.py")
    store = open_store(app.store)
    bad = json.dumps({"seq": 100, "account": "a1", "branch": 1, "amount": None}).encode()
    app.send(600, raw=(bad,))
    app.catch_up(max_records=150)
    every: dict[str, list[dict[str, int]]] = defaultdict(list)
    for row in app.raw().to_pylist():
        if row["amount"] is not None:
            every[row["account"]].append(row)
    found = {row["account"]: row for row in app.table("accounts").to_pylist()}
    assert {name: row["booked"] for name, row in found.items()} == {
        name: {"n": len(rows), "balance": sum(row["amount"] for row in rows)} for name, rows in every.items()
    }
    assert [row["message"] for row in app.table("accounts_rejected").to_pylist()] != []
    app.verify(app.app)
    os.environ["LEDGER_TOPIC"] = app.topic
    with open_program(
        load_app(str(app.program), name=app.app), store, SstCache(tmp_path / "replay", 1 << 30), app.kafka
    ) as program:
        for version in [one for one in history.after(store, app.app, "accounts", 0) if one.kind == "batch"]:
            replay = StageReplay.of(program, version)
            assert compare(replay, sent_rows(replay)).same
