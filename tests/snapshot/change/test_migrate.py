"""An app whose program changed: either all its stages migrate or none, and each moment keeps its columns."""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TypeVar

import pytest
from msgspec.structs import replace
from slackwater.errors import Fenced, Refused
from slackwater.operations.staging.clone import clone
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.change.migrate import Migrated, find_plan, finish_earlier, migrate
from slackwater.snapshot.change.migration import finish_newest_migration
from slackwater.snapshot.cut.graph import Cut
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.migrations import MIGRATIONS
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import list_snapshots
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.query.columns import get
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take import audit_log
from slackwater.snapshot.take.taking import request_snapshot
from slackwater.snapshot.verify.verify import verify
from slackwater.state.fits import Declared, DeclaredStage
from slackwater.store.objects.memory import MemoryStore
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.objects.wrapper import StoreWrapper
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import history
from slackwater.store.versions.manifest import Column, Input, Manifest, Table

from tests.crash.points import Killed, killed_at_each_call
from tests.support.collecting import aging_app, store_of
from tests.support.histories import SCHEMA, TABLES, FlightsApp, Kafka, flights

VALUES = (
    Column("flights", "int64"),
    Column("minutes", "int64"),
    Column("late", "int64", default="-1"),
    Column("score", "double"),
    Column("_squares", "int64"),
)
"""Value columns of the changed program: `delay` is renamed to `minutes`, and two columns are new."""
T = TypeVar("T")
RENAMES = {"delay": "minutes"}


def program(app: FlightsApp, **tables: Table) -> Declared:
    """Return the app's program with the given tables."""
    declared = {**TABLES, **tables}
    reads = {"legs": {"flights": ""}, "aircraft": {"by-aircraft": "legs"}, "carriers": {"by-carrier": "aircraft"}}
    writes = {"legs": {"by-aircraft": SCHEMA}, "aircraft": {"by-carrier": SCHEMA}, "carriers": {}}
    stages = {name: DeclaredStage(name, reads[name], writes[name], declared.get(name)) for name in reads}
    return Declared(app.name, stages)


def changed(app: FlightsApp) -> Declared:
    return program(app, **{name: replace(table, values=VALUES) for name, table in TABLES.items()})


def migrated(app: FlightsApp, declared: Declared | None = None, renames: Mapping[str, str] = RENAMES) -> Migrated:
    found = find_plan(app.store, declared or changed(app), renames)
    return migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))


def heads(app: FlightsApp) -> dict[str, Manifest]:
    found = {name: history.head(app.store, app.name, name) for name in history.list_stages(app.store, app.name)}
    return {name: head for name, head in found.items() if head is not None}


def at(app: FlightsApp, ref: str) -> Cut:
    return resolve(app.store, ref, now_ms=app.clock.now_ms)


def rows(app: FlightsApp, cache: SstCache, ref: str, sql: str) -> list[dict[str, object]]:
    with closing(connect(app.store, cache, at(app, ref))) as con:
        return run_query(con, sql).to_pylist()


def test_every_moment_is_read_in_its_own_columns(app: FlightsApp, cache: SstCache) -> None:
    before, state = heads(app), {name: dict(each) for name, each in app.state.items()}
    done = migrated(app)
    assert done.number == 1
    assert dict(done.versions) == {n: h.version + 1 for n, h in before.items()}
    for stage, key in (("aircraft", "tail"), ("carriers", "carrier")):
        now = rows(app, cache, app.name, f"FROM {stage} ORDER BY ALL")
        assert now == [
            {key: name, "flights": n, "minutes": delay, "late": -1, "score": None}
            for name, (n, delay, _) in sorted(state[stage].items())
        ]
        for ref in (f"flights@{done.snapshot}", f"flights/{stage}@v{before[stage].version}", "flights@~1"):
            then = rows(app, cache, ref, f"FROM {stage} ORDER BY ALL LIMIT 1")
            assert list(then[0]) == [key, "flights", "delay"]
        name = min(state[stage])
        assert get(app.store, at(app, app.name), stage, [name]).to_pylist() == now[:1]
    assert verify(app.store, app.name, now_ms=app.clock.now_ms, deep=True).differences == ()
    for head in heads(app).values():
        assert (head.kind, head.migration, head.ssts) == ("migration", 1, before[head.stage].ssts)
        assert head.epoch == before[head.stage].epoch + 1
    assert in_flight(app.store, at(app, app.name)) == in_flight(app.store, at(app, f"flights@{done.snapshot}"))


def test_the_runner_of_the_old_program_is_fenced_and_its_error_names_the_migration(app: FlightsApp) -> None:
    migrated(app)
    with pytest.raises(Fenced, match=r"was migrated to another program: v.* has epoch 2") as fenced:
        app.step("legs")
    assert "start that program" in fenced.value.hint


