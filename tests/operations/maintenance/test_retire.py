"""Retiring a stage that the program no longer has: after one version, the app continues without it."""

import pytest
from msgspec.structs import replace
from slackwater.errors import Fenced, NotFound, Refused
from slackwater.operations.maintenance.compact import plan
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.change.stages import (
    Retired,
    prepare_reactivation,
    rescale,
    retire,
    stages_missing_from_program,
)
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots, open_requests
from slackwater.snapshot.gc.collect import collect
from slackwater.snapshot.gc.reachable import Retention
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.take import audit_log
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.take.taking import read_answers, request_snapshot, try_complete
from slackwater.snapshot.verify.verify import verify
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import apps, history, published
from slackwater.store.versions.commit import commit, successor
from slackwater.store.versions.manifest import Manifest, Sink
from slackwater.store.versions.published import PublishedPosition

from tests.support.collecting import HOUR_MS, aging_app, fresh
from tests.support.histories import Flight, FlightsApp, flights, rows_of


def gone(app: FlightsApp, stage: str = "carriers", *, dry_run: bool = False) -> Retired:
    now_ms = app.clock.tick(stage)
    return retire(app.store, app.name, stage, by="ada@host", now_ms=now_ms, dry_run=dry_run)


def newest(app: FlightsApp, stage: str = "carriers") -> Manifest:
    found = history.head(app.store, app.name, stage)
    assert found is not None
    return found


def at(app: FlightsApp, ref: str) -> Cut:
    return resolve(app.store, ref, now_ms=app.clock.now_ms)


def without_carriers(app: FlightsApp, batches: int = 3) -> None:
    """Continue to run the app without the last stage; the channel that the stage read is still written."""
    for _ in range(batches):
        app.send(*flights(5))
        app.step("legs")
        app.step("aircraft")


def test_retiring_commits_one_version_with_the_same_content_and_the_next_epoch(app: FlightsApp) -> None:
    before = newest(app)
    without_carriers(app, 2)
    assert gone(app) == Retired(
        "flights",
        "carriers",
        before.version + 1,
        False,
        before.time_ms,
        "test:1",
        len(before.ssts),
        {"aircraft": 2},
        (),
    )
    after = newest(app)
    assert (after.kind, after.retired, after.epoch, after.by) == ("retire", True, before.epoch + 1, "ada@host")
    assert (after.table, after.ssts) == (before.table, before.ssts)
    assert after.inputs["by-carrier"].offsets == before.inputs["by-carrier"].offsets
    (told,) = audit_log.list_operations(app.store, "flights")
    assert (told.verb, told.detail, told.by) == ("retire", f"carriers with v{after.version}", "ada@host")


def test_a_dry_run_reports_the_same_and_changes_nothing(app: FlightsApp) -> None:
    before = newest(app)
    assert gone(app, dry_run=True).version == before.version + 1
    assert newest(app) == before
    assert audit_log.list_operations(app.store, "flights") == ()


def test_a_repeated_retire_reports_done(app: FlightsApp) -> None:
    first, again = gone(app), gone(app)
    assert (again.already, again.version) == (True, first.version)
    assert newest(app).version == first.version
    assert len(audit_log.list_operations(app.store, "flights")) == 1


def test_a_stage_is_refused_until_its_readers_are_retired(app: FlightsApp) -> None:
    with pytest.raises(Refused, match="legs cannot be retired: aircraft reads what it writes") as refused:
        gone(app, "legs")
    assert "slackwater retire flights/aircraft" in refused.value.hint
    for stage in ("carriers", "aircraft", "legs"):
        gone(app, stage)
    with pytest.raises(NotFound, match="every stage of flights was retired"):
        at(app, "flights")
    assert at(app, "flights/legs").versions["legs"] == newest(app, "legs").version
    with pytest.raises(Refused, match="every stage of flights is retired"):
        request_snapshot(app.store, "flights", "good", "ada@host")


