"""A changed program goes on with what is stored, on the real thing."""

from pathlib import Path

import duckdb
import pytest
from slackwater.errors import Fenced, Refused
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.migrate.program import migrate_file
from slackwater.pipeline.run.options import Options
from slackwater.snapshot.migrate.migrate import Migrated
from slackwater.snapshot.migrate.words import lines
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

RENAMES = {"total": "amounts", "average": "mean"}


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
    options = Options(store=ledger.store, kafka=ledger.kafka, patience_s=30)
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

    ledger.send(300)
    ledger.catch_up(variant="migrated")
    check(ledger, "since", 500)

    # A stage between two others goes on where the one behind it stopped.
    ledger.send(100)
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
