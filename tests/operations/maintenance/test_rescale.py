"""Rescaling a table: one commit, after which every verb works as before."""

from contextlib import closing

import pytest
from slackwater.errors import Fenced, NotFound, Refused, Usage
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.change.stages import Rescaled, rescale
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take import audit_log
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.counting import CountingStore
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.history import head
from slackwater.store.versions.limits import MAX_PARTITIONS
from slackwater.store.versions.manifest import Manifest

from tests.support.histories import Flight, FlightsApp, Kafka, flights, rows_of


@pytest.fixture
def app() -> FlightsApp:
    app = FlightsApp(CountingStore(MemoryStore()), Kafka())
    app.run(flights(40))
    return app


def to(app: FlightsApp, partitions: int, stage: str = "aircraft", *, dry_run: bool = False) -> Rescaled:
    now_ms = app.clock.tick(stage)
    return rescale(app.store, app.name, stage, partitions, by="ada@host", now_ms=now_ms, dry_run=dry_run)


def newest(app: FlightsApp, stage: str = "aircraft") -> Manifest:
    found = head(app.store, app.name, stage)
    assert found is not None
    return found


def totals(app: FlightsApp, cache: SstCache, ref: str, table: str = "aircraft") -> dict[str, int]:
    """Return the delay of each key in a table, as a query returns it."""
    with closing(connect(app.store, cache, resolve(app.store, ref, now_ms=app.clock.now_ms))) as con:
        rows = run_query(con, f"SELECT * FROM {table}")
    return dict(zip(rows.column(0).to_pylist(), rows["delay"].to_pylist(), strict=True))


def test_a_rescale_changes_only_the_number_and_the_epoch(app: FlightsApp) -> None:
    before = newest(app)
    done = to(app, 5)
    after = newest(app)
    assert done == Rescaled("flights", "aircraft", after.version, 2, 5, len(before.ssts))
    assert (after.version, after.epoch, after.kind, after.by) == (
        before.version + 1,
        before.epoch + 1,
        "rescale",
        "ada@host",
    )
    assert after.table is not None
    assert after.table.partitions == 5
    assert after.ssts == before.ssts
    assert {name: read.offsets for name, read in after.inputs.items()} == {
        name: read.offsets for name, read in before.inputs.items()
    }
    (told,) = audit_log.list_operations(app.store, "flights")
    assert (told.verb, told.detail, told.by) == ("rescale", "aircraft to 5 state partitions, from 2", "ada@host")


def test_the_cost_of_a_rescale_does_not_depend_on_the_size_of_the_table(app: FlightsApp) -> None:
    assert isinstance(app.store, CountingStore)
    took = []
    for num_keys in (10, 10_000):
        app.load("aircraft", num_keys)
        app.store.reset()
        to(app, 7 if num_keys == 10 else 3)
        took.append((app.store.requests, app.store.counts["put_if_absent"]))
        app.claim("aircraft")
    assert took[0] == took[1]
    assert took[0][1] == 2  # the manifest, and what the log says


def test_a_running_writer_is_fenced_and_its_error_names_the_rescale(app: FlightsApp) -> None:
    running = app.heads["aircraft"]
    to(app, 5)
    draft = successor(running, kind="batch", epoch=running.epoch, writer=running.writer, by="", now_ms=0)
    with pytest.raises(Fenced, match=r"flights/aircraft was rescaled: v6 has epoch 2, written by ada@host") as fenced:
        commit(app.store, draft)
    assert "start this one again" in fenced.value.hint
    app.claim("aircraft")
    assert app.table("aircraft").partitions == 5


def test_a_running_snapshot_continues(app: FlightsApp) -> None:
    asked = request_snapshot(app.store, "flights", "good", "ada@host")
    app.send(*flights(5))
    app.step("legs")
    app.step("aircraft")
    recorded = newest(app).recorded
    assert recorded
    app.rescale("aircraft", 3)
    assert newest(app).recorded == recorded
    assert try_complete(app.store, "flights", asked) is None
    app.rescale("carriers", 3)
    app.step("carriers")
    snapshot = try_complete(app.store, "flights", asked)
    assert snapshot is not None
    assert snapshot.stages["aircraft"] == recorded[asked.id]


def test_rescaling_to_the_current_number_does_nothing(app: FlightsApp) -> None:
    before = newest(app)
    assert to(app, 2) == Rescaled("flights", "aircraft", before.version, 2, 2, len(before.ssts))
    assert newest(app) == before
    assert audit_log.list_operations(app.store, "flights") == ()


def test_a_dry_run_reports_the_change_and_changes_nothing(app: FlightsApp) -> None:
    before = newest(app)
    assert to(app, 5, dry_run=True) == Rescaled("flights", "aircraft", before.version + 1, 2, 5, len(before.ssts))
    assert newest(app) == before
    assert audit_log.list_operations(app.store, "flights") == ()


@pytest.mark.parametrize("partitions", [0, -1, MAX_PARTITIONS + 1, 2.0, True])
def test_impossible_numbers_are_refused(app: FlightsApp, partitions: int) -> None:
    with pytest.raises(Usage, match=rf"is {partitions}; expected a whole number, 1 to {MAX_PARTITIONS}"):
        to(app, partitions)


def test_the_error_for_an_unknown_stage_names_the_nearest(app: FlightsApp) -> None:
    with pytest.raises(NotFound, match="aircraft"):
        to(app, 3, "aircrafts")
    with pytest.raises(NotFound, match="flights"):
        rescale(app.store, "flight", "aircraft", 3, by="", now_ms=0)
    with pytest.raises(Refused, match="flights/legs has no table") as refused:
        to(app, 3, "legs")
    assert "slackwater status flights" in refused.value.hint


def test_queries_bisect_and_verify_work_across_rescales(app: FlightsApp, cache: SstCache) -> None:
    expected = {}
    for number, partitions in enumerate((3, 5, 1, 4)):
        app.rescale("aircraft", partitions)
        app.send(*(Flight(f"N{n:03}", "C1", 5_000 if number == 2 else 5) for n in range(0, 20, number + 1)))
        app.step_all()
        expected[newest(app).version] = {key: delay for key, (_, delay, _) in rows_of(app.store, newest(app)).items()}
    for version, rows in expected.items():
        assert totals(app, cache, f"flights/aircraft@v{version}") == rows
        assert verify(app.store, "flights", now_ms=app.clock.now_ms, deep=True).differences == ()
    where = "SELECT tail FROM aircraft WHERE delay >= 5000"
    verdict = bisect(app.store, cache, "flights", where, now_ms=app.clock.now_ms)
    assert (verdict.stage, verdict.bad_version) == ("aircraft", list(expected)[2])


def test_a_clone_has_the_same_number_as_its_source(app: FlightsApp, cache: SstCache) -> None:
    app.rescale("aircraft", 5)
    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="ada@host")
    staging = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    assert staging.table("aircraft").partitions == 5
    staging.rescale("aircraft", 2)
    staging.send(*flights(5))
    staging.step_all()
    expected = {key: delay for key, (_, delay, _) in staging.state["aircraft"].items()}
    assert totals(app, cache, "staging") == expected
    assert app.table("aircraft").partitions == 5