def test_the_error_for_an_unknown_stage_names_the_nearest(app: FlightsApp) -> None:
    with pytest.raises(NotFound, match="carriers"):
        gone(app, "carrier")
    with pytest.raises(NotFound, match="flights"):
        retire(app.store, "flight", "carriers", by="", now_ms=0)


def test_a_running_writer_is_fenced_and_its_error_names_the_retirement(app: FlightsApp) -> None:
    running = app.heads["carriers"]
    gone(app)
    draft = successor(running, kind="batch", epoch=running.epoch, writer=running.writer, by="", now_ms=0)
    with pytest.raises(Fenced, match=r"flights/carriers was retired: v6 has epoch 2, written by ada@host") as fenced:
        commit(app.store, draft)
    assert "remove it from the program" in fenced.value.hint


def test_moments_after_the_retirement_lack_the_stage_and_earlier_moments_have_it(app: FlightsApp) -> None:
    before_ms, last = app.clock.now_ms, newest(app).version
    gone(app)
    retired_ms = app.clock.now_ms
    without_carriers(app)
    for ref in ("flights", "flights@~0", f"flights@{_iso(retired_ms)}"):
        assert at(app, ref).versions.keys() == {"legs", "aircraft"}
    assert at(app, f"flights@{_iso(before_ms)}").versions["carriers"] == last
    assert at(app, f"flights/carriers@v{last - 2}").versions["carriers"] == last - 2


def test_the_stage_itself_can_be_read_as_of_its_retirement(app: FlightsApp) -> None:
    gone(app)
    without_carriers(app)
    for ref in ("flights/carriers", f"flights/carriers@{_iso(app.clock.now_ms)}"):
        cut = at(app, ref)
        assert rows_of(app.store, cut.stages["carriers"]) == app.state["carriers"]
        assert in_flight(app.store, cut) == ()


def test_the_stages_records_are_no_longer_in_flight(app: FlightsApp) -> None:
    without_carriers(app)
    assert [flight.receiver for flight in in_flight(app.store, at(app, "flights"))] == ["carriers"]
    gone(app)
    without_carriers(app)
    assert in_flight(app.store, at(app, "flights")) == ()
    assert pin_cut(app.store, at(app, "flights"), "here", reader=app.kafka).channels == ()


def test_a_snapshot_that_waits_for_the_stage_completes_without_it(app: FlightsApp) -> None:
    asked = request_snapshot(app.store, "flights", "good", "ada@host")
    without_carriers(app)
    assert try_complete(app.store, "flights", asked, app.kafka) is None
    assert [stage for stage, answer in read_answers(app.store, "flights", asked).items() if not answer.finished] == [
        "carriers"
    ]
    assert gone(app).snapshots == ("good",)
    assert "carriers" not in read_answers(app.store, "flights", asked)
    snapshot = try_complete(app.store, "flights", asked, app.kafka)
    assert snapshot is not None
    assert snapshot.stages.keys() == {"legs", "aircraft"}
    report = verify(app.store, "flights@good", now_ms=app.clock.now_ms, deep=True)
    assert report.differences == ()


def test_a_snapshot_completes_even_if_the_stage_had_begun_to_answer(app: FlightsApp) -> None:
    asked = request_snapshot(app.store, "flights", "good", "ada@host")
    app.step_all()
    assert newest(app).recorded
    gone(app)
    assert (newest(app).recorded, newest(app).awaited, newest(app).captured) == ({}, {}, {})
    snapshot = try_complete(app.store, "flights", asked, app.kafka)
    assert snapshot is not None
    assert snapshot.stages.keys() == {"legs", "aircraft"}


def test_only_a_stage_that_has_been_reached_by_a_marker_counts_as_asked(app: FlightsApp) -> None:
    asked = request_snapshot(app.store, "flights", "good", "ada@host")
    app.step("legs")
    found = read_answers(app.store, "flights", asked)
    assert {stage: (answer.finished, answer.asked) for stage, answer in found.items()} == {
        "legs": (True, True),
        "aircraft": (False, True),
        "carriers": (False, False),
    }