class Noting(StoreWrapper):
    """A store that records requests."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[tuple[str, str]] = []

    def _forward(self, method: str, key: str, request: Callable[[], T], sent: bytes = b"") -> T:
        self.asked.append((method, key))
        return request()


def test_a_migration_moves_no_data_and_its_requests_do_not_depend_on_the_number_of_keys() -> None:
    taken = []
    for num_keys in (10, 5_000):
        inner = MemoryStore()
        app = FlightsApp(inner, Kafka())
        app.run(flights(10))
        app.load("aircraft", num_keys)
        store = Noting(inner)
        done = migrate(store, find_plan(store, changed(app), RENAMES), {}, by="ada@host", now_ms=app.clock.tick("legs"))
        assert len(done.versions) == 3
        assert not [key for _, key in store.asked if "/sst/" in key]
        taken.append([method for method, _ in store.asked])
    assert taken[0] == taken[1]


def test_a_migration_without_changes_does_nothing(app: FlightsApp) -> None:
    before = [info.key for info in app.store.list("")]
    done = migrated(app, program(app), {})
    assert (done.number, done.snapshot, done.versions) == (0, "", {})
    assert [info.key for info in app.store.list("")] == before


def test_the_second_of_two_concurrent_migrations_is_refused_and_told_about_the_first(app: FlightsApp) -> None:
    mine, theirs = (find_plan(app.store, changed(app), RENAMES) for _ in range(2))
    migrate(app.store, theirs, {}, by="bob@host", now_ms=app.clock.tick("legs"))
    done = {name: head.version for name, head in heads(app).items()}
    with pytest.raises(Refused, match="was migrated at the same time by bob@host, so this command changed nothing"):
        migrate(app.store, mine, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    assert {name: head.version for name, head in heads(app).items()} == done
    assert len(list_snapshots(app.store, app.name)) == 1


def test_the_loser_of_a_race_keeps_the_winners_snapshot() -> None:
    app = aging_app()
    app.run(flights(20))
    mine, theirs = (find_plan(app.store, changed(app), RENAMES) for _ in range(2))
    now_ms = app.clock.tick("legs")
    store = store_of(app)
    store.once("put_if_absent", "migrations/", lambda: migrate(store, theirs, {}, by="bob@host", now_ms=now_ms))
    with pytest.raises(Refused, match="at the same time by bob@host"):
        migrate(store, mine, {}, by="ada@host", now_ms=now_ms)
    decided = MIGRATIONS.newest(store, app.name)
    assert decided is not None
    assert [each.name for each in list_snapshots(store, app.name)] == [decided.snapshot]


def test_a_migration_killed_at_any_request_leaves_no_half_migrated_moment_and_the_next_continues(
    cache: SstCache,
) -> None:
    def build() -> FlightsApp:
        app = aging_app()
        app.run(flights(20))
        return app

    state = {name: dict(each) for name, each in build().state.items()}
    for app, _ in killed_at_each_call("migrate", build, migrated, store_of):
        store = app.store
        app.clock.tick("legs")
        assert len({each.table.schema for each in at(app, app.name).tables.values() if each.table}) == 1
        # A runner finishes it, or nothing of it is there.
        begun = any(True for _ in store.list("flights/migrations/"))
        finish_newest_migration(store, app.name, now_ms=app.clock.tick("legs"))
        assert {head.migration for head in heads(app).values()} == {int(begun)}
        if not begun:
            migrated(app)
        assert not find_plan(store, changed(app), {}).changes
        found = rows(app, cache, app.name, "SELECT tail, minutes, late FROM aircraft ORDER BY ALL")
        assert found == [{"tail": n, "minutes": each[1], "late": -1} for n, each in sorted(state["aircraft"].items())]


def test_an_interrupted_migration_blocks_planning_until_the_next_call_finishes_it() -> None:
    app = aging_app()
    app.run(flights(20))
    found = find_plan(app.store, changed(app), RENAMES)
    app.store.once("put_if_absent", "/stages/legs/", lambda: (_ for _ in ()).throw(Killed()))  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    assert {head.migration for head in heads(app).values()} == {0, 1}
    with pytest.raises(Refused, match="migration 1 of flights, by ada@host, is incomplete: legs did not") as refused:
        find_plan(app.store, changed(app), {})
    assert "finishes it" in refused.value.hint
    assert finish_earlier(app.store, app.name, now_ms=app.clock.tick("legs")) == 1
    assert finish_earlier(app.store, app.name, now_ms=app.clock.tick("legs")) == 0
    assert not find_plan(app.store, changed(app), {}).changes


def test_an_app_and_a_clone_that_migrated_differently_are_compared_by_their_common_columns(
    app: FlightsApp, cache: SstCache
) -> None:
    clone(app.store, app.name, "staging", topics={}, channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms)
    ways = {
        "flights": (Column("late", "int64", default="-1"), Column("mine", "int64")),
        "staging": (Column("its", "int64"), Column("late", "int64", default="7")),
    }
    for name, more in ways.items():
        tables = {stage: replace(table, values=(*table.values, *more)) for stage, table in TABLES.items()}
        declared = Declared(name, program(app, **tables).stages)
        migrate(app.store, find_plan(app.store, declared, {}), {}, by="ada@host", now_ms=app.clock.tick("legs"))
    one, other = (StoredCut(app.store, at(app, name)) for name in ways)
    found = {each.table: each for each in diff(cache, one, other)}["carriers"]
    assert [each.column for each in found.columns] == ["flights", "delay"]
    assert (len(found.changes), found.is_equal) == (0, False)
    assert found.unlike == (
        "column late was added by separate migrations: not compared",
        "column mine exists only before",
        "column its exists only after",
    )


def test_a_clone_migrates_independently(app: FlightsApp, cache: SstCache) -> None:
    clone(app.store, app.name, "staging", topics={}, channels=app.kafka, by="ada@host", now_ms=app.clock.now_ms)
    staging = FlightsApp(app.store, app.kafka, "staging")
    migrated(staging)
    assert list(rows(staging, cache, "staging", "FROM aircraft LIMIT 1")[0])[2] == "minutes"
    assert list(rows(app, cache, "flights", "FROM aircraft LIMIT 1")[0])[2] == "delay"
    # The clone's SSTs are those of the app; what both have is compared by what became of it.
    before, after = (StoredCut(app.store, at(app, ref)) for ref in ("flights", "staging"))
    (found,) = diff(cache, before, after, table="aircraft")
    assert (found.added, found.removed, found.changed) == (0, 0, 0)
    assert "column delay was renamed to minutes" in found.unlike
    done = migrated(app)
    assert done.number == 1


def test_a_diff_across_a_migration_shows_changed_columns_and_no_changed_rows(app: FlightsApp, cache: SstCache) -> None:
    done = migrated(app)
    before, after = (StoredCut(app.store, at(app, ref)) for ref in (f"flights@{done.snapshot}", "flights"))
    for table in diff(cache, before, after):
        assert (table.added, table.removed, table.changed) == (0, 0, 0)
        assert table.unlike == (
            "column delay was renamed to minutes",
            "column late exists only after",
            "column score exists only after",
        )
    (back, _) = diff(cache, after, before)
    assert back.unlike[0] == "column minutes was renamed to delay"


def test_the_history_of_a_key_shows_each_row_with_the_column_names_of_its_time(
    app: FlightsApp, cache: SstCache
) -> None:
    name = max(app.state["aircraft"], key=lambda each: app.state["aircraft"][each][0])
    was = key_history(app.store, cache, app.name, "aircraft", [name], now_ms=app.clock.now_ms).changes
    migrated(app)
    now = key_history(app.store, cache, app.name, "aircraft", [name], now_ms=app.clock.now_ms).changes
    assert now == was
    assert now[0].after is not None
    assert "delay" in now[0].after


def test_bisect_works_across_a_migration(app: FlightsApp, cache: SstCache) -> None:
    where = "SELECT tail FROM aircraft WHERE flights >= 2"
    before = bisect(app.store, cache, app.name, where, now_ms=app.clock.now_ms)
    migrated(app)
    after = bisect(app.store, cache, app.name, where, now_ms=app.clock.now_ms)
    assert after.bad_ref == before.bad_ref
    assert after.keys is not None
    # What a column that is new is wrong with, is so from the migration on.
    verdict = bisect(app.store, cache, app.name, "SELECT tail FROM aircraft WHERE late < 0", now_ms=app.clock.now_ms)
    assert verdict.bad.stages["aircraft"].kind == "migration"


def test_the_log_shows_since_when_a_column_exists(app: FlightsApp) -> None:
    done = migrated(app)
    found = {each.stage: each for each in log_entries(app.store, app.name, 3)}
    assert {each.kind for each in found.values()} == {"migration"}
    assert found["aircraft"].added == ("late", "score")
    assert found["legs"].added == ()
    table = heads(app)["aircraft"].table
    assert table is not None
    assert table.added_columns == {"late": done.versions["aircraft"], "score": done.versions["aircraft"]}
    told = audit_log.list_operations(app.store, app.name)
    assert (told[-1].verb, told[-1].by) == ("migrate", "ada@host")
    assert f"before it flights@{done.snapshot}" in told[-1].detail


def test_removed_stages_are_retired_by_the_migration(app: FlightsApp) -> None:
    declared = changed(app)
    stages = {name: each for name, each in declared.stages.items() if name != "carriers"}
    done = migrated(app, Declared(app.name, stages), {"delay": "minutes"})
    assert [(each.stage, each.kind) for each in done.plan.changes] == [("aircraft", "changed"), ("carriers", "retired")]
    assert heads(app)["carriers"].retired
    assert set(at(app, app.name).stages) == {"legs", "aircraft"}
    assert set(at(app, f"flights@{done.snapshot}").stages) == {"legs", "aircraft", "carriers"}


def test_a_second_migration_builds_on_the_first(app: FlightsApp, cache: SstCache) -> None:
    migrated(app)
    values = (Column("late", "int64"), Column("delay", "string"), Column("_squares", "int64"))
    done = migrated(
        app,
        program(
            app,
            aircraft=replace(TABLES["aircraft"], values=values),
            carriers=replace(TABLES["carriers"], values=VALUES),
        ),
        {},
    )
    assert done.number == 2
    (change,) = done.plan.changes
    # A column that has the name of one that went is another one.
    assert [(each.kind, each.column) for each in change.columns] == [
        ("added", "delay"),
        ("removed", "flights"),
        ("removed", "minutes"),
        ("removed", "score"),
    ]
    found = rows(app, cache, app.name, "FROM aircraft LIMIT 1")[0]
    assert (found["late"], found["delay"]) == (-1, None)
    assert heads(app)["carriers"].migration == 2


def test_in_flight_rows_with_ambiguous_columns_must_be_read_before_the_migration(app: FlightsApp) -> None:
    declared = changed(app)
    renamed = replace_outputs(declared, "legs", {"by-aircraft": SCHEMA.replace("delay", "minutes")})
    further = replace_outputs(declared, "legs", {"by-aircraft": f"{SCHEMA}, `late` boolean"})
    assert find_plan(app.store, renamed, RENAMES).changes
    app.send(*flights(3))
    app.step("legs")
    with pytest.raises(Refused, match="in-flight rows in 'by-aircraft' to 'aircraft' do not fit") as refused:
        find_plan(app.store, renamed, RENAMES)
    assert "--until-caught-up" in refused.value.hint
    assert find_plan(app.store, further, RENAMES).changes


def with_one_between(app: FlightsApp) -> tuple[Declared, dict[str, dict[str, Input]]]:
    """Return the program with a stage inserted before aircraft, and the start of aircraft in the new channel."""
    declared = program(app)
    one, nothing = declared.stages["aircraft"], (0,) * len(heads(app)["aircraft"].inputs["by-aircraft"].offsets)
    stages = {
        **declared.stages,
        "between": DeclaredStage("between", {"by-aircraft": "legs"}, {"by-tail": SCHEMA}, None),
        "aircraft": DeclaredStage("aircraft", {"by-tail": "between"}, one.outputs, one.table),
    }
    at = Input("flights-by-tail-repartition", nothing, "between", 0, consumed=nothing)
    return Declared(app.name, stages), {"aircraft": {"by-tail": at}}


def test_rows_already_read_downstream_are_not_in_flight_to_a_stage_inserted_between(app: FlightsApp) -> None:
    app.send(*flights(3))
    app.step("legs")
    (before,) = in_flight(app.store, at(app, app.name))
    declared, starts = with_one_between(app)
    migrate(app.store, find_plan(app.store, declared, {}), starts, by="ada@host", now_ms=app.clock.tick("legs"))
    (after,) = in_flight(app.store, at(app, app.name))
    assert (after.channel, after.starts, after.ends, after.rows) == ("by-aircraft", before.starts, before.ends, 3)
    renamed = replace_outputs(declared, "legs", {"by-aircraft": SCHEMA.replace("delay", "minutes")})
    with pytest.raises(Refused, match="in-flight rows in 'by-aircraft'"):
        find_plan(app.store, renamed, {})


def test_a_running_snapshot_must_finish_before_inputs_change(app: FlightsApp) -> None:
    request_snapshot(app.store, app.name, "tonight", "ada@host")
    declared, starts = with_one_between(app)
    found = find_plan(app.store, declared, {})
    with pytest.raises(Refused, match="snapshot 'tonight' of flights is under way"):
        migrate(app.store, found, starts, by="ada@host", now_ms=app.clock.tick("legs"))
    assert list_snapshots(app.store, app.name) == ()
    assert migrated(app).number == 1, "columns alone do not wait"


def replace_outputs(declared: Declared, stage: str, outputs: Mapping[str, str]) -> Declared:
    one = declared.stages[stage]
    return Declared(declared.app, {**declared.stages, stage: DeclaredStage(one.name, one.inputs, outputs, one.table)})
