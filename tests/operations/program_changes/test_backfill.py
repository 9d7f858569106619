"""A backfill is there as a whole or not at all, and every verb knows that rows are others since."""

from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
import slackwater as sw
from msgspec.structs import replace
from slackwater.errors import Refused
from slackwater.operations.maintenance.removal import discard
from slackwater.operations.program_changes.backfill import Filled, reach
from slackwater.operations.program_changes.backfill_swap import is_needed, sweep
from slackwater.operations.program_changes.backfill_targets import BackfillTarget, Left, backfillable, nothing
from slackwater.pipeline.kafka.open import open_kafka
from slackwater.snapshot.bisect.flips import scan
from slackwater.snapshot.bisect.predicate import Where
from slackwater.snapshot.cut.resolve import resolve
from slackwater.snapshot.diff.key_history import key_history
from slackwater.snapshot.diff.moments import StoredCut, diff
from slackwater.snapshot.query.sql import connect, run_query
from slackwater.snapshot.under_way.runners import RUNNERS, Beat
from slackwater.snapshot.verify.verify import verify
from slackwater.state.fits import Declared, DeclaredStage
from slackwater.state.kinds.kind import Kind
from slackwater.state.kinds.update import Update
from slackwater.state.topics import TopicState
from slackwater.store.versions import apps, history
from slackwater.store.versions.manifest import Ttl
from ulid import ULID

from tests.models.profiles import SEARCHES
from tests.operations.program_changes.past import AGGREGATES, NAMES, UPSERTS, App, Mortal, records, table_of
from tests.support.collecting import Killed, keys_of


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(tmp_path, records(100, 7), *AGGREGATES)
    app.batch(20)
    app.batch(15)
    return app


def test_a_batch_that_was_under_way_gets_the_values_too(app: App) -> None:
    target = app.migrate()
    backfill = app.compute(target, [])
    app.batch(10)
    late = app.begin(12)
    app.swap(backfill)
    swapped = app.head
    assert swapped.kind == "backfill"
    assert app.rows() == app.expected(45)
    app.committer.submit(late)
    assert (app.head.version, app.head.row_seq) == (swapped.version + 1, swapped.version)
    assert app.rows() == app.expected(57)
    app.batch(3)
    assert app.rows() == app.expected(60)


# At each of the requests where somebody searches; else at some, between both programs at two thirds of them.
@pytest.mark.parametrize(("programs", "step"), [(AGGREGATES, 1 if SEARCHES else 3), (UPSERTS, 1 if SEARCHES else 2)])
def test_killed_at_any_request_the_table_is_as_before_or_as_after_and_the_same_goes_on(
    tmp_path: Path, programs: tuple[Kind, Kind], step: int
) -> None:
    """From the first request of computing it to the last of removing what computed it; at every `step`th of them."""

    def whole(app: App, target: BackfillTarget) -> None:
        if not app.head.backfills:
            app.swap(app.compute(target, [9, 4]))
        assert tuple(sweep(app.store, app.head, 1)) == ()

    killed = [0]
    for requests in count(step=step):
        app = App(tmp_path / str(requests), records(60, 3), *programs)
        app.batch(20)
        target = app.migrate()
        app.batch(10)
        before, expected = app.rows(), app.expected(30)
        ended = app.survives(requests, partial(whole, app, target))
        assert app.rows() == (expected if app.head.backfills else before)
        if ended:
            break
        killed.append(len(app.head.backfills))
        whole(app, target)
        assert app.rows() == expected
        assert len(app.head.backfills) == 1
        assert [info.key for info in app.store.list("") if not info.key.startswith("app/")] == []
    assert killed.count(0) * step > 10
    assert killed.count(1) * step > 5, "also after the commit"


