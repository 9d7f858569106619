"""Overlapping snapshots of apps under load, whose stages are killed and rescaled meanwhile: every cut is consistent.

The laws of tests/chandy_lamport/test_laws.py on a real broker, Spark and store. Every table of every snapshot, together
with the captured in-flight records, equals SQL over the input that the cut's first stage had read.
"""

import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import DIAMOND, PATIENCE_S, Ledger, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]


def elsewhere(app: Ledger, name: str) -> Ledger:
    """Return the same app as on another machine, with an empty cache."""
    folder = app.folder / name
    folder.mkdir()
    return replace(app, folder=folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("killed", "count"),
    [
        pytest.param(("debits ahead",), 3, id="one stage"),
        pytest.param(("moves", "debits", "deposits"), 15, id="three stages", marks=pytest.mark.soak),
    ],
)
def test_snapshots_are_consistent_even_if_stages_are_killed(
    kafka: EmbeddedKafka, tmp_path: Path, killed: tuple[str, ...], count: int
) -> None:
    app = Ledger(kafka.bootstrap, tmp_path, program=DIAMOND)
    store = open_store(app.store)
    app.send(3_000)
    with app.fed():
        for sabotage in killed:
            # In the format of apps/sabotage.py. Unflushed versions are lost together with the machine.
            stage, _, ahead = sabotage.partition(" ")
            words = ("--max-records", "300", "--max-unflushed", "4") if ahead else ("--max-records", "500")
            machine = elsewhere(app, stage)
            with machine.running(*words, sabotage=sabotage) as running:
                # It may die because of the previous request, which is still open.
                running.await_commit()
                started = psutil.Process(running.process.pid).children(recursive=True)
                assert any(process.name() == "java" for process in started)
                request_snapshot(store, app.app, f"killed-{stage}", "tests")
                assert running.process.wait(120) == -signal.SIGKILL
                # Signals do not reach the JVM, which ends together with the runner.
                assert psutil.wait_procs(started, timeout=PATIENCE_S)[1] == []
            if ahead:
                left = list(machine.folder.glob(f"cache-spool/*/*/stages/{stage}/sst/*.parquet"))
                assert len(left) >= 3, "several versions were acknowledged and not committed"
            # The runner that takes over sees the request, and the snapshot completes, even if the state was rescaled
            # meanwhile.
            assert [asked.name for asked in open_requests(store, app.app)][-1] == f"killed-{stage}"
            app.slackwater("rescale", f"{app.app}/{app.last_stage}", "--partitions", str(3 + len(stage) % 3))
        with elsewhere(app, "at last").running_here(max_records=500) as await_commit:
            await_commit(app.last_stage)
            for number in range(count - len(killed)):
                # Two at a time and more: they overlap.
                request_snapshot(store, app.app, f"under-load-{number}", "tests")
                await_commit(app.last_stage)
            eventually(lambda: not open_requests(store, app.app), "every snapshot completes")
    taken = list_snapshots(store, app.app)
    assert len(taken) == count
    for snapshot in taken:
        app.check_snapshot(snapshot.name)
    for stage in history.list_stages(store, app.app):
        # Each stage writes a snapshot's marker once, also after a restart.
        marked = [
            name
            for version in history.iter_after(store, app.app, stage, 0)
            for output in list(version.outputs.values())[:1]
            for name in output.markers
        ]
        assert len(marked) == len(set(marked))
