"""Completion of snapshots during batches: polls, messages and failures."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from slackwater.errors import Refused, Unavailable
from slackwater.pipeline.run.supervisor import SnapshotCompleter
from slackwater.snapshot.cut.in_flight import InFlight
from slackwater.snapshot.cut.kafka_topics import KafkaTopics
from slackwater.snapshot.cut.stored import SnapshotRequest, find_snapshot, open_requests, withdraw_request
from slackwater.snapshot.take import audit_log
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.store.objects.counting import CountingStore
from slackwater.store.versions import keys

from tests.support.diamonds import APP, Diamond, Logs


def under_way() -> tuple[Diamond, SnapshotRequest]:
    """Return a snapshot request that all stages but `joined` have finished, with a record in flight to `joined`."""
    diamond = Diamond()
    diamond.step_all(records=6)
    asked = request_snapshot(diamond.store, APP, "good", "ada@host")
    for stage in ("moves", "evens", "joined", "odds"):
        diamond.step(stage, records=4)
    return diamond, asked


def look(diamond: Diamond, reader: KafkaTopics | None = None) -> frozenset[str]:
    """Poll once, and finish the completions that this starts."""
    completer = SnapshotCompleter(diamond.store, APP, reader or diamond.logs, "test:1")
    try:
        return completer.check(diamond.heads.values())
    finally:
        completer.close()


def test_a_snapshot_is_completed_when_every_stage_has_finished_and_then_forgotten() -> None:
    diamond, asked = under_way()
    assert look(diamond) == frozenset()
    assert find_snapshot(diamond.store, APP, "good") is None, "one stage awaits a marker"
    diamond.step("joined")
    assert look(diamond) == frozenset()
    snapshot = find_snapshot(diamond.store, APP, "good")
    assert snapshot is not None
    assert snapshot.channels
    assert look(diamond) == {asked.id}
    diamond.step_all()
    assert look(diamond) == frozenset(), "the stages have forgotten it"


def test_an_open_request_is_not_forgotten_while_another_runners_stage_works_on_it() -> None:
    diamond, asked = under_way()
    del diamond.heads["joined"]
    assert look(diamond) == frozenset()
    assert open_requests(diamond.store, APP) == (asked,)
    assert find_snapshot(diamond.store, APP, "good") is None


def test_while_a_stage_is_working_a_poll_costs_one_listing_and_one_read() -> None:
    diamond, _ = under_way()
    for heads in (diamond.heads, {"joined": diamond.heads["joined"]}):
        counted = CountingStore(diamond.store)
        completer = SnapshotCompleter(counted, APP, diamond.logs, "test:1")
        completer.check(heads.values())
        completer.close()
        assert counted.requests == 2


def test_a_withdrawn_request_is_forgotten() -> None:
    diamond, asked = under_way()
    withdraw_request(diamond.store, APP, asked)
    assert look(diamond) == {asked.id}


class Broken(Logs):
    """A reader that fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def read(self, in_flight: InFlight, /) -> Iterator[pa.Table]:
        raise self._error


def test_a_snapshot_waits_while_kafka_is_away(caplog: pytest.LogCaptureFixture) -> None:
    diamond, asked = under_way()
    diamond.step("joined")
    assert look(diamond, Broken(Unavailable("Kafka is away"))) == frozenset()
    assert caplog.messages == ["snapshot good of diamond waits: Kafka is away"]
    assert open_requests(diamond.store, APP) == (asked,)
    look(diamond)
    assert find_snapshot(diamond.store, APP, "good") is not None


@pytest.mark.parametrize("how", ["gone from Kafka", "fewer than were sent"])
def test_a_snapshot_that_can_never_complete_is_withdrawn_and_logged(how: str, caplog: pytest.LogCaptureFixture) -> None:
    diamond, asked = under_way()
    diamond.step("joined")
    if how == "gone from Kafka":
        look(diamond, Broken(Refused("offsets are gone")))
    else:
        diamond.logs.lost = 1
        look(diamond)
    (noted,) = audit_log.list_operations(diamond.store, APP)
    assert (noted.verb, noted.by) == ("snapshot failed", "test:1")
    assert noted.detail.startswith("good: ")
    assert caplog.messages == [f"snapshot good of diamond was dropped: {noted.detail.removeprefix('good: ')}"]
    assert open_requests(diamond.store, APP) == ()
    assert not list(diamond.store.list(keys.snapshot_objects(APP, "good")))
    assert look(diamond) == {asked.id}
