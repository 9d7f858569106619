"""A changed program goes on with what is stored, and what it adds is computed over the past, on the real thing."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest
import slackwater as sw
from slackwater.errors import Fenced, Refused
from slackwater.operations.program_changes.backfill import Backfilled, backfill_file
from slackwater.operations.program_changes.program import migrate_file
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.options import Options
from slackwater.snapshot.change.migrate import Migrated, lines
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps, history

from tests.support.running import APPS, Ledger, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

RENAMES = {"total": "amounts", "average": "mean"}
COUNTS = {
    "branches": "SELECT branch, count(*) n, sum(amount)::BIGINT total, max(account) high, avg(amount) average, "
    "arg_min(account, seq) opened_by, arg_max(account, seq) touched_by, count(amount) entries FROM raw GROUP BY branch",
    "latest": "SELECT account, max(seq) seq, arg_max(amount, seq) amount, arg_max(branch, seq) branch FROM raw "
    "GROUP BY account",
    "accounts": "SELECT account, count(*) n FROM raw GROUP BY account",
}

WHOLE = {"branches": (1_000, True), "latest": (1_000, True)}
"""Columns that are merged, of what was read before the migration."""


def migrate(
    ledger: Ledger,
    variant: str,
    monkeypatch: pytest.MonkeyPatch,
    renames: dict[str, str],
    *,
    stages: dict[str, str] | None = None,
    dry_run: bool = False,
) -> Migrated:
    monkeypatch.setenv("LEDGER_TOPIC", ledger.topic)
    monkeypatch.setenv("LEDGER_VARIANT", variant)
    options = Options(store=ledger.store, kafka=ledger.kafka.properties, patience_s=30)
    return migrate_file(
        str(ledger.program), app=ledger.app, options=options, renames=renames, stages=stages, dry_run=dry_run
    )


def test_a_changed_program_keeps_its_state_and_a_stage_between_loses_no_row(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    store = open_store(ledger.store)
    ledger.send(1_000)
    ledger.catch_up()
    # These are on their way when the program is changed.
    ledger.send(200)
    ledger.catch_up("entries")

    with pytest.raises(Refused, match=r"state is aggregate.* was stored as") as refused:
        ledger.catch_up(variant="migrated")
    assert f"slackwater migrate ledger.py --app {ledger.app} (--dry-run only looks)" in refused.value.hint
    assert "+ since = count()" in refused.value.hint
    before = {stage: history.head(store, ledger.app, stage) for stage in history.list_stages(store, ledger.app)}
    looked = migrate(ledger, "migrated", monkeypatch, RENAMES, dry_run=True)
    assert {stage: history.head(store, ledger.app, stage) for stage in before} == before
    assert {each.stage: list(lines(each)) for each in looked.plan.changes} == {
        "accounts": ["+ newest int64; rows from before have -1"],
        "branches": [
            "~ total is called amounts",
            "~ average is called mean",
            "+ since int64 = count(), from here on; rows from before have null",
            "- high string",
        ],
    }
    done = migrate(ledger, "migrated", monkeypatch, RENAMES)
    assert set(done.versions) == set(before)
    assert ledger.table("accounts")["newest"].unique().to_pylist() == [-1]
    with pytest.raises((Refused, Fenced)):
        ledger.catch_up()

    # A stage between two others goes on where the one behind it stopped.
    ledger.send(400)
    ledger.catch_up("entries", "accounts", variant="migrated")
    between = "migrated, with a stage between"
    done = migrate(ledger, between, monkeypatch, {})
    assert {each.stage: each.kind for each in done.plan.changes} == {"branches": "changed", "checks": "added"}
    ledger.send(50)
    ledger.catch_up(variant=between)
    check(ledger, "since", 650)
    ledger.verify(ledger.app)
    assert migrate(ledger, between, monkeypatch, {}).number == 0

    # Under other names they go on, with what is on its way.
    ledger.send(40)
    ledger.catch_up("entries", "accounts", variant=between)
    renamed, stages = "migrated, under other names", {"accounts": "books", "branches": "offices"}
    with pytest.raises(Refused, match="has the stage 'branches', which this program has not; 'offices'") as refused:
        ledger.catch_up(variant=renamed)
    assert "--rename-stage branches=offices --rename-stage accounts=books" in refused.value.hint
    done = migrate(ledger, renamed, monkeypatch, {}, stages=stages)
    assert {each.stage: each.formerly for each in done.plan.changes} == {new: old for old, new in stages.items()}
    ledger.send(30)
    ledger.catch_up(variant=renamed)
    check(ledger, "since", 720, "books", "offices")
    ledger.verify(ledger.app)


def check(ledger: Ledger, since: str, count: int, accounts_are: str = "accounts", table: str = "branches") -> None:
    """The tables are those of all that was ever sent, and what is new counts from the migration on."""
    sql = "SELECT branch, count(*) n, sum(amount)::BIGINT amounts, avg(amount) mean FROM raw GROUP BY ALL ORDER BY ALL"
    expected = duckdb.connect().from_arrow(ledger.raw()).query("raw", sql).to_arrow_table()
    found = ledger.table(table).sort_by("branch")
    for column in ("branch", "n", "amounts", "mean"):
        assert found[column].to_pylist() == pytest.approx(expected[column].to_pylist())
    assert sum(filter(None, found[since].to_pylist())) == count
    accounts = ledger.table(accounts_are)
    assert sum(accounts["n"].to_pylist()) == ledger.sent
    assert max(accounts["newest"].to_pylist()) == ledger.sent - 1


def backfill(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Backfilled:
    monkeypatch.setenv("LEDGER_TOPIC", ledger.topic)
    monkeypatch.setenv("LEDGER_VARIANT", "more")
    options = Options(
        store=ledger.store, kafka=ledger.kafka.properties, patience_s=30, cache_folder=ledger.folder / "sst"
    )
    return backfill_file(str(ledger.program), app=ledger.app, options=options, renames={})


@pytest.mark.ci  # the law is operations/program_changes/test_backfill_law.py
def test_columns_get_their_past(kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path, program=APPS / "counts.py")
    store = open_store(ledger.store)
    ledger.send(1_000)
    ledger.catch_up()
    before = {stage: history.head(store, ledger.app, stage) for stage in history.list_stages(store, ledger.app)}
    monkeypatch.setenv("LEDGER_VARIANT", "more")
    told: list[str] = []
    with sw.open(ledger.store, kafka.bootstrap) as client:
        looked = client.app(ledger.app).backfill(ledger.program, dry_run=True, on_progress=told.append)
    assert "starting Spark" in told
    assert {stage: history.head(store, ledger.app, stage) for stage in before} == before
    sent = sum(ledger.table("changes")["updates"].to_pylist())
    found = {each.target.stage: (each.records, each.whole) for each in looked.filled}
    assert found == WHOLE | {"changes": (sent, True)}
    (left,) = looked.left
    assert (left.stage, left.columns) == ("accounts", ("squares",))
    assert "only a function of the program could tell" in left.why

    # The migration alone; its rows count on from there.
    migrate(ledger, "more", monkeypatch, {})
    ledger.send(500)
    ledger.catch_up(variant="more")
    done = backfill(ledger, monkeypatch)
    found = {each.target.stage: (each.records, each.whole) for each in done.filled}
    # Of a stage with state, what it sent then is read.
    assert found == WHOLE | {"changes": (sent, True)}
    assert [each.stage for each in done.left] == ["accounts"]
    check_counts(ledger)
    again = backfill(ledger, monkeypatch)
    assert (again.filled, again.left) == ((), done.left)
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
    with ledger.running() as running, ThreadPoolExecutor(1) as threads, ledger.fed():
        running.await_commit("branches")
        # Nobody would read what it tells, and it would stand still.
        enough = threading.Event()
        reading = threads.submit(lambda: [running.await_commit() for _ in iter(enough.is_set, True)])
        done = backfill(ledger, monkeypatch)
        found = {each.target.stage: (each.records, each.whole) for each in done.filled}
        assert found.pop("changes")[1]
        assert found == WHOLE
        after = {each.target.stage: each.version for each in done.filled}
        eventually(
            lambda: all(history.head(store, ledger.app, stage).version > at + 1 for stage, at in after.items()),
            "batches after the swap",
        )
        assert running.process.poll() is None
        enough.set()
        reading.result()
        assert running.interrupt()[0] == 0
    ledger.catch_up(variant="more")
    check_counts(ledger)
    ledger.verify(ledger.app)
    assert apps.list_apps(store) == (ledger.app,)


def check_counts(ledger: Ledger) -> None:
    """Each table is what its declaration makes of all that was ever sent."""
    raw = ledger.raw()
    for name, sql in COUNTS.items():
        expected = duckdb.connect().from_arrow(raw).query("raw", f"{sql} ORDER BY ALL").to_arrow_table()
        found = ledger.table(name).select(expected.column_names).sort_by(expected.column_names[0])
        for column in expected.column_names:
            assert found[column].to_pylist() == pytest.approx(expected[column].to_pylist()), (name, column)
    changes = ledger.table("changes")
    assert changes["again"] == changes["updates"]
    assert all(map(int.__ge__, changes["sum"].to_pylist(), changes["most"].to_pylist()))
