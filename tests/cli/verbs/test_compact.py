"""`slackwater compact`, in this process and in its own."""

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.store.objects.open import open_store
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import history
from typer.testing import Result

from tests.cli.verbs.calling import slackwater
from tests.support.histories import Clock, FlightsApp, Kafka, copied, flights, rows_of

pytestmark = pytest.mark.usefixtures("isolated", "priorities")


@pytest.fixture
def priorities(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the requested priority instead of setting it, because this process runs other tests."""
    given: list[int] = []
    monkeypatch.setattr(os, "setpriority", lambda _which, _who, priority: given.append(priority))
    return given


@pytest.fixture(scope="module")
def due(tmp_path_factory: pytest.TempPathFactory) -> FlightsApp:
    """Return an app with eight batches that are due for a merge."""
    app = FlightsApp(open_store(str(tmp_path_factory.mktemp("due") / "store")), Kafka(), clock=Clock())
    app.run(flights(80))
    return app


@pytest.fixture
def app(due: FlightsApp, store: ObjectStore) -> FlightsApp:
    return copied(due, store)


def compact(*args: str) -> Result:
    return slackwater("compact", *args)


def shown(*args: str) -> Any:
    result = compact(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("app")
def test_a_dry_run_lists_the_due_merges_and_changes_nothing(store: ObjectStore, priorities: list[int]) -> None:
    before = list(store.list(""))
    assert compact("flights", "--dry-run").stdout.splitlines()[:2] == [
        "would merge in flights",
        "stage     range  SSTs     size  of levels  into level",
    ]
    found = shown("flights", "--dry-run", "--stage", "carriers")
    assert [(merge["stage"], merge["partition"], merge["inputs"]) for merge in found["merges"]] == [
        ("carriers", 0, 8),
        ("carriers", 1, 8),
    ]
    assert list(store.list("")) == before
    assert priorities == []


def test_due_merges_run_and_are_logged(app: FlightsApp, store: ObjectStore, priorities: list[int]) -> None:
    result = compact("flights", "--threads", "2")
    assert result.exit_code == 0, result.output
    assert "compacted flights" in result.stdout
    assert re.search(r"aircraft +v10", result.stdout)
    head = history.head(store, "flights", "aircraft")
    assert head is not None
    assert (head.kind, len(head.ssts), rows_of(store, head)) == ("compaction", 2, app.state["aircraft"])
    (noted,) = list_operations(store, "flights")
    assert (noted.verb, noted.detail) == ("compact", "aircraft@v10, carriers@v10")
    assert priorities == [max(10, os.getpriority(os.PRIO_PROCESS, 0))]
    again = compact("flights").stdout
    assert re.fullmatch(
        r"done already: nothing to merge in flights; merged aircraft by v10, .*; carriers by v10, .*\n", again
    )
    assert compact("flights", "--dry-run").stdout == "nothing to merge in flights\nnothing was changed (--dry-run)\n"
    assert len(list_operations(store, "flights")) == 1


def test_full_merges_all_of_a_table(app: FlightsApp, store: ObjectStore) -> None:
    app.run(flights(3))
    app.delete("carriers", "C1")
    found = shown("flights", "--stage", "carriers", "--full")
    assert [(version["stage"], version["merges"]) for version in found["versions"]] == [("carriers", 2)]
    assert [noted.detail for noted in list_operations(store, "flights")] == ["--full, carriers@v12"]


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (("flight",), 1, "flights"),
        (("flights", "--stage", "carrier"), 1, "carriers"),
        (("flights", "--stage", "legs"), 1, "has no table"),
        (("flights", "--watch", "--full"), 2, "--full"),
        (("flights", "--watch", "--dry-run"), 2, "--dry-run"),
        (("flights", "--watch", "--stage", "legs"), 1, "has no table"),
    ],
)
def test_compact_reports_what_it_cannot_merge(args: tuple[str, ...], code: int, expected: str) -> None:
    result = compact(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert expected in result.stderr


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.ci),  # so the next test stops it, too
    ],
)
def test_watch_merges_due_tables_until_it_is_stopped(
    app: FlightsApp, store: ObjectStore, number: signal.Signals
) -> None:
    words = [sys.executable, "-m", "slackwater.cli.main", "compact", "flights", "--watch", "--every", "0.1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = [json.loads(watching.stdout.readline()) for _ in range(2)]
        assert [(each["stage"], each["version"]) for each in first] == [("aircraft", 10), ("carriers", 10)]
        for stage in ("aircraft", "carriers"):
            head = history.head(store, "flights", stage)
            assert head is not None
            app.heads[stage] = head
        app.run(flights(70))
        # The watcher's timing decides which table is due first.
        assert json.loads(watching.stdout.readline())["stage"] in ("aircraft", "carriers")
        watching.send_signal(number)
        _, said = watching.communicate(timeout=180)
    assert (watching.returncode, said) == (0, "")
    assert [noted.detail for noted in list_operations(store, "flights")] == ["--watch, all tables"]


def test_watch_continues_with_other_tables_if_a_merge_fails(app: FlightsApp, store: ObjectStore) -> None:
    broken = app.heads["aircraft"].ssts[0].object
    whole = store.get(broken)
    store.put(broken, b"")
    words = [sys.executable, "-m", "slackwater.cli.main", "compact", "flights", "--watch", "--every", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        # The other state partition of the table is merged as well.
        for begins in ("aircraft v10", "carriers v10"):
            assert watching.stdout.readline().startswith(begins)
        assert watching.stderr.readline() == "compaction of flights/aircraft postponed; trying again in 0.1 s\n"
        assert broken in watching.stderr.readline()
        store.put(broken, whole)
        assert watching.stdout.readline().startswith("aircraft v11")
        watching.send_signal(signal.SIGTERM)
        watching.communicate(timeout=180)
    assert watching.returncode == 0
