"""A changed program keeps its stored state, or starts from the beginning and is promoted; on real servers and Spark."""

import json
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import duckdb
import pytest
from slackwater.errors import Fenced, Refused
from slackwater.operations.program_changes import migrate_file
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.options import Options
from slackwater.snapshot.change.migrate import Migrated, describe_stage_change
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps, history

from tests.pipeline.publish.reader import committed
from tests.support.running import APPS, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

RENAMES = {"total": "amounts", "average": "mean"}
COUNTS = {
    "branches": "SELECT branch, count(*) n, sum(amount)::BIGINT total, max(account) high, avg(amount) average, "
    "arg_min(account, seq) opened_by, arg_max(account, seq) touched_by, count(amount) entries FROM raw GROUP BY branch",
    "latest": "SELECT account, max(seq) seq, arg_max(amount, seq) amount, arg_max(branch, seq) branch FROM raw "
    "GROUP BY account",
    "accounts": "SELECT account, count(*) n, sum(amount * amount)::BIGINT squares FROM raw GROUP BY account",
}


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
    options = Options(store=ledger.store, kafka=ledger.kafka.properties, patience_s=180)
    return migrate_file(
        str(ledger.program), app=ledger.app, options=options, renames=renames, stages=stages, dry_run=dry_run
    )


def test_a_changed_program_keeps_its_state_and_in_flight_records(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    store = open_store(ledger.store)
    ledger.send(1_000)
    ledger.catch_up()
    # These records are in flight when the program is changed.
    ledger.send(200)
    ledger.catch_up("entries")

    with pytest.raises(Refused, match=r"state is aggregate.* was stored as") as refused:
        ledger.catch_up(variant="migrated")
    assert f"slackwater migrate ledger.py --app {ledger.app} (preview: --dry-run)" in refused.value.hint
    assert "+ since = count()" in refused.value.hint
    before = {stage: history.head(store, ledger.app, stage) for stage in history.list_stages(store, ledger.app)}
    looked = migrate(ledger, "migrated", monkeypatch, RENAMES, dry_run=True)
    assert {stage: history.head(store, ledger.app, stage) for stage in before} == before
    assert {each.stage: list(describe_stage_change(each)) for each in looked.plan.changes} == {
        "accounts": ["+ newest int64; existing rows have -1"],
        "branches": [
            "~ total is renamed to amounts",
            "~ average is renamed to mean",
            "+ since int64 = count(), from now on; existing rows have null",
            "- high string",
        ],
    }
    done = migrate(ledger, "migrated", monkeypatch, RENAMES)
    assert set(done.versions) == set(before)
    assert ledger.table("accounts")["newest"].unique().to_pylist() == [-1]
    with pytest.raises((Refused, Fenced)):
        ledger.catch_up()

    # A stage between two others continues where the stage behind it stopped.
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

    # The stages continue under other names, with the records in flight.
    ledger.send(40)
    ledger.catch_up("entries", "accounts", variant=between)
    renamed, stages = "migrated, under other names", {"accounts": "books", "branches": "offices"}
    with pytest.raises(
        Refused, match="has the stage 'branches', which this program lacks; the program's new stage 'offices'"
    ) as refused:
        ledger.catch_up(variant=renamed)
    assert "--rename-stage branches=offices --rename-stage accounts=books" in refused.value.hint
    done = migrate(ledger, renamed, monkeypatch, {}, stages=stages)
    assert {each.stage: each.formerly for each in done.plan.changes} == {new: old for old, new in stages.items()}
    ledger.send(30)
    ledger.catch_up(variant=renamed)
    check(ledger, "since", 720, "books", "offices")
    ledger.verify(ledger.app)


def check(ledger: Ledger, since: str, count: int, accounts_are: str = "accounts", table: str = "branches") -> None:
    """Check that tables cover all sent records, and that new columns count from the migration on."""
    sql = "SELECT branch, count(*) n, sum(amount)::BIGINT amounts, avg(amount) mean FROM raw GROUP BY ALL ORDER BY ALL"
    expected = duckdb.connect().from_arrow(ledger.raw()).query("raw", sql).to_arrow_table()
    found = ledger.table(table).sort_by("branch")
    for column in ("branch", "n", "amounts", "mean"):
        assert found[column].to_pylist() == pytest.approx(expected[column].to_pylist())
    assert sum(filter(None, found[since].to_pylist())) == count
    accounts = ledger.table(accounts_are)
    assert sum(accounts["n"].to_pylist()) == ledger.sent
    assert max(accounts["newest"].to_pylist()) == ledger.sent - 1


@pytest.mark.ci
def test_new_columns_cover_the_past_if_the_program_starts_from_the_beginning_and_is_promoted(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new columns need a function to compute them. Each row is published once."""
    changed = f"changed-{uuid4().hex[:8]}"
    monkeypatch.setenv("CHANGED_TOPIC", changed)
    old = Ledger(kafka.bootstrap, tmp_path, program=APPS / "counts.py")
    old.kafka.create_topics({changed: 1})
    old.send(700)
    old.catch_up()
    old.slackwater("clone", old.app, f"{old.app}-next", "--empty")
    new = replace(old, app=f"{old.app}-next")
    new.catch_up(variant="more")
    # Both apps continue: the old one publishes, and the new one is silent.
    old.send(300)
    old.catch_up()
    new.sent = old.sent
    new.catch_up(variant="more")
    done = json.loads(old.slackwater("promote", new.app, "--over", old.app, "--json").stdout)
    assert [sink["sink"] for sink in done["sinks"]] == [changed]
    store = open_store(old.store)
    assert apps.folder_of(store, old.app) == new.app
    # Under its name, the app goes on with the changed program.
    old.send(100)
    old.catch_up(variant="more")
    check_counts(new)
    new.verify(new.app)
    published = [json.loads(message.value() or b"")["seq"] for message in committed(old.kafka, changed)]
    assert sorted(published) == list(range(old.sent))


def check_counts(ledger: Ledger) -> None:
    """Check that each table equals its declaration over all sent records."""
    raw = ledger.raw()
    for name, sql in COUNTS.items():
        expected = duckdb.connect().from_arrow(raw).query("raw", f"{sql} ORDER BY ALL").to_arrow_table()
        found = ledger.table(name).select(expected.column_names).sort_by(expected.column_names[0])
        for column in expected.column_names:
            assert found[column].to_pylist() == pytest.approx(expected[column].to_pylist()), (name, column)
    changes = ledger.table("changes")
    assert changes["again"] == changes["updates"]
    assert all(map(int.__ge__, changes["sum"].to_pylist(), changes["most"].to_pylist()))
