"""Running apps that lose their broker, are taken over, stopped, or asked for snapshots: each record counts once."""

import json
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from slackwater.pipeline.dev.jvm_server import choose_port
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import read_snapshot
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import TWO_STAGES, Ledger, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


@pytest.mark.ci  # test_snapshots_under_fire.py takes an app over, test_outages.py takes the broker away
def test_a_runner_survives_a_broker_outage_and_a_takeover_and_each_record_counts_once(
    kafka: EmbeddedKafka, ledger: Ledger
) -> None:
    ledger.send(3_000)
    with ledger.running(*TWO_STAGES, "--max-records", "500") as first:
        first.await_commit("accounts")
        kafka.kill()
        eventually(lambda: "does not answer" in first.errors.read_text(), "it says that the broker is away")
        kafka.start()
        with ledger.fed():
            first.await_commit("accounts")
            eventually(lambda: "is back" in first.errors.read_text(), "it says that the broker is back")
            ledger.catch_up("entries", "accounts")
            assert first.process.wait(60) == 1
        said = first.errors.read_text()
        assert "was taken over" in said
        assert "Traceback" not in said
    ledger.catch_up()
    ledger.check_tables()
    store = open_store(ledger.store)
    for stage in ("entries", "accounts"):
        versions = list(history.iter_after(store, ledger.app, stage, 0))
        assert [one.version for one in versions] == list(range(1, len(versions) + 1))
        assert versions[-1].epoch == 3
        assert sum(one.kind == "claim" for one in versions) == 3


@pytest.mark.ci  # test_stop_signals.py and test_snapshots_under_fire.py show both separately
def test_an_idle_runner_answers_a_snapshot_at_once_and_ctrl_c_stops_a_busy_one_cleanly(ledger: Ledger) -> None:
    ledger.send(500)
    with ledger.running("--max-records", "1000") as app:
        app.await_commit("branches")
        ledger.slackwater("snapshot", "take", ledger.app, "idle", "--timeout", "60")
        with ledger.fed():
            app.await_commit("branches")
            code, seconds = app.interrupt()
        said = app.errors.read_text()
        assert code == 0, said
        assert seconds < 30  # a batch, the queries and Spark have six, eight and ten seconds to end
        assert "Traceback" not in said
    assert sum(ledger.table("branches", f"{ledger.app}@idle")["n"].to_pylist()) == 500
    ledger.catch_up()
    ledger.check_tables()


@pytest.mark.ci  # pipeline/run/test_health.py covers everything else that can hang
def test_a_runner_fails_its_liveness_probe_while_its_jvm_hangs(ledger: Ledger) -> None:
    port = choose_port()

    def ask(probe: str) -> str:
        try:
            with urlopen(f"http://127.0.0.1:{port}/{probe}", timeout=180) as answer:
                return str(answer.read().decode())
        except HTTPError as error:
            return f"{error.code}: {error.read().decode()}"

    ledger.send(500)
    words = ("--metrics", str(port), "--hung-after", "10s", "--log-format", "json")
    with ledger.running(*TWO_STAGES, "--max-records", "400", *words) as app:
        assert app.await_commit("accounts")["version"] == 2
        assert (ask("livez"), ask("readyz")) == ("ok\n", "ok\n")
        (jvm,) = (each for each in psutil.Process(app.process.pid).children(recursive=True) if each.name() == "java")
        jvm.suspend()
        eventually(lambda: ask("livez").startswith("503: Spark's JVM has not answered for 1"), "it is seen to hang", 30)
        jvm.resume()
        eventually(lambda: ask("livez") == ask("readyz") == "ok\n", "it is seen to go on", 30)
        ledger.send(500)
        app.await_commit("accounts")
        code, _ = app.interrupt()
        told = [json.loads(line) for line in app.errors.read_text().splitlines()]
    assert code == 0
    assert all({"timestamp", "level", "message"} <= each.keys() for each in told)
    ledger.catch_up()
    ledger.check_tables()


@pytest.mark.ci  # each part is tested without servers: cli/verbs/test_retire.py
def test_a_stage_removed_from_the_program_blocks_snapshots_until_it_is_retired(ledger: Ledger) -> None:
    ledger.send(500)
    ledger.catch_up()
    ledger.variant = "without latest"
    ledger.send(500)
    with ledger.running() as app:
        app.await_commit("branches")
        held_up = ledger.slackwater("snapshot", "take", ledger.app, "held-up", "--timeout", "10", check=False)
        assert held_up.returncode == 1
        verb = f"slackwater retire {ledger.app}/latest"
        assert f"is latest still in the program? if it is gone for good: `{verb}`" in held_up.stderr
        ledger.slackwater(*verb.split()[1:])
        ledger.slackwater("snapshot", "take", ledger.app, "at-once", "--timeout", "60")
        said = app.errors.read_text()
        assert f"{ledger.app} has latest, which this program lacks" in said
        assert verb in said
    assert read_snapshot(open_store(ledger.store), ledger.app, "at-once").stages.keys() == {
        "entries",
        "accounts",
        "branches",
    }
    ledger.verify(f"{ledger.app}@at-once")
    assert sum(ledger.table("branches", f"{ledger.app}@at-once")["n"].to_pylist()) == 1_000
    # The old program has the stage again, and continues where it stopped.
    ledger.catch_up()
    ledger.check_tables()
    assert "latest" in resolve(open_store(ledger.store), ledger.app, now_ms=0).stages