def test_what_computed_it_goes_when_no_batch_may_need_it_and_whoever_is_killed(app: App) -> None:
    backfill = app.compute(app.migrate(), [])
    runner = Beat(str(ULID()), "host:1", {"stage": app.head.epoch})
    RUNNERS.put(app.store, runner, "app")
    late = app.begin(5)
    app.swap(backfill)
    (done,) = app.head.backfills
    now_ms = app.store.clock_ms
    assert tuple(sweep(app.store, app.head, now_ms)) == (backfill.app,)
    app.committer.submit(late)
    assert is_needed(app.store, app.head, done, now_ms), "more such batches may be waiting"
    app.batch(5)
    assert not is_needed(app.store, app.head, done, now_ms)
    every, requests = keys_of(app.store, f"{backfill.app}/"), 0
    while True:
        with suppress(Killed):
            discard(Mortal(app.store, requests), backfill.app)
            break
        # Listed while all of it is there, and not from then on.
        assert backfill.app not in apps.list_apps(app.store) or every <= keys_of(app.store, f"{backfill.app}/")
        requests += 1
    assert not list(app.store.list(f"{backfill.app}/"))
    app.batch(5)
    assert app.rows() == app.expected(50)


def test_a_batch_whose_values_are_gone_is_not_committed(app: App) -> None:
    backfill = app.compute(app.migrate(), [])
    late = app.begin(5)
    app.swap(backfill)
    discard(app.store, backfill.app)
    with pytest.raises(Refused, match=r"what was computed for stage in .* is gone"):
        app.committer.submit(late)
    assert app.rows() == app.expected(35)


def test_diff_history_bisect_and_verify_know_of_it(app: App) -> None:
    backfill = app.compute(app.migrate(), [])
    app.batch(10)
    before = app.head
    app.swap(backfill)
    app.batch(5)
    app.compact()
    then, now = (resolve(app.store, f"app/stage@v{v}", now_ms=2) for v in (before.version, before.version + 1))
    (found,) = diff(app.cache, StoredCut(app.store, then), StoredCut(app.store, now))
    rows = app.rows(history.read(app.store, *NAMES, before.version + 1))
    changed = {key for key, row in app.rows(before).items() if row != rows[key]}
    assert found.changed == len(changed) > 0
    key = min(changed)
    told = key_history(app.store, app.cache, "app", "stage", [key], now_ms=2).changes
    (filled,) = [each for each in told if each.version == before.version + 1]
    assert (filled.kind, filled.windows) == ("changed", ())
    assert filled.after is not None
    assert filled.before is not None
    assert filled.after["amounts"] == rows[key]["amounts"] != filled.before["amounts"]
    assert {name for name in filled.after if filled.after[name] != filled.before[name]} <= {
        *("amounts", "sum", "low", "high", "average", "opened", "touched")
    }
    assert verify(app.store, "app", now_ms=2, deep=True).differences == ()
    # The first version at which no key lacks a value.
    flips = scan(
        app.store, app.cache, "app", Where("SELECT * FROM stage WHERE touched IS NULL"), good="app/stage@v3", now_ms=2
    )
    assert flips.flips[-1].version == before.version + 1
    assert flips.flips[-1].keys == 0
    with closing(connect(app.store, app.cache, resolve(app.store, "app", now_ms=2))) as con:
        assert run_query(con, "SELECT sum(amounts) FROM stage").to_pylist() == [
            {"sum(amounts)": sum(int(str(row["amounts"])) for row in app.expected(50).values())}
        ]


def test_what_cannot_be_computed_says_why(app: App) -> None:
    app.migrate()
    head = app.head
    assert head.table is not None
    declared = Declared("app", {"stage": DeclaredStage("stage", {"t": ""}, {}, head.table)})

    def why(**changes: object) -> str:
        table = replace(head.table, **changes)  # type: ignore[type-var]
        found = backfillable(app.store, {"stage": replace(head, table=table)}, declared)
        refused = nothing(found.left, "app")
        assert refused is not None
        assert "another name" in refused.hint or "new name" in refused.hint, "the way out"
        return refused.message

    assert "its state is join" in why(state=sw.join("a", "b", within="1 hour").stored)
    assert "its rows expire" in why(ttl=Ttl(1_000))
    values = tuple(replace(each, default="3") if each.name == "high" else each for each in head.table.values)
    assert "rows from before the migration have 3 in high" in why(values=values)
    later = resolve(app.store, "app", now_ms=2)
    app.batch(5)
    assert backfillable(app.store, {"stage": app.head}, declared, since=later).left == ()
    after = resolve(app.store, "app", now_ms=2)
    (left,) = backfillable(app.store, {"stage": app.head}, declared, since=after).left
    assert "is later than the migration" in left.why
    assert "name an earlier moment" in left.hint


