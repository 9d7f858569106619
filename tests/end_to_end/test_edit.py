"""Edits of rows while the app runs: the runner applies each between two batches, and no record is lost."""

from pathlib import Path

import duckdb
import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import TWO_STAGES, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def test_a_runner_applies_an_edit_between_two_batches_and_continues_from_it(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(1_000)
    table = f"{ledger.app}/accounts"
    with ledger.fed(), ledger.running_here(*TWO_STAGES[1::2], max_records=200) as await_commit:
        await_commit("accounts")
        more = "UPDATE accounts SET balance = balance + 1000 WHERE account < 'a2'"
        said = ledger.slackwater("edit", table, "--sql", more).stdout
        assert "between two batches" in said
        # If the edit is no longer possible, the runner reports it and continues.
        refused = ledger.slackwater("edit", table, "--sql", "UPDATE accounts SET account = 'a1'", check=False)
        assert refused.returncode == 1
        await_commit("accounts")
    ledger.catch_up(*TWO_STAGES[1::2])
    (edit,) = (
        one for one in history.iter_after(open_store(ledger.store), ledger.app, "accounts", 0) if one.kind == "edit"
    )
    assert edit.edited is not None
    assert edit.edited.what == more
    # Existing rows have the edit and the records that came later.
    there = set(ledger.table("accounts", f"{table}@v{edit.version - 1}")["account"].to_pylist())
    sql = "SELECT account, count(*) n, sum(amount)::BIGINT balance FROM raw GROUP BY account"
    expected = duckdb.connect().from_arrow(ledger.raw()).query("raw", sql).to_arrow_table().to_pylist()
    for row in expected:
        row["balance"] += 1_000 * (row["account"] < "a2" and row["account"] in there)
    found = ledger.table("accounts").select(["account", "n", "balance"]).to_pylist()
    assert sorted(found, key=str) == sorted(expected, key=str)
    ledger.verify(ledger.app)
