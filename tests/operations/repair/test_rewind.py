"""Rewinding: when all records have been read again, each is counted exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slackwater.errors import NotFound, Refused
from slackwater.operations.repair.rewind import Rewound, find_moment_before_deploy, rewind
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.change.migrate import check_no_newer_migration, find_plan, migrate
from slackwater.snapshot.change.migration import finish_newest_migration
from slackwater.snapshot.cut.lineage import trace
from slackwater.snapshot.cut.migrations import MIGRATIONS
from slackwater.snapshot.cut.refs import parse_ref
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.take.audit_log import because, list_operations
from slackwater.snapshot.take.snapshots import pin_cut
from slackwater.snapshot.verify.verify import verify
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.amend import Amendment, amend
from slackwater.store.versions.manifest import Column, Program

from tests.crash.points import killed_at_each_call
from tests.models.profiles import SEARCHES, scaled
from tests.snapshot.change.test_migrate import program
from tests.support.collecting import aging_app, store_of
from tests.support.histories import STAGES, TABLES, Flight, FlightsApp, Kafka, flights, rows_of

LATER_MS = 2_000_000_000_000


def rewound(
    app: FlightsApp, cache: SstCache, ref: str, *, keep_offsets: bool = False, dry_run: bool = False
) -> Rewound:
    """Rewind the app, and let its runner claim the stages again."""
    target = parse_ref(ref, now_ms=LATER_MS) if ref else None
    kafka = None if keep_offsets else app.kafka
    now_ms = app.clock.tick("legs")
    done = rewind(app.store, app.name, target, kafka, by="ada@host", now_ms=now_ms, cache=cache, dry_run=dry_run)
    if not dry_run:
        for stage in STAGES:
            app.claim(stage)
    return done


def totals(app: FlightsApp) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Return the rows that the tables must have when every flight of the topic has been counted once."""
    found: dict[str, dict[str, tuple[int, int, int]]] = {"aircraft": {}, "carriers": {}}
    for message in (each for partition in app.kafka.topics[app.topic] for each in partition):
        for flight in message.flights:
            for table, key in (("aircraft", flight.tail), ("carriers", flight.carrier)):
                num, delay, squares = found[table].get(key, (0, 0, 0))
                found[table][key] = (num + 1, delay + flight.delay, squares + flight.delay**2)
    return found


def tables(app: FlightsApp) -> dict[str, dict[str, tuple[int, int, int]]]:
    heads = {stage: history.head(app.store, app.name, stage) for stage in ("aircraft", "carriers")}
    return {stage: rows_of(app.store, head) for stage, head in heads.items() if head is not None}


def assert_whole(app: FlightsApp) -> None:
    report = verify(app.store, resolve(app.store, app.name, now_ms=LATER_MS), deep=True)
    assert report.consistent, [each.message for each in report.differences]


def test_a_rewind_restores_state_and_offsets_and_later_records_are_read_again(app: FlightsApp, cache: SstCache) -> None:
    then = {stage: app.heads[stage] for stage in STAGES}
    was = tables(app)
    app.run(flights(30, delay=9))

    done = rewound(app, cache, f"flights/carriers@v{then['carriers'].version}")

    assert tables(app) == was
    assert {stage: app.heads[stage].inputs["flights"].offsets for stage in ("legs",)} == {
        "legs": then["legs"].inputs["flights"].offsets
    }
    assert done.versions == {stage: then[stage].version + 4 for stage in STAGES}
    assert_whole(app)
    app.step_all()
    assert tables(app) == totals(app)
    assert_whole(app)


def test_records_in_flight_at_the_moment_are_read_and_later_ones_are_not(app: FlightsApp, cache: SstCache) -> None:
    app.send(*flights(10, delay=3))
    app.step("legs")
    app.send(*flights(10, delay=4))
    app.step("legs")
    app.step("aircraft", max_versions=1)
    moment = {stage: app.heads[stage].version for stage in STAGES}
    app.run(flights(20, delay=7))

    done = rewound(app, cache, f"flights/aircraft@v{moment['aircraft']}")

    assert done.plan.to.versions == moment
    assert_whole(app)
    app.step_all()
    app.step_all()
    assert tables(app) == totals(app)
    assert_whole(app)


def test_the_undone_state_keeps_a_name_and_can_be_restored_by_another_rewind(app: FlightsApp, cache: SstCache) -> None:
    early = app.heads["carriers"].version
    app.run(flights(30, delay=9))
    late = tables(app)
    done = rewound(app, cache, f"flights/carriers@v{early}")
    assert [each.name for each in list_snapshots(app.store, "flights")] == [done.snapshot] == ["before-rewind-1"]

    rewound(app, cache, f"flights@{done.snapshot}")

    assert tables(app) == late
    assert_whole(app)
    app.run(flights(10))
    assert tables(app) == totals(app)


