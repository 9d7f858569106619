"""`kill -9` of `slackwater migrate --backfill` at any instant: nobody sees half of anything, and the next call goes on.

Where between two requests it may stop is tried one by one in `tests/operations/program_changes/test_backfill.py`;
here the verb goes with its Spark, and leaves what it leaves.
"""

import random
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from slackwater.operations.program_changes.backfill import backfill_file
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.run.options import Options
from slackwater.snapshot.cut.resolve import resolve
from slackwater.store.objects.open import open_store
from slackwater.store.versions import apps, history

from tests.support.running import APPS, PATIENCE_S, SLACKWATER, Ledger, Running

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.soak, pytest.mark.usefixtures("one_spark")]

KILLS = 30
TABLES = {
    "branches": ("SELECT branch, count(*) n, sum(amount)::BIGINT total FROM raw GROUP BY branch", "max(account) high"),
    "latest": (
        "SELECT account, max(seq) seq, arg_max(amount, seq) amount FROM raw GROUP BY account",
        "arg_max(branch, seq) branch",
    ),
}
"""What the first program keeps, and a column that the changed one adds."""


def start(ledger: Ledger) -> Running:
    command = [SLACKWATER, "migrate", str(ledger.program), "--app", ledger.app, "--backfill", "--master", "local[2]"]
    errors = ledger.folder / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, env=ledger.environment(), start_new_session=True
        )
    return Running(ledger, process, errors)


def seen(ledger: Ledger, raw: object) -> str:
    """How far what is to be seen has come; each table is whole, as before or as after."""
    store = open_store(ledger.store)
    cut = resolve(store, ledger.app, now_ms=time.time_ns() // 1_000_000)
    migrated = {bool(manifest.table.schema) for manifest in cut.tables.values() if manifest.table is not None}
    assert len(migrated) == 1, "all stages are migrated or none is"
    filled = 0
    for name, (before, added) in TABLES.items():
        (is_filled,) = {bool(cut.tables[name].backfills)}
        filled += is_filled
        column = added.split()[-1]
        sql = before.replace(" FROM raw", f", {added} FROM raw") if is_filled else before
        expected = duckdb.connect().from_arrow(raw).query("raw", sql).to_arrow_table()
        table = ledger.table(name)
        found = table.select(expected.column_names)
        assert sorted(found.to_pylist(), key=str) == sorted(expected.to_pylist(), key=str), (name, is_filled)
        if migrated == {True} and not is_filled:
            assert set(table[column].to_pylist()) == {None}, "nothing of the past is there before all of it"
    return f"{filled} filled" if filled else "migrated" if migrated == {True} else "before"


@pytest.mark.timeout(3600)
def test_of_a_backfill_there_is_nothing_or_all_of_it_and_the_next_goes_on(
    kafka: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(kafka.bootstrap, tmp_path / "kept", program=APPS / "counts.py")
    ledger.folder.mkdir()
    ledger.send(1_000)
    ledger.catch_up()
    raw = ledger.raw()
    monkeypatch.setenv("LEDGER_TOPIC", ledger.topic)
    monkeypatch.setenv("LEDGER_VARIANT", "more")

    def copy(name: str) -> Ledger:
        folder = tmp_path / name
        shutil.copytree(ledger.folder, folder)
        return replace(ledger, folder=folder, store=str(folder / "store"), variant="more")

    began = time.monotonic()
    whole = start(copy("whole"))
    assert whole.process.wait(PATIENCE_S) == 0, whole.errors.read_text()
    lives = time.monotonic() - began
    chosen, found = random.Random(KILLS), Counter[str]()
    for number in range(KILLS):
        killed = copy(f"killed-{number}")
        running = start(killed)
        time.sleep(chosen.uniform(lives / 3, lives))  # it goes at any instant
        running.kill()
        found[seen(killed, raw)] += 1
        options = Options(
            store=killed.store, kafka=killed.kafka.properties, patience_s=30, cache_folder=killed.folder / "sst"
        )
        backfill_file(str(killed.program), app=killed.app, options=options, renames={}, settles_s=60)
        assert seen(killed, raw) == "2 filled"
        store = open_store(killed.store)
        assert apps.list_apps(store) == (killed.app,), "what computed it is gone"
        assert all(len(history.head(store, killed.app, name).backfills) == 1 for name in TABLES)  # type: ignore[union-attr]
        killed.verify(killed.app)
        shutil.rmtree(killed.folder)
    print(f"killed after {lives / 3:.1f} to {lives:.1f} s: {dict(found)}")  # noqa: T201
    assert found["migrated"], "some in the middle"
