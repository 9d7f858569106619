"""`slackwater snapshot` on the command line."""

import re
import signal
import threading

import pytest
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.store.objects.protocol import ObjectStore

from tests.cli.verbs.calling import done, from_json, process, slackwater
from tests.support.histories import FlightsApp
from tests.support.running import eventually

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.mark.usefixtures("app")
def test_an_instant_snapshot_is_pinned_listed_shown_and_removed(store: ObjectStore) -> None:
    taken = from_json("snapshot", "take", "flights", "before", "--instant")
    assert taken["stages"] == {"legs": 7, "aircraft": 6, "carriers": 6}
    assert "before" in done("snapshot", "list", "flights")
    shown = done("snapshot", "show", "flights", "before")
    assert "by-aircraft" in shown
    assert "flights-by-aircraft-repartition[0] " in shown
    assert done("snapshot", "show", "flights@before").splitlines()[1:] == shown.splitlines()[1:]
    for neither in (("flights",), ("flights@before", "before")):
        assert "names no snapshot" in slackwater("snapshot", "show", *neither).stderr
    assert from_json("snapshot", "show", "flights", "before")["in_flight"][0]["rows"] == 5
    assert done("snapshot", "rm", "flights", "before", "--dry-run").startswith("would remove flights@before")
    assert [snapshot.name for snapshot in list_snapshots(store, "flights")] == ["before"]
    done("snapshot", "rm", "flights", "before")
    assert list_snapshots(store, "flights") == ()
    operations = from_json("log", "flights", "--operations")
    assert [operation["verb"] for operation in operations] == ["snapshot rm", "snapshot take"]


def test_a_snapshot_of_a_running_app_waits_for_every_stage(app: FlightsApp, store: ObjectStore) -> None:
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if open_requests(store, "flights"):
                app.step_all()
            stop.wait(0.01)

    runner = threading.Thread(target=run)
    runner.start()
    try:
        result = slackwater("snapshot", "take", "flights", "live")
    finally:
        stop.set()
        runner.join()
    assert result.exit_code == 0, result.output
    assert "snapshot flights@live is complete after" in result.stdout
    assert "legs recorded v" in result.stderr
    (snapshot,) = list_snapshots(store, "flights")
    assert (snapshot.name, snapshot.kind) == ("live", "markers")
    assert open_requests(store, "flights") == ()


@pytest.mark.usefixtures("app")
def test_an_unanswered_snapshot_is_withdrawn_and_the_error_names_the_silent_stages(store: ObjectStore) -> None:
    result = slackwater("snapshot", "take", "flights", "never", "--timeout", "0")
    assert (result.exit_code, result.stdout) == (1, "")
    told, error, hint = result.stderr.splitlines()
    assert told.startswith(
        "flights is not running: waiting up to 0s for its next run to take the snapshot, then withdraw"
    )
    assert re.search(r"is withdrawn: no answer from aircraft \(.*\), carriers \(.*\), legs \(.* ago\)", error)
    assert "--no-wait leaves it to the next runner" in hint
    assert "--instant" in result.stderr
    assert open_requests(store, "flights") == ()


@pytest.mark.usefixtures("app")
def test_a_snapshot_can_be_requested_without_waiting_and_withdrawn_later(store: ObjectStore) -> None:
    done("snapshot", "take", "flights", "later", "--no-wait")
    assert [request.name for request in open_requests(store, "flights")] == ["later"]
    assert "requested" in done("snapshot", "list", "flights")
    assert "the request for flights@later" in done("snapshot", "rm", "flights", "later")
    assert open_requests(store, "flights") == ()


@pytest.mark.usefixtures("app")
def test_a_snapshot_without_a_name_gets_the_time_as_name() -> None:
    name = from_json("snapshot", "take", "flights", "--instant")["name"]
    assert name.replace("-", "").isdigit()
    assert done("query", f"flights@{name}", "SELECT 1 AS one").split() == ["one", "1"]


@pytest.mark.usefixtures("app")
def test_ctrl_c_while_waiting_for_a_snapshot_withdraws_the_request(store: ObjectStore) -> None:
    with process("snapshot", "take", "flights", "never", "--timeout", "600") as take:
        eventually(lambda: bool(open_requests(store, "flights")), "a snapshot is requested")
        assert take.poll() is None, "it goes on waiting"
        take.send_signal(signal.SIGINT)
        told = (
            "flights is not running: waiting up to 10m for its next run to take the snapshot, then withdrawing the "
            "request (--no-wait keeps the request; --instant pins the newest committed moment now)\n"
        )
        assert take.communicate(timeout=180) == ("", told)
        assert take.returncode == 130
    assert open_requests(store, "flights") == ()