def test_a_dry_run_reports_the_rewind_and_changes_nothing(app: FlightsApp, cache: SstCache) -> None:
    early = app.heads["carriers"].version
    app.run(flights(30, delay=9))
    before = {stage: history.head(app.store, "flights", stage) for stage in STAGES}

    found = rewound(app, cache, f"flights/carriers@v{early}", dry_run=True)

    assert {stage: history.head(app.store, "flights", stage) for stage in STAGES} == before
    assert [(each.table, each.changed) for each in found.changes] == [("aircraft", 7), ("carriers", 3)]
    legs = found.plan.stages[0]
    assert (legs.stage, legs.to) == ("legs", before["legs"].version - 3)  # type: ignore[union-attr]
    assert len(legs.offsets) == 2
    assert not list_snapshots(app.store, "flights")


def test_a_repeated_rewind_does_nothing(app: FlightsApp, cache: SstCache) -> None:
    early = app.heads["carriers"].version
    app.run(flights(30))
    ref = parse_ref(f"flights/carriers@v{early}", now_ms=LATER_MS)
    for _ in range(2):
        done = rewind(app.store, "flights", ref, app.kafka, by="ada@host", now_ms=LATER_MS, cache=cache)
    assert not done.plan.steps
    assert len(MIGRATIONS.all(app.store, "flights")) == 1


def test_keep_offsets_rewinds_only_the_tables(app: FlightsApp, cache: SstCache) -> None:
    early, was = app.heads["carriers"].version, tables(app)
    app.run(flights(30, delay=9))
    offsets = app.heads["legs"].inputs["flights"].offsets

    rewound(app, cache, f"flights/carriers@v{early}", keep_offsets=True)

    assert tables(app) == was
    assert app.heads["legs"].inputs["flights"].offsets == offsets
    assert_whole(app)
    app.run([Flight("N000", "C0", 1)])
    assert tables(app)["aircraft"]["N000"][0] == was["aircraft"]["N000"][0] + 1
    assert_whole(app)


@pytest.mark.parametrize("starts_amid_the_rewind", [False, True])
def test_a_stage_that_did_not_exist_then_is_retired_and_starts_from_the_beginning(
    cache: SstCache, starts_amid_the_rewind: bool
) -> None:
    app = aging_app(start=("legs", "aircraft"))
    for _ in range(3):
        app.send(*flights(10))
        app.step("legs")
        app.step("aircraft")
    early = app.heads["aircraft"].version

    def begin() -> None:
        app.claim("carriers")
        app.step("carriers")

    if starts_amid_the_rewind:
        app.send(*flights(20, delay=2))
        app.step("legs")
        app.step("aircraft")
        store_of(app).once("put_if_absent", "/migrations/", begin)
    else:
        app.claim("carriers")
        app.run(flights(20, delay=2))

    target = parse_ref(f"flights/aircraft@v{early}", now_ms=LATER_MS)
    rewind(app.store, "flights", target, app.kafka, by="ada@host", now_ms=app.clock.tick("legs"), cache=cache)

    head = history.head(app.store, "flights", "carriers")
    assert head is not None
    assert (head.kind, head.is_before_beginning, head.ssts) == ("retire", True, ())
    assert_whole(app)
    for stage in STAGES:
        app.claim(stage)
    app.step_all()
    assert tables(app) == totals(app)
    assert_whole(app)


def test_a_keys_history_shows_the_undone_changes_and_the_rewind(app: FlightsApp, cache: SstCache) -> None:
    early, was = app.heads["carriers"].version, tables(app)["carriers"]["C0"]
    app.run(flights(10, delay=9))
    late = tables(app)["carriers"]["C0"]
    rewound(app, cache, f"flights/carriers@v{early}")

    changes = key_history(app.store, cache, "flights", "carriers", ("C0",), limit=3, now_ms=LATER_MS).changes

    assert [each.after["flights"] for each in changes if each.after][:2] == [was[0], late[0]]
    assert changes[0].version == app.heads["carriers"].version - 1


def test_diff_across_a_rewind_compares_only_what_differs(app: FlightsApp, cache: SstCache) -> None:
    early = app.heads["carriers"].version
    app.run(flights(10, aircraft=2, delay=9))
    late = app.heads["carriers"].version
    rewound(app, cache, f"flights/carriers@v{early}")
    cuts = {
        name: StoredCut(app.store, resolve(app.store, ref, now_ms=LATER_MS))
        for name, ref in (
            ("then", f"flights/carriers@v{early}"),
            ("late", f"flights/carriers@v{late}"),
            ("now", "flights"),
        )
    }
    assert all(each.is_equal for each in diff(cache, cuts["then"], cuts["now"]))
    assert [len(each.changes) for each in diff(cache, cuts["late"], cuts["now"])] == [2, 2]


