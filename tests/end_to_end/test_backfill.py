"""What a migration adds is computed over the past, on the real thing."""

from pathlib import Path

import duckdb
import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.migrate.backfill import Backfilled, backfill_file
from slackwater.pipeline.run.options import Options
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps, history

from tests.end_to_end.test_migrate import migrate
from tests.support.running import APPS, Ledger, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

EXPECTED = {
    "branches": "SELECT branch, count(*) n, sum(amount)::BIGINT total, max(account) high, avg(amount) average, "
    "arg_min(account, seq) opened_by, arg_max(account, seq) touched_by, count(amount) entries FROM raw GROUP BY branch",
    "latest": "SELECT account, max(seq) seq, arg_max(amount, seq) amount, arg_max(branch, seq) branch FROM raw "
    "GROUP BY account",
}

WHOLE = {"branches": (1_000, True), "latest": (1_000, True)}


def backfill(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool = False) -> Backfilled:
    monkeypatch.setenv("LEDGER_TOPIC", ledger.topic)
    monkeypatch.setenv("LEDGER_VARIANT", "more")
    options = Options(store=ledger.store, kafka=ledger.kafka, patience_s=30, cache_folder=ledger.folder / "sst")
    return backfill_file(str(ledger.program), app=ledger.app, options=options, renames={}, dry_run=dry_run)


def test_columns_get_their_past(kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path, program=APPS / "counts.py")
    store = open_store(ledger.store)
    ledger.send(1_000)
    ledger.catch_up()
    before = {stage: history.head(store, ledger.app, stage) for stage in history.list_stages(store, ledger.app)}
    looked = backfill(ledger, monkeypatch, dry_run=True)
    assert {stage: history.head(store, ledger.app, stage) for stage in before} == before
    assert {each.target.stage: (each.records, each.whole) for each in looked.filled} == WHOLE

    # The migration alone; its rows count on from there.
    migrate(ledger, "more", monkeypatch, {})
    ledger.send(500)
    ledger.catch_up(variant="more")
    done = backfill(ledger, monkeypatch)
    assert {each.target.stage: (each.records, each.whole) for each in done.filled} == WHOLE
    check(ledger)
    kinds = {history.read(store, ledger.app, each.target.stage, each.version).kind for each in done.filled}
    assert kinds == {"backfill"}
    assert apps.list_apps(store) == (ledger.app,)


@pytest.mark.soak
def test_columns_get_their_past_while_the_app_runs(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path, program=APPS / "counts.py")
    store = open_store(ledger.store)
    ledger.send(1_000)
    ledger.catch_up()
    migrate(ledger, "more", monkeypatch, {})
    ledger.variant = "more"
    with ledger.running() as running, ledger.fed():
        running.await_commit("branches")
        done = backfill(ledger, monkeypatch)
        assert {each.target.stage: (each.records, each.whole) for each in done.filled} == WHOLE
        after = {each.target.stage: each.version for each in done.filled}
        eventually(
            lambda: all(history.head(store, ledger.app, stage).version > at + 1 for stage, at in after.items()),
            "batches after the swap",
        )
        assert running.process.poll() is None
        assert running.interrupt()[0] == 0
    ledger.catch_up(variant="more")
    check(ledger)
    ledger.verify(ledger.app)
    assert apps.list_apps(store) == (ledger.app,)


def check(ledger: Ledger) -> None:
    """Each table is what its declaration makes of all that was ever sent."""
    raw = ledger.raw()
    for name, sql in EXPECTED.items():
        expected = duckdb.connect().from_arrow(raw).query("raw", f"{sql} ORDER BY ALL").to_arrow_table()
        found = ledger.table(name).select(expected.column_names).sort_by(expected.column_names[0])
        for column in expected.column_names:
            assert found[column].to_pylist() == pytest.approx(expected[column].to_pylist()), (name, column)
