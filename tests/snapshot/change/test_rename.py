"""A renamed stage continues with its state; earlier moments keep the old name."""

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from slackwater.errors import Fenced, NotFound, Refused
from slackwater.operations.staging.clone import clone
from slackwater.pipeline.run.start_positions import StartFinder
from slackwater.pipeline.source.planner import ChannelPlanner, Pace
from slackwater.snapshot.bisect.search import bisect
from slackwater.snapshot.change.migrate import Migrated, find_plan, finish_earlier, migrate
from slackwater.snapshot.change.migration import finish_newest_migration
from slackwater.snapshot.cut.in_flight import in_flight
from slackwater.snapshot.cut.lineage import trace
from slackwater.snapshot.cut.moments import later_stages
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.cut.stored import open_requests, withdraw_request
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.gc.inventory import last_collection
from slackwater.snapshot.query.answers import run_statement
from slackwater.snapshot.query.columns import get
from slackwater.snapshot.query.export import export
from slackwater.snapshot.query.log import log_entries
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.take.audit_log import list_operations
from slackwater.snapshot.take.taking import request_snapshot, try_complete
from slackwater.snapshot.verify.verify import verify
from slackwater.state.fits import Declared, DeclaredStage
from slackwater.state.records import Position, TopicState
from slackwater.store.read.cache import SstCache
from slackwater.store.versions import commit, history, published
from slackwater.store.versions.manifest import Column, FormerName, Manifest, Sink, Table
from slackwater.store.versions.published import PublishedPosition

from tests.crash.points import Killed, killed_at_each_call
from tests.support.collecting import FEW, aging_app, gc, keys_of, store_of, wait
from tests.support.histories import SCHEMA, TABLES, FlightsApp, flights, rows_of
from tests.support.manifests import claim

RENAMED = {"legs": "hops", "aircraft": "planes", "carriers": "airlines"}


@pytest.fixture
def app(app: FlightsApp) -> FlightsApp:
    """Return an app whose last stages have unread rows."""
    lag(app)
    return app


def lag(app: FlightsApp) -> None:
    app.send(*flights(9))
    app.step("legs")
    app.send(*flights(7))
    app.step("legs")
    app.step("aircraft", max_versions=1)


def program(called: Mapping[str, str], more: tuple[Column, ...] = ()) -> Declared:
    reads = {"legs": {"flights": ""}, "aircraft": {"by-aircraft": "legs"}, "carriers": {"by-carrier": "aircraft"}}
    writes = {"legs": {"by-aircraft": SCHEMA}, "aircraft": {"by-carrier": SCHEMA}, "carriers": {}}
    stages = {}
    for old in reads:
        new = called.get(old, old)
        table: Table | None = TABLES.get(old)
        if table is not None:
            table = replace(table, values=(*table.values, *more))
        inputs = {topic: called.get(sender, sender) for topic, sender in reads[old].items()}
        stages[new] = DeclaredStage(new, inputs, writes[old], table)
    return Declared("flights", stages)


def rename(app: FlightsApp, called: Mapping[str, str], more: tuple[Column, ...] = ()) -> Migrated:
    found = find_plan(app.store, program(called, more), {}, stages=called)
    return migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))


def rows(app: FlightsApp, cache: SstCache, ref: str, table: str) -> list[tuple[object, ...]]:
    with closing(connect(app.store, cache, resolve(app.store, ref, now_ms=app.clock.now_ms))) as con:
        return sorted(tuple(row.values()) for row in run_query(con, f"FROM {table}").to_pylist())


def held(app: FlightsApp, stage: str) -> list[tuple[object, ...]]:
    return sorted((name, num, delay) for name, (num, delay, _) in app.state[stage].items())


def head(app: FlightsApp, stage: str) -> Manifest:
    found = history.head(app.store, app.name, stage)
    assert found is not None
    return found


def sound(app: FlightsApp, *refs: str) -> None:
    for ref in refs or (app.name,):
        assert verify(app.store, ref, now_ms=app.clock.now_ms, deep=True).differences == ()


