"""`slackwater rejected` on the command line."""

from pathlib import Path

import pytest
import slackwater as sw
from slackwater.snapshot.change.stages import RETRIES

from tests.cli.verbs.calling import done, from_json, slackwater
from tests.operations.repair.rejected.rejecting import mark_retried, reject
from tests.support.histories import FlightsApp

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def rejecting(app: FlightsApp, tmp_path: Path) -> FlightsApp:
    reject(app, "carriers", [3, 4], tmp_path / "cache")
    mark_retried(app, "carriers", [4], tmp_path / "cache")
    return app


def test_records_that_wait_for_a_retry_are_listed_with_their_errors(rejecting: FlightsApp) -> None:
    shown = done("rejected", "flights")
    assert "flights[0]@3" in shown
    assert "ValueError: bad: 3" in shown
    assert "carriers: 1 record waiting of 2" in shown
    assert "@4" not in shown
    assert "retried by v" in done("rejected", "flights", "--all")
    (record,) = from_json("rejected", "flights")["records"]
    assert (record["value"], record["stack"]) == (b"no json".hex(), "Traceback: here")
    assert len(sw.open(rejecting.store.url).app("flights").rejected(every=True).records) == 2
    assert "carriers rejected 2 records, 1 waiting" in done("status", "flights")


def test_the_table_of_rejected_records_is_exported_too(rejecting: FlightsApp, tmp_path: Path) -> None:
    assert "carriers_rejected" in done("export", "flights", str(tmp_path / "flights.duckdb"))


def test_retry_writes_a_request_and_a_dry_run_does_not(rejecting: FlightsApp) -> None:
    said = done("rejected", "flights", "--retry", "--dry-run")
    assert "flights/carriers: 1 rejected record would be retried; the next `slackwater run` does it" in said
    assert RETRIES.all(rejecting.store, "flights") == ()
    assert "will be retried" in done("rejected", "flights", "--retry")
    done("rejected", "flights", "--retry")
    (asked,) = RETRIES.all(rejecting.store, "flights")
    assert asked.stage == "carriers"


def test_an_app_without_rejected_records_says_so(app: FlightsApp) -> None:
    assert "no stage of flights rejected a record" in done("rejected", "flights")
    assert "no rejected record of flights waits" in done("rejected", "flights", "--retry")
    refused = slackwater("rejected", "flights", "--dry-run")
    assert refused.exit_code == 2
    assert "--dry-run needs --retry" in refused.output
    assert slackwater("rejected", "flights", "--stage", "no-such").exit_code == 1