def test_running_a_program_with_the_stage_again_resumes_it_where_it_stopped(app: FlightsApp) -> None:
    gone(app)
    without_carriers(app)
    asked = request_snapshot(app.store, "flights", "under-way", "ada@host")
    assert prepare_reactivation(app.store, "flights", "carriers", by="test:2")
    assert open_requests(app.store, "flights") == (), "it may have read past the marker"
    (told,) = (each for each in audit_log.list_operations(app.store, "flights") if each.verb == "snapshot failed")
    assert told.detail.startswith(f"{asked.name}: the retired stage carriers was claimed")
    app.claim("carriers")
    app.step_all()
    assert sum(number for number, _, _ in app.state["carriers"].values()) == 55
    assert at(app, "flights").versions.keys() == {"legs", "aircraft", "carriers"}
    assert verify(app.store, "flights", now_ms=app.clock.now_ms, deep=True).differences == ()
    assert not prepare_reactivation(app.store, "flights", "carriers", by="test:2")


def test_no_verb_commits_to_a_retired_stage_only_a_claim_does(app: FlightsApp) -> None:
    for _ in range(9):
        app.run(flights(10))
    assert {merge.stage for merge in plan(app.store, "flights")} == {"aircraft", "carriers"}
    gone(app)
    assert {merge.stage for merge in plan(app.store, "flights")} == {"aircraft"}
    with pytest.raises(Refused, match="flights/carriers is retired since v"):
        plan(app.store, "flights", ("carriers",))
    for dry_run in (True, False):
        with pytest.raises(Refused, match="flights/carriers is retired since v"):
            rescale(app.store, "flights", "carriers", 5, by="", now_ms=0, dry_run=dry_run)
    head = newest(app)
    with pytest.raises(Refused, match="is retired"):
        successor(head, kind="compaction", epoch=head.epoch, writer="w", by="", now_ms=0)


def test_verify_accepts_records_that_a_retired_stage_has_not_read(app: FlightsApp) -> None:
    without_carriers(app)
    gone(app)
    without_carriers(app)
    report = verify(app.store, "flights", now_ms=app.clock.now_ms, deep=True, reader=None)
    assert report.differences == ()
    assert [line.receiver for line in report.ledger] == ["aircraft"]
    assert verify(app.store, "flights/carriers", now_ms=app.clock.now_ms, deep=True).differences == ()


def test_the_log_shows_the_retirement(app: FlightsApp) -> None:
    gone(app)
    first = log_entries(app.store, "flights", 1)[0]
    assert (first.stage, first.kind, first.rows_in) == ("carriers", "retire", 0)


def test_a_clone_of_a_later_moment_lacks_the_stage(app: FlightsApp) -> None:
    gone(app)
    without_carriers(app)
    made = clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="ada@host")
    assert made.source.versions.keys() == {"legs", "aircraft"}
    assert made.in_flight == ()
    assert history.list_stages(app.store, "staging") == ("aircraft", "legs")
    clone(app.store, "flights/carriers", "whole", topics={}, channels=app.kafka, by="ada@host")
    assert history.head(app.store, "whole", "carriers") is not None


def test_bisect_works_across_the_retirement(app: FlightsApp, cache: SstCache) -> None:
    app.send(Flight("N001", "C1", 5_000))
    app.step_all()
    bad = newest(app).version
    without_carriers(app)
    gone(app)
    app.send(Flight("N002", "C2", 90_000))
    without_carriers(app, 1)
    where = "SELECT tail FROM aircraft WHERE delay > 80000"
    verdict = bisect(app.store, cache, "flights", where, now_ms=app.clock.now_ms)
    assert (verdict.stage, verdict.bad_version) == ("aircraft", app.heads["aircraft"].version)
    where = "SELECT carrier FROM carriers WHERE delay >= 5000"
    with pytest.raises(Refused, match="names the table carriers, whose stage is retired at flights") as e:
        bisect(app.store, cache, "flights", where, now_ms=app.clock.now_ms)
    last = e.value.hint.rpartition(" ")[2]
    verdict = bisect(app.store, cache, "flights", where, bad=last, now_ms=app.clock.now_ms)
    assert (verdict.stage, verdict.bad_version) == ("carriers", bad)