@pytest.mark.parametrize("state", [Update(), Update("high"), Update("high", "clock")])
def test_what_only_a_function_of_the_program_could_tell_is_refused(app: App, state: Update) -> None:
    app.migrate()
    head = app.head
    assert head.table is not None
    values = tuple(each for each in head.table.values if not each.since or each.name in ("amounts", "high"))
    head = replace(head, table=replace(head.table, state=state.stored, values=values))
    declared = Declared("app", {"stage": DeclaredStage("stage", {"t": ""}, {}, head.table)})
    found = backfillable(app.store, {"stage": head}, declared)
    assert found.targets == ()
    refused = nothing(found.left, "app")
    assert refused is not None
    assert refused.message == (
        "nothing of app can be computed over the past: stage (amounts, high): only a function of the program could "
        "tell the values of the past"
    )
    assert "migrate without --backfill" in refused.hint
    assert "defaults=" in refused.hint
    assert "under a new app name, which reads its topics from the start" in refused.hint


def test_values_are_complete_from_where_kafka_begins(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    target = app.migrate()

    def has(earliest: int) -> Filled | Left:
        kafka = open_kafka("memory://has")
        monkeypatch.setattr(kafka, "state", lambda _topic: TopicState((earliest,), (60,), ""))
        monkeypatch.setattr(kafka, "read", lambda *_asked, **_how: iter(()))
        return reach(kafka, app.store, target, {}, patience_s=1)

    every, some, none = has(0), has(20), has(35)
    assert isinstance(every, Filled)
    assert (every.whole, every.starts, every.records) == (True, {"t": (0,)}, 35)
    assert isinstance(some, Filled)
    assert (some.whole, some.starts, some.records) == (False, {"t": (20,)}, 15)
    assert isinstance(none, Left)
    assert "of what it had read before v4 Kafka has nothing any more" in none.why
    assert "slackwater init" in none.hint


def test_from_a_moment_on_only_later_records_count(app: App) -> None:
    """Beside a stage that itself began somewhere: then nothing is missing."""
    target = app.migrate()
    assert (target.starts, target.ends, target.begins, target.records) == ({"t": (0,)}, {"t": (35,)}, True, 35)
    declared = Declared("app", {"stage": DeclaredStage("stage", {"t": ""}, {}, table_of(app.state))})
    moment = resolve(app.store, "app/stage@v2", now_ms=2)
    (later,) = backfillable(app.store, {"stage": app.head}, declared, since=moment).targets
    assert (later.starts, later.begins, later.records) == ({"t": (20,)}, False, 15)


def test_a_long_name_still_names_the_app_that_computes(app: App) -> None:
    target = app.migrate()
    assert target.scratch == "app-backfill-stage-v4"
    long = type(target)("a" * 63, "s" * 63, 4, (), (), {}, {}, begins=True)
    assert len(long.scratch) == 63
    assert long.scratch != type(target)("a" * 63, "s" * 63, 5, (), (), {}, {}, begins=True).scratch


def test_sums_without_room_are_refused_and_nothing_is_committed(tmp_path: Path) -> None:
    """What does not fit is an error, as it is in a batch."""
    most = (1 << 63) - 1
    rows = records(2, 1).set_column(2, "amount", pa.array([most, most], pa.int64()))
    rows = rows.set_column(0, "k", pa.array([1, 1], pa.int64()))
    app = App(tmp_path, rows, sw.aggregate(n=sw.count()), sw.aggregate(n=sw.count(), sum=sw.sum("amount")))
    app.batch(1)
    backfill = app.compute(app.migrate(), [])
    app.batch(1)
    head = app.head
    with pytest.raises(Refused, match="sum of stage cannot be computed over the past: sum of key k=1 would be 1844"):
        app.swap(backfill)
    assert app.head == head
