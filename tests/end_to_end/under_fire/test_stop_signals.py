"""A run that gets a stop signal, in any phase and in any of its processes, exits cleanly and loses nothing."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.snapshot.cut.stored import open_requests
from slackwater.snapshot.take.taking import read_answers, request_snapshot
from slackwater.store.objects.open import open_store
from slackwater.store.versions import history

from tests.support.running import DIAMOND, LEDGER, PATIENCE_S, Ledger, Running, eventually

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.usefixtures("one_spark")]

KNOWN = ("stopping: ", "stopping now: ", "waiting for records", "behind: ", "snapshot ")


@pytest.fixture
def ledger(kafka: EmbeddedKafka, tmp_path: Path) -> Ledger:
    ledger = Ledger(kafka.bootstrap, tmp_path)
    ledger.send(3_000)
    return ledger


def processes(app: Running) -> list[psutil.Process]:
    runner = psutil.Process(app.process.pid)
    return [*runner.children(recursive=True), runner]


def to_the_group(app: Running, number: int) -> None:
    """Signal the process group, like Ctrl-C on a terminal and `kill -TERM -PGID`."""
    os.killpg(app.process.pid, number)


def to_all(app: Running, number: int) -> None:
    """Signal every process, children first, like a service manager that signals a control group."""
    for process in processes(app):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def to_the_runner(app: Running, number: int) -> None:
    app.process.send_signal(number)


def says(app: Running, words: str) -> None:
    eventually(lambda: words in app.errors.read_text(), f"it says {words!r}")


def a_batch_is_held(ledger: Ledger, app: Running) -> None:
    """Wait until a batch is blocked, either by sabotage or by the program itself."""
    held = ledger.folder / "held"
    eventually(lambda: held.exists() or app.process.poll() is not None, "a batch is under way")
    assert held.exists(), app.errors.read_text()


def ended(app: Running, before: list[psutil.Process]) -> list[str]:
    """Check that the run and all its processes have exited cleanly; return its output from the stop signal on."""
    code = app.process.wait(PATIENCE_S)
    said = app.errors.read_text()
    assert code == 0, said
    lines = said.splitlines()
    assert all(line.endswith(" …") or line.startswith(KNOWN) for line in lines), said
    _, left = psutil.wait_procs(before, timeout=PATIENCE_S)
    assert not left
    return lines[next(number for number, line in enumerate(lines) if line.startswith("stopping: ")) :]


def nothing_is_lost(ledger: Ledger) -> None:
    ledger.catch_up()
    ledger.check_tables()


def claimed(ledger: Ledger) -> bool:
    return len(history.list_stages(open_store(ledger.store), ledger.app)) > 0


def test_stop_while_the_run_waits_for_kafka(tmp_path: Path, ledger: Ledger) -> None:
    away = Ledger(ledger.bootstrap, tmp_path)
    away.bootstrap = "127.0.0.1:1"
    with away.running(for_people=True) as app:
        says(app, "waiting for Kafka at 127.0.0.1:1 …")
        before = processes(app)
        to_the_group(app, signal.SIGTERM)
        assert ended(app, before) == ["stopping: no batch is running"]


@pytest.mark.ci  # an end before the first batch is shown while it waits for Kafka, that of Spark by a second Ctrl-C
def test_stop_while_spark_starts(ledger: Ledger) -> None:
    with ledger.running(for_people=True) as app:
        says(app, "starting Spark (local[2]) …")
        before = processes(app)
        to_all(app, signal.SIGTERM)
        assert ended(app, before) == ["stopping: no batch is running"]
    assert not claimed(ledger)


@pytest.mark.ci  # the rule is pipeline/run/test_stopping.py
@pytest.mark.parametrize("whom", [to_all])
def test_stop_during_a_batch_commits_the_batch_first(ledger: Ledger, whom: Callable[[Running, int], None]) -> None:
    with ledger.running("--stage", "entries", sabotage="entries held", for_people=True) as app:
        a_batch_is_held(ledger, app)
        before = processes(app)
        whom(app, signal.SIGTERM)
        says(app, "stopping: finishing the current batch")
        says(app, "stopping: waiting for stage entries to end a batch, ")
        (ledger.folder / "go").touch()
        ended(app, before)
    head = history.head(open_store(ledger.store), ledger.app, "entries")
    assert head is not None
    assert head.kind == "batch"
    nothing_is_lost(ledger)


@pytest.mark.ci
def test_a_second_ctrl_c_stops_without_finishing_the_batch(ledger: Ledger) -> None:
    ledger.variant = "waits in a task"
    with ledger.running("--stage", "entries", for_people=True) as app:
        a_batch_is_held(ledger, app)
        before = processes(app)
        to_the_group(app, signal.SIGINT)
        says(app, "stopping: finishing the current batch")
        to_the_group(app, signal.SIGINT)
        assert any(line.startswith("stopping now: ") for line in ended(app, before))
    head = history.head(open_store(ledger.store), ledger.app, "entries")
    assert head is not None
    assert head.kind == "claim"
    nothing_is_lost(ledger)


@pytest.mark.soak
def test_a_killed_jvm_is_reported_in_one_sentence(ledger: Ledger) -> None:
    with ledger.running(for_people=True) as app:
        eventually(lambda: claimed(ledger), "it has begun")
        (jvm,) = (process for process in processes(app) if process.name() == "java")
        jvm.kill()
        assert app.process.wait(PATIENCE_S) == 1
        said = app.errors.read_text()
        assert "error: Spark's JVM has ended (killed by signal 9)" in said
        assert "Traceback" not in said
    nothing_is_lost(ledger)


def spark_starts(ledger: Ledger, app: Running) -> None:
    says(app, "starting Spark")


def is_claiming(ledger: Ledger, app: Running) -> None:
    eventually(lambda: claimed(ledger), "a stage is claimed")


def first_batch(ledger: Ledger, app: Running) -> None:
    says(app, "starting stages")


def is_idle(ledger: Ledger, app: Running) -> None:
    says(app, "waiting for records")
    eventually(ledger.has_caught_up, "everything is read")


def compacts(ledger: Ledger, app: Running) -> None:
    """Wait until a merge is running; sabotage blocks it until it is told to stop."""

    def merges() -> bool:
        ledger.send(20)
        return (ledger.folder / "held").exists() or app.process.poll() is not None

    eventually(lambda: claimed(ledger), "it has begun")
    eventually(merges, "a merge is under way")
    assert (ledger.folder / "held").exists(), app.errors.read_text()


def captures(ledger: Ledger, app: Running) -> None:
    """Wait until the first stage has recorded its version for a snapshot and other stages have not."""
    store = open_store(ledger.store)

    def far() -> bool:
        head = history.head(store, ledger.app, ledger.last_stage) if claimed(ledger) else None
        return app.process.poll() is not None or (head is not None and head.kind == "batch")

    eventually(far, "records come to the last stage")
    ledger.send(5_000)
    asked = request_snapshot(store, ledger.app, "amid", "tests")

    def under_way() -> bool:
        found = read_answers(store, ledger.app, asked)
        return app.process.poll() is not None or found["moves"].version is not None

    eventually(under_way, "the first stage records its version")
    assert not all(answer.finished for answer in read_answers(store, ledger.app, asked).values())


def is_completed(ledger: Ledger) -> None:
    """Check that the next run has completed the snapshot that was open when the run was stopped."""
    assert open_requests(open_store(ledger.store), ledger.app) == ()
    ledger.check_snapshot("amid")


@pytest.mark.soak
@pytest.mark.parametrize("whom", [to_the_group, to_all, to_the_runner])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("phase", [spark_starts, is_claiming, first_batch, is_idle, compacts, captures])
def test_stop_in_any_phase_by_a_signal_to_any_process(
    ledger: Ledger,
    phase: Callable[[Ledger, Running], None],
    number: int,
    whom: Callable[[Running, int], None],
) -> None:
    ledger.program = DIAMOND if phase is captures else LEDGER
    sabotage = "accounts merges" if phase is compacts else ""
    # Batches of few records, so that there are many batches to merge, and many that markers overtake.
    most = "100" if phase in (compacts, captures) else "1000"
    with ledger.running("--max-records", most, sabotage=sabotage, for_people=True) as app:
        phase(ledger, app)
        before = processes(app)
        whom(app, number)
        ended(app, before)
    nothing_is_lost(ledger)
    if phase is captures:
        is_completed(ledger)