@pytest.mark.parametrize(
    "called",
    [
        # A rename of only the first or last stage is also covered by
        # test_a_snapshot_requested_during_a_rename_is_withdrawn_and_stages_continue.
        pytest.param({"legs": "hops"}, marks=pytest.mark.ci),
        {"aircraft": "planes"},
        pytest.param({"carriers": "airlines"}, marks=pytest.mark.ci),
        RENAMED,
    ],
    ids=str,
)
def test_a_renamed_stage_keeps_table_offsets_and_in_flight_rows(
    app: FlightsApp, cache: SstCache, called: Mapping[str, str]
) -> None:
    before = {stage: held(app, stage) for stage in TABLES}
    was = in_flight(app.store, resolve(app.store, app.name, now_ms=app.clock.now_ms))
    last = {stage: head(app, stage) for stage in RENAMED}
    done = rename(app, called)
    assert done.plan.changes
    for old, new in called.items():
        ended, first = head(app, old), head(app, new)
        assert (ended.kind, ended.called) == ("retire", new)
        assert (first.kind, first.version, first.formerly) == (
            "rename",
            ended.version,
            (FormerName(old, ended.version),),
        )
        assert first.ssts == last[old].ssts
    cut = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    assert set(cut.stages) == {called.get(old, old) for old in RENAMED}
    now = in_flight(app.store, cut)
    assert [(each.channel, each.starts, each.ends, each.attempts, each.rows, each.counts) for each in now] == [
        (each.channel, each.starts, each.ends, each.attempts, each.rows, each.counts) for each in was
    ]
    sound(app)
    for stage in TABLES:
        assert rows(app, cache, app.name, called.get(stage, stage)) == before[stage]
        assert rows(app, cache, f"{app.name}@{done.snapshot}", stage) == before[stage]
        assert rows(app, cache, f"{app.name}/{stage}@v{last[stage].version}", stage) == before[stage]
    go_on(app, called)
    sound(app, app.name, f"{app.name}@{done.snapshot}")


def go_on(app: FlightsApp, called: Mapping[str, str]) -> None:
    """Process all available rows with the new program, and check that each row counts once."""
    for old in RENAMED:
        follow(app, old, called.get(old, old))
    for _ in range(2):
        for old in RENAMED:
            step(app, called.get(old, old))
    sent = sum(len(message.flights) for part in app.kafka.topics["flights"] for message in part)
    for table in TABLES:
        assert sum(num for num, *_ in app.state[called.get(table, table)].values()) == sent


def follow(app: FlightsApp, old: str, new: str) -> None:
    app.claim(new)
    if old != new:
        assert app.state[new] == app.state[old]


def step(app: FlightsApp, stage: str) -> None:
    """Run a step. The stage is given by its original name."""
    app.step(stage)


def test_a_stage_renamed_twice_keeps_its_rows_and_so_does_its_clone(app: FlightsApp, cache: SstCache) -> None:
    before = held(app, "aircraft")
    rename(app, {"aircraft": "planes"})
    again = {"aircraft": "tails"}
    found = find_plan(app.store, program(again), {}, stages={"planes": "tails"})
    migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    assert rows(app, cache, app.name, "tails") == before
    assert [each.stage for each in head(app, "tails").formerly] == ["aircraft", "planes"]
    clone(app.store, app.name, "staging", topics={}, channels=app.kafka, by="test")
    assert rows(app, cache, "staging", "tails") == before
    sound(app, app.name, "staging")