def test_the_lineage_of_a_clone_made_right_after_a_rewind_begins_with_the_clone(
    app: FlightsApp, cache: SstCache
) -> None:
    early = app.heads["carriers"].version
    app.run(flights(10, delay=9))
    ref = parse_ref(f"flights/carriers@v{early}", now_ms=LATER_MS)
    rewind(app.store, "flights", ref, app.kafka, by="ada@host", now_ms=app.clock.tick("legs"), cache=cache)
    clone(app.store, "flights", "staging", topics={}, channels=app.kafka, by="ada@host")
    staging = FlightsApp(app.store, app.kafka, "staging", clock=app.clock)
    staging.step_all()
    read = trace(app.store, None, staging.heads["carriers"]).sources
    assert sum(window.end - window.start for window in read) == 10
    assert_whole(staging)
    done = rewound(staging, cache, f"staging/carriers@v{staging.heads['carriers'].version - 1}")
    assert done.number == 1
    staging.step_all()
    assert_whole(staging)


def test_deleted_offsets_are_named_and_nothing_is_changed(app: FlightsApp, cache: SstCache) -> None:
    early = app.heads["carriers"].version
    app.run(flights(30))
    app.kafka.earliest["flights"] = app.heads["legs"].inputs["flights"].offsets
    with pytest.raises(Refused, match="topic 'flights' holds"):
        rewound(app, cache, f"flights/carriers@v{early}")
    assert not MIGRATIONS.all(app.store, "flights")
    rewound(app, cache, f"flights/carriers@v{early}", keep_offsets=True)


def test_before_deploy_without_an_earlier_program_is_an_error(app: FlightsApp, cache: SstCache) -> None:
    with pytest.raises(NotFound, match="all remaining versions are of the current program"):
        rewound(app, cache, "")


def test_a_killed_rewind_is_done_entirely_or_not_at_all_and_the_next_run_finishes_it_too(cache: SstCache) -> None:
    def late() -> FlightsApp:
        app = aging_app()
        app.run(flights(20))
        pin_cut(app.store, resolve(app.store, "flights", now_ms=LATER_MS), "good")
        app.run(flights(20, delay=9))
        return app

    def typed(app: FlightsApp, why: str) -> None:
        ref = parse_ref("flights@good", now_ms=LATER_MS)
        with because(why):
            rewind(app.store, "flights", ref, app.kafka, by="ada@host", now_ms=app.clock.now_ms, cache=cache)

    before, after, seen = tables(late()), None, set()
    for app, _ in killed_at_each_call("rewind", late, lambda app: typed(app, "typed once"), store_of):
        after = after or tables(app)
        decided = bool(MIGRATIONS.all(app.store, "flights"))
        found = resolve(app.store, "flights", now_ms=LATER_MS).stages
        shown = {stage: rows_of(app.store, found[stage]) for stage in ("aircraft", "carriers")}
        assert shown in (before, after)
        seen.add((decided, shown == after))
        finish_newest_migration(app.store, "flights", now_ms=app.clock.now_ms)
        assert tables(app) == (after if decided else before)
        if not decided:
            typed(app, "typed again")
        (noted,) = (each for each in list_operations(app.store, "flights") if each.verb == "rewind")
        assert (noted.by, noted.message) == ("ada@host", "typed once" if decided else "typed again")
        assert noted.detail == "1: to flights@good; before it flights@before-rewind-1"
        assert noted.after == {stage: noted.before[stage] + 1 for stage in STAGES}
        assert [each.name for each in list_snapshots(app.store, "flights")] == ["good", "before-rewind-1"]
        assert_whole(app)
    amidst = {(True, False)}
    assert {(False, False), (True, True)} <= seen <= {(False, False), (True, True)} | amidst
    assert amidst <= seen or not SEARCHES, "so few points need not meet the moment between"


def test_one_of_two_concurrent_rewinds_is_done_and_the_other_leaves_nothing(cache: SstCache) -> None:
    app = aging_app()
    app.run(flights(20))
    early = app.heads["carriers"].version
    app.run(flights(20, delay=9))
    late = app.heads["carriers"].version
    app.run(flights(20, delay=11))

    def other() -> None:
        rewound(app, cache, f"flights/carriers@v{early}")

    store_of(app).once("put_if_absent", "/migrations/", other)
    with pytest.raises(Refused, match="was rewound at the same time by ada@host"):
        rewound(app, cache, f"flights/carriers@v{late}")
    assert [each.to for each in app.heads["carriers"].rewinds] == [early]
    assert [each.name for each in list_snapshots(app.store, "flights")] == ["before-rewind-1"]
    assert_whole(app)