def test_gc_keeps_the_retired_stages_table_but_not_its_unread_input() -> None:
    app = aging_app()
    app.run(flights(40))
    state = dict(app.state["carriers"])
    for _ in range(5):
        without_carriers(app, 10)
        app.clock.wait(2 * HOUR_MS)  # type: ignore[attr-defined]
    keep = Retention(versions=2)
    held = collect(app.store, "flights", keep, by="t")
    assert [each.held_up_by for each in held.stages] == [("carriers",), (), ()]
    assert held.stages[0].kept_versions > 40
    gone(app)
    app.clock.wait(2 * HOUR_MS)  # type: ignore[attr-defined]
    done = collect(app.store, "flights", keep, by="t")
    assert {each.stage: each.kept_versions for each in done.stages} == {"aircraft": 2, "carriers": 2, "legs": 2}
    assert [each.held_up_by for each in done.stages] == [(), (), ()]
    store = fresh(app.store)
    last = resolve(store, "flights/carriers", now_ms=app.clock.now_ms)
    assert rows_of(store, last.stages["carriers"]) == state
    assert resolve(store, "flights", now_ms=app.clock.now_ms).versions.keys() == {"legs", "aircraft"}


def test_moments_kept_by_retention_lack_the_stage_after_the_retirement() -> None:
    app = aging_app()
    app.run(flights(40))
    before_ms = app.clock.now_ms
    gone(app)
    for _ in range(12):
        app.clock.wait(HOUR_MS)  # type: ignore[attr-defined]
        without_carriers(app, 1)
    collect(app.store, "flights", Retention(all_ms=HOUR_MS, hourly_ms=1_000 * HOUR_MS), by="t")
    store = fresh(app.store)
    hour_later = resolve(store, f"flights@{_iso(before_ms + 2 * HOUR_MS)}", now_ms=app.clock.now_ms)
    assert hour_later.versions.keys() == {"legs", "aircraft"}
    assert resolve(store, f"flights/aircraft@v{hour_later.versions['aircraft']}", now_ms=app.clock.now_ms).stages


def test_garbage_of_a_retired_stage_is_collected_without_another_commit() -> None:
    app = aging_app()
    app.run(flights(40))
    gone(app)
    app.store.put("flights/stages/carriers/sst/01FAILED.parquet", b"litter")
    app.clock.wait(2 * HOUR_MS)  # type: ignore[attr-defined]
    assert {each.stage: each.ssts for each in collect(app.store, "flights", Retention(), by="t").stages} == {
        "legs": 0,
        "aircraft": 0,
        "carriers": 1,
    }


def test_stages_missing_from_the_program_are_listed_receivers_first(app: FlightsApp) -> None:
    assert stages_missing_from_program(app.store, "flights", {"legs"}) == ("carriers", "aircraft")
    gone(app)
    assert stages_missing_from_program(app.store, "flights", {"legs"}) == ("aircraft",)
    assert apps.list_apps(app.store) == ("flights",)
    assert list_snapshots(app.store, "flights") == ()


def _iso(time_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_a_stage_with_unpublished_rows_is_not_retired(app: FlightsApp) -> None:
    head = app.heads["carriers"]
    draft = successor(head, kind="batch", epoch=head.epoch, writer=head.writer, by="test", now_ms=head.time_ms + 1)
    head = app.commit(replace(draft, sinks={"alerts": Sink("internal", 1, since=draft.version, rows=2, sent=2)}))
    with pytest.raises(
        Refused, match="the sink 'alerts' of stage flights/carriers is not fully published: 2 rows remain"
    ):
        gone(app)
    published.write_position(app.store, head, "alerts", PublishedPosition(head.version, 1, 2), None)
    assert not gone(app).already