def test_a_rename_killed_at_any_request_leaves_no_moment_with_both_names_or_neither(cache: SstCache) -> None:
    called = {"aircraft": "planes", "carriers": "airlines"}

    def build() -> FlightsApp:
        app = aging_app()
        app.run(flights(20))
        lag(app)
        return app

    for app, _ in killed_at_each_call("migrate, rename", build, lambda app: rename(app, called), store_of):
        app.clock.tick("legs")
        tables = set(resolve(app.store, app.name, now_ms=app.clock.now_ms).tables)
        assert tables in (set(called), set(called.values()))
        sound(app)
        begun = any(True for _ in app.store.list("flights/migrations/"))
        if begun and "planes" not in history.list_stages(app.store, app.name):
            with pytest.raises(Refused, match="is incomplete"):
                find_plan(app.store, program(called), {})
        finish_newest_migration(app.store, app.name, now_ms=app.clock.tick("legs"))
        assert finish_earlier(app.store, app.name, now_ms=app.clock.tick("legs")) == 0
        if not begun:
            rename(app, called)
        assert not find_plan(app.store, program(called), {}).changes
        assert rows(app, cache, app.name, "planes") == held(app, "aircraft")
        sound(app)


def test_the_runner_of_the_old_program_is_told_the_new_name(app: FlightsApp) -> None:
    rename(app, {"aircraft": "planes"})
    with pytest.raises(Fenced, match="was renamed to planes"):
        app.step("aircraft")
    with pytest.raises(Refused, match=r"was renamed at v.*: its name is planes now") as refused:
        claim(app.store, app.name, "aircraft", writer="w", by="w", now_ms=1)
    assert "flights/aircraft@v" in refused.value.hint
    with pytest.raises(Refused, match="its name is planes now"):
        find_plan(app.store, program({}), {})


def test_a_rename_is_refused_while_a_snapshot_is_running(app: FlightsApp) -> None:
    asked = request_snapshot(app.store, app.name, "tonight", "ada@host")
    with pytest.raises(Refused, match=r"'tonight' of flights is under way, .* inputs or names of stages"):
        rename(app, {"carriers": "airlines"})
    assert not head(app, "carriers").called
    withdraw_request(app.store, app.name, asked)
    rename(app, {"carriers": "airlines"})


