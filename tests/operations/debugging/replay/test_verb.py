"""`slackwater replay`: batches of a real app, with its own program, with changed programs, and from bundles."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from slackwater.operations.debugging.replay.program import open_program
from slackwater.operations.debugging.replay.record import find_record_of_key
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.program import load_app
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.columns import parse_key
from slackwater.store.objects.open import open_store
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.testing import replayed

from tests.cli.verbs.calling import slackwater
from tests.operations.debugging.replay.test_record import plant
from tests.support.running import LEDGER, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark", "ledger_environment")]


@pytest.fixture(scope="module")
def ledger(kafka: EmbeddedKafka, one_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Return an app that has read 600 records in a few batches; one amount is far too large."""
    ledger = Ledger(kafka.bootstrap, tmp_path_factory.mktemp("replay"))
    ledger.send(300)
    plant(ledger, 5_000_000, account="planted")
    ledger.send(299)
    ledger.catch_up(max_records=200)
    return ledger


def largest_batch(ledger: Ledger, stage: str) -> str:
    """Return a ref to the stage's version that read the most records."""
    store = open_store(ledger.store)
    newest = resolve(store, f"{ledger.app}/{stage}", now_ms=0).stages[stage]
    versions = [history.read(store, ledger.app, stage, version) for version in range(1, newest.version + 1)]
    batches = [manifest for manifest in versions if manifest.kind == "batch"]
    largest = max(batches, key=lambda manifest: sum(read.rows for read in manifest.inputs.values()))
    return f"{ledger.app}/{stage}@v{largest.version}"


def changed(returned: str) -> str:
    """Return the program's text with another function in the last stage."""
    before, found, after = LEDGER.read_text().rpartition("    return entries\n")
    assert found
    return f"{before}    return {returned}\n{after}"


def replay(*words: str, code: int = 0) -> Any:
    result = slackwater("replay", *words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("stage", ["entries", "accounts", "latest", "branches"])
def test_a_replay_equals_the_commit_unless_the_program_is_changed(ledger: Ledger, stage: str) -> None:
    found = replay(largest_batch(ledger, stage), "--code", str(LEDGER))
    assert found["same"]
    assert sum(each["records"] for each in found["read"]) > 0
    assert found["different"] == []
    assert all(each["committed"] == each["replayed"] > 0 for each in found["channels"])
    if stage != "entries":
        assert found["keys_committed"] == found["keys_replayed"] > 0


def test_rows_that_a_changed_program_sends_are_shown(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_VARIANT", "books double")
    found = replay(largest_batch(ledger, "accounts"), "--code", str(LEDGER), code=1)
    (channel,) = found["channels"]
    assert len(channel["missing"]) == len(channel["added"]) > 0
    assert sum(row["amount"] for row in channel["added"]) == 2 * sum(row["amount"] for row in channel["missing"])
    assert found["different"] == []


def test_a_bundle_and_its_test_need_neither_kafka_nor_the_store(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = largest_batch(ledger, "branches")
    shown = slackwater("replay", ref, "3", "--code", str(LEDGER), "--pytest", "test_three.py")
    assert shown.exit_code == 0, shown.output
    assert "equals the commit" in shown.stdout
    for name in ("SLACKWATER_STORE", "SLACKWATER_KAFKA"):
        monkeypatch.delenv(name)
    text = (tmp_path / "test_three.py").read_text()
    assert len(text.splitlines()) <= 16, text
    for name, test in runpy.run_path(str(tmp_path / "test_three.py")).items():
        if name.startswith("test_"):
            test()
    same = replay("test_three.zip")
    assert same["keys_committed"] == 1
    committed = replayed(tmp_path / "test_three.zip", LEDGER).row(3)
    assert committed is not None
    assert repr(committed["total"]) in text
    fixed = tmp_path / "fixed.py"
    fixed.write_text(changed('entries.withColumn("amount", F.lit(1).cast("long"))'))
    found = replay("test_three.zip", "--code", str(fixed), code=1)
    (different,) = found["different"]
    assert different["key"] == {"branch": 3}
    assert different["committed"]["total"] == committed["total"] != different["replayed"]["total"]


def test_a_bundle_of_a_stage_without_a_table_has_its_sent_rows(ledger: Ledger) -> None:
    replay(largest_batch(ledger, "entries"), "--code", str(LEDGER), "--bundle", "entries.zip")
    found = replay("entries.zip")
    (channel,) = found["channels"]
    assert channel["committed"] == channel["replayed"] > 0
    dropping = Path("dropping.py")
    dropping.write_text(LEDGER.read_text().replace('"account is not null"', '"branch <> 3"'))
    found = replay("entries.zip", "--code", "dropping.py", code=1)
    (channel,) = found["channels"]
    assert {row["branch"] for row in channel["missing"]} == {3}
    assert channel["added"] == []


def test_a_bundle_refuses_a_program_that_writes_keys_missing_from_the_bundle(ledger: Ledger) -> None:
    replay(largest_batch(ledger, "branches"), "--code", str(LEDGER), "--bundle", "branches.zip")
    shifted = Path("shifted.py")
    shifted.write_text(changed('entries.withColumn("branch", F.col("branch") + 1000)'))
    result = slackwater("replay", "branches.zip", "--code", "shifted.py")
    assert result.exit_code == 1
    assert "did not write when the bundle was written" in result.stderr


def test_breakpoints_stop_in_the_functions_of_the_stage_and_of_its_state(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[tuple[str, set[str]]] = []

    def hook() -> None:
        import sys

        frame = sys._getframe(1)
        stops.append((frame.f_code.co_name, set(frame.f_locals)))

    monkeypatch.setattr("sys.breakpointhook", hook)
    assert replay(largest_batch(ledger, "accounts"), "--code", str(LEDGER), "--break")["same"]
    assert stops == [("accounts", {"entries"}), ("book", {"rows", "state"})]


def test_the_record_that_changed_a_key_is_named(ledger: Ledger) -> None:
    store, cache = open_store(ledger.store), SstCache(ledger.folder / "cache" / "query", 1 << 30)
    app = load_app(str(LEDGER), name=ledger.app)
    head = resolve(store, ledger.app, now_ms=0).stages["accounts"]
    assert head.table is not None
    key = parse_key("accounts", head.table, ["planted"])
    accounts = {
        v: ledger.table("accounts", f"{ledger.app}/accounts@v{v}")["account"] for v in range(2, head.version + 1)
    }
    version = next(v for v, names in accounts.items() if "planted" in names.to_pylist())
    with open_program(app, store, cache, ledger.kafka) as program:
        found = find_record_of_key(program, "accounts", version, key)
    assert found.source_record is not None, found.reason
    assert found.source_record.key == b"planted"
    assert [hop.stage for hop in found.hops] == ["accounts", "entries"]
    assert found.hops[0].candidates == 1
