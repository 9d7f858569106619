"""A key is forgotten while the app runs: runner and other rows are unaffected, and the key starts from empty state."""

from pathlib import Path

import duckdb
import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import TWO_STAGES, Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]
GONE = ("a1", "a2", "a3")


def test_a_running_app_continues_after_a_forget(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(1_000)
    keys = [word for account in GONE for word in ("--key", f"accounts={account}")]
    with ledger.fed(), ledger.running_here(*TWO_STAGES[1::2], max_records=200) as await_commit:
        await_commit("accounts")
        while not set(GONE) <= set(ledger.table("accounts")["account"].to_pylist()):
            await_commit("accounts")
        said = ledger.slackwater("forget", ledger.app, *keys).stdout
        assert f"{ledger.app}/accounts v" in said
        # Development brokers keep records forever.
        assert "never: delete them in Kafka" in said
        await_commit("accounts")
        await_commit("accounts")
    ledger.catch_up(*TWO_STAGES[1::2])
    store = open_store(ledger.store)
    (forgot,) = (one for one in history.iter_after(store, ledger.app, "accounts", 0) if one.kind == "forget")
    sql = "SELECT account, count(*) n, sum(amount)::BIGINT balance FROM raw GROUP BY account"
    expected = duckdb.connect().from_arrow(ledger.raw()).query("raw", sql).to_arrow_table().to_pylist()
    found = ledger.table("accounts").select(["account", "n", "balance"]).to_pylist()

    def others(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return sorted((row for row in rows if row["account"] not in GONE), key=str)

    assert others(found) == others(expected)
    # Records from before do not count any more, and later records do.
    before = {row["account"]: row["n"] for row in expected}
    assert all(row["n"] < before[row["account"]] for row in found if row["account"] in GONE)
    for version in (forgot.version - 1, forgot.version):
        rows = ledger.table("accounts", f"{ledger.app}/accounts@v{version}")
        assert set(GONE).isdisjoint(rows["account"].to_pylist())
    ledger.verify(ledger.app)
