"""A custom kind of state, and a StatefulProcessor, behave like built-in kinds on a real broker and Spark."""

import heapq
import json
import os
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from msgspec import structs
from slackwater.operations.debugging.replay import bundle as bundles
from slackwater.operations.debugging.replay.bundled import capture_bundle, open_bundle
from slackwater.operations.debugging.replay.compare import compare, keys_with_other_parts, read_sent_rows
from slackwater.operations.debugging.replay.program import open_program
from slackwater.operations.debugging.replay.stage_replay import StageReplay
from slackwater.operations.program_changes import migrate_file
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.options import Options
from slackwater.pipeline.run.program import load_app
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.side_tables import part_tables

from tests.support.running import APPS, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


class Tops(Ledger):
    def tops(self) -> dict[str, list[int]]:
        return {row["account"]: row["top"] for row in self.table("tops").to_pylist()}

    def expected(self, k: int) -> dict[str, list[int]]:
        every: dict[str, list[int]] = defaultdict(list)
        for row in self.raw().to_pylist():
            if row["amount"] is not None:
                every[row["account"]].append(row["amount"])
        return {account: heapq.nlargest(k, amounts) for account, amounts in every.items()}


def test_a_custom_kind_runs_rejects_replays_migrates_clones_and_bisects(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Tops(kafka.bootstrap, tmp_path, program=APPS / "top_k.py")
    store = open_store(app.store)
    bad = json.dumps({"account": "a1", "branch": 1, "amount": None}).encode()
    huge = json.dumps({"account": "a2", "branch": 1, "amount": 10**9}).encode()
    app.send(600, raw=(bad, huge))
    app.catch_up(max_records=300)
    assert app.tops() == app.expected(3)
    assert [row["message"] for row in app.table("tops_rejected").to_pylist()] == ["a record has no amount"]
    # Each row that it emits reached the stage that reads it.
    emitted = history.head(store, app.app, "tops").outputs["topped"]  # type: ignore[union-attr]
    assert sum(app.table("counts")["n"].to_pylist()) == sum(emitted.sent) > 0
    app.verify(app.app)

    # A replay gives the committed rows, also for the batch with the rejected record.
    os.environ["LEDGER_TOPIC"] = app.topic
    rejected = app.table("tops_rejected")["version"].to_pylist()
    with open_program(
        load_app(str(app.program), name=app.app), store, SstCache(tmp_path / "replay", 1 << 30), app.kafka
    ) as program:
        for version in {2, *rejected}:
            replay = StageReplay.for_version(program, history.read(store, app.app, "tops", version))
            assert compare(replay, read_sent_rows(replay)).same

    where = "SELECT * FROM tops WHERE top[1] > 500000000"
    found = app.slackwater("bisect", app.app, "--where", where, "--code", str(app.program), "--json")
    verdict = json.loads(found.stdout)
    assert verdict["record"]["topic"] == app.topic, found.stdout

    # A clone continues with the same table, and with fewer values once it is migrated; more cannot be known.
    copy = Tops(kafka.bootstrap, tmp_path, store=app.store, app=f"{app.app}-copy", program=app.program, topic=app.topic)
    app.slackwater("clone", app.app, copy.app)
    monkeypatch.setenv("LEDGER_VARIANT", "fewer")
    options = Options(store=copy.store, kafka={"bootstrap.servers": copy.bootstrap}, patience_s=180)
    done = migrate_file(str(copy.program), app=copy.app, options=options, renames={})
    assert [change.stage for change in done.plan.changes] == ["tops"]
    app.send(2_000)
    copy.catch_up(variant="fewer")
    tops = copy.tops()
    assert all(len(top) <= 3 for top in tops.values())
    of_now = {account: top[:2] for account, top in tops.items()}
    assert of_now == copy.expected(2)
    copy.verify(copy.app)
    assert app.tops() != of_now


@pytest.mark.ci
def test_a_stateful_processor_runs_rejects_replays_and_bisects(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    app = Ledger(kafka.bootstrap, tmp_path, program=APPS / "carts.py")
    store = open_store(app.store)
    bad = json.dumps({"seq": 602, "account": "a1", "branch": 1, "amount": None}).encode()
    huge = json.dumps({"seq": 601, "account": "a2", "branch": 1, "amount": 10**9}).encode()
    app.send(600, raw=(bad, huge))
    app.catch_up(max_records=300)
    every: dict[str, list[dict[str, int]]] = defaultdict(list)
    for row in app.raw().to_pylist():
        if row["amount"] is not None:
            every[row["account"]].append(row)
    found = {row["account"]: row for row in app.table("accounts").to_pylist()}
    assert {name: row["booked"] for name, row in found.items()} == {
        name: {"n": len(rows), "balance": sum(row["amount"] for row in rows)} for name, rows in every.items()
    }
    recent: dict[str, list[int]] = defaultdict(list)
    for part in sorted(app.table("accounts_recent").to_pylist(), key=lambda part: part["_position"]):
        recent[part["account"]].append(part["recent"]["amount"])
    assert {name: row["recent"] for name, row in found.items() if row["recent"]} == {
        name: len(amounts) for name, amounts in recent.items()
    }
    for name, amounts in recent.items():
        # A timer may have cleared the list before the last entries, which come in the order of `seq`.
        entries = sorted(every[name], key=lambda row: row["seq"])
        assert 0 < len(amounts) <= 3
        assert amounts == [row["amount"] for row in entries[-len(amounts) :]]
    branches = {
        (part["account"], part["_key"]["branch"]): part["branches"]["n"]
        for part in app.table("accounts_branches").to_pylist()
    }
    assert branches == Counter((name, row["branch"]) for name, rows in every.items() for row in rows)
    assert [row["message"] for row in app.table("accounts_rejected").to_pylist()] != []
    assert all(row["timers"] for row in found.values() if row["recent"]), "an account rests, or will"
    rested = [name for name, row in found.items() if not row["recent"]]
    said = {(row["account"], row["what"]): row["balance"] for row in app.table("counts").to_pylist()}
    assert rested
    assert {name for name, what in said if what == "rests"} >= {*rested}
    assert {name: said[name, "booked"] for name in found} == {
        name: row["booked"]["balance"] for name, row in found.items()
    }
    app.verify(app.app)
    os.environ["LEDGER_TOPIC"] = app.topic
    with open_program(
        load_app(str(app.program), name=app.app), store, SstCache(tmp_path / "replay", 1 << 30), app.kafka
    ) as program:
        for version in [one for one in history.iter_after(store, app.app, "accounts", 0) if one.kind == "batch"]:
            replay = StageReplay.for_version(program, version)
            sent = read_sent_rows(replay)
            comparison = compare(replay, sent)
            assert comparison.same
            if all(parts.replayed.num_rows for parts in comparison.parts):
                with_parts = replay, sent, comparison
        replay, sent, comparison = with_parts
        assert comparison.keys is not None
        assert keys_with_other_parts(replay, comparison.keys.keys).num_rows == 0
        sides = replay.after.side_tables | part_tables(replay.before)
        stale = replace(replay, after=structs.replace(replay.after, side_tables=sides))
        assert keys_with_other_parts(stale, comparison.keys.keys).num_rows > 0
        bundles.write(capture_bundle(replay, comparison, sent), tmp_path / "bundle.zip")
        with open_bundle(bundles.read(tmp_path / "bundle.zip")) as (bundled, rows, _):
            again = compare(bundled, rows)
        assert again.same
        numbers = [parts.replayed.num_rows for parts in comparison.parts]
        assert [parts.replayed.num_rows for parts in again.parts] == numbers
        checked = app.slackwater("check", str(app.program), "--app", app.app, "--json", check=False)
        # Entries of an account lie in several partitions, so the last three of a smaller batch may be different
        # entries.
        assert {finding["reason"] for finding in json.loads(checked.stdout)["found"]} <= {"batches"}
    where = "SELECT * FROM accounts WHERE booked.balance > 500000000"
    verdict = app.slackwater("bisect", app.app, "--where", where, "--code", str(app.program), "--json")
    assert json.loads(verdict.stdout)["record"]["topic"] == app.topic, verdict.stdout


@pytest.mark.ci
def test_rows_of_a_custom_kind_expire(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    app = Tops(kafka.bootstrap, tmp_path, program=APPS / "top_k.py")
    producer = Producer(app.kafka.properties)
    now, day = int(time.time() * 1000), 86_400_000
    for batch in ([("a", 9, 41)], [("b", 8, 22), ("c", 7, 2)], [("a", 5, 1)]):
        for account, amount, days in batch:
            entry = json.dumps({"account": account, "branch": 1, "amount": amount}).encode()
            producer.produce(app.topic, entry, timestamp=now - days * day)
        producer.flush()
        app.catch_up()
    # A row lives 30 days from its newest record. Expired rows do not count for later records.
    assert app.tops() == {"a": [5], "b": [8], "c": [7]}
    app.verify(app.app)