def test_a_run_that_was_starting_during_the_rewind_reports_it(app: FlightsApp, cache: SstCache) -> None:
    early = app.heads["carriers"].version
    app.run(flights(10))
    done = rewound(app, cache, f"flights/carriers@v{early}")
    check_no_newer_migration(app.store, "flights", done.number)
    with pytest.raises(Refused, match="'flights' was rewound by ada@host while this run started") as said:
        check_no_newer_migration(app.store, "flights", done.number - 1)
    assert said.value.hint == "start it again, with the program that continues from there"
    columns = {name: replace(table, values=(*table.values, Column("late", "int64"))) for name, table in TABLES.items()}
    found = find_plan(app.store, program(app, **columns), {})
    migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    with pytest.raises(Refused, match="'flights' was migrated by ada@host while this run started"):
        check_no_newer_migration(app.store, "flights", done.number)


def deployed(app: FlightsApp, checksum: str, path: str = "flights.py") -> None:
    """Let a program claim all stages."""
    for stage in STAGES:
        made = amend(
            app.store,
            ("flights", stage),
            Amendment("claim", lambda draft: replace(draft, program=Program(path, checksum))),
            writer=app.kafka.attempt(),
            by="test:1",
            now_ms=app.clock.tick(stage),
        )
        app.heads[stage] = made.manifest


def test_before_deploy_means_the_first_claim_of_the_newest_program_and_the_log_shows_deploys(
    app: FlightsApp, cache: SstCache
) -> None:
    deployed(app, "1a")
    app.run(flights(10))
    was = tables(app)
    deployed(app, "2b")
    app.run(flights(10, delay=9))
    # Started again, and from another folder: no deploy.
    deployed(app, "2b", "/srv/flights.py")
    app.run(flights(10, delay=11))
    lines = [(each.stage, each.deployed) for each in log_entries(app.store, "flights", 0) if each.deployed]
    assert lines == [(stage, "flights.py (xxh3_128 2b)") for stage in reversed(STAGES)]

    done = rewind(app.store, "flights", None, app.kafka, by="ada@host", now_ms=app.clock.tick("legs"), cache=cache)

    app.heads = {stage: history.read(app.store, "flights", stage, at) for stage, at in done.versions.items()}
    assert tables(app) == was
    assert {head.program and head.program.checksum for head in app.heads.values()} == {"1a"}
    assert done.plan.ref == f"flights/carriers@v{done.plan.to.versions['carriers']}"
    again = rewind(app.store, "flights", None, app.kafka, by="ada@host", now_ms=app.clock.now_ms, cache=cache)
    assert not again.plan.steps
    for stage in STAGES:
        app.claim(stage)
    with pytest.raises(NotFound, match="all remaining versions are of the current program"):
        find_moment_before_deploy(app.store, app.heads)
    app.step_all()
    assert tables(app) == totals(app)
    assert_whole(app)


def test_a_migration_counts_as_part_of_the_deploy_that_follows(app: FlightsApp, cache: SstCache) -> None:
    deployed(app, "1a")
    app.run(flights(10))
    was = {stage: app.heads[stage].version for stage in STAGES}
    columns = {name: replace(table, values=(*table.values, Column("late", "int64"))) for name, table in TABLES.items()}
    found = find_plan(app.store, program(app, **columns), {})
    migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    deployed(app, "2b")

    target = find_moment_before_deploy(app.store, {stage: app.heads[stage] for stage in STAGES})

    assert resolve(app.store, target.text, now_ms=LATER_MS).versions == was


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 12)),
    st.tuples(st.just("step"), st.sampled_from(STAGES)),
    st.tuples(st.just("compact"), st.sampled_from(("aircraft", "carriers"))),
    st.tuples(st.just("rewind"), st.tuples(st.sampled_from(STAGES), st.integers(0, 10**6))),
)


@scaled(60)
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
def test_after_any_rewinds_each_record_counts_once(
    steps: list[tuple[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store: ObjectStore = MemoryStore()
    app = FlightsApp(store, Kafka())
    cache = SstCache(tmp_path_factory.mktemp("sst"), 1 << 20)
    sent = 0
    for what, value in steps:
        match what, value:
            case "send", int(count):
                app.send(*(Flight(f"N{n % 5}", f"C{n % 2}", n) for n in range(sent, sent + count)))
                sent += count
            case "step", str(stage):
                app.step(stage, max_versions=2)
            case "compact", str(stage):
                app.compact(stage)
            case "rewind", (str(stage), int(number)):
                version = 1 + number % app.heads[stage].version
                rewound(app, cache, f"flights/{stage}@v{version}")
                assert_whole(app)
    for _ in range(3):
        app.step_all()
    assert tables(app) == totals(app)
    assert_whole(app)