@pytest.mark.parametrize(
    ("old", "killed"),
    [
        *((old, False) for old in RENAMED),
        ("aircraft", True),
        # Who finishes what was killed does the same wherever the stage stands: "aircraft" shows it, too.
        pytest.param("legs", True, marks=pytest.mark.ci),
        pytest.param("carriers", True, marks=pytest.mark.ci),
    ],
)
@pytest.mark.parametrize("slips_in", ["migrations/", "stages/{old}/manifests/", "stages/{new}/manifests/"])
def test_a_snapshot_requested_during_a_rename_is_withdrawn_and_stages_continue(
    slips_in: str, old: str, *, killed: bool
) -> None:
    """The request arrives after the check for requests.

    Stages that have not migrated yet answer it before the migration's next commit.
    """
    app = aging_app()
    app.run(flights(20))
    lag(app)
    store, new = store_of(app), RENAMED[old]
    found = find_plan(store, program({old: new}), {}, stages={old: new})

    def slip_in() -> None:
        asked = request_snapshot(store, app.name, "tonight", "ada@host")
        app.send(*flights(3))
        for stage in ("legs", "aircraft"):
            if not head(app, stage).called:
                app.step(stage)
        assert try_complete(store, app.name, asked, app.kafka) is None, "a stage is missing, whatever its name is now"
        if killed:
            raise Killed

    store.once("put_if_absent", slips_in.format(old=old, new=new), slip_in)
    with suppress(Killed):
        migrate(store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    if killed and slips_in == "migrations/":
        assert [asked.name for asked in open_requests(store, app.name)] == ["tonight"], "nothing was decided"
        return
    finish_newest_migration(store, app.name, now_ms=app.clock.tick("legs"))
    assert head(app, new).formerly
    assert open_requests(store, app.name) == ()
    told = [done.detail for done in list_operations(store, app.name) if done.verb == "snapshot failed"]
    assert told == ["tonight: the app was migrated before the snapshot was complete; take the snapshot again"]
    go_on(app, {old: new})
    again = request_snapshot(store, app.name, "tonight", "ada@host")
    assert again.migration == 1
    app.send(*flights(3))
    for stage in RENAMED:
        step(app, new if stage == old else stage)
    assert try_complete(store, app.name, again, app.kafka) is not None
    finish_newest_migration(store, app.name, now_ms=app.clock.tick("legs"))
    sound(app, app.name, "flights@tonight")


def test_finishing_a_migration_again_leaves_a_later_snapshot_request_alone(app: FlightsApp) -> None:
    rename(app, {"aircraft": "planes"})
    asked = request_snapshot(app.store, app.name, "tonight", "ada@host")
    finish_newest_migration(app.store, app.name, now_ms=app.clock.tick("legs"))
    assert open_requests(app.store, app.name) == (asked,)


@pytest.mark.parametrize("stage", ["aircraft", "carriers"])
def test_two_processes_may_finish_the_same_migration_at_once(stage: str) -> None:
    """In one case a stage is renamed, in the other it is retired."""
    app = aging_app()
    app.run(flights(20))
    lag(app)
    declared = program({"aircraft": "planes"})
    stages = {name: one for name, one in declared.stages.items() if name != "carriers"}
    found = find_plan(app.store, Declared("flights", stages), {}, stages={"aircraft": "planes"})
    store = store_of(app)
    store.once(
        "put_if_absent",
        f"stages/{stage}/",
        lambda: finish_newest_migration(store, app.name, now_ms=app.clock.tick("legs")),
    )
    migrate(store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    assert head(app, "planes").formerly
    assert head(app, "carriers").retired
    sound(app)


def test_an_impossible_rename_is_refused_with_a_hint(app: FlightsApp) -> None:
    def refused(called: Mapping[str, str], of: Declared | None = None) -> str:
        with pytest.raises((Refused, NotFound)) as found:
            find_plan(app.store, of or program(called), {}, stages=called)
        return f"{found.value.message} {found.value.hint}"

    assert "the nearest: aircraft" in refused({"aircrafts": "planes"}, program({"aircraft": "planes"}))
    assert "named 'plane'" in refused({"aircraft": "plane"}, program({"aircraft": "planes"}))
    assert "has a stage of that name already" in refused({"aircraft": "carriers"}, program({}))
    both = program({"aircraft": "planes"})
    both.stages["aircraft"] = program({}).stages["aircraft"]  # type: ignore[index]
    assert "the program still declares a stage" in refused({"aircraft": "planes"}, both)
    told = find_plan(app.store, program({"carriers": "airlines"}), {}).changes
    assert [(each.kind, each.stage, each.may_be) for each in told if each.kind == "retired"] == [
        ("retired", "carriers", "airlines")
    ]


def test_a_stage_and_its_columns_can_be_renamed_together(app: FlightsApp, cache: SstCache) -> None:
    before = held(app, "carriers")
    rename(app, {"carriers": "airlines"}, (Column("late", "int64", default="-1"),))
    assert rows(app, cache, app.name, "airlines") == [(*row, -1) for row in before]
    assert rows(app, cache, app.name, "aircraft") == [(*row, -1) for row in held(app, "aircraft")]
    sound(app)


def test_gc_keeps_objects_under_the_old_name(cache: SstCache) -> None:
    app = aging_app()
    app.run(flights(30))
    before = held(app, "carriers")
    rename(app, {"carriers": "airlines"})
    wait(app)
    for stage in ("legs", "aircraft", "airlines"):
        app.claim(stage)
    wait(app)
    for _ in range(4):
        for stage in ("legs", "aircraft", "airlines"):
            app.step(stage)
    wait(app)
    assert gc(app, FEW).objects
    gc(app, FEW)
    assert rows(app, cache, app.name, "airlines") == before
    assert keys_of(store_of(app), "flights/stages/carriers/sst/")
    sound(app)


def drop_the_channel(app: FlightsApp) -> None:
    """Let the last stage read the topic directly from now on."""
    found = program({})
    found.stages["carriers"] = DeclaredStage("carriers", {"flights": ""}, {}, TABLES["carriers"])  # type: ignore[index]
    found.stages["aircraft"] = without_outputs(found.stages["aircraft"])  # type: ignore[index]
    planned = find_plan(app.store, found, {})
    starts = {"carriers": {"flights": app.heads["legs"].inputs["flights"]}}
    migrate(app.store, planned, starts, by="ada@host", now_ms=app.clock.tick("legs"))


def without_outputs(stage: DeclaredStage) -> DeclaredStage:
    return DeclaredStage(stage.name, stage.inputs, {}, stage.table)


def test_gc_continues_after_a_sender_was_renamed() -> None:
    app = aging_app()
    app.run(flights(30))
    lag(app)
    rename(app, {"legs": "hops"})
    now = ("hops", "aircraft", "carriers")
    for stage in now:
        app.claim(stage)
    for stage in now * 2:
        app.step(stage)
    wait(app)
    collected(app)


def test_gc_keeps_records_that_were_unread_when_the_reader_lost_the_channel() -> None:
    app = aging_app()
    app.run(flights(30))
    lag(app)
    app.step("aircraft")
    unread = head(app, "carriers").inputs["by-carrier"].version
    drop_the_channel(app)
    app.claim("carriers")
    for _ in range(4):
        claim(
            app.store,
            app.name,
            "aircraft",
            writer="w",
            by="test:1",
            now_ms=app.clock.tick("aircraft"),
            build=lambda draft: replace(draft, outputs={}),
        )
    wait(app)
    collected(app, legs=("aircraft",))
    assert history.first_version(app.store, app.name, "aircraft") <= unread + 1


def collected(app: FlightsApp, **held_up: tuple[str, ...]) -> None:
    done = gc(app, FEW)
    assert done.objects
    assert {each.stage: each.held_up_by for each in done.stages if each.held_up_by} == dict(held_up)
    assert last_collection(app.store, app.name)[1]
    sound(app)


def test_history_log_and_diff_show_the_former_name(app: FlightsApp, cache: SstCache) -> None:
    carrier = held(app, "carriers")[0][0]
    before = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    rename(app, {"carriers": "airlines"})
    (born,) = key_history(app.store, cache, app.name, "airlines", [carrier], now_ms=app.clock.now_ms).changes
    assert (born.inherited, born.formerly) == ("renamed", "carriers")
    told = {(each.stage, each.kind): each.renamed for each in log_entries(app.store, app.name, 20)}
    assert (told["airlines", "rename"], told["carriers", "retire"]) == ("carriers", "airlines")
    go_on(app, {"carriers": "airlines"})
    now = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    found = {each.table: each for each in diff(cache, StoredCut(app.store, before), StoredCut(app.store, now))}
    assert set(found) == {"aircraft", "airlines"}
    assert found["airlines"].formerly == "carriers"
    assert (found["airlines"].added, found["airlines"].removed) == (0, 0)
    assert found["airlines"].changed > 0


def test_the_new_name_finds_rows_at_earlier_moments(app: FlightsApp, cache: SstCache) -> None:
    def ask(ref: str, sql: str) -> list[tuple[object, ...]]:
        cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
        later, now_ms = later_stages(app.store, cut), app.clock.now_ms
        found = run_statement(app.store, cache, cut, sql, later=later, reader=app.kafka, now_ms=now_ms)
        return sorted(tuple(row.values()) for row in found.to_pylist())

    at_number = f"FROM {{}} AT 'v{head(app, 'carriers').version}' "
    each = "SELECT _version, sum(flights) FROM versions('{}', '-1h', '{}') GROUP BY ALL"
    flying = "SELECT _receiver, count(*) FROM inflight('by-carrier') GROUP BY ALL"
    before = held(app, "carriers")
    versions, on_their_way = ask(app.name, each.format("carriers", "now")), ask(app.name, flying)
    assert on_their_way
    done = rename(app, {"carriers": "airlines"})
    again = find_plan(app.store, program({"carriers": "lines"}), {}, stages={"airlines": "lines"})
    migrate(app.store, again, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    was, between = f"flights@{done.snapshot}", f"flights/airlines@v{head(app, 'airlines').version - 1}"
    for table in ("carriers", "airlines", "lines"):
        assert ask(was, f"FROM {table}") == before
        assert ask(app.name, f"FROM {table} AT '{was}'") == before
        assert ask(app.name, at_number.format(table)) == before
        assert ask(app.name, each.format(table, was)) == versions
        assert ask(was, f"{flying} UNION ALL SELECT '', count(*) FROM {table} WHERE false") == [("", 0), *on_their_way]
    assert ask(between, "FROM lines") == before
    go_on(app, {"carriers": "lines"})
    now = ask(app.name, each.format("lines", "now"))
    assert now[: len(versions)] == versions
    assert now[-1] == (head(app, "lines").version, sum(num for num, *_ in app.state["lines"].values()))
    since = ask(app.name, f"SELECT min(_version) FROM versions('lines', '{was}')")
    assert since == [(versions[-1][0],)]
    for sql in ("FROM carriers", "FROM versions('carriers')"):
        with pytest.raises(NotFound) as refused:
            ask(app.name, sql)
        assert "lines" in refused.value.hint


def test_get_and_export_know_both_names_at_earlier_moments(app: FlightsApp, cache: SstCache, tmp_path: Path) -> None:
    number, delay, _ = app.state["carriers"]["C1"]
    row = {"carrier": "C1", "flights": number, "delay": delay}
    done = rename(app, {"carriers": "airlines"})
    again = find_plan(app.store, program({"carriers": "lines"}), {}, stages={"airlines": "lines"})
    migrate(app.store, again, {}, by="ada@host", now_ms=app.clock.tick("legs"))
    version = head(app, "carriers").version - 1
    refs = [
        f"flights@{done.snapshot}",
        *(f"flights/{name}@{done.snapshot}" for name in ("carriers", "airlines", "lines")),
        *(f"flights/{name}@v{version}" for name in ("carriers", "airlines", "lines")),
    ]
    names = ("carriers", "airlines", "lines")
    for number, ref in enumerate(refs):
        cut = resolve(app.store, ref, now_ms=app.clock.now_ms)
        assert set(cut.stages) == set(RENAMED), "a moment has the names of then"
        for table in names:
            assert get(app.store, cut, table, ["C1"]).to_pylist() == [row]
        # Each name once or twice at each kind of moment: to write a file takes long.
        table = names[number % len(names)]
        written = export(app.store, cache, cut, ref, tmp_path / f"{number}.duckdb", only=[table])
        assert (dict(written.rows), dict(written.versions)) == ({table: 3}, {table: cut.versions["carriers"]})
        if not ref.startswith("flights/") or ref.endswith(f"lines@v{version}"):
            every = export(app.store, cache, cut, ref, tmp_path / "all", force=True)
            assert set(every.rows) == {"aircraft", "carriers"}
    # Number and name of the last version under each: by the newer name it is the one that this begins with.
    assert resolve(app.store, f"flights/lines@v{version + 1}", now_ms=0).stages["airlines"].kind == "rename"
    now = resolve(app.store, app.name, now_ms=app.clock.now_ms)
    with pytest.raises(NotFound) as refused:
        get(app.store, now, "carriers", ["C1"])
    assert "it was renamed to lines" in refused.value.hint
    for name, hint in (("lines", ""), ("aircraft", ""), ("carriers", "it was renamed to lines")):
        with pytest.raises(NotFound, match=f"no version of flights/{name}") as refused:
            resolve(app.store, f"flights/{name}@v999", now_ms=0)
        assert refused.value.hint.partition(":")[0] == hint


def test_bisect_and_lineage_work_across_a_rename(app: FlightsApp, cache: SstCache) -> None:
    wanted = 20
    bad = next(
        each.version
        for each in history.iter_after(app.store, app.name, "carriers", 1)
        if sum(num for num, *_ in rows_of(app.store, each).values()) > wanted
    )
    rename(app, {"carriers": "airlines", "legs": "hops"})
    go_on(app, {"carriers": "airlines", "legs": "hops"})
    found = bisect(
        app.store, cache, app.name, f"FROM (SELECT sum(flights) AS n FROM airlines) WHERE n > {wanted}", now_ms=1 << 42
    )
    assert (found.stage, found.bad_version) == ("carriers", bad)
    # Rows that were on their way came from records that were read under the old name.
    first = next(
        each
        for each in history.iter_after(app.store, app.name, "aircraft", 1)
        if each.inputs["by-aircraft"].upstream == "hops"
    )
    reads = next(
        each
        for each in history.iter_after(app.store, app.name, "aircraft", first.version)
        if each.inputs["by-aircraft"].rows
    )
    before = history.read(app.store, app.name, "aircraft", reads.version - 1)
    read = sum(window.end - window.start for window in trace(app.store, before, reads).sources)
    assert read == reads.inputs["by-aircraft"].rows


def test_a_repeated_rename_finds_nothing_to_do(app: FlightsApp) -> None:
    called = {"aircraft": "planes"}
    rename(app, called)
    again = find_plan(app.store, program(called), {}, stages=called)
    assert not again.changes
    minutes = program(called)
    for name, one in minutes.stages.items():
        if one.table is not None:
            values = (Column("flights", "int64"), Column("minutes", "int64"), Column("_squares", "int64"))
            minutes.stages[name] = DeclaredStage(name, one.inputs, one.outputs, replace(one.table, values=values))  # type: ignore[index]
    for renames in ({"delay": "minutes"}, {"planes.delay": "minutes", "carriers.delay": "minutes"}):
        found = find_plan(app.store, minutes, renames, stages=called)
        if found.changes:
            migrate(app.store, found, {}, by="ada@host", now_ms=app.clock.tick("legs"))
        assert not find_plan(app.store, minutes, renames, stages=called).changes
    with pytest.raises(NotFound, match="dely"):
        find_plan(app.store, minutes, {"dely": "mins"})


def test_a_runner_of_the_new_names_continues_with_in_flight_rows(app: FlightsApp) -> None:
    was = {each.receiver: each for each in in_flight(app.store, resolve(app.store, app.name, now_ms=app.clock.now_ms))}
    assert {name for name, each in was.items() if each.rows} == {"aircraft", "carriers"}
    rename(app, RENAMED)
    for old, channel, sender in (("aircraft", "by-aircraft", "hops"), ("carriers", "by-carrier", "planes")):
        found = head(app, RENAMED[old])
        known = found.inputs[channel]
        ends = app.kafka.ends(known.topic)
        assert ends is not None
        finder = StartFinder(
            app.store, app.name, found.stage, found, lambda _, ends=ends: TopicState((0,) * len(ends), ends), False
        )
        assert finder.start_on_channel(channel, known.topic, sender).input == known
        planner = ChannelPlanner(app.store, app.name, sender, channel, Pace(0), None)
        start = Position(channel, known.offsets, known.version, known.rows_passed)
        end = planner.plan_end(start)
        assert (end.offsets, end.version) == (was[old].ends, head(app, sender).version)
        assert planner.counted_attempts(start.version, end.version) == set(was[old].attempts)
        assert sum(end.consumed) - sum(start.consumed) == was[old].rows


def test_a_rename_requires_published_sinks_and_restarts_them(app: FlightsApp) -> None:
    last = head(app, "carriers")
    draft = commit.successor(last, kind="batch", epoch=last.epoch, writer=last.writer, by="test", now_ms=last.time_ms)
    last = app.commit(replace(draft, sinks={"alerts": Sink("internal", 1, since=draft.version, rows=2, sent=2)}))
    called = {"carriers": "airlines"}
    with pytest.raises(
        Refused, match="the sink 'alerts' of stage flights/carriers is not fully published: 2 rows remain"
    ):
        find_plan(app.store, program(called), {}, stages=called)
    published.write_position(app.store, last, "alerts", PublishedPosition(last.version, 1, 2), None)
    rename(app, called)
    assert head(app, "airlines").sinks == {}
